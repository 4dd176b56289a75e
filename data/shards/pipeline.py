"""Documents -> text shards: the implementation of `inv shard`, and the first step on a pod.

The bytes of shards and manifest depend only on source and options, not on the number of reading processes or on
interruptions.
"""

import hashlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from data import processors
from data.config import ConfigError, TextSpec
from data.errors import DataError, InputError
from data.events import emit
from data.manifest import MANIFEST, MANIFEST_BYTES, SCHEMA, TOOL, read_manifest, write_json
from data.references import parse, parse_mixture
from data.shards.mixing import MixturePosition, mix_batches, position_of
from data.shards.read_options import recorded_options, stamps, weights, workers_for
from data.shards.seen_documents import SeenHashes
from data.shards.shards import DRAFT, ShardFormat, ShardPosition, Writer, remove_shards
from data.shards.workers import Position, Task, read_in_order
from data.single_writer import lock_folder
from data.text.inputs import ALONE, STDIN, Inputs, Share, list_inputs
from data.text.invalid_lines import MOST_LISTED
from data.text.lines import PreparedBatch, keep
from store import extensions, untrusted_input

STATE, SEEN = "state.json", "seen.sqlite"
KEEP_BYTES = 64 << 20
COUNTED_BYTES = 64 << 20  # a source of this size is read to the end to count the documents beyond `take`
# Seconds to wait after a stop request; a read or disk write without progress is then abandoned.
SILENCE_S = 3.0
MOST_WAITING = 4


class StoppedBySignal(DataError):
    """A signal stopped the run; all progress up to the signal is saved."""

    def __init__(self, signal_number: int, words: str):
        super().__init__(words)
        self.exit_code = 130 if signal_number == signal.SIGINT else 75
        self.goes_on = True
        """True if the same command resumes the work."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options that do not change the result."""

    workers: int = 0
    """Number of processes; 0: one per CPU core."""
    reuse_shards: bool = False
    """Keep finished shards, even from a different source."""
    keep_every_s: float = 30.0
    """Longest time between two resume points in seconds; KEEP_BYTES of text also trigger a resume point."""
    stdin: str = ""
    """Path of a file to read as `stdin`."""

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise ConfigError(f"--workers must be at least 0 (0 = one per CPU core), got {self.workers}")


def shard(
    spec: TextSpec, folder: Path, split: bool = True, how: RunOptions = RunOptions(), share: Share = ALONE
) -> dict[str, Any]:
    """Write the shards of `spec` into `folder`; return a summary of all parts.

    split: write into `train/` and `val/` (no `val/` if no documents are held out), otherwise directly into `folder`. In
    a distributed run, each rank writes its share into a subfolder, for `merge`. The run resumes from an earlier run
    with the same source and options. Memory use does not grow with the source. Raises InputError if the source has no
    documents, StoppedBySignal after SIGINT or SIGTERM.
    """
    held_out = bool(spec.val_ratio or spec.validation)
    if not split and held_out:
        raise InputError("held-out shards need a folder of their own")
    parts = {"train": folder / "train" if split else folder} | ({"val": folder / "val"} if held_out else {})
    folders = {name: part / share.folder for name, part in parts.items()}
    if how.reuse_shards and (kept := _finished(folders)):
        emit("note", text=f"reusing {sum(len(one['shards']) for one in kept.values())} shards")
        return _summary(spec, kept)
    if how.stdin:
        os.dup2(os.open(how.stdin, os.O_RDONLY), sys.stdin.fileno())
    check_place(spec, folder, split)
    inputs = share.select_inputs(spec, list_inputs(spec))
    with lock_folder(folder if share.world == 1 else folders["train"]):
        # Check again, because a different process may have finished meanwhile.
        check_place(spec, folder, split)
        run = Run(spec, folder / DRAFT / share.folder, folders, inputs, how, share)
        try:
            with _stoppable() as stop:
                run.read_all(stop)
                made = run.finish()  # quick, so a signal does not interrupt it
        except StoppedBySignal as stopped:
            stopped.goes_on = spec.source not in STDIN  # stdin cannot be read again
            raise
        finally:
            run.close()
        if split and not held_out:
            remove_shards(folder / "val")  # stale shards must not lie beside new shards
    return _summary(spec, made) | ({} if run.available is None else {"available": run.available})


