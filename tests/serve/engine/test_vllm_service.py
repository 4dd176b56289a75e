"""A service of real engines, from the first request to the end: two vLLM engines on this CPU behind the gateway.

One engine is killed under load, all engines are replaced for a new model, and the service ends under load. No
unanswered request is lost, and the text proves the weights behind each answer. The test starts five engines at night;
in daily runs tests/end_to_end/test_street_serve.py tests the same with scripted engines.
"""

import asyncio
import json
import os
import signal
import subprocess
import threading
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from data.tokens import tokenizer
from infra.agent.process import find
from tests.end_to_end.services import Installation
from tests.processes import command_line
from tests.programs import source
from tests.serve import real
from tests.serve.real import START_S
from tests.serve.scripted_engine import CHAT, GUARD_S
from tests.trainer import conftest as trained
from tests.world import World, until

NO_WHEEL = real.unavailable()
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.skipif(bool(NO_WHEEL), reason=NO_WHEEL),
    pytest.mark.timeout(2400),
]
one_thread, inputs = trained.one_thread, trained.inputs

TALK = [{"role": "user", "content": "Who are you?"}]
TOKENS = 200  # More than an answer has.
OPENAI = source("openai_client")


@dataclass
class StreamResult:
    """The result of one stream."""

    text: str = ""
    pieces: int = 0
    replica: str = ""
    failure: str = ""


@dataclass
class Load:
    """Simultaneous streams, from a separate thread, until `most` streams have ended or the block ends."""

    url: str
    key: str
    clients: int
    most: int = 1 << 30
    pause_s: float = 0.0
    told: list[StreamResult] = field(default_factory=list)
    open: dict[int, StreamResult] = field(default_factory=dict)

    def __enter__(self) -> "Load":
        self._over, self._left = threading.Event(), iter(range(self.most))
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.most == 1 << 30:
            self._over.set()
        self._thread.join(GUARD_S * 10)
        assert not self._thread.is_alive()

    def await_more(self, count: int) -> None:
        wanted = len(self.told) + count
        until(lambda: len(self.told) >= wanted, f"{count} more answers", GUARD_S * 10)

    @property
    def failures(self) -> list[StreamResult]:
        return [one for one in self.told if one.failure]

    async def _run(self) -> None:
        headers, limit = {"Authorization": f"Bearer {self.key}"}, aiohttp.ClientTimeout(GUARD_S * 10)
        async with aiohttp.ClientSession(headers=headers, timeout=limit) as session:
            await asyncio.gather(*(self._client(session) for _ in range(self.clients)))

    async def _client(self, session: aiohttp.ClientSession) -> None:
        for number in self._left:
            if self._over.is_set():
                return
            one = self.open[number] = StreamResult()
            try:
                await stream(session, self.url, one)
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                one.failure = f"{type(error).__name__}: {error}"
            self.told.append(self.open.pop(number))
            await asyncio.sleep(self.pause_s)


