"""Sixteen adapters on one vLLM engine: answers equal our merged model, and faulty adapters leave the engine at work."""

import json
import os
import threading
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from packs.adapters.records.lora_config import AdapterConfig
from packs.adapters.trainer.imported_adapter import StoredLora
from serve.engine.options import Tuning
from serve.variants import ROUTE
from tests.packs.adapters.test_lora import adapted, rewrite, with_tensors
from tests.serve import real
from tests.trainer import conftest as trained
from trainer.model import changes

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]
one_thread, inputs = trained.one_thread, trained.inputs
ADAPTERS, PROMPTS, NEAR = 16, 20, 1e-3


def write_adapter(folder: Path, seed: int, rank: int) -> Path:
    config = adapted(model=real.shape("llama"), sequence_len=64)
    config = replace(config, adapter=AdapterConfig(rank=rank, alpha=2.0 * rank), seed=seed)
    model = real.random_model("llama", seed=3).requires_grad_(False)
    StoredLora().attach(model, config)
    StoredLora().initialize(model, config)
    generator = torch.Generator().manual_seed(seed)
    for name, one in model.named_parameters():
        if name.endswith("lora_B.weight"):
            one.data.normal_(std=0.1, generator=generator)
    folder.mkdir()
    StoredLora().write(folder, model, config, changes.ChangedModel(name="x", fingerprint="y", weights_sha256="z"))
    return folder


def change(engine: real.Running, method: str, **said: str) -> tuple[int, Any]:
    body = json.dumps(said).encode()
    request = urllib.request.Request(engine.url + ROUTE, body, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.status, json.load(reply)["variants"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)["error"]["message"]


def load(engine: real.Running, name: str, folder: Path) -> tuple[int, Any]:
    return change(engine, "POST", name=name, source=str(folder), identity=f"{name} 1")


@pytest.mark.skipif(bool(real.unavailable()), reason=real.unavailable())
def test_many_adapters_on_one_engine_answer_like_merged_models(inputs, tmp_path):
    words = Path(inputs[0]) / "tokenizer"
    model = real.write_model(tmp_path / "model", real.random_model("llama", seed=3), words)
    folders = {f"a{one}": write_adapter(tmp_path / f"a{one}", one, 4 if one % 2 else 8) for one in range(ADAPTERS)}
    tuning = Tuning(dtype="float32", max_seqs=8, variants=ADAPTERS, variant_rank=8)
    with real.engines(real.python(), tmp_path, (model, tuning)) as (engine,):
        for name, folder in folders.items():
            assert load(engine, name, folder)[0] == 200, name
        assert change(engine, "GET")[1] == {name: f"{name} 1" for name in folders}
        draw = torch.Generator().manual_seed(1)
        prompts = [torch.randint(0, 300, (12,), generator=draw).tolist() for _ in range(PROMPTS)]
        for name, folder in {"demo": None, **folders}.items():
            merged = real.random_model("llama", seed=3)
            if folder:
                StoredLora().apply(merged, folder)
            for prompt in prompts:
                said = engine.ask("/v1/completions", model=name, prompt=prompt, max_tokens=1, logprobs=1,
                                  return_token_ids=True)["choices"][0]  # fmt: skip
                with torch.no_grad():
                    wanted = merged(torch.tensor([prompt]))[0, -1].log_softmax(-1)
                assert abs(said["logprobs"]["token_logprobs"][0] - float(wanted[said["token_ids"][0]])) < NEAR, name
                best = wanted.topk(2)
                if best.values[0] - best.values[1] > NEAR:
                    assert said["token_ids"] == [int(best.indices[0])], name
        faults(engine, tmp_path)
        assert engine.hear("/v1/completions", model="nobody", prompt=[1])["status"] == 404
        assert engine.ask("/v1/completions", model="a3", prompt=[1, 2], max_tokens=2)


def faults(engine: real.Running, folder: Path) -> None:
    """Ask the engine for unusable adapters, and remove an adapter that answers."""
    torn, odd, wide = (write_adapter(folder / name, 99, 4) for name in ("torn", "odd", "wide"))
    os.truncate(torn / "adapter_model.safetensors", 900)
    assert "damaged" in load(engine, "torn", torn)[1]
    with_tensors(odd, lambda found: {name: one * torch.nan for name, one in found.items()})
    assert "not finite" in load(engine, "odd", odd)[1]
    rewrite(wide, r=3)
    assert "says rank 3" in load(engine, "wide", wide)[1]
    high = write_adapter(folder / "high", 98, 16)
    status, said = load(engine, "high", high)
    assert status == 500 and "vLLM fails to load the adapter" in said
    heard: list[Any] = []
    ask = {"model": "a1", "prompt": [1, 2, 3], "max_tokens": 200, "ignore_eos": True}
    answering = threading.Thread(target=lambda: heard.append(engine.hear("/v1/completions", **ask)))
    answering.start()
    assert change(engine, "DELETE", name="a1")[0] == 200
    answering.join(300)
    assert heard[0].get("status") in (None, 404)  # the answer is whole, or the request came too late
    assert "status" in heard[0] or heard[0]["usage"]["completion_tokens"] == 200
    assert "a1" not in change(engine, "GET")[1]
    assert engine.is_healthy()
