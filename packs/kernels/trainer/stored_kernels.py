"""The keeper of kernels in the store: looks for kernels while the model loads, and publishes new kernels."""

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

from data.events import emit
from packs.kernels.records.job_variables import COLD, MODE
from packs.kernels.records.work_shape import shape_of
from packs.kernels.trainer import machine_facts
from packs.kernels.trainer.bundle import Header, UnusableBundle, read_files, write_files
from packs.kernels.trainer.stored_bundles import KernelStore
from packs.kernels.trainer.user_key import NoKey, find_key
from trainer.kernels import KernelKeeper, KernelWork
from trainer.speed import LEAST_THREADS

log = logging.getLogger(__name__)

LOOK_S = 10.0  # longest wait for a header
# Longest wait for uploads at the end of the training: the upload continues beside evaluation and publication.
PUBLISH_S = 5.0


class StoredKernels(KernelKeeper):
    def __init__(self, work: KernelWork) -> None:
        super().__init__(work)
        self.mode = os.environ.get(MODE, COLD)
        device, threads = work.machine.device.type, max(work.machine.threads, LEAST_THREADS)
        self.is_used = self.mode != COLD and work.config.should_compile(device, threads if device == "cpu" else 1)
        self.space: KernelStore | None = None
        self.header: Header | None = None
        self.found: dict[str, bytes] = {}
        self.restored_s = 0.0
        """Seconds that the restored kernels took to compile."""
        self.published = 0
        """Number of graphs that this run compiled and published."""
        self.is_training = False
        """True after the first step."""
        self.is_judged = threading.Event()
        self.looking = self._begin(self._look)
        self.publishing: threading.Thread | None = None

    def restore(self, folder: Path) -> None:
        """Write the found kernels into the compile cache. Wait no longer than a compilation would take."""
        if not self.is_used:
            return
        self.is_judged.wait(LOOK_S)
        self.looking.join(self.header.compile_s if self.header else 0.0)
        if self.looking.is_alive():
            say("not restored: the kernels in the store did not arrive in time")
        elif self.found and self.header:
            try:
                write_files(self.found, folder)
            except OSError as error:
                say(f"not restored: {error}")
                return
            self.restored_s = self.header.compile_s
            say(f"{len(self.found)} files restored from the store; the compilation took {self.restored_s:.0f} s")

    def keep(self, folder: Path) -> None:
        """Publish the kernels in the background if this run has compiled a graph; wait for an earlier upload."""
        if not self.is_used:
            return
        from torch._dynamo.utils import calculate_time_spent, counters

        is_end, self.is_training = self.is_training, True
        until = time.monotonic() + PUBLISH_S
        if self.publishing is not None:
            self.publishing.join(PUBLISH_S)
        found, took_s = counters["inductor"], calculate_time_spent()["total_wall_time"]
        compiled, hits = found["fxgraph_cache_miss"], found["fxgraph_cache_hit"]
        if not is_end:
            say(f"{compiled} graphs compiled, {hits} graphs taken from earlier runs, in {took_s:.0f} s")
        if compiled <= self.published or self.space is None or self.publishing and self.publishing.is_alive():
            return
        self.published, space = compiled, self.space
        try:
            files = read_files(folder)
        except (UnusableBundle, OSError) as error:
            say(f"not kept: {error}")
            return
        self.publishing = self._begin(lambda: self._publish(space, files, took_s + self.restored_s))
        if is_end:
            self.publishing.join(max(0.0, until - time.monotonic()))

    def _begin(self, action: Callable[[], None]) -> threading.Thread:
        """Start `action` in the background. A failure is a note, since the run does not need kept kernels."""

        def guarded() -> None:
            try:
                action()
            except Exception as error:  # clients of stores raise errors of any type
                say(f"{self.work.store}: {error}")
            finally:
                self.is_judged.set()

        thread = threading.Thread(target=guarded, name="kernels", daemon=True)
        if self.is_used:
            thread.start()
        return thread

    def _look(self) -> None:
        work = self.work
        try:
            key = find_key(work.store, self.mode)
        except NoKey as error:
            say(f"not kept: {error}")
            return
        facts = {
            **machine_facts.facts_of(work.machine.device.type),
            "shape": shape_of(work.config),
            "dtype": str(work.machine.dtype(work.config)),
            "layout": f"{work.parallel} {work.ranks.size}",
        }
        self.space = KernelStore(uri=work.store, key=key, facts=facts, say=say)
        self.found = self.space.find(self._judge)

    def _judge(self, header: Header) -> None:
        self.header = header
        self.is_judged.set()

    def _publish(self, space: KernelStore, files: dict[str, bytes], compile_s: float) -> None:
        size = space.publish(files, compile_s, machine_facts.name_of(space.facts))
        say(f"{len(files)} files kept in the store, {size:,} bytes")


def say(text: str) -> None:
    """Report to the log and to followers of the run."""
    log.info("kernels: %s", text)
    emit("note", text=f"kernels: {text}")
