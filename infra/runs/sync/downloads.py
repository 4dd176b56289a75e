"""Downloads of a run's output: in the background while the pod is followed, and once more before the pod ends.

`Downloads` takes the row, transport and store of a pod, and writes local files through `mirror` and `snapshot`. Each
new error is reported once. Large files do not block the follower of the run.
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
from infra.transport.protocol import ConnectionLost, TimedOut, Transport, Unreachable
from store.artifacts.artifacts import Store
from store.manifest import StoreError

EVERY_S = 2.0


@dataclass
class Downloads:
    """The downloads of one run into the local home."""

    home: RunHome
    say: Say
    reserve_bytes: int = 0
    """Free bytes to keep on the local disk; below this reserve, only the pod's reports are fetched."""
    running: threading.Lock = field(default_factory=threading.Lock)  # One download at a time: drafts have fixed names.

    @contextlib.contextmanager
    def meanwhile(self, op: Op, transport: Transport, pod_store: str) -> Iterator[None]:
        """Download growing files of the pod in a background thread until the block ends."""
        over = threading.Event()
        thread = threading.Thread(target=self._go_on, args=(op, transport, pod_store, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(EVERY_S)  # The current download may be large, so the thread may outlive the block.

    def _go_on(self, op: Op, transport: Transport, pod_store: str, over: threading.Event) -> None:
        told = ""
        while not over.wait(EVERY_S):
            for part in self._parts(op, transport, pod_store):
                try:
                    with self.running:
                        part()
                except (ConnectionLost, TimedOut, Unreachable):  # The follower reports the silence.
                    break
                except (SlipwayError, StoreError, OSError, ValueError) as error:
                    if str(error) != told:
                        told = str(error)
                        self.say(f"{op.run}: bringing home: {error}")

    def last(self, op: Op, transport: Transport, pod_store: str) -> None:
        """Download all saved files of a pod before the pod ends; report damaged files and leave these files on the pod.

        Raises ConnectionLost, TimedOut or Unreachable if the pod does not answer.
        """
        self.say(f"{op.run}: downloading the saved files")
        with self.running:
            for part in self._parts(op, transport, pod_store):
                try:
                    part()
                except (ConnectionLost, TimedOut, Unreachable):
                    raise
                except (SlipwayError, StoreError, OSError, ValueError) as error:
                    self.say(f"{op.run}: bringing home: {error}")

    def _parts(self, op: Op, transport: Transport, pod_store: str) -> list[Callable[[], object]]:
        """Return the downloads in order; on a full disk, only the reports and a function that raises SlipwayError."""
        words = [lambda: reports.bring(op, transport, self.home)]
        if room.lacks(self.home.folder, self.reserve_bytes):
            return [*words, lambda: room.refuse_without_room(self.home.folder, self.reserve_bytes)]
        parts: list[Callable[[], object]] = [lambda: mirror.bring_logs(op, transport, self.home), *words]
        if pod_store:  # Without a pod store, the pod itself uploads artifacts.
            parts += [
                lambda: snapshot.bring(op, transport, self.home),
                lambda: mirror.bring_artifacts(op, pod_store, transport, Store(op.store), self.home),
            ]
        return parts
