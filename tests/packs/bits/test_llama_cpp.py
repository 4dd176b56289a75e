"""GGUF files of ternary models in llama.cpp, compared with Slipway's decoder."""

import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch

from data.chat.conversations import prompt
from data.tokens import tokenizer as tokenizers
from infra.agent.environments import cache_folder, environment
from tests.trainer.model.test_model import random_model
from tests.world import ROOT
from trainer.model import export, generate
from trainer.records.model_config import ModelConfig, Ternary

pytestmark = pytest.mark.nightly

BITNET = ModelConfig(
    vocab_size=320,
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=256,
    sub_norm=True,
    ternary=Ternary(),
)
LLAMA = replace(BITNET, sub_norm=False, tie_word_embeddings=False, ternary=Ternary(per_row=True))
QWEN3 = replace(BITNET, sub_norm=False, qk_norm=True, rope_theta=1e6)
IDS = torch.randint(0, 300, (1, 48), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def python() -> Path:
    return environment.ensure("llama-cpp", ROOT, cache_folder.default_cache(), "", print)


def say(python: Path, *words: object) -> str:
    done = subprocess.run(
        [str(python), *map(str, words)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("config", [BITNET, LLAMA, QWEN3], ids=["bitnet", "llama", "qwen3"])
def test_llama_cpp_gives_the_next_token_probabilities_of_our_decoder(config, python, inputs, tmp_path):
    model = random_model(config).eval()
    export.write(tmp_path / "hf", config, model.state_dict(), inputs[0] / "tokenizer")
    with torch.no_grad():
        ours = model(IDS)[0, -1].log_softmax(dim=-1)
    for kind, most in (("f32", 5e-4), ("tq2_0", 1e-3)):
        file = tmp_path / f"{kind}.gguf"
        made = json.loads(
            say(python, "-m", "trainer.engines", "export", "--model", tmp_path / "hf", "--out", file, "--type", kind)
        )
        assert made["bytes"] == file.stat().st_size
        said = say(python, "tests/programs/llama_logits.py", file, 256, *IDS[0].tolist())
        theirs = torch.tensor(json.loads(said.splitlines()[-1]))
        assert len(theirs) == 320
        assert (ours.exp() * (ours - theirs)).sum() < most  # llama.cpp rounds activations in blocks, or not at all.
        assert theirs.argmax() in ours.topk(2).indices
    assert file.stat().st_size < 0.2 * (tmp_path / "f32.gguf").stat().st_size
    rates = say(python, "-m", "bench.bits", "--one", file, "--tokenizer", tmp_path, "--new", 8)
    assert min(json.loads(rates.splitlines()[-1])) > 0


def test_the_template_of_a_file_gives_our_ids_in_llama_cpp(python, inputs, tmp_path):
    """A file without a template is asked in ChatML, whose marks the model has never seen."""
    words = tokenizers.load(inputs[0] / "tokenizer")
    config = replace(BITNET, vocab_size=words.vocab_size)
    export.write(tmp_path / "hf", config, random_model(config).state_dict(), inputs[0] / "tokenizer")
    file = tmp_path / "model.gguf"
    say(python, "-m", "trainer.engines", "export", "--model", tmp_path / "hf", "--out", file, "--type", "f32")
    ask = {"role": "user", "content": "What does join do?"}
    talks = [
        [ask],
        [ask, {"role": "assistant", "content": "It joins."}, {"role": "user", "content": "  And  split?\n"}],
        [{"role": "system", "content": "Be brief."}, ask],
    ]
    theirs = json.loads(say(python, "tests/programs/llama_prompt.py", file, json.dumps(talks)).splitlines()[-1])
    assert theirs == [prompt(one, words) for one in talks]


def test_two_replicas_create_the_file_once_and_answer_like_our_decoder(python, inputs, tmp_path):
    words = tokenizers.load(inputs[0] / "tokenizer")
    config = replace(BITNET, vocab_size=words.vocab_size)
    export.write(tmp_path / "hf", config, random_model(config).state_dict(), inputs[0] / "tokenizer")
    environ = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "VLLM_API_KEY": "secret",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    serve = [str(python), "-m", "trainer.engines", "serve", "--model", str(tmp_path / "hf"), "--name", "demo"]
    started = [subprocess.Popen(serve, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    try:
        urls = [f"http://127.0.0.1:{one.stdout.readline().split()[-1]}" for one in started]
        (made,) = (tmp_path / "cache/slipway/gguf").glob("[!.]*")
        assert made.suffix == ".gguf"
        ask = [{"role": "user", "content": "What does join do?"}]
        body = {"model": "demo", "messages": ask, "max_tokens": 12, "temperature": 0}
        head = {"Authorization": "Bearer secret"}

        def post(number, **more):
            url = f"{urls[number % 2]}/v1/chat/completions"
            return httpx.post(url, json={**body, **more}, headers=head, timeout=100)

        with ThreadPoolExecutor(6) as pool:  # Several requests at once to each replica.
            found = list(pool.map(post, range(6)))
        texts = {one.json()["choices"][0]["message"]["content"] for one in found}
        assert len(texts) == 1 and found[0].json()["usage"]["completion_tokens"] > 0
        ours = words.decode(list(generate.stream(random_model(config).eval(), prompt(ask, words), set(words.stops), 4)))
        # llama.cpp omits incomplete characters, Slipway marks them; later tokens depend on the rounding of activations.
        assert texts.pop().strip("\ufffd").startswith(ours.strip("\ufffd")[:3])
        assert httpx.post(f"{urls[0]}/v1/chat/completions", json=body).status_code == 401
        streamed = post(0, stream=True)
        assert streamed.text.endswith("data: [DONE]\n\n")
    finally:
        for one in started:
            one.terminate()
            one.wait()


def test_model_without_a_gguf_form_is_refused_with_a_reason(python, inputs, tmp_path):
    config = replace(BITNET, intermediate_size=704)
    export.write(tmp_path / "hf", config, random_model(config).state_dict(), inputs[0] / "tokenizer")
    words = [str(python), "-m", "trainer.engines", "export", "--model", str(tmp_path / "hf"), "--out", "x.gguf"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0 and "intermediate_size 704 (nearest: 768)" in done.stderr
    assert "Traceback" not in done.stderr and not (ROOT / "x.gguf").exists()
