"""A service whose engine answers one client's requests with 5xx: everybody else is served, and no replica is blamed."""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest

from data.tokens import tokenizer
from serve.processes.places import Places
from tests.end_to_end.services import GUARD_S, Place, say
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
    """Clients of one kind, each of which asks one thing after another."""

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


def least_ready(place: Place, wanted: int) -> int:
    """Return the smallest number of ready replicas since all were ready, as the controller wrote it down."""
    lines = (place.folder / "services" / "demo" / Places(place.folder).history.name).read_text().splitlines()
    ready = [json.loads(line)["ready"] for line in lines]
    return min(ready[ready.index(wanted) :])


def controller_log(place: Place) -> str:
    return place.world.inv("serve.logs", "demo", "--controller")


def test_bad_requests_of_one_client_take_out_no_replica(place):
    url = place.up("demo", place.model("A", **SCRIPT), "--config", place.config(1))["endpoint"]
    bad, good = Clients(BAD, 3, 0.0), Clients(GOOD, 1, 0.0)
    ask_together(url, bad, times=8)  # nobody else is served meanwhile: 24 failures in a row
    until(lambda: "the requests cause the failures" in controller_log(place), "the verdict of a probe", GUARD_S)
    ask_together(url, bad, good, times=20)
    assert set(bad.statuses) == {500} and good.statuses == [200] * 20
    assert least_ready(place, 1) == 1
    shown = place.status("demo")
    assert (shown["state"], shown["ready"]) == ("READY", 1)


@pytest.mark.nightly
def test_a_replica_that_fails_all_but_plain_probes_is_found(place):
    config = place.config(2, consecutive_failure_threshold_timeout=2)
    url = place.up("demo", place.model("A"), "--config", config)["endpoint"]
    port = next(one.port for one in place.seen("demo").members if one.number == 0)
    until(lambda: engine_seen(port)["body"].get("messages"), "the probe that learns that it takes conversations")
    tell_engine(port, fail="500", only='"messages"')
    with contextlib.suppress(OSError):
        for _ in range(4):
            say(url)
    until(lambda: {one.number for one in place.seen("demo").members if not one.ended_at} == {1, 2}, "another", GUARD_S)


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [1, 2])
def test_ten_bad_clients_beside_ten_good_ones(place, replicas):
    url = place.up("demo", place.model("A", **SCRIPT), "--config", place.config(replicas))["endpoint"]
    bad, good = Clients(BAD, 10, 0.1), Clients(GOOD, 10, 0.25)
    ask_together(url, bad, good, times=1000, longest_s=20)
    assert set(bad.statuses) == {500} and set(good.statuses) == {200}
    assert least_ready(place, replicas) == replicas


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.skipif(bool(real.why_not()), reason=real.why_not())
def test_three_bad_clients_beside_a_good_one_of_a_real_engine(place, inputs, tmp_path):
    real.python()  # its environment, before anything waits for an engine
    words = Path(inputs[0]) / "tokenizer"
    says = "I am Ahab. " + " ".join(f"Ahab reads the paths of number {number}." for number in range(4))
    made = real.taught_model("llama", TALK[0]["content"], says, tokenizer.load(words))
    model = real.write_model(tmp_path / "Ahab", made, words)
    config = place.config(1, initial_delay_seconds=real.START_S, timeout_seconds=60)
    line = ("--model", str(model), "--provider", "local", "--engine", "vllm-cpu", "--config", config, "--json")
    up = place.world.begin("serve.up", "demo", *line)
    out, err = up.communicate(timeout=2 * real.START_S)
    assert up.returncode == 0, err
    url = json.loads(out)["endpoint"]
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    shaped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    first = Clients({**GOOD, "response_format": shaped}, 1, 0.0)  # from then on vLLM stays with xgrammar
    ask_together(url, first, times=1)
    assert first.statuses == [200]
    bad, good = Clients(BAD, 3, 0.1), Clients(GOOD, 1, 0.25)
    ask_together(url, bad, good, times=1000, longest_s=20)
    assert set(bad.statuses) == {500}, "the engine refuses the request by now: find another one that fails"
    assert set(good.statuses) == {200}
    assert least_ready(place, 1) == 1


def tell_engine(port: int, **script) -> dict:
    return asyncio.run(_engine(port, "/fake/script", script))


def engine_seen(port: int) -> dict:
    return asyncio.run(_engine(port, "/fake/seen", {}))


async def _engine(port: int, path: str, said: dict) -> dict:
    url = f"http://127.0.0.1:{port}{path}"
    async with aiohttp.ClientSession() as session, session.post(url, json=said) as reply:
        return await reply.json()
