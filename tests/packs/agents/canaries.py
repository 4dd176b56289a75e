"""Search of a shell for planted secrets: files, environments and command lines of processes, sockets. Standard library.

    echo '{"name": "secret", ...}' | python3 -I canaries.py SECONDS FOLDER ...

Prints one line of JSON: numbers of places that were read, and [place, name] of each secret that was found. The search
repeats until SECONDS have passed, since a secret may be in a process that lives for a moment.
"""

import base64
import contextlib
import json
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

MOST_BYTES = 8 << 20  # of a file
CALL = b'{"token": "allow-guess", "tool": "status", "arguments": {}}\n'


def files(folders: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield the readable files below the folders."""
    for folder in folders:
        for here, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(here, name)
                with contextlib.suppress(OSError):
                    if not os.path.islink(path) and os.path.isfile(path):
                        with open(path, "rb") as file:
                            yield path, file.read(MOST_BYTES)


def processes() -> Iterator[tuple[str, bytes]]:
    """Yield environments, command lines and open files of other processes."""
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        for name in ("environ", "cmdline"):
            with contextlib.suppress(OSError):
                yield f"/proc/{pid}/{name}", Path(f"/proc/{pid}/{name}").read_bytes()
        with contextlib.suppress(OSError):
            for number in os.listdir(f"/proc/{pid}/fd"):
                path = f"/proc/{pid}/fd/{number}"
                with contextlib.suppress(OSError):
                    if os.path.isfile(path):
                        with open(path, "rb") as file:
                            yield path, file.read(MOST_BYTES)


def sockets() -> Iterator[tuple[str, bytes]]:
    """Yield what each reachable socket of a broker answers without the token."""
    for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()[1:]:
        path = line.split(maxsplit=7)[-1]
        if "slipway" not in path:
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as made:
            made.settimeout(5.0)
            made.connect(path)
            made.sendall(CALL)
            yield path, made.recv(1 << 16)


def main(seconds: float, folders: list[str]) -> None:
    secrets = json.load(sys.stdin)
    forms = {name: (text.encode(), base64.b64encode(text.encode())) for name, text in secrets.items()}
    read, found, until = Counter[str](), set[tuple[str, str]](), time.monotonic() + seconds
    while True:
        for kind, places in (("processes", processes()), ("sockets", sockets()), ("files", files(folders))):
            for place, content in places:
                read[kind] += 1
                found |= {(place, name) for name, words in forms.items() if any(word in content for word in words)}
        if time.monotonic() > until:
            break
    print(json.dumps({"read": read, "found": sorted(found)}))


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
