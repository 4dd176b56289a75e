"""Measure the CPU time of the gateway's event loop for a large request body, over many shapes of valid JSON.

Run: python -m bench.gateway.bodies [--rounds 5] [--mib 8]. A client sends requests in sequence to a gateway with a
scripted engine. The kernel counts the CPU time of the event loop's thread (schedstat) from before the request to after
the response, so the time includes receiving, parsing and forwarding. A second column has the CPU time of all
threads. Exits with code 1 when a request takes more than 50 ms of the event loop.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from serve.loops import run
from tests.serve.scripted_engine import CHAT, ROOT, port_of, program

MOST_MS = 50.0
REST_S = 1.0  # The gateway charges the bytes of a body for a while.
COMPLETIONS = "/v1/completions"


def shapes(size: int) -> Mapping[str, tuple[str, bytes]]:
    """Return route and body (at most `size` bytes) by name."""

    def fill(unit: bytes, begin: bytes, end: bytes) -> bytes:
        return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end

    def talk(unit: bytes) -> bytes:
        return fill(unit, b'{"max_tokens":3,"messages":[{"role":"user","content":"', b'"}]}')

    def listed(unit: bytes, last: bytes = b"1") -> bytes:
        return fill(unit, b'{"max_tokens":3,"prompt":[', last + b"]}")

    nested = b"[" * 60 + b"]" * 60
    names = b",".join(b'"%x":1' % number for number in range(size // 11))
    return {
        "words": (CHAT, talk(b"reads the paths, ")),
        "a byte a chunk": (CHAT, talk(b"reads the paths, ")),
        "words as \\u": (CHAT, talk(b"\\u8bfb\\u8def\\u5f84\\uff0c")),
        "code": (CHAT, talk(b'for (a, b) in {\\"x\\": [1, 2]}:\\n')),
        "backslashes": (CHAT, talk(b"\\\\")),
        "quotes": (CHAT, talk(b'\\"')),
        "quotes and brackets": (CHAT, talk(b'\\"[,{')),
        "ids of tokens": (COMPLETIONS, listed(b"12345,")),
        "200,000 ids of tokens": (COMPLETIONS, b'{"prompt":[' + b"12345," * 199_999 + b"1]}"),
        "16,000 messages": (CHAT, b'{"messages":[' + b'{"role":"user","content":"a"},' * 15_999 + b"{}]}"),
        "digits": (COMPLETIONS, listed(b"1,")),
        "fractions": (COMPLETIONS, listed(b"0.5,")),
        "lists, 60 deep": (COMPLETIONS, listed(nested + b",")),
        "lists in lists": (COMPLETIONS, fill(b"[", b'{"prompt":', b"")[: size // 2] + b"]" * (size // 2 - 12) + b"}"),
        "objects": (CHAT, fill(b"{},", b'{"messages":[', b"{}]}")),
        "texts": (COMPLETIONS, listed(b'"",', b'""')),
        "messages": (CHAT, fill(b'{"role":"user","content":"a"},', b'{"messages":[', b"{}]}")),
        "names": (CHAT, b'{"messages":[{"role":"user","content":"a"}],' + names + b"}"),
        "names below": (CHAT, b'{"messages":[{"role":"user","content":"a"}],"metadata":{' + names + b"}}"),
        "blanks": (CHAT, fill(b" ", b'{"max_tokens":3,"messages":[{"role":"user","content":"a"}]', b"}")),
    }


def cpu_ms(pid: int) -> tuple[float, float]:
    """Return the CPU milliseconds of the first thread of a process, and of all threads."""
    spent = {
        one.name: int((one / "schedstat").read_text().split()[0]) / 1e6 for one in Path(f"/proc/{pid}/task").iterdir()
    }
    return spent[str(pid)], sum(spent.values())


def request(path: str, body: bytes, is_torn: bool) -> bytes:
    """Return the bytes of a request. `is_torn`: send each byte as a chunk."""
    framing = "Transfer-Encoding: chunked" if is_torn else f"Content-Length: {len(body)}"
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{framing}\r\n"
    sent = b"".join(b"1\r\n%c\r\n" % one for one in body) + b"0\r\n\r\n" if is_torn else body
    return f"{head}Connection: close\r\n\r\n".encode() + sent


async def ask(port: int, sent: bytes) -> int:
    """Send a request, read the whole response, and return the status."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    status = int((await reader.readline()).split(b" ", 2)[1])
    with contextlib.suppress(ConnectionError):  # The gateway may close while the client still sends.
        await reader.read()
    writer.transport.abort()
    return status


async def bench(words: argparse.Namespace, folder: Path) -> None:
    processes = [program("serve.fake")]
    try:
        replicas = [{"replica_id": "r0", "url": f"http://127.0.0.1:{port_of(processes[0])}"}]
        (folder / "gateway.json").write_text(json.dumps({"replicas": replicas}))
        gateway = program("serve.gateway", str(folder / "gateway.json"))
        processes.append(gateway)
        port, most = port_of(gateway), 0.0
        print("| 8 MiB of | status | ms of the loop's thread | most | of all threads |\n|---|---|---|---|---|")
        for name, (path, body) in shapes(words.mib << 20).items():
            sent = request(path, body, is_torn=name == "a byte a chunk")
            spent, whole = [], []
            for _ in range(words.rounds):
                loop_ms, all_ms = cpu_ms(gateway.pid)
                status = await ask(port, sent)
                after_ms = cpu_ms(gateway.pid)
                spent.append(after_ms[0] - loop_ms)
                whole.append(after_ms[1] - all_ms)
                await asyncio.sleep(REST_S)
            middle = statistics.median(spent)
            print(
                f"| {name} | {status} | {middle:.1f} | {max(spent):.1f} | {statistics.median(whole):.1f} |", flush=True
            )
            most = max(most, *spent)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    print(f"\nmost {most:.1f} ms; target: at most {MOST_MS:g} ms; load {os.getloadavg()[0]:.1f}")
    sys.exit(most > MOST_MS)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.gateway.bodies")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=8)
    words = parser.parse_args()
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        run(bench(words, Path(folder)))


if __name__ == "__main__":
    main()
