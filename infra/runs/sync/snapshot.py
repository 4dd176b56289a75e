"""The local snapshot of a run, from which it can resume elsewhere; it is updated while the run is followed.

In: a journal row and the transport to its pod. Out: under `<homes>/<run>/`: `code/` as it was sent, `pod/` with marks
of steps, metrics, and of each folder of checkpoints the newest that is whole. `restore` puts all of it, logs too, onto
another pod of the run. A checkpoint is a folder `step-*` whose MANIFEST.json says its step, and of each of its files
the size and sha256.
"""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath
from typing import Any

from infra.agent.job import write_durably
from infra.agent.shell import is_own_text
from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.records import Carried
from infra.runs.pods import folder_of
from infra.runs.sync import mirror
from infra.transport.meter import Meter
from infra.transport.protocol import ThisMachine, Transport
from infra.transport.push import push
from store import outside
from store.artifacts.artifacts import Store
from store.run_sync.run_folder import Damaged, ListedCheckpoint

MANIFEST = "MANIFEST.json"
CARRIED = "carried.json"
OURS = ("keep.log", "launch.log")  # written at home
FIGURES_BYTES = 64 << 20  # of the figures of one training
LIST = """cd -- "$1" 2>/dev/null || exit 0
for file in work/checkpoints/*/step-*/MANIFEST.json work/runs/*/*.jsonl state/marks/*.json; do
    [ ! -f "$file" ] || printf '%s\\n' "$file"
done"""


