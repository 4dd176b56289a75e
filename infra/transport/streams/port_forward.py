"""Port forward from a local loopback port to a remote machine."""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from infra.errors import SlipwayError, UsageError

LOOPBACK = "127.0.0.1"
TICK_S = 0.2
_CHUNK = 1 << 16


@contextlib.contextmanager
def relay(port: int, dial: Callable[[], AbstractContextManager[Any]]) -> Iterator[int]:
    """Listen on `port` (0: any) and connect each caller with a new connection of `dial`; yield the port.

    `dial` returns a context manager with a connected socket, or any object with recv, sendall and shutdown. An error of
    `dial` closes the caller's connection and logs a warning. Raises UsageError if the port is in use.
    """
    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise UsageError(f"port {port} of this machine cannot be used: {error}") from None
    listener.settimeout(TICK_S)
    calls: list[_Call] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                near, _ = listener.accept()
            except TimeoutError:  # check `stop`
                continue
            except OSError as error:  # out of file descriptors
                logging.getLogger(__name__).warning("cannot accept connections on the forwarded port: %s", error)
                stop.wait(TICK_S)
                continue
            near.settimeout(None)
            calls[:] = [call for call in calls if call.is_alive()]
            call = _Call(near, dial)
            try:
                call.start()
            except RuntimeError:  # no new thread possible
                near.close()
            else:
                calls.append(call)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        server.join()
        listener.close()
        for call in calls:
            call.hang_up()
        for call in calls:
            call.join()


class _Call(threading.Thread):
    """A caller with the remote connection."""

    def __init__(self, near: socket.socket, dial: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(daemon=True)
        self._dial = dial
        self._ends: list[Any] = [near]
        self._is_over = False

    def run(self) -> None:
        near = self._ends[0]
        try:
            with near, self._dial() as far:
                self._ends.append(far)
                if self._is_over:
                    return
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()
        except (OSError, SlipwayError) as error:
            logging.getLogger(__name__).warning("the remote port does not answer: %s", error)

    def hang_up(self) -> None:
        self._is_over = True
        for end in tuple(self._ends):
            _hang_up(end)


def _pump(source: Any, sink: Any) -> None:
    """Copy until `source` ends, then shut down writing on `sink`; shut down both after an error."""
    try:
        while piece := source.recv(_CHUNK):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):  # one side hung up, so close the other side too
        _hang_up(source)
        _hang_up(sink)


def _hang_up(end: Any) -> None:
    with contextlib.suppress(OSError, EOFError):  # already closed
        end.shutdown(socket.SHUT_RDWR)
