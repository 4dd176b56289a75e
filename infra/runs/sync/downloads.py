"""The download of what a run makes: while its pod is followed, and once more before it is ended.

In: the row of a pod, the transport to it, and its store there. Out: what `mirror` and `snapshot` write at home, and in
words what keeps it from coming, once. Big files hold up nobody who looks.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror, reports, room, snapshot
from infra.runs.timing import Say
from infra.transport.protocol import Lost, TimedOut, Transport, Unreachable
from store.artifacts.artifacts import Store
from store.manifest import StoreError

EVERY_S = 2.0


@dataclass
class Downloads:
    """The downloads of one run into its home."""

    home: RunHome
    say: Say
    reserve_bytes: int = 0
    """Bytes of this machine's disk that stay free: below them only the pod's last words are fetched."""
    running: threading.Lock = field(default_factory=threading.Lock)  # one at a time: drafts have fixed names

    @contextlib.contextmanager
    def meanwhile(self, op: Op, transport: Transport, pod_store: str) -> Iterator[None]:
        """Download what grows on the pod, until the block ends."""
        over = threading.Event()
        thread = threading.Thread(target=self._go_on, args=(op, transport, pod_store, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(EVERY_S)  # its current download may be big, so its end is not awaited

    def _go_on(self, op: Op, transport: Transport, pod_store: str, over: threading.Event) -> None:
        told = ""
        while not over.wait(EVERY_S):
            for part in self._parts(op, transport, pod_store):
                try:
                    with self.running:
                        part()
                except (Lost, TimedOut, Unreachable):  # reported by who follows
                    break
                except (SlipwayError, StoreError, OSError, ValueError) as error:
                    if str(error) != told:
                        told = str(error)
                        self.say(f"{op.run}: bringing home: {error}")

    def last(self, op: Op, transport: Transport, pod_store: str) -> None:
        """Download whatever the pod has saved before it is ended; what of it is damaged stays there."""
        self.say(f"{op.run}: bringing home what it has saved")
        with self.running:
            for part in self._parts(op, transport, pod_store):
                try:
                    part()
                except (Lost, TimedOut, Unreachable):
                    raise
                except (SlipwayError, StoreError, OSError, ValueError) as error:
                    self.say(f"{op.run}: bringing home: {error}")

    def _parts(self, op: Op, transport: Transport, pod_store: str) -> list[Callable[[], object]]:
        """Return the downloads, in this order; without room on this disk there is one, and the reason why no more."""
        words = [lambda: reports.bring(op, transport, self.home)]
        if room.lacks(self.home.folder, self.reserve_bytes):
            return [*words, lambda: room.refuse_without_room(self.home.folder, self.reserve_bytes)]
        parts: list[Callable[[], object]] = [lambda: mirror.bring_logs(op, transport, self.home), *words]
        if pod_store:  # else the pod itself brings them to the store
            parts += [
                lambda: snapshot.bring(op, transport, self.home),
                lambda: mirror.bring_artifacts(op, pod_store, transport, Store(op.store), self.home),
            ]
        return parts
