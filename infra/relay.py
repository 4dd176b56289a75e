"""A port of this machine, on loopback only, behind which another one answers."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

from infra.errors import SlipwayError, UsageError

LOOPBACK = "127.0.0.1"
TICK_S = 0.2
_CHUNK = 1 << 16


@contextlib.contextmanager
def relay(port: int, dial: Callable[[], Any]) -> Iterator[int]:
    """Listen on `port` (0: any) and join each caller with what `dial` returns; gives the port.

    `dial`: a connected socket, or anything with recv, sendall, shutdown and close; what it raises costs that caller
    its connection, and a warning. Raises UsageError when the port is taken.
    """
    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise UsageError(f"port {port} of this machine cannot be used: {error}") from None
    listener.settimeout(TICK_S)
    calls: list[tuple[threading.Thread, Any]] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with contextlib.suppress(TimeoutError):  # a look at `stop`
                near, _ = listener.accept()
                near.settimeout(None)
                calls[:] = [one for one in calls if one[0].is_alive()]
                calls.append((threading.Thread(target=_join, args=(near, dial), daemon=True), near))
                calls[-1][0].start()

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        server.join()
        listener.close()
        for thread, near in calls:
            _hang_up(near)
            thread.join()


def _join(near: socket.socket, dial: Callable[[], Any]) -> None:
    with near:
        try:
            far = dial()
        except (OSError, SlipwayError) as error:
            logging.getLogger(__name__).warning("no answer behind the forwarded port: %s", error)
            return
        back = threading.Thread(target=_pump, args=(far, near), daemon=True)
        back.start()
        _pump(near, far)
        back.join()
        far.close()


def _pump(source: Any, sink: Any) -> None:
    """Copy until `source` ends, then tell `sink`; when `sink` is gone, `source` is told to stop."""
    try:
        while piece := source.recv(_CHUNK):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):  # one side hung up; so does the other
        _hang_up(source)
        _hang_up(sink)


def _hang_up(end: Any) -> None:
    with contextlib.suppress(OSError, EOFError):  # hung up already
        end.shutdown(socket.SHUT_RDWR)
