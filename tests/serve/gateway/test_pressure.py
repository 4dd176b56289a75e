"""Thousands of connections, and a machine without free files: clients with a key are served."""

import asyncio
import contextlib
import json
import resource
import socket
import subprocess

import aiohttp
import pytest

from infra.transport.streams import relay
from serve import loops
from serve.gateway import keys
from serve.gateway.keys import WRONG_AT_ONCE, Keys
from serve.replicas.replica_pod import free_port
from tests import world
from tests.serve.scripted_engine import ASK, CHAT, GUARD_S, chat, gateway, port_of, program, until

pytestmark = pytest.mark.process

ELSEWHERE = "127.0.0.2"
STANDARD_FILES = 3  # stdin, stdout, stderr.
(ADA, LINE), (BOB, OTHER) = keys.make("ada"), keys.make("bob")
KNOWN = Keys(dict(one.split() for one in (LINE, OTHER)))
BY_ADA = {"Authorization": f"Bearer {ADA}"}


def run(main):
    """Run on uvloop, as in production: the server once closed the port for good."""
    loops.run(main())


@contextlib.asynccontextmanager
async def idle(port: int, count: int, address: str = ELSEWHERE):
    """Yield this many silent connections, all still open on this side."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    made: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    try:
        for _ in range(count):
            one = socket.socket()
            made.append(one)
            one.setblocking(False)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.bind((address, 0))
            await loop.sock_connect(one, ("127.0.0.1", port))
        yield made
    finally:
        for one in made:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def chat_status(url: str) -> int:
    """Return the status of a chat on a new connection."""
    limit = aiohttp.ClientTimeout(GUARD_S)
    async with (
        aiohttp.ClientSession(timeout=limit) as session,
        session.post(url + CHAT, json=chat(), headers=BY_ADA) as reply,
    ):
        await reply.read()
        return reply.status


@pytest.mark.parametrize("is_hard", [False, True])
def test_two_thousand_idle_connections_cost_no_request_under_a_limit_of_1024_files(pair, tmp_path, is_hard):
    (tmp_path / "keys").write_text(f"{LINE}\n")
    (tmp_path / "keys").chmod(0o600)
    replicas = [{"replica_id": f"r{number}", "url": one.url} for number, one in enumerate(pair)]
    setup = {"replicas": replicas, "keys": str(tmp_path / "keys"), "access_log": str(tmp_path / "log")}
    (tmp_path / "gateway.json").write_text(json.dumps(setup))

    def limited() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024 if is_hard else hard))

    process = program("serve.gateway", str(tmp_path / "gateway.json"), stderr=subprocess.PIPE, preexec_fn=limited)
    try:
        port = port_of(process)
        url = f"http://127.0.0.1:{port}"

        async def main():
            async with idle(port, 2000):
                assert [await chat_status(url) for _ in range(50)] == [200] * 50
                async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics", headers=BY_ADA) as reply:
                    text = await reply.text()
            assert "slipway_gateway_replica_failures_total{" not in text.replace('"} 0', "")

        run(main)
        assert (resource.prlimit(process.pid, resource.RLIMIT_NOFILE)[0] > 1024) is not is_hard
        process.terminate()
        assert process.wait(GUARD_S) == 0 and process.stderr.read() == ""
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(GUARD_S)
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("address", [ELSEWHERE, "127.0.0.1"])
def test_idle_connections_lock_out_no_client(pair, address):
    """Also try connections from the address of clients with a key."""

    async def main():
        async with gateway(pair[0], keys=KNOWN, key=ADA, max_connections=64, max_strangers_per_address=48) as front:
            async with front.ask() as reply:
                assert reply.status == 200
            (kept,) = front.gateway._listener.connections
            async with idle(int(front.url.rpartition(":")[2]), 300, address):
                assert [await chat_status(front.url) for _ in range(20)] == [200] * 20
                async with front.ask() as reply:
                    assert reply.status == 200
                assert kept in front.gateway._listener.connections  # Connections with an accepted key do not count.
                assert len(front.gateway._listener.connections) <= 64

    run(main)


def test_oldest_idle_connection_is_closed_for_the_next(pair):
    async def main():
        async with gateway(*pair, max_connections=3) as front:
            port = int(front.url.rpartition(":")[2])
            async with idle(port, 3) as made:
                made[0].send(b"POST /v1/chat")  # Headers without an end are no request.
                await until(lambda: len(front.gateway._listener.connections) == 3, "all are there")
                assert await chat_status(front.url) == 200
                loop = asyncio.get_running_loop()
                with contextlib.suppress(ConnectionResetError):
                    assert await asyncio.wait_for(loop.sock_recv(made[0], 1), GUARD_S) == b""
                for one in made[1:]:
                    with pytest.raises(BlockingIOError):
                        one.recv(1)

    run(main)


@contextlib.contextmanager
def no_files():
    """Prevent this process from opening files, even under a number closed by a second thread meanwhile."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (STANDARD_FILES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_gateway_without_files_blames_no_replica(pair):
    async def main():
        async with gateway(*pair, eject_after=1, eject_s=600) as front:
            async with front.session.get(f"{front.url}/health") as reply:
                assert reply.status == 200  # On a connection that stays open.
            with no_files():
                for _ in range(4):
                    async with front.ask() as reply:
                        assert (reply.status, reply.headers["Retry-After"]) == (503, "1")
            assert await front.metric("replica_failures_total") == 0
            for _ in range(4):
                async with front.ask() as reply:
                    assert reply.status == 200

    run(main)


