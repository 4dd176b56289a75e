"""Models of Slipway served unchanged: vLLM's text equals the text of Slipway's decoder. Real engines on the CPU, at
night.
"""

import json
import random
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest

from data.chat import conversations
from data.config import Input
from data.tokens import tokenizer
from data.tokens.pieces import decode_stream
from serve.engine import memory_fit
from serve.engine.options import Tuning
from tests.serve import real
from tests.serve.real import NEAR, Running, greedy
from tests.serve.scripted_engine import CHAT, GUARD_S
from tests.trainer import conftest as trained
from tests.trainer.model.test_init import foreign
from tests.trainer.model.test_own_chat import qwen_like
from trainer.model import export
from trainer.model.decoder import Decoder

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1200)]
one_thread, inputs, world = trained.one_thread, trained.inputs, trained.world

TOKENS = {"auto": 8, "float32": 48}
TALKS = (
    [{"role": "user", "content": "Who are you?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What does join do?"}],
    [
        {"role": "user", "content": "Hello!"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "reads the paths — 日本"},
    ],
)


@dataclass
class Served:
    folder: Path
    engine: Running
    dtype: str
    near: float

    @property
    def model(self) -> Decoder:
        return export.read(self.folder).eval()

    @property
    def words(self) -> tokenizer.Tokenizer:
        return tokenizer.load(self.folder)

    def agrees(self, prompt: list[int], said: list[int]) -> bool:
        """Return whether the answer equals the decoder's, for a prompt with a clear margin; fail on a difference."""
        ours, least = greedy(self.model, prompt, len(said))
        if least < self.near:
            return False
        assert said == ours, (prompt, least)
        return True


@pytest.fixture(scope="module")
def python() -> Path:
    return real.python()


@pytest.fixture(scope="module", params=["auto", "float32"])
def pair(request, python, inputs, tmp_path_factory) -> Iterator[dict[str, Served]]:
    """Yield a Llama and a Qwen3, served by an engine each."""
    folder, words = tmp_path_factory.mktemp("pair"), Path(inputs[0]) / "tokenizer"
    kinds = ("llama", "qwen3")
    models = [real.write_model(folder / kind, real.random_model(kind, seed=3), words) for kind in kinds]
    tuning = Tuning(dtype=request.param, max_queued=4, max_seqs=2)
    with real.engines(python, folder, *((model, tuning) for model in models)) as engines:
        yield {
            kind: Served(model, one, request.param, NEAR[kind, request.param])
            for kind, model, one in zip(kinds, models, engines, strict=True)
        }


@pytest.fixture(params=["llama", "qwen3"])
def served(request, pair) -> Served:
    return pair[request.param]


def test_vllm_gives_the_text_of_our_decoder(served):
    draw, count = random.Random(5), TOKENS[served.dtype]
    agreed = 0
    for _ in range(64):
        prompt = [draw.randrange(300) for _ in range(draw.randrange(3, 60))]
        answer = served.engine.ask(
            "/v1/completions", prompt=prompt, max_tokens=count, ignore_eos=True, return_token_ids=True
        )
        agreed += served.agrees(prompt, answer["choices"][0]["token_ids"])
    assert agreed >= 8  # Prompts with a clear margin.


def test_chat_is_rendered_like_in_training(served):
    for talk in TALKS:
        answer = served.engine.ask(CHAT, messages=talk, max_tokens=TOKENS[served.dtype], return_token_ids=True)
        assert answer["prompt_token_ids"] == conversations.prompt(talk, served.words)


def test_text_equals_our_decoder(served):
    answer = served.engine.ask(CHAT, messages=TALKS[0], max_tokens=16, return_token_ids=True)["choices"][0]
    special = {served.words.special(name) for name in tokenizer.SPECIALS}  # Neither writes the stop token.
    ids = [one for one in answer["token_ids"] if one not in special]
    assert answer["message"]["content"].rstrip("\ufffd") == "".join(decode_stream(ids, served.words.decode))


