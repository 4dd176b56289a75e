"""Local snapshot of a run, from which the run can resume on a new pod, and the downloads that update the snapshot.

In the run's home, `kept/` holds the original code and the carried folders. `pod/` holds step marks, metrics, and the
newest complete checkpoint of each checkpoint folder. `restore` sends the contents of `pod/`, including logs, to a new
pod of the run. A checkpoint is a folder `step-*` whose MANIFEST.json records the step, and the size and SHA-256 of each
file. `Downloads` works in the background while the pod is followed, and once more before the pod ends.
"""

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.records import Carried
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome, own_folder, read_record, write_record
from infra.runs.sync import fetched_files, mirror, reports
from infra.runs.sync.fetched_files import LIST_S, MARK_BYTES, RESULTS, FetchRoom, check_fits, listed
from infra.runs.timing import Say
from infra.transport.protocol import READ_BYTES, ConnectionLost, Meter, ThisMachine, TimedOut, Transport, Unreachable
from infra.transport.push import push
from store import untrusted_input
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from store.run_sync.run_folder import MANIFEST, DamagedCheckpoint, ListedCheckpoint, by_folder, step_of
from store.untrusted_input import CHECKPOINT, FIGURES, MARK, is_inside, is_of_run, is_part

OURS = ("code", "state", "logs", "work")  # Reserved names beside the code; a carried folder cannot use them.
EVERY_S = 2.0