def check_place(spec: TextSpec, folder: Path, split: bool) -> None:
    """Raise InputError if a later reader would mix shards in `folder` with other shards, or read them as the source."""
    others = [folder / MANIFEST] if split else [folder / "train", folder / "val"]
    if found := [path.name for path in others if path.exists()]:
        which = "in train and val" if split else "outside of train and val"
        raise InputError(
            f"{folder} holds {' and '.join(found)}; new shards {which} would look like a part of the old set. Remove "
            "the old shards, or choose a different folder"
        )
    sources = {words for words, _ in parse_mixture(spec.source)} or {spec.source}
    for source in (sources | {spec.validation}) - {"", "pydocs", "fineweb", *STDIN}:
        if extensions.used(source):
            continue
        place = Path(parse(source).place).expanduser()
        if place.is_dir() and folder.resolve().is_relative_to(place.resolve()):
            raise InputError(
                f"{folder} is inside the source {source}, which would grow by the new shards; choose a different folder"
            )


class Run:
    """A run over a source: the position in the source, and the writers of `train` and `val`."""

    def __init__(
        self, spec: TextSpec, draft: Path, folders: dict[str, Path], inputs: Inputs, how: RunOptions, share: Share
    ):
        self.spec, self.inputs, self.keep_every_s = spec, inputs, how.keep_every_s
        self.workers = workers_for(spec, inputs, how.workers)
        self.draft, self.share = draft, share
        self.position: Position | MixturePosition = Position()
        self.documents = self.kept = 0
        self.counts: Counter[str] = Counter()
        self.skipped: list[str] = []
        self.raw_bytes = 0
        self.seen: SeenHashes | None = None
        self.available: int | None = None  # documents of the source if `take` stopped the run, None if not counted
        options = recorded_options(spec)
        identity = [SCHEMA, TOOL, options, inputs.about, stamps(inputs), share.folder]
        identity += [one.uri for one in inputs.files if one.stream]  # positions count streams
        self.key = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
        self.options = options
        self.about = {"source": spec.source, "options": options, "input": inputs.about} | self._manifest_extras()
        state = self._load_saved_state()
        self.writers = self._writers(folders, state)
        if state is None:
            (self.draft / STATE).unlink(missing_ok=True)
            (self.draft / SEEN).unlink(missing_ok=True)
        else:
            self.position = position_of(state["position"])
            self.documents, self.kept, self.raw_bytes = state["documents"], state["kept"], state["raw_bytes"]
            self.counts.update(state["counts"])
            self.skipped = state.get("skipped", [])
        if spec.dedup:
            self.seen = SeenHashes(self.draft / SEEN)
        self.disk = ThreadPoolExecutor(1, "disk")
        self.keeping: Future[None] | None = None
        self.kept_at = self.told_at = self.began = time.monotonic()
        self.kept_bytes = self.raw_bytes
        self.weights = weights(inputs)
        self.began_with = (self.kept, self.raw_bytes, self._read_share(0.0))
        if state is None:
            self._save(*self._snapshot())  # marks the folder as used by this run

    def read_all(self, stop: Callable[[], int]) -> None:
        """Read the whole source. Raises StoppedBySignal if `stop` returns a signal number."""
        if self.spec.take is not None and self.kept >= self.spec.take and not self.spec.validation:
            return
        batches = self._batches()
        try:
            for position, made in batches:
                is_val = isinstance(position, Position) and bool(self.inputs.files[position.file].part)
                self._write_batch(made, is_val)
                self.position = position
                read_share = self._read_share(made.file_done)
                now = time.monotonic()
                if stop():
                    self.save_progress()
                    self.wait_saved()
                    raise StoppedBySignal(stop(), self._progress_text())
                if self._is_due(now):
                    self.save_progress()
                if now - self.told_at > 1:
                    self._report_progress(now, read_share)
                if self.kept == self.spec.take and not self.spec.validation:
                    self.available = self._count_rest(batches, stop)
                    break
        finally:
            batches.close()

    def _count_rest(
        self, batches: Iterator[tuple[Position | MixturePosition, PreparedBatch]], stop: Callable[[], int]
    ) -> int | None:
        """Return the number of documents of the whole source, or None for a source that is not small or not here."""
        paths = [Path(one.uri) for one in self.inputs.files]
        is_here = not self.inputs.mixture and all(path.is_file() for path in paths)
        if not is_here or sum(path.stat().st_size for path in paths) > COUNTED_BYTES:
            return None
        found = self.documents
        for _, made in batches:
            found += sum(part.lines for part in made.parts)
            if stop():
                return None
        return found

    def _batches(self) -> Generator[tuple[Position | MixturePosition, PreparedBatch], None, None]:
        at = self.position
        if self.inputs.mixture:
            return mix_batches(self.spec, self.inputs, at if isinstance(at, MixturePosition) else None, self.workers)
        start = at if isinstance(at, Position) else Position()
        return read_in_order(Task(self.spec, self.inputs.files, "train", start, self.workers))

    def save_progress(self) -> None:
        """Start to publish complete shards and save the position, in the background."""
        self.wait_saved()
        if self.seen:
            self.seen.commit()
        self.keeping = self.disk.submit(self._save, *self._snapshot())
        self.kept_at, self.kept_bytes = time.monotonic(), self.raw_bytes

    def wait_saved(self) -> None:
        """Wait for the background save; a kill after this call loses no progress made before the last `keep`."""
        if self.keeping:
            self.keeping.result()
            self.keeping = None

    def _is_due(self, now: float) -> bool:
        # During a save, the next save is due only after MOST_WAITING complete shards, which limits the number of
        # drafts.
        if self.keeping and not self.keeping.done():
            return any(writer.num_waiting >= MOST_WAITING for writer in self.writers.values())
        return now - self.kept_at > self.keep_every_s or self.raw_bytes - self.kept_bytes > KEEP_BYTES

    def _snapshot(self) -> tuple[dict[str, ShardPosition], dict[str, Any]]:
        """Return the cut of each writer, and the state to save."""
        state = {
            "key": self.key,
            "position": asdict(self.position),
            "documents": self.documents,
            "kept": self.kept,
            "raw_bytes": self.raw_bytes,
            "counts": dict(self.counts),
            "skipped": list(self.skipped),
        }
        return {name: writer.take_completed() for name, writer in self.writers.items()}, state

    def _save(self, cuts: dict[str, ShardPosition], state: dict[str, Any]) -> None:
        """Publish the shards and save the state; runs in the disk thread, because the disk is slow."""
        about = {**self.about, "counts": state["counts"], **_listed(state["skipped"])}
        parts = {name: writer.publish(cuts[name], about) for name, writer in self.writers.items()}
        if self.spec.source not in STDIN:  # stdin cannot be read again
            write_json(self.draft / STATE, {**state, "parts": parts})
        for writer in self.writers.values():
            writer.remove_drafts()

    def finish(self) -> dict[str, dict[str, Any]]:
        """Write and return the manifests after the whole source is read.

        Raises InputError if the source has no documents or none is selected, except in a distributed run.
        """
        some = self.share.world > 1  # the share of a rank may have files without documents
        if not (some or self.counts["read"] - self.counts["empty"]):
            raise InputError(f"source {self.spec.source}: no document in the source")
        if not (some or self.kept):
            raise InputError(f"source {self.spec.source}: none of {self.counts['read']:,} documents was chosen")
        for writer in self.writers.values():
            writer.close()
        if self.spec.validation and not (some or self.writers["val"].num_whole):
            raise InputError(f"validation {self.spec.validation}: none of its documents can be held out")
        self.save_progress()
        self.wait_saved()
        more = {
            "input": self.inputs.about,
            "counts": dict(self.counts),
            **_listed(self.skipped),
        } | self._manifest_extras()
        parts = {name: writer.finish(self.spec.source, self.options, more) for name, writer in self.writers.items()}
        self.close()
        shutil.rmtree(self.draft)
        if some:
            with suppress(OSError):  # a different rank still uses the folder
                self.draft.parent.rmdir()
        return parts

    def close(self) -> None:
        self.disk.shutdown()
        if self.seen:
            self.seen.close()
            self.seen = None

    def _manifest_extras(self) -> dict[str, Any]:
        whose = asdict(self.share) if self.share.world > 1 else {}
        return {**whose, **({"fallback": True} if self.spec.fallback else {})}

    def _write_batch(self, made: PreparedBatch, is_val: bool) -> None:
        lines = sum(part.lines for part in made.parts)
        self.counts.update(made.counts)
        for one in made.skipped[: MOST_LISTED - len(self.skipped)]:
            self.skipped.append(one.describe())
            emit("note", text=f"left out: {self.skipped[-1]}")
        wanted = self.seen.are_new(made.digests, self.documents) if self.seen else [True] * lines
        self.documents += lines
        self.counts["duplicate"] += wanted.count(False)
        if not is_val and self.spec.take is not None:
            room = self.spec.take - self.kept
            wanted = [want and number <= room for want, number in zip(wanted, accumulate(wanted), strict=True)]
        if not all(wanted):
            made = keep(made, wanted)
        for part in made.parts:
            self.raw_bytes += self.writers[part.name].write(part.blocks, part.lines)
        self.kept += 0 if is_val else wanted.count(True)

    def _report_progress(self, now: float, read_share: float) -> None:
        """Report the progress.

        read_share: share of the source read so far. If the run is closer to `take` documents than to the end of the
        source, the share of `take` is reported.
        """
        self.told_at = now
        took = now - self.began
        kept, raw_bytes, began_at = self.began_with
        rate, speed = (self.kept - kept) / took, (self.raw_bytes - raw_bytes) / 1e6 / took
        left_s = [(1 - read_share) * took / (read_share - began_at)] if read_share > began_at else []
        if self.spec.take and rate:
            left_s.append((self.spec.take - self.kept) / rate)
            read_share = max(read_share, self.kept / self.spec.take)
        emit(
            "progress",
            done=self.kept,
            total=self.spec.take,
            unit="documents",
            share=round(read_share, 4) or None,
            shards=self._shards(),
            documents_per_s=round(rate),
            mb_per_s=round(speed, 1),
            eta_s=min(left_s, default=None),
        )

    def _read_share(self, file_done: float) -> float:
        """Return the share of the source before the piece at `position`, from 0 to 1."""
        if isinstance(self.position, MixturePosition):
            return 0.0  # the source that ends first is unknown
        at = self.position.file
        here = self.weights[at] * file_done if at < len(self.weights) else 0.0
        return (sum(self.weights[:at]) + here) / (sum(self.weights) or 1.0)

    def _writers(self, folders: dict[str, Path], state: dict[str, Any] | None) -> dict[str, Writer]:
        form = ShardFormat(self.spec.format, self.spec.compression, processors.count_usable())
        marks = state["parts"] if state else {}
        return {
            name: Writer(path, self.spec.lines_per_shard, form, self.draft / name, marks.get(name))
            for name, path in folders.items()
        }

    def _shards(self) -> int:
        return sum(writer.num_whole for writer in self.writers.values())

    def _progress_text(self) -> str:
        documents, shards = self.kept, self._shards()
        return f"{documents:,} document{'s' * (documents != 1)}, {shards} whole shard{'s' * (shards != 1)}"

    def _load_saved_state(self) -> dict[str, Any] | None:
        """Return the saved state of a run with the same source and options, or None."""
        try:
            state = untrusted_input.load(self.draft / STATE, MANIFEST_BYTES, MANIFEST_BYTES // 16)
            return state if state["key"] == self.key else None
        except (FileNotFoundError, NotADirectoryError, ValueError, KeyError, TypeError):
            return None


def _listed(skipped: list[str]) -> dict[str, list[str]]:
    """Return the manifest entry of the skipped lines: the first of them, by file and line."""
    return {"skipped": skipped} if skipped else {}


def _finished(folders: dict[str, Path]) -> dict[str, dict[str, Any]]:
    """Return the manifests of all parts if all are finished, else {}."""
    if not all((folder / MANIFEST).exists() for folder in folders.values()):
        return {}
    found = {name: read_manifest(folder, finished=False) for name, folder in folders.items()}
    return found if all(one["finished"] for one in found.values()) else {}


def _summary(spec: TextSpec, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        "source": spec.source,
        **({"fallback": True} if spec.fallback else {}),
        "documents": sum(part["total_lines"] for part in parts.values()),
        "bytes": sum(part["total_bytes"] for part in parts.values()),
        "shards": sum(len(part["shards"]) for part in parts.values()),
        "held_out": parts["val"]["total_lines"] if "val" in parts else 0,
        "counts": parts["train"].get("counts", {}),
    }


@contextmanager
def _stoppable() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the number of the signal that requested a stop, or 0.

    A second signal raises KeyboardInterrupt. If the function is not called within SILENCE_S seconds after a signal, a
    read or the disk hangs: StoppedBySignal is raised in place, and only progress saved earlier remains.
    """
    asked = [0]

    def hear(number: int, frame: Any) -> None:
        if asked[0]:
            raise KeyboardInterrupt
        asked[0] = number
        signal.setitimer(signal.ITIMER_REAL, SILENCE_S)

    def late(number: int, frame: Any) -> None:
        raise StoppedBySignal(asked[0], f"no progress for {SILENCE_S:.0f} s; saved shards stay")

    def stop() -> int:
        if asked[0]:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return asked[0]

    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    handlers = {signal.SIGINT: hear, signal.SIGTERM: hear, signal.SIGALRM: late}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield stop
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)
