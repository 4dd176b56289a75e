"""vLLM as the generator of answers: the real vLLM, in a separate environment and process. At night."""

import os
import signal
import threading
import time
from dataclasses import replace

import pytest
import torch

from tests.trainer import conftest as trained
from trainer.model.decoder import Decoder, initialize
from trainer.model.token_losses import token_logprobs
from trainer.recipes import tiny
from trainer.rollouts.policy import Embedded
from trainer.rollouts.problem_sampler import uniform
from trainer.rollouts.sampling import Sampling
from trainer.rollouts.vllm_engine import EngineSettings, Vllm

pytestmark = [pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(1800)]
one_thread, inputs = trained.one_thread, trained.inputs

PROMPTS = [[3, 1, 4, 1, 5], [9, 2, 6], [5, 3, 5, 8, 9, 7]]
GREEDY, DRAWN = Sampling(max_new=8, temperature=0.0), Sampling(max_new=24, temperature=1.0)


def model_of(vocab: int, seed: int) -> Decoder:
    """Return a model with head sizes supported by vLLM; the next id is neither certain nor decided by rounding."""
    model = Decoder(replace(tiny().phases["rl"].model, vocab_size=vocab))
    initialize(model, seed)
    generator = torch.Generator().manual_seed(seed)
    for one in model.parameters():
        one.data += 0.2 * torch.randn(one.shape, generator=generator)
    return model


def test_engine_answers_like_the_trainer_with_the_newest_weights_after_a_kill_or_a_hang(inputs, tmp_path):
    words = inputs[0] / "tokenizer"
    first, second = (model_of(trained.TINY.vocab_size, seed) for seed in (1, 2))
    # Two engines share the prompts.
    opening = EngineSettings(tmp_path / "engine", words, 64, 16, 1.0, devices=("", ""))
    engine = Vllm([0], opening, tmp_path / "vllm.log")
    embedded = Embedded([0], 16)

    def pid(number: int) -> int:
        process = engine.processes[number].worker.process
        assert process is not None
        return process.pid

    try:
        for model in (first, second):
            engine.load_weights(model)
            embedded.load_weights(model)
            numbers = uniform(len(PROMPTS) * 4, DRAWN.max_new, 1)
            ours, theirs = (one.generate(PROMPTS, 1, GREEDY, numbers[:3]) for one in (embedded, engine))
            assert torch.equal(ours.ids, theirs.ids) and (ours.logprobs - theirs.logprobs).abs().max() < 1e-4
            few = trained.TINY.vocab_size // 2  # As if the tokenizer had half of the ids.
            ours_few, theirs_few = (
                one.generate(PROMPTS, 1, replace(GREEDY, num_ids=few), numbers[:3]) for one in (embedded, engine)
            )
            assert torch.equal(ours_few.ids, theirs_few.ids) and int(ours.ids.max()) >= few > int(ours_few.ids.max())
            assert int(engine.generate(PROMPTS, 4, replace(DRAWN, num_ids=few), numbers).ids.max()) < few
            found = engine.generate(PROMPTS, 4, DRAWN, numbers)
            assert len({tuple(found.answer_ids(row)) for row in range(12)}) > 6  # Answers to a prompt differ.
            for row in range(12):
                prompt, ids = PROMPTS[row // 4], found.answer_ids(row)
                hidden = model.hidden(torch.tensor([[*prompt, *ids[:-1]]]))[0, len(prompt) - 1 :]
                right = token_logprobs(hidden, model.head, torch.tensor(ids), model.shape)
                assert (right - found.logprobs[row, : len(ids)]).abs().max() < 1e-4
                assert bool(found.ended[row]) == (ids[-1] == 0)

        before = [pid(0), pid(1)]

        def strike() -> None:
            time.sleep(0.3)
            os.killpg(before[0], signal.SIGKILL)
            os.killpg(before[1], signal.SIGSTOP)

        engine.processes[1].worker.timeout_s = 60.0  # The process answers no more, and has not ended.
        striker = threading.Thread(target=strike)
        striker.start()
        long = Sampling(max_new=40, temperature=1.0)
        while striker.is_alive():
            engine.generate(PROMPTS, 4, long, uniform(12, 40, 2))
        with torch.no_grad():  # The model continues meanwhile, and the new processes have their last weights.
            for weights in second.parameters():
                weights += 1.0
        found = engine.generate(PROMPTS, 1, GREEDY, uniform(3, 8, 3))
        assert torch.equal(found.ids, ours.ids)
        assert pid(0) != before[0] and pid(1) != before[1]
        os.killpg(pid(0), signal.SIGKILL)  # Between two rounds.
        engine.load_weights(second)
        embedded.load_weights(second)
        ours, theirs = (one.generate(PROMPTS, 1, GREEDY, uniform(3, 8, 3)) for one in (embedded, engine))
        assert torch.equal(ours.ids, theirs.ids) and not torch.equal(ours.ids, found.ids)
    finally:
        engine.close()
    assert all(one.worker.process is None for one in engine.processes) and not (tmp_path / "engine").exists()


def test_workers_of_one_model_all_take_new_weights(inputs, tmp_path):
    """Tensor parallelism on CPUs: as on GPUs, each worker has a part of every matrix."""
    opening = EngineSettings(tmp_path / "engine", inputs[0] / "tokenizer", 64, 16, 1.0)
    engine, embedded = Vllm([0], opening, tmp_path / "vllm.log"), Embedded([0], 16)
    engine.processes[0].tensor_parallel = 2
    try:
        for seed in (1, 2):
            model = model_of(trained.TINY.vocab_size, seed)
            engine.load_weights(model)
            embedded.load_weights(model)
            numbers = uniform(len(PROMPTS), GREEDY.max_new, 1)
            ours, theirs = (one.generate(PROMPTS, 1, GREEDY, numbers) for one in (embedded, engine))
            assert torch.equal(ours.ids, theirs.ids) and (ours.logprobs - theirs.logprobs).abs().max() < 1e-4
    finally:
        engine.close()
