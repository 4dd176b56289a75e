"""vllm-router itself behind our gateway, before scripted engines: what holds with our own choice of a replica holds."""

import asyncio
import contextlib
import json
import os
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from infra.agent.environments import environment
from infra.errors import SlipwayError
from serve.gateway.access import AccessLog
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys, make
from serve.replicas.vllm_router import NAME, Routed
from serve.service import ROUTER_GROUP
from tests.serve.scripted_engine import CHAT, GUARD_S, ROOT, Engine, Front, chat, until

pytestmark = pytest.mark.process

KEY = "the engines' own"


@pytest.fixture(scope="module")
def python() -> Path:
    return environment.ensure(ROUTER_GROUP, ROOT, environment.default_cache(), "cpu", print)


@contextlib.asynccontextmanager
async def routed(python, folder, *engines: Engine, keys=None, key="", policy="round_robin", **limits):
    """Before `engines`, which ask for KEY; once it has an answer of one."""
    said: list[str] = []
    front = Routed(
        GatewayLimits(**limits), keys or Keys({}), AccessLog(folder / "access"), python=python, policy=policy, key=KEY,
        log=folder / "router.log", say=said.append,
    )  # fmt: skip
    for one in engines:
        one.script(api_key=KEY)
    front.replace(one.replica(f"r{number}") for number, one in enumerate(engines))
    port = await front.start("127.0.0.1", 0)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(GUARD_S)) as session:
            yield Front(front, f"http://127.0.0.1:{port}", session)
    finally:
        await front.stop(0)


def serving(front: Front) -> list:
    """Seats that requests may go to: none while the router is not there."""
    return list(front.gateway.turns.fleet.seats)


def child(front: Front) -> int:
    (pid,) = [
        int(one.name)
        for one in Path("/proc").iterdir()
        if one.name.isdigit() and _is_child(one)
    ]  # fmt: skip
    return pid


def _is_child(one: Path) -> bool:
    with contextlib.suppress(OSError):
        parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getpid() and (b"serve.router" in (words := (one / "cmdline").read_bytes()) or NAME.encode()
                                          in words or b"vllm::router" in words)  # fmt: skip
    return False


async def said_by(front: Front) -> str:
    async with front.ask() as reply:
        assert reply.status == 200, await reply.text()
        return (await reply.json())["choices"][0]["message"]["content"]


def test_it_answers_behind_keys_a_list_of_routes_and_a_log(pair, python, tmp_path):
    mine, line = make("ann")
    keys = Keys({"ann": line.split()[1]})

    async def main():
        async with routed(python, tmp_path, *pair, keys=keys, key=mine) as front:
            assert {await said_by(front) for _ in range(8)} == {"AAA", "BBB"}
            async with front.ask(stream=True) as reply:
                assert (await reply.text()).endswith("data: [DONE]\n\n")
                assert reply.headers["X-Slipway-Replica"].startswith(NAME)
            for path in ("/pause", "/workers", "/add_worker", "/metrics/x"):  # which the router would let pass
                async with front.ask(path) as reply:
                    assert reply.status == 404
            async with aiohttp.ClientSession() as other, other.post(front.url + CHAT, json=chat()) as reply:
                assert reply.status == 401
            async with front.session.get(f"{front.url}/health") as reply:
                assert await reply.json() == {"status": "ok", "replicas": 2}

    asyncio.run(main())
    lines = [json.loads(one) for one in (tmp_path / "access").read_text().splitlines()]
    assert [one["status"] for one in lines].count(200) == 9 and {one["key"] for one in lines} == {"ann", ""}


def test_a_worker_that_is_taken_off_finishes_what_it_has_begun_and_gets_no_more(pair, python, tmp_path):
    async def main():
        async with routed(python, tmp_path, pair[0]) as front:
            old, new = front.gateway.replicas[0], pair[1].replica("r1")
            pair[0].script(held=True, after_tokens=1)
            async with front.ask(stream=True, max_tokens=3) as reply:
                await reply.content.readline()
                pair[1].script(api_key=KEY)
                front.gateway.replace([new])
                await until_said(front, "BBB")
                assert front.gateway.in_flight(old) == 1
                pair[0].let_go()
                assert (await reply.text()).endswith("data: [DONE]\n\n")
            await until(lambda: front.gateway.in_flight(old) == 0, "it is seen to be idle")
            assert {await said_by(front) for _ in range(8)} == {"BBB"}

    asyncio.run(main())


async def until_said(front: Front, text: str) -> None:
    end = time.monotonic() + GUARD_S
    while await said_by(front) != text:
        assert time.monotonic() < end


def test_an_engine_that_dies_costs_nobody_who_had_no_byte(pair, fresh, python, tmp_path):
    (ill,) = fresh({"words": ["X"], "api_key": KEY})

    async def main():
        async with routed(python, tmp_path, ill, pair[0]) as front:
            assert {await said_by(front) for _ in range(8)} == {"XXX", "AAA"}
            ill.process.send_signal(signal.SIGKILL)
            ill.process.wait(GUARD_S)
            for stream in (False, True) * 8:
                async with front.ask(stream=stream) as reply:
                    assert reply.status == 200 and '"A' in await reply.text()
            gone = front.gateway.replicas[0]
            front.gateway.replace([pair[0].replica("r1")])
            await until(lambda: front.gateway.in_flight(gone) == 0, "nobody is at its port")

    asyncio.run(main())


def test_an_error_in_place_of_the_first_token_is_tried_again(pair, fresh, python, tmp_path):
    (ill,) = fresh({"words": ["X"], "api_key": KEY, "fail": "error"})

    async def main():
        async with routed(python, tmp_path, ill, pair[0]) as front:
            for _ in range(8):
                async with front.ask(stream=True) as reply:
                    assert reply.status == 200 and '"A' in await reply.text()
            # The router took the first one for an answer; after it the engine says 500, which the router hides itself.
            assert ill.seen()["requests"] and await front.metric("retries_total") == 1

    asyncio.run(main())


def test_a_router_that_dies_is_started_again_and_told_of_its_workers(pair, python, tmp_path):
    async def main():
        async with routed(python, tmp_path, *pair, hold_s=GUARD_S) as front:
            before = child(front)
            os.kill(before, signal.SIGKILL)
            await until(lambda: not serving(front), "it is missed")
            assert await said_by(front) in ("AAA", "BBB")  # held until it is back
            assert child(front) != before

    asyncio.run(main())


def test_without_a_replica_it_says_so(python, tmp_path):
    async def main():
        async with routed(python, tmp_path) as front:
            async with front.ask() as reply:
                assert reply.status == 503
            async with front.session.get(f"{front.url}/health") as reply:
                assert reply.status == 503

    asyncio.run(main())


def test_one_that_does_not_come_up_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr("serve.replicas.vllm_router.START_S", 0.5)

    async def main():
        async with routed(Path("/bin/false"), tmp_path):
            pass

    with pytest.raises(SlipwayError, match="router.log"):
        asyncio.run(main())