def keep_code(op: Op, root: Path, folder: Path, carried: Sequence[Carried] = ()) -> Path:
    """Copy the code of `root` and what goes along, as a push sends them, for other pods; return the code's folder."""
    write_durably(folder / "POD.json", json.dumps({"token": op.token, "run": op.run}))
    code = folder / "code"
    push(ThisMachine(), root, code, op.token)
    subprocess.run(["git", "init", "-q", str(code)], check=True, stdin=subprocess.DEVNULL)  # else it is ignored by ours
    for one in carried:
        push(ThisMachine(), Path(one.source), folder / one.name, op.token, one.file)
        for words in (["init", "-q"], ["add", "-f", "-N", "."]):  # listed, also what its own .gitignore names
            git = ["git", "-C", str(folder / one.name), *words]
            subprocess.run(git, check=True, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    kept = [asdict(replace(one, source=str(folder / one.name))) for one in carried]
    write_durably(folder / CARRIED, json.dumps(kept))
    return code


def carried_of(folder: Path) -> tuple[Carried, ...]:
    """Return the folders that go along with the code that `keep_code` kept there."""
    with contextlib.suppress(FileNotFoundError):
        return tuple(Carried(**one) for one in json.loads((folder / CARRIED).read_bytes()))
    return ()


def bring(op: Op, transport: Transport, folder: Path) -> None:
    """Bring home what there is now; may be repeated. What the pod has tidied away meanwhile is left out.

    Raises SlipwayError when something arrived damaged.
    """
    root, names = folder_of(op).root, _list(op, transport)
    newest = {str(Path(name).parents[1]): str(Path(name).parent) for name in names if name.endswith(MANIFEST)}
    drafts = []
    for name in newest.values():
        with contextlib.suppress(FileNotFoundError):  # only the newest few are kept there
            drafts += _fetch_checkpoint(transport, root / name, folder / "pod" / name)
    for name in names:  # between the two: figures reach as far as any checkpoint that is here, whenever the pod is lost
        if not name.endswith(MANIFEST):
            with contextlib.suppress(FileNotFoundError):
                write_durably(folder / "pod" / name, transport.get(root / name, FIGURES_BYTES).decode())
    for draft, target in drafts:
        draft.rename(target)
        for old in (*target.parent.glob("step-*"), *target.parent.glob(".step-*.draft")):
            if old != target:
                shutil.rmtree(old)


def restore(op: Op, transport: Transport, folder: Path, store: Store) -> None:
    """Send a new pod what the one before has made; `store` is the one at home. Done before its job is started.

    Its machine may have had this run before. A checkpoint there that is the one at home is not sent again; one that
    never came home is put aside, since the run has gone on without it.
    """
    pod, kept = folder_of(op), folder / "pod"
    there = _clear(op, transport, kept)
    steps = op.read_job().steps
    lost = [step.name for step in steps if is_own_text(step) or not _is_made_here(step.config, store)]
    for path in sorted(path for path in kept.rglob("*") if path.is_file()):
        name = path.relative_to(kept)
        if any(part.startswith(".") for part in name.parts):  # a draft that was cut off
            continue
        if name.parts[:2] == ("state", "marks") and name.stem in lost:
            continue  # its output went with its pod: it is made again
        if str(name.parent) in there:
            continue
        mirror.put(transport, path, str(pod.root / name))
    for path in sorted((*folder.glob("*.log"), *folder.glob("*.times"))):
        if path.name not in OURS:  # the pod's go on where they ended
            mirror.put(transport, path, str(pod.logs / path.name))


def forget(folder: Path) -> None:
    """Remove the snapshot of a run that has succeeded: what it made is in the store."""
    for name in ("pod", "code", "state", *(one.name for one in carried_of(folder))):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in ("POD.json", CARRIED):
        (folder / name).unlink(missing_ok=True)


def _is_made_here(config: dict[str, Any], store: Store) -> bool:
    making = config.get("making")
    return making is None or mirror.is_home(store, making["name"], making["fingerprint"])


def _list(op: Op, transport: Transport) -> list[str]:
    """Return the files on the pod to be kept, by path in its folder."""
    done = transport.run(["sh", "-c", LIST, "sh", str(folder_of(op).root)], timeout_s=mirror.LIST_S)
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: listing its checkpoints: {done.stderr.strip() or f'exit code {done.exited}'}")
    names = sorted(done.stdout.splitlines())
    if any(".." in PurePosixPath(name).parts or name.startswith("/") for name in names):
        raise SlipwayError(f"{op.run}: its pod lists files outside of its folder")
    return names


def _clear(op: Op, transport: Transport, kept: Path) -> set[str]:
    """Return the checkpoints that are on the pod as they are here; put away what is newer there."""
    root, same = folder_of(op).root, set()
    for name in (name for name in _list(op, transport) if name.endswith(MANIFEST)):
        checkpoint = PurePosixPath(name).parent
        at_home = max((one.name for one in (kept / checkpoint.parent).glob("step-*")), default="")
        if checkpoint.name == at_home and _manifest(transport.get(root / name)) == _manifest(
            (kept / name).read_bytes()
        ):  # fmt: skip
            same.add(str(checkpoint))
        elif checkpoint.name >= at_home:
            there = root / checkpoint
            words = ["mv", "--", str(there), str(there.with_name(f".aside-{op.token}-{checkpoint.name}"))]
            done = transport.run(words, timeout_s=mirror.LIST_S)
            if done.exited != 0:
                raise SlipwayError(f"{op.run}: putting {there} aside: {done.stderr.strip()}")
    return same


def _manifest(content: bytes) -> Any:
    """Return the manifest; None when it is damaged."""
    with contextlib.suppress(ValueError):
        return outside.mapping(content)


def _fetch_checkpoint(transport: Transport, source: Path, target: Path) -> list[tuple[Path, Path]]:
    """Return a checkpoint's draft and its place, once the draft is whole; nothing when it is here already."""
    if target.exists():
        return []
    draft = target.with_name(f".{target.name}.draft")  # with what an earlier attempt has left
    try:
        checkpoint = ListedCheckpoint.parse(transport.get(source / MANIFEST), source.name)
    except Damaged as error:
        raise SlipwayError(f"{source}: {error}") from None
    meter = Meter()
    mirror.keep_only(draft, {PurePosixPath(file.path).name for file in checkpoint.files})
    for file in checkpoint.files:
        name = PurePosixPath(file.path).name
        if mirror.fetch(transport, str(source / name), draft / name, file.size, meter) != file.sha256:
            raise SlipwayError(f"{source / name} arrived damaged; it is fetched again")
    write_durably(draft / MANIFEST, checkpoint.raw.decode())
    return [(draft, target)]
