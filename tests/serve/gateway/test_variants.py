"""Variants of a model behind the gateway: only replicas with the variant answer, and unknown names cost no engine."""

import asyncio
import json

import pytest

from serve.gateway import keys
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.request_body import RequestRefused
from serve.gateway.routing import Fleet, RequestOutcome, Target
from serve.gateway.wait_queue import WaitQueue
from serve.variants import ROUTE
from tests.serve.scripted_engine import CHAT, Engine, chat, gateway

ONE, TWO = (Target(replica_id=f"r{number}", url=f"http://127.0.0.1:{8000 + number}") for number in range(2))


def fleet(**limits) -> Fleet:
    found = Fleet(GatewayLimits(slow_start_s=0.001, **limits))
    found.replace([ONE, TWO], 0.0)
    found.set_variants({"a": ("r1",), "b": ()})
    return found


def test_variant_is_assigned_only_to_replicas_with_the_variant():
    one = fleet(max_in_flight_per_replica=2)
    assert {one.assign(1.0, (), affinity, "a").replica for affinity in (b"", b"x")} == {TWO}
    assert one.assign(1.0, (), b"", "a") is None  # r1 is full, and r0 lacks the variant
    assert one.assign(1.0, (), b"", "b") is None and one.assign(1.0, (), b"", "gone") is None
    assert one.assign(1.0).replica == ONE
    one.replace([TWO], 2.0)
    assert [slot.replica for slot in one.variants["a"]] == [TWO]
    one.replace([ONE], 3.0)
    assert one.variants["a"] == ()


def test_waiting_request_of_a_variant_does_not_hold_up_other_requests():
    async def main():
        queue = WaitQueue(GatewayLimits(max_in_flight_per_replica=1, slow_start_s=0.001, queue_s=30), lambda: 1.0)
        queue.replace([ONE, TWO])
        queue.set_variants({"a": ("r1",), "b": ("r0", "r1")})
        busy = queue.assign(b"", "a")
        assert busy.replica == TWO and queue.assign(b"", "a") is None
        waiting = asyncio.create_task(queue.wait(b"", "a"))
        await asyncio.sleep(0)
        assert (await asyncio.wait_for(queue.wait(b""), 5)).replica == ONE
        queue.release(busy, RequestOutcome.SERVED)
        assert (await asyncio.wait_for(waiting, 5)).replica == TWO
        queue.set_variants({"a": (), "b": ("r0",)})
        with pytest.raises(RequestRefused, match="no replica has loaded a yet"):
            await queue.wait(b"", "a")

    asyncio.run(main())


@pytest.mark.process
def test_key_with_a_choice_of_models_gives_no_others(pair, tmp_path):
    path = tmp_path / "keys"
    made = [keys.make("ada", ["legal", "code"]), keys.make("bob"), keys.make("cat", ["fake"])]
    ada, bob, cat = (key for key, _ in made)
    path.write_text("".join(f"{line}\n" for _, line in made))
    path.chmod(0o600)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "x").touch()
    for one in pair:
        load(one, "legal", str(tmp_path / "adapter"))

    async def main():
        async with gateway(*pair, keys=keys.load(path)) as front:
            front.gateway.set_variants("fake", {"legal": ("r0", "r1"), "poems": ("r0",)})

            async def ask(key, **said):
                by = {"Authorization": f"Bearer {key}"}
                async with front.session.post(front.url + CHAT, json=chat(**said), headers=by) as reply:
                    return reply.status, await reply.json()

            assert (await ask(ada, model="legal"))[0] == 200 == (await ask(bob, model="fake"))[0]
            before = [one.seen()["requests"] for one in pair]
            for odd in ({"model": "fake"}, {"model": "poems"}, {"model": ["legal"]}, {"model": "nobody"}, {}):
                status, said = await ask(ada, **odd)
                assert (status, said["error"]["type"]) == (403, "PermissionDeniedError"), odd
                assert "this key is for: code, legal" in said["error"]["message"]
            assert [one.seen()["requests"] for one in pair] == before

            front.gateway.set_variants("fake", {"legal": ("r0", "r1"), "poems": ()})
            status, said = await ask(ada, model="code")
            assert status == 404 and said["error"]["message"].endswith("available: legal")
            for key, wanted in ((ada, 403), (bob, 200)):
                by = {"Authorization": f"Bearer {key}"}
                async with front.session.get(f"{front.url}/metrics", headers=by) as reply:
                    assert reply.status == wanted and ("poems" in await reply.text()) <= (key == bob)

            async def models(key):
                said = {"Authorization": f"Bearer {key}"}
                async with front.session.get(f"{front.url}/v1/models", headers=said) as reply:
                    return {one["id"] for one in (await reply.json())["data"]}

            assert (await models(bob), await models(cat), await models(ada)) == ({"fake"}, {"fake"}, set())

    asyncio.run(main())


def load(engine: Engine, name: str, folder: str) -> None:
    engine._ask(ROUTE, {"name": name, "source": folder, "identity": "1"})


@pytest.mark.process
def test_client_chooses_a_variant_by_model(pair, tmp_path):
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "x").touch()
    load(pair[0], "legal", str(tmp_path / "adapter"))

    async def main():
        async with gateway(*pair, log=tmp_path / "log") as front:
            front.gateway.set_variants("fake", {"legal": ("r0",), "new": ()})

            async def ask(model):
                async with front.ask(model=model) as reply:
                    said = await reply.json()
                    text = said["choices"][0]["message"]["content"] if reply.status == 200 else said["error"]["message"]
                    return reply.status, reply.headers.get("X-Slipway-Replica"), text

            assert {await ask("legal") for _ in range(6)} == {(200, "r0", " legal legal legal")}
            assert {(await ask("fake"))[1] for _ in range(6)} == {"r0", "r1"}
            async with front.ask() as reply:  # no model: the whole model
                assert reply.status == 200
            before = [one.seen()["requests"] for one in pair]
            for odd in ("nobody", ["legal"], {"a": 1}, 7):
                status, _, text = await ask(odd)
                assert status == 404 and "does not exist; available: fake, legal, new" in text
            status, _, text = await ask("new")
            assert status == 503 and "no replica has loaded new yet" in text
            pair[0].script(fail="500")
            assert (await ask("legal"))[0] == 500  # the other replica lacks the variant
            pair[0].calm()
            assert [one.seen()["requests"] for one in pair] == [before[0] + 1, before[1]]
            assert await front.metric("variant_requests_total", variant="legal", code="200") == 6
            front.gateway.set_variants("fake", {})
            assert (await ask("nobody"))[0] == 404  # the engine checks the name

    asyncio.run(main())
    assert "Who are you" not in (tmp_path / "log").read_text()


@pytest.mark.nightly
@pytest.mark.process
def test_thousand_unknown_names_reach_no_engine(pair):
    async def main():
        async with gateway(*pair) as front:
            front.gateway.set_variants("fake", {"legal": ("r0",)})
            before = [one.seen()["requests"] for one in pair]

            async def ask(number):
                async with front.ask(model=f"unknown-{number}") as reply:
                    return reply.status, json.loads(await reply.read())["error"]["type"]

            for start in range(0, 1000, 50):
                found = await asyncio.gather(*(ask(start + one) for one in range(50)))
                assert {*found} == {(404, "NotFoundError")}
            assert [one.seen()["requests"] for one in pair] == before
            assert not [one for one in front.gateway.metrics._variants if "unknown" in one[0]]

    asyncio.run(main())