def test_stream_is_the_answer_in_pieces(served):
    ask = {"model": "demo", "messages": TALKS[0], "max_tokens": 16, "temperature": 0, "stream": True}
    whole = served.engine.ask(CHAT, messages=TALKS[0], max_tokens=16)["choices"][0]["message"]["content"]
    request = urllib.request.Request(
        served.engine.url + CHAT, json.dumps(ask).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=GUARD_S) as reply:
        lines = [line[6:] for line in reply.read().decode().splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    assert "".join(json.loads(line)["choices"][0]["delta"].get("content", "") for line in lines[:-1]) == whole


def test_head_sizes_of_vllm_on_a_cpu_are_the_known_ones(python):
    ask = "from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend as one"
    ask += "; print(one.get_supported_head_sizes())"
    done = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    assert tuple(json.loads(done.stdout.splitlines()[-1])) == memory_fit.CPU_HEADS


def test_client_errors_have_the_format_known_to_the_gateway(served):
    engine = served.engine
    unknown = engine.hear(CHAT, model="other", messages=TALKS[0])
    assert (unknown["status"], unknown["error"]["type"]) == (404, "NotFoundError")
    long = engine.hear("/v1/completions", prompt="x", max_tokens=10_000)
    assert long["status"] == 400 and "max_tokens" in json.dumps(long)
    with urllib.request.urlopen(f"{engine.url}/v1/models", timeout=GUARD_S) as reply:
        (one,) = json.load(reply)["data"]
    assert (one["id"], one["max_model_len"]) == ("demo", 256)


@pytest.mark.parametrize("kind", ["Qwen2", "Qwen3"])
def test_model_trained_from_a_random_one_answers_in_transformers_and_in_vllm(
    world, monkeypatch, python, tmp_path, kind
):
    """Run `inv train --init FOLDER --phase sft`, step by step, long enough to memorise one answer.

    The Qwen2 has biases, and a separate tokenizer and chat template.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from flows.models import init_model
    from infra.settings import Settings
    from tests.trainer.model.test_init import configured
    from trainer import recipes
    from trainer.__main__ import main
    from trainer.config import CheckpointOptions
    from trainer.profiles import derived_phases

    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = foreign(kind, tmp_path / "theirs", vocab=320, head_dim=32)
    if kind == "Qwen2":
        qwen_like(folder)
    spec = init_model.resolve_import(str(folder), Settings.load(real.ROOT))
    making = replace(world.making("imported"), name="imported/theirs")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0
    entry = Input(name="imported/theirs", fingerprint="f" * 64)
    sft = derived_phases.imported_chat_phase(recipes.tiny().phases["sft"], spec.model).with_steps(200)
    sft = replace(sft, optimizer=replace(sft.optimizer, lr=0.01))
    making = replace(world.making("sft", init=entry), name="chatsft_checkpoints/theirs")
    making = replace(making, inputs={**making.inputs, "tokenizer": entry})
    keeping = {"keeping": asdict(CheckpointOptions(reserve_bytes=0))}
    assert main(["sft", "--config", str(configured(world, "sft", making, sft, **keeping))]) == 0
    made = world.store / "chatsft_checkpoints/theirs"

    theirs = AutoModelForCausalLM.from_pretrained(made / "hf", dtype=torch.float32)
    words = AutoTokenizer.from_pretrained(made / "hf")
    ids = words.apply_chat_template(TALKS[0], add_generation_prompt=True, return_tensors="pt", return_dict=True)
    told = theirs.generate(**ids, max_new_tokens=24, do_sample=False)[0, ids["input_ids"].shape[1] :]
    with real.engines(python, tmp_path, (made, Tuning())) as (engine,):
        answer = engine.ask(CHAT, messages=TALKS[0], max_tokens=24)["choices"][0]
        assert answer["finish_reason"] == "stop"
        assert answer["message"]["content"] == words.decode(told, skip_special_tokens=True) == "I am Bosun."
        engine.process.send_signal(signal.SIGTERM)
        assert engine.process.wait(GUARD_S * 4) == 0
