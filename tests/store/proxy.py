"""A wire to a server that can be cut: TCP on loopback, with faults for future connections."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Wire:
    """`cuts`: for each future connection, the number of bytes from the client before the cut; None: never.

    `answer`: future connections get these bytes instead of the server.
    """

    host: str
    port: int
    cuts: list[int | None] = field(default_factory=list)
    answers: list[bytes] = field(default_factory=list)
    sent_bytes: int = 0
    connections: int = 0
    url: str = ""


@contextlib.contextmanager
def wire(url: str) -> Iterator[Wire]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    one = Wire(host, int(port))
    listener = socket.create_server(("127.0.0.1", 0))
    one.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    threads: list[threading.Thread] = []

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            one.connections += 1
            threads.append(threading.Thread(target=_carry, args=(one, client), daemon=True))
            threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield one
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join()


def _carry(one: Wire, client: socket.socket) -> None:
    left = one.cuts.pop(0) if one.cuts else None
    with client, socket.create_connection((one.host, one.port)) as server:
        if one.answers:
            client.recv(1 << 16)
            client.sendall(one.answers.pop(0))
            return
        back = threading.Thread(target=_pump, args=(server, client), daemon=True)
        back.start()
        with contextlib.suppress(OSError):
            while piece := client.recv(1 << 16):
                one.sent_bytes += len(piece)
                server.sendall(piece if left is None else piece[: max(0, left)])
                if left is not None and (left := left - len(piece)) <= 0:
                    break
        for end in (client, server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            target.sendall(piece)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