def test_port_survives_a_time_without_files(pair, caplog):
    async def main():
        async with gateway(*pair) as front:
            host, _, port = front.url.removeprefix("http://").rpartition(":")
            with socket.socket() as client:
                client.setblocking(False)
                with no_files():
                    await asyncio.get_running_loop().sock_connect(client, (host, int(port)))
                    await until(lambda: "no connection can be taken" in caplog.text, "it is told")
                body = json.dumps(chat()).encode()
                client.sendall(ASK + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                said = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(client, 15), GUARD_S)
            assert said == b"HTTP/1.1 200 OK"

    run(main)


def test_forwarded_port_survives_a_time_without_files(caplog):
    with socket.create_server(("127.0.0.1", 0)) as engine, socket.socket() as client:
        far = engine.getsockname()
        with relay(0, lambda: socket.create_connection(far, timeout=GUARD_S)) as port:
            client.settimeout(GUARD_S)
            with no_files():
                client.connect(("127.0.0.1", port))
                world.until(
                    lambda: "cannot accept connections on the forwarded port" in caplog.text, "it is told", GUARD_S
                )
            with engine.accept()[0] as call:
                client.sendall(b"hello")
                assert call.recv(5) == b"hello"


def test_free_port_search_stops_when_no_port_can_be_tried():
    with no_files(), pytest.raises(OSError, match="Too many open files"):
        free_port([])


def test_client_with_wrong_keys_waits_and_a_client_with_a_key_does_not(pair):
    async def main():
        limits = {"wrong_keys_per_s": 0.01, "wrong_key_most_s": 2 * GUARD_S}
        async with gateway(*pair, keys=KNOWN, **limits) as front:

            async def guess() -> int:
                said = {"Authorization": "Bearer wrong"}
                async with front.session.post(front.url + CHAT, json=chat(), headers=said) as reply:
                    return reply.status

            assert [await guess() for _ in range(WRONG_AT_ONCE)] == [401] * WRONG_AT_ONCE
            more = [asyncio.create_task(guess()) for _ in range(30)]
            await until(lambda: len(front.gateway._listener.connections) == 30, "all are there")
            assert [await chat_status(front.url) for _ in range(20)] == [200] * 20
            assert not any(one.done() for one in more)
            for one in more:
                one.cancel()

    run(main)


def test_dozens_of_slow_readers_delay_no_other_client_and_are_disconnected(pair):
    async def main():
        pair[0].script(max_model_len=60_000, words=["A" * 20_000])
        limits = {"client_idle_s": 0.5}
        async with gateway(*pair, keys=KNOWN, key=BOB, max_tokens=None, **limits) as front:
            front.gateway.replace([pair[0].replica("r0")])
            body = json.dumps(chat(stream=True, max_tokens=60_000)).encode()
            head = ASK + b"Authorization: Bearer %b\r\nContent-Length: %d\r\n\r\n" % (ADA.encode(), len(body))
            async with idle(int(front.url.rpartition(":")[2]), 30) as slow:
                for one in slow:
                    one.send(head + body)
                await until(lambda: front.gateway._proxy._by_key["ada"] == 30, "all are inside")
                front.gateway.replace([pair[0].replica("r0"), pair[1].replica("r1")])
                for _ in range(20):
                    async with front.ask() as reply:
                        assert reply.status == 200
                await until(lambda: not front.gateway._proxy._by_key["ada"], "all were cut off")
            assert await front.metric("replica_failures_total") == 0

    run(main)
