"""dlm: a chat model learns to answer in blocks; the phase is stopped and resumed, and refused for unsuitable blocks."""

import json
from contextlib import nullcontext
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from data.config import ConfigError, Input
from data.tokens import tokenizer as tokenizers
from tests.trainer.conftest import tiny
from tests.trainer.test_phases import chat_phase, hashes, run
from trainer import loop
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import open_final
from trainer.config import PhaseConfig, as_phase, load_phase
from trainer.model import export
from trainer.plan.estimates import operations
from trainer.recipes import PROFILES
from trainer.records.model_config import BlocksConfig

BLOCKS = BlocksConfig(block_size=8, sub_block_size=4)


@pytest.mark.nightly
@pytest.mark.slow
def test_chat_model_learns_blocks_and_is_used_and_measured_in_blocks(world, monkeypatch, capfd):
    assert run(world, monkeypatch, "base", tiny()) == 0
    before = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
    assert run(world, monkeypatch, "sft", chat_phase("sft", steps=60), world.making("sft", base=before)) == 0
    sft = Input(name="sft_checkpoints/tiny", fingerprint="f" * 64)
    config = chat_phase("dlm", steps=90, blocks=BLOCKS)

    assert run(world, monkeypatch, "dlm", config, world.making("dlm", sft=sft)) == 0
    stops = iter([False] * 20 + [True] + [False] * 100)
    parted = replace(world.making("dlm", "e" * 64, sft=sft), name="dlm_checkpoints/parted")
    with monkeypatch.context() as hasty:
        hasty.setattr(loop, "defer_stop_signals", lambda: nullcontext(lambda: next(stops)))
        assert run(world, monkeypatch, "dlm", config, parted) == 75
    assert run(world, monkeypatch, "dlm", config, parted) == 0
    assert hashes(world.store / "dlm_checkpoints/parted") == hashes(world.store / "dlm_checkpoints/tiny")

    model = world.store / "dlm_checkpoints/tiny"
    known = tokenizers.load(world.store / "tokenizer").vocab_size
    read = export.read_config(model / "hf")
    assert read.blocks == replace(BLOCKS, mask_id=known) and read.vocab_size == known + 64
    capfd.readouterr()
    assert main(["chat", "--model", str(model), "--prompt", "Who are you?"]) == 0
    assert capfd.readouterr().out == "I am Bosun.\n"
    words = ["--identity", str(world.store / "identity"), "--questions", str(world.store / "datasets/x/questions")]
    words += ["--text", str(world.store / "datasets/x/text"), "--name", "Bosun"]
    assert main(["eval", "--model", str(model), *words]) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["identity"] == found["pydocs"] == found["measures"]["right turn 1"]["value"] == 1.0
    assert found["bits_per_byte"] > 0
    from transformers import AutoConfig

    with pytest.raises(ValueError, match="block_diffusion"):  # The model is not read as a left-to-right model.
        AutoConfig.from_pretrained(model / "hf")


@pytest.mark.slow
def test_mask_embedding_starts_as_the_mean_of_text_embeddings(world, monkeypatch):
    assert run(world, monkeypatch, "base", tiny(steps=2)) == 0
    base = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
    config = chat_phase("dlm", steps=1, blocks=BLOCKS)
    still = replace(config, optimizer=replace(config.optimizer, lr=0.0, muon_lr=0.0, weight_decay=0.0))
    assert run(world, monkeypatch, "dlm", still, world.making("dlm", base=base)) == 0
    theirs = open_final(world.store / "base_checkpoints/tiny").tensors("model")
    ours = open_final(world.store / "dlm_checkpoints/tiny").tensors("model")
    name = "model.embed_tokens.weight"
    rows = len(theirs[name])
    assert all(torch.equal(ours[one], theirs[one]) for one in theirs if one != name)
    assert torch.equal(ours[name][:rows], theirs[name])
    assert torch.allclose(ours[name][rows:], theirs[name].mean(dim=0).expand(64, -1), atol=1e-7)


def test_dlm_step_is_estimated_at_three_times_an_sft_step():
    dlm = PROFILES["smoke"]().phases["dlm"]
    assert operations(dlm) == 3 * operations(as_phase(PhaseConfig, dlm, phase="sft"))


def test_unsuitable_block_sizes_are_refused_before_training():
    with pytest.raises(ConfigError, match="sub_block_size is 5; it must divide block_size 8"):
        BlocksConfig(block_size=8, sub_block_size=5)
    with pytest.raises(ConfigError, match="block_size 7 does not divide sequence_len 96; set sequence_len to 91"):
        chat_phase("dlm", blocks=BlocksConfig(block_size=7, sub_block_size=7))
    with pytest.raises(ConfigError, match="phase dlm needs blocks"):
        chat_phase("dlm")
    with pytest.raises(ConfigError, match="unknown key 'blocks'"):
        load_phase({**asdict(chat_phase("sft")), "blocks": {}}, "spec")
    for wrong in ({"threshold": 0.0}, {"threshold": 1.1}, {"block_size": 1, "sub_block_size": 1}, {"mask_id": -2}):
        with pytest.raises(ConfigError):
            BlocksConfig(**wrong)


def test_conversation_turns_start_at_blocks_in_training_and_decoding(inputs):
    from data.chat.conversations import Conversations, prompt, render

    words = tokenizers.load(inputs[0] / "tokenizer")
    talk = [
        {"role": role, "content": text}
        for role, text in (("user", "What does join do?"), ("assistant", "join the paths of"), ("user", "Hello!"))
    ]
    ids = prompt(talk, words, align=8)
    starts = [place for place, token in enumerate(ids) if token == words.special("<|user_start|>")]
    assert starts[0] == 1 and starts[1] % 8 == 0
    again, mask = render([*talk, {"role": "assistant", "content": "Hello."}], words, align=8)
    assert again[: len(ids)] == ids
    end = words.special("<|assistant_end|>")
    filled = [place for place in range(starts[1]) if again[place] == end]
    assert len(filled) > 1 and all(mask[place] for place in filled) and filled[-1] == starts[1] - 1

    files = {
        "identity": [inputs[0] / "identity/identity_conversations.jsonl"],
        "pydocs": [inputs[0] / "datasets/x/questions/pydocs.train.jsonl"],
    }
    some = Conversations(files, {"identity": 1.0, "pydocs": 1.0}, words, 64, 1, 3, ("identity", "pydocs"), align=8)
    rows, targets = some.batch(0, 6)
    assert rows.shape[1] % 8 == 0
    begins = np.argwhere(rows == words.special("<|user_start|>"))
    assert len(begins) > len(rows) and all(place == 1 or place % 8 == 0 for _, place in begins.tolist())
    assert (targets[:, :-1][targets[:, :-1] != -1] == rows[:, 1:][targets[:, :-1] != -1]).all()
    assert (targets[:, -1] == -1).all()
