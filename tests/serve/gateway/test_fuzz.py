"""An open port under arbitrary traffic: row 29."""

import asyncio
import json
import os
import random
import re
import struct
import subprocess
from pathlib import Path

import aiohttp
import pytest

from tests import seeds
from tests.faults.trial import rounds
from tests.serve.gateway import fuzz
from tests.serve.scripted_engine import CHAT, GUARD_S, chat, port_of, program

pytestmark = pytest.mark.process

AT_ONCE = 100
RST = struct.pack("ii", 1, 0)


def rss_kb(pid: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1])


async def send_bytes(port: int, sent: bytes, chance: random.Random) -> bytes:
    """Return the reply. Send the request in pieces; then wait for the end, close, or reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        end = chance.random()
        cut = chance.randrange(len(sent) + 1)
        writer.write(sent[:cut])
        await asyncio.sleep(0)
        writer.write(sent[cut:])
        if end < 0.1:
            writer.write_eof()
            return await asyncio.wait_for(reader.read(), GUARD_S)
        if end < 0.7:
            return await asyncio.wait_for(reader.read(12), GUARD_S)
        if end < 0.8:
            return b""
        writer.get_extra_info("socket").setsockopt(1, 13, RST)  # SO_LINGER of 0 s.
        return b""
    except OSError:  # The other side closed the connection.
        return b""
    finally:
        writer.transport.abort() if writer.transport.is_closing() else writer.close()


async def storm(port: int, count: int, seed: int) -> list[bytes]:
    """Send `count` cases, several at once; return the first bytes of each answer."""
    heads: list[bytes] = []

    async def one(number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        said = await send_bytes(port, chance.choice(fuzz.CASES)(chance), chance)
        heads.append(said[:12])

    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return heads


@rounds(2_000, 100_000)
def test_no_bytes_end_slow_or_grow_the_gateway(pair, tmp_path, rounds):
    seed = seeds.seed()
    path = tmp_path / "gateway.json"
    replicas = [{"replica_id": f"r{number}", "url": one.url} for number, one in enumerate(pair)]
    limits = {"keepalive_s": 0.3, "client_idle_s": 0.3, "first_byte_s": 5, "max_in_flight": 64}
    path.write_text(json.dumps({"replicas": replicas, "limits": limits}))
    with (tmp_path / "stderr").open("w") as stderr:
        process = program("serve.gateway", str(path), stderr=stderr)
    try:
        port = port_of(process)
        warm = asyncio.run(storm(port, 400, seed + 1))
        before_kb, files = rss_kb(process.pid), len(os.listdir(f"/proc/{process.pid}/fd"))
        heads = asyncio.run(storm(port, rounds, seed))
        assert process.poll() is None
        codes = {one[9:12] for one in [*warm, *heads] if one}
        assert {b"200", b"400", b"404"} <= codes and b"500" not in codes
        assert asyncio.run(final_chat_status(port)) == 200
        assert rss_kb(process.pid) - before_kb < 8 << 10
        assert len(os.listdir(f"/proc/{process.pid}/fd")) <= files + 2 * AT_ONCE
        process.terminate()
        assert process.wait(GUARD_S) == 0
        assert (tmp_path / "stderr").read_text() == ""
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(GUARD_S)
        process.stdout.close()


async def final_chat_status(port: int) -> int:
    """Return the status of a chat once no request of the storm is inside any more."""
    url = f"http://127.0.0.1:{port}"
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(GUARD_S)) as session:
        while True:
            async with session.get(f"{url}/metrics") as reply:
                text = await reply.text()
            counts = re.findall(r"slipway_gateway_in_flight\{.*\} (\S+)", text)
            if counts and not any(map(float, counts)):
                break
            await asyncio.sleep(0.05)
        async with session.post(url + CHAT, json=chat()) as reply:
            return reply.status


def test_slow_headers_delay_no_other_client(pair, tmp_path):
    """Slowloris: many connections that never finish their headers, while others are served."""
    path = tmp_path / "gateway.json"
    limits = {"keepalive_s": 1}
    path.write_text(json.dumps({"replicas": [{"replica_id": "r0", "url": pair[0].url}], "limits": limits}))
    process = program("serve.gateway", str(path), stderr=subprocess.DEVNULL)

    async def main(port: int) -> None:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(200)]
        for _, writer in slow:
            writer.write(b"POST /v1/chat/comp")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(GUARD_S)) as session:
            for _ in range(20):
                async with session.post(f"http://127.0.0.1:{port}{CHAT}", json=chat()) as reply:
                    assert reply.status == 200
        for reader, writer in slow:  # All are closed.
            assert await asyncio.wait_for(reader.read(), GUARD_S) == b""
            writer.close()

    try:
        asyncio.run(main(port_of(process)))
    finally:
        process.kill()
        process.wait(GUARD_S)
        process.stdout.close()