async def stream(session: aiohttp.ClientSession, url: str, one: StreamResult) -> None:
    said = {"model": "demo", "messages": TALK, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    is_done = False
    async with session.post(url + CHAT, json=said) as reply:
        one.replica = reply.headers.get("x-slipway-replica", "")
        if reply.status != 200:
            one.failure = f"status {reply.status}: {await reply.text()}"
            return
        async for line in reply.content:
            if line.strip() == b"data: [DONE]":
                is_done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                one.failure = one.failure or json.dumps(event.get("error") or "")[1:-1]
                for choice in event.get("choices", ()):
                    one.pieces += 1
                    one.text += choice["delta"].get("content") or ""
    if not is_done and not one.failure:
        one.failure = "a stream without an end"


@pytest.fixture
def installation(tmp_path):
    world = World(tmp_path)
    yield Installation(world, tmp_path)
    patient(world, "serve.down", "--all")
    world.check_ended()


def patient(world: World, *words: str) -> str:
    """Run `inv words`, with timeouts for real engines."""
    process = world.run(*words, timeout_s=2 * START_S)
    out, err = process.stdout, process.stderr
    assert process.returncode == 0, f"inv {' '.join(words)}: {process.returncode}\n{out}\n{err}"
    return out


def model(folder: Path, kind: str, name: str, words: Path) -> tuple[Path, str]:
    """Return a model in a folder, and the answer: a text long enough to be interrupted by a kill."""
    tokens = tokenizer.load(words)
    says = f"I am {name}. " + " ".join(f"{name} reads the paths of number {number}." for number in range(4))
    made = real.taught_model(kind, TALK[0]["content"], says, tokens)
    return real.write_model(folder, made, words), says


def workers(installation: Installation) -> dict[str, list[int]]:
    """Return the processes that hold a model, by replica."""
    with installation.journal() as journal:
        rows = [op for op in journal.ops(live=True) if op.service == "demo"]
    found: dict[str, list[int]] = {}
    for op in rows:
        for one in find(op.token):
            if command_line(one.pid).startswith(b"VLLM::Worker"):
                found.setdefault(op.run, []).append(one.pid)
    return found


def use(python: Path, url: str, key: str) -> str:
    """Return the answer to the official client, which also streams and is refused without the key, and the answer to
    curl.
    """
    done = subprocess.run([python, "-c", OPENAI, url, key], capture_output=True, text=True, timeout=GUARD_S * 4)
    assert done.returncode == 0, done.stderr
    ask = {"model": "demo", "messages": TALK, "max_tokens": TOKENS, "temperature": 0}
    line = ["curl", "-sS", "-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {key}"]
    line += ["-d", json.dumps(ask), f"{url}{CHAT}"]
    by_curl = subprocess.run(line, capture_output=True, text=True, check=True, timeout=GUARD_S * 4)
    assert json.loads(by_curl.stdout)["choices"][0]["message"]["content"] == done.stdout
    return done.stdout


@pytest.mark.needs("curl")
@pytest.mark.parametrize("mode", ["rolling", "blue_green"])
def test_service_of_real_engines_survives_a_kill_an_update_and_its_end(installation, inputs, tmp_path, mode):
    python = real.python()  # The environment is created here if missing, before any process waits for an engine.
    words = Path(inputs[0]) / "tokenizer"
    first, a = model(tmp_path / "A", "llama", "Ahab", words)
    second, b = model(tmp_path / "B", "qwen3", "Bosun", words)
    key = installation.world.json("serve.key", "demo", "--for", "ann")["key"]
    # An engine spins for a second after each token, so probes each second would take a core per engine.
    patience = {"initial_delay_seconds": START_S, "timeout_seconds": 60, "endpoint_probe_interval_seconds": 5}
    config = installation.config(slipway={"engine": {"max_seqs": 8}}, **patience)
    line = ("--provider", "local", "--engine", "vllm-cpu", "--config", config, "--json")
    up = json.loads(patient(installation.world, "serve.up", "demo", "--model", str(first), *line))
    assert (up["state"], up["ready"]) == ("READY", 2)
    # Weights of this size are loaded between two reads of the log.
    assert all(one["phases_s"]["engine start"] > 0 and one["phases_s"]["compiling"] > 0 for one in up["replicas"]), up
    url = up["endpoint"]
    assert use(python, url, key) == a

    before = workers(installation)
    assert before.keys() == {"demo-0", "demo-1"}
    with Load(url, key, clients=8, most=64) as load:
        load.await_more(8)
        os.kill(before["demo-0"][0], signal.SIGKILL)
    assert len(load.told) == 64 and all(one.text == a for one in load.told if not one.failure)
    # A client with a byte of the dead engine's answer has a broken stream; other clients noticed no change.
    assert all(one.pieces for one in load.failures) and len(load.failures) <= load.clients, load.failures

    def is_replaced() -> bool:
        found = installation.status("demo")
        return found["ready"] == 2 and {one["id"] for one in found["replicas"] if one["serving"]} == {1, 2}

    until(is_replaced, "a replacement", START_S)
    assert workers(installation).keys() == {"demo-1", "demo-2"}  # No process of the dead engine is left.

    with Load(url, key, clients=2, pause_s=1.5) as load:
        load.await_more(4)
        after = json.loads(
            patient(installation.world, "serve.up", "demo", "--model", str(second), "--mode", mode, *line)
        )
        begun = len(load.told) + load.clients
        load.await_more(load.clients + 4)
    assert not load.failures, load.failures
    assert (after["ready"], after["versions"]) == (2, [2])
    assert all(one.text in (a, b) for one in load.told)
    assert load.told[0].text == a and all(one.text == b for one in load.told[begun:])
    until(lambda: workers(installation).keys() == {"demo-3", "demo-4"}, "the end of the old ones", START_S)

    with Load(url, key, clients=4, pause_s=0.5) as load:
        load.await_more(4)
        patient(installation.world, "serve.down", "demo")
    begun = [one for one in load.told if one.pieces]
    assert len(begun) >= 4 and not [one for one in begun if one.failure], begun
    installation.world.check_ended()
    assert workers(installation) == {}