def keep_code(op: Op, root: Path, home: RunHome, carried: Sequence[Carried] = ()) -> Path:
    """Copy the code in `root` and the carried folders like a push, for later pods; return the folder of the code."""
    write_record(home.snapshot.root / "POD.json", {"token": op.token, "run": op.run})
    push(ThisMachine(), root, home.snapshot.code, op.token, anyway=op.send_anyway)
    # Without a repository here, the repository of this checkout would ignore the folder.
    subprocess.run(["git", "init", "-q", str(home.snapshot.code)], check=True, stdin=subprocess.DEVNULL)
    if sent := [
        one for one in op.send_anyway if os.path.lexists(home.snapshot.code / one)
    ]:  # Tracked, as in the checkout.
        words = ["git", "-C", str(home.snapshot.code), "add", "-f", "-N", "--", *sent]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    for one in carried:
        folder = home.snapshot.root / _checked(one.name, one.file)
        push(ThisMachine(), Path(one.source), folder, op.token, one.file, anyway=one.anyway)
        for words in (["init", "-q"], ["add", "-f", "-N", "."]):  # Lists all files, despite the folder's .gitignore.
            subprocess.run(
                ["git", "-C", str(folder), *words], check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
    kept = [{"name": one.name, "file": one.file, "anyway": list(one.anyway)} for one in carried]
    write_record(home.carried, {"carried": kept})
    return home.snapshot.code


def carried_of(home: RunHome) -> tuple[Carried, ...]:
    """Return the carried folders stored by `keep_code` in `kept/`.

    Raises SlipwayError for an invalid record; no folder is sent.
    """
    try:
        said = untrusted_input.typed(read_record(home.carried), "carried", list)
        return tuple(_kept_one(home, one) for one in said)
    except FileNotFoundError:
        return ()
    except untrusted_input.UnusableDocument as error:
        raise SlipwayError(f"{home.carried} cannot be used, and is not sent: {error}") from None


def _kept_one(home: RunHome, said: Any) -> Carried:
    if type(said) is not dict or set(said) - {"name", "file", "anyway"}:
        raise untrusted_input.UnusableDocument(f"entry {untrusted_input.printable_line(said)}")
    name, file = untrusted_input.typed(said, "name", str), untrusted_input.typed(said, "file", str, "")
    source = str(own_folder(home, home.snapshot.root / _checked(name, file)))
    anyway = [one for one in untrusted_input.typed(said, "anyway", list, []) if type(one) is str and is_inside(one)]
    return Carried(name=name, source=source, file=file, anyway=tuple(anyway))


def _checked(name: str, file: str) -> str:
    """Return the name of a carried folder.

    Raises UnusableDocument for an invalid or reserved name, or an invalid path.
    """
    if not is_part(name) or name in OURS or file and not is_inside(file):
        raise untrusted_input.UnusableDocument(
            f"{untrusted_input.printable_line(name)} with {untrusted_input.printable_line(file)} is not a folder to "
            "send"
        )
    return name


def download(op: Op, transport: Transport, home: RunHome) -> None:
    """Download the current marks, metrics and newest checkpoints. Idempotent. Skip files removed by the pod.

    Raises SlipwayError for a damaged file, or without enough disk space.
    """
    pod, listing, drafts = folder_of(op).root, listed(op, transport, RESULTS), []
    for checkpoints in by_folder(listing.sizes).values():
        with contextlib.suppress(FileNotFoundError):  # The pod keeps only the newest few checkpoints.
            drafts += _fetch_checkpoint(transport, pod, home, checkpoints[0])
    # Between fetching and publishing the checkpoints: the local metrics then reach at least as far as any local
    # checkpoint, even if the pod is lost at any time.
    cuts = [*fetched_files.cuts_of(listing), *_bring_figures(transport, pod, home, listing.sizes)]
    for name, there in listing.sizes.items():
        if MARK.fullmatch(name) and there <= MARK_BYTES:
            with contextlib.suppress(FileNotFoundError):
                fetched_files.replace(home.pod.root, name, [transport.get(pod / name, MARK_BYTES)])
    fetched_files.note_cuts(home, "results", cuts)
    for draft, target in drafts:
        draft.rename(target)
        for old in (*target.parent.glob("step-*"), *target.parent.glob(".step-*.draft")):
            if old != target:
                shutil.rmtree(old)


def _bring_figures(transport: Transport, pod: Path, home: RunHome, sizes: Mapping[str, int]) -> list[str]:
    """Download the metrics of each phase; return display texts for partly copied metrics."""
    cuts, room = [], FetchRoom.for_home(home)
    for name, there in sizes.items():
        if FIGURES.fullmatch(name):
            # The file may be growing.
            most = room.reserve(fetched_files.held_bytes(home.pod.root / name), there + READ_BYTES)
            with contextlib.suppress(FileNotFoundError):
                fetched_files.replace(home.pod.root, name, fetched_files.pieces_of(transport, str(pod / name), most))
                cuts += [fetched_files.describe_cut(name, most, there)] if most < there else []
    return cuts


def restore(op: Op, transport: Transport, home: RunHome, store: Store) -> None:
    """Send the snapshot of the earlier pod to a new pod, before the job starts; `store` is the local store.

    The new machine may have had this run before. A checkpoint equal to the local checkpoint is not sent again. A newer
    checkpoint without a local copy is moved aside, because the run has continued without the checkpoint.
    """
    pod, kept = folder_of(op), home.pod.root
    there = _clear(op, transport, kept)
    steps = op.read_job().steps
    lost = [step.name for step in steps if step.is_own_text or not _is_made_here(step.config, store)]
    remade = [f"state/marks/{name}.json" for name in lost]  # The output of these steps was lost with the pod.
    for name in sorted(fetched_files.files_below(kept)):
        if is_of_run(name) and name not in remade and name.rpartition("/")[0] not in there:
            mirror.put(transport, kept / name, str(pod.root / name))  # Logs continue at their end.


def forget(home: RunHome) -> None:
    """Delete the snapshot of a successful run; the store has the artifacts."""
    for folder in (home.snapshot.root, home.pod.work, home.pod.state / "marks"):
        with contextlib.suppress(SlipwayError):  # The folder is missing or not ours.
            shutil.rmtree(own_folder(home, folder), ignore_errors=True)


def _is_made_here(config: dict[str, Any], store: Store) -> bool:
    making = config.get("making")
    return making is None or mirror.is_in_local_store(store, making["name"], making["fingerprint"])


def _clear(op: Op, transport: Transport, kept: Path) -> set[str]:
    """Return the checkpoints on the pod equal to local checkpoints; move aside newer or different checkpoints."""
    root, same = folder_of(op).root, set()
    for folder, checkpoints in by_folder(listed(op, transport, RESULTS).sizes).items():
        here = [f"{folder}/{one.name}" for one in (kept / folder).glob("step-*")]
        at_home = max((step_of(one) for one in here if CHECKPOINT.fullmatch(one)), default=-1)
        for checkpoint in checkpoints:
            if step_of(checkpoint) == at_home and _is_same(transport, root, kept, checkpoint):
                same.add(checkpoint)
            elif step_of(checkpoint) >= at_home:
                _put_aside(op, transport, root / checkpoint)
    return same


def _is_same(transport: Transport, root: Path, kept: Path, checkpoint: str) -> bool:
    """Return True if a checkpoint on the pod and the local checkpoint have equal, valid manifests."""
    with contextlib.suppress(FileNotFoundError):  # One of the two folders is no checkpoint.
        here = _manifest(fetched_files.content(kept, f"{checkpoint}/{MANIFEST}"))
        return here is not None and bool(_manifest(transport.get(root / checkpoint / MANIFEST)) == here)
    return False


def _put_aside(op: Op, transport: Transport, there: Path) -> None:
    words = ["mv", "--", str(there), str(there.with_name(f".aside-{op.token}-{there.name}"))]
    done = transport.run(words, timeout_s=LIST_S)
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: putting {there} aside: {done.stderr.strip()}")


def _manifest(content: bytes) -> Any:
    """Return the parsed manifest, or None for a damaged manifest."""
    with contextlib.suppress(ValueError):
        return untrusted_input.mapping(content)


def _fetch_checkpoint(transport: Transport, pod: Path, home: RunHome, name: str) -> list[tuple[Path, Path]]:
    """Fetch a checkpoint as a draft; return [(draft, target)] once complete, or [] if the checkpoint is already local.

    Raises SlipwayError for a damaged file, or without enough disk space.
    """
    target = fetched_files.place(home.pod.root, name)
    if target.exists():
        return []
    source, above = pod / name, name.rpartition("/")[0]
    try:
        checkpoint = ListedCheckpoint.parse(transport.get(source / MANIFEST), target.name)
    except DamagedCheckpoint as error:
        raise SlipwayError(f"{source}: {error}") from None
    check_fits(f"checkpoint {name}", sum(file.size for file in checkpoint.files), home.folder)
    # Includes the files of an earlier attempt.
    draft = fetched_files.place(home.pod.root, f"{above}/.{target.name}.draft")
    meter = Meter()
    mirror.keep_only(draft, {file.path for file in checkpoint.files})
    for file in checkpoint.files:
        path = fetched_files.place(draft, file.path)
        if mirror.fetch(transport, str(source / file.path), path, file.size, meter) != file.sha256:
            raise SlipwayError(f"{source / file.path} was damaged in transfer; downloading again")
    fetched_files.replace(draft, MANIFEST, [checkpoint.raw])
    return [(draft, target)]


@dataclass
class Downloads:
    """The downloads of one run into the local home."""

    home: RunHome
    say: Say
    reserve_bytes: int = 0
    """Free bytes to keep on the local disk; below this reserve, only the pod's reports are fetched."""
    running: threading.Lock = field(default_factory=threading.Lock)  # One download at a time: drafts have fixed names.

    @contextlib.contextmanager
    def run_in_background(self, op: Op, transport: Transport, pod_store: str) -> Iterator[None]:
        """Download growing files of the pod in a background thread until the block ends."""
        over = threading.Event()
        thread = threading.Thread(target=self._download_loop, args=(op, transport, pod_store, over), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(EVERY_S)  # The current download may be large, so the thread may outlive the block.

    def _download_loop(self, op: Op, transport: Transport, pod_store: str, over: threading.Event) -> None:
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
                        self.say(f"{op.run}: downloading: {error}")

    def download_all(self, op: Op, transport: Transport, pod_store: str) -> None:
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
                    self.say(f"{op.run}: downloading: {error}")

    def _parts(self, op: Op, transport: Transport, pod_store: str) -> list[Callable[[], object]]:
        """Return the downloads in order; on a full disk, only the reports and a function that raises SlipwayError."""
        words = [lambda: reports.download(op, transport, self.home)]
        if fetched_files.reserve_problem(self.home.folder, self.reserve_bytes):
            return [*words, lambda: fetched_files.check_reserve(self.home.folder, self.reserve_bytes)]
        parts: list[Callable[[], object]] = [lambda: mirror.bring_logs(op, transport, self.home), *words]
        if pod_store:  # Without a pod store, the pod itself uploads artifacts.
            parts += [
                lambda: download(op, transport, self.home),
                lambda: mirror.bring_artifacts(op, pod_store, transport, Store(op.store), self.home),
            ]
        return parts
