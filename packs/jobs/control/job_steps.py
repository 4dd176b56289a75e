"""Conversion of a parsed job file into job steps and folders to send.

A task becomes a setup step, run once per pod, and a run step, run on all nodes at once. `infra.agent.shell` executes
the steps.
"""

import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infra import file_variables
from infra.agent.execution import own_root
from infra.agent.job import SETUP, TEXT_WORDS, Step
from infra.agent.shell import WORKDIR, Script
from infra.errors import UsageError
from infra.records import Carried, PlannedMount
from infra.transport import sent_folders, shipment
from infra.transport.scan import home_folders
from infra.transport.scan.inspector import named
from packs.jobs.control import fetching, images, mounts
from packs.jobs.control.job_file import JobFile, JobTask, Mount
from packs.jobs.control.machines import recovery_of
from packs.jobs.control.refusals import Refusals
from store.run_sync.mounts import MOUNT, STILL

RUN = "run"
ALONE = ("-u",)  # extra Python arguments of a step on all nodes: unbuffered output
ALWAYS = 1000  # restarts for a job without its own limit; the time and spend limits still apply


@dataclass(frozen=True, kw_only=True)
class KeptFolder:
    """A folder that the uploader downloads before a task, and uploads again."""

    name: str
    path: str
    """Path in the task."""
    place: str = ""
    """Address in a bucket; "" for a folder of the store."""
    file: str = ""
    """The file at the path, if the address names a file."""
    kind: str = ""
    """STILL for a copy whose changes stay on the pod, MOUNT for a bucket that rclone mounts if the machine can."""

    @property
    def words(self) -> tuple[str, ...]:
        """Return the folder in the format of `Script.kept`."""
        return self.name, self.file, self.path, self.place, self.kind


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The files to send with a job, and the paths at which each task finds the files."""

    carried: tuple[Carried, ...]
    workdirs: tuple[str, ...]
    """The sent work folder of each task; "" for a task without one."""
    mounts: tuple[tuple[tuple[str, str, str], ...], ...]
    """The mounts of each task, in the format of `Script.mounts`."""
    kept: tuple[tuple[KeptFolder, ...], ...] = ()
    """The folders of each task that the uploader brings."""
    planned: tuple[PlannedMount, ...] = ()
    """The sent folders and files, one entry per target path."""


def lay_out(file: JobFile, is_own: bool, anyway: Sequence[str] = (), is_rehearsed: bool = False) -> Layout:
    """Inspect the work folders and mounts of a job and return the files to send.

    Args:
        file: The job.
        is_own: True if the job runs on this machine or on a machine of the user.
        anyway: Paths to send despite a finding of the secret scan or a hidden folder in the home directory.
        is_rehearsed: True for a rehearsed pod; the job may then use absolute mount paths.

    Raises:
        UsageError: If a mount is invalid or a folder contains no files to send.
    """
    carried: list[Carried] = []
    workdirs, mounted, kept = [], [], []

    def name_of(kind: str, source: Path, file_name: str = "") -> str:
        known = next((one for one in carried if (one.source, one.file) == (str(source), file_name)), None)
        if known is None:
            number = sum(one.name.startswith(kind) for one in carried)
            known = Carried(
                name=f"{kind}-{number}" if number else kind,
                source=str(source),
                file=file_name,
                anyway=named(source, anyway),
            )
            carried.append(known)
        return known.name

    for task in file.tasks:
        workdirs.append(name_of("workdir", task.workdir) if task.workdir else "")
        copied = [one for one in task.mounts if not mounts.is_kept(one)]
        if is_own and (is_rehearsed or not images.first_image(task)):
            for one in task.mounts:
                _check_path(file, one, is_rehearsed)
        mounted.append(tuple(_mount(file, one, name_of) for one in copied))
        kept.append(tuple(_kept(file, one, task) for one in task.mounts if mounts.is_kept(one)))
    # Raises before any machine is rented.
    weights = {one.name: shipment.measure(Path(one.source), one.file, one.anyway) for one in carried}
    at = [(name, path) for task in mounted for name, _, path in task]
    sent = [*((name, "") for name in workdirs if name), *at]
    by_name = {one.name: one for one in carried}
    planned = tuple(_planned(by_name[name], path, weights[name], anyway) for name, path in dict.fromkeys(sent))
    return Layout(
        carried=tuple(carried), workdirs=tuple(workdirs), mounts=tuple(mounted), kept=tuple(kept), planned=planned
    )


def _planned(one: Carried, at: str, weight: shipment.SendSize, anyway: Sequence[str]) -> PlannedMount:
    source = Path(one.source) / one.file
    return PlannedMount(
        source=home_folders.shown(source),
        at=at,
        files=weight.files,
        bytes=weight.bytes,
        refused=tuple(map(str, weight.refused)),
        pointers=weight.pointers,
        hidden=home_folders.hidden_in(source),
        is_named=home_folders.is_named(source, anyway),
    )


def collect_refusals(file: JobFile, task: JobTask, is_own: bool, is_rehearsed: bool, refused: Refusals) -> None:
    """Collect the work folder and the mounts of a task that cannot be carried out."""
    if task.workdir:
        with refused.collecting():
            sent_folders.check_folder(f"{file.where}: line {task.document.line('workdir')}: workdir", task.workdir)
    for one in task.mounts:
        if one.source and not mounts.is_kept(one) and Path(one.source).is_dir():
            with refused.collecting():
                sent_folders.check_folder(f"{file.where}: line {one.line}: file_mounts: {one.path}", Path(one.source))
        with refused.collecting():
            _kept(file, one, task) if mounts.is_kept(one) else _check_copied(file, one)
        if is_own and (is_rehearsed or not images.first_image(task)):  # A container has a root of its own.
            with refused.collecting():
                _check_path(file, one, is_rehearsed)


def _check_path(file: JobFile, one: Mount, is_rehearsed: bool) -> None:
    """Raise UsageError for a mount at an absolute path if the job cannot have a root file system of its own."""
    where = f"{file.where}: line {one.line}: file_mounts: {one.path}"
    if not one.path.startswith("/"):
        return
    if not Path(one.path).name:
        raise UsageError(f"{where}: a mount cannot replace the root of the machine; name a folder below /")
    if not is_rehearsed:
        raise UsageError(
            f"{where}: on a machine of your own Slipway writes only to the pod's folder; write ~{one.path}"
        )
    if why := own_root.problem():
        raise UsageError(
            f"{where}: a rehearsed pod is a folder of this machine, which cannot give a job a separate root ({why}); "
            f"write ~{one.path}"
        )


def for_engine(file: JobFile) -> JobFile:
    """Return the job without the mounts that the engine itself makes."""
    ours = [tuple(each for each in one.mounts if not mounts.is_of_engine(each)) for one in file.tasks]
    tasks = tuple(replace(one, mounts=kept) for one, kept in zip(file.tasks, ours, strict=True))
    return replace(file, tasks=tasks)


def _kept(file: JobFile, one: Mount, task: JobTask) -> KeptFolder:
    """Return the folder of a mount that the uploader brings. Raise UsageError for an invalid mount."""
    where = f"{file.where}: line {one.line}: file_mounts: {one.path}"
    if "://" in one.source:
        if not re.fullmatch(mounts.BUCKET, one.source):
            raise UsageError(f"{where}: Slipway reads buckets of s3://, gs:// and hf://; {fetching.advice(one)}")
        last = one.source.rstrip("/").rpartition("/")[2]
        is_file = mounts.is_file(one)
        kind = STILL if one.mode == "COPY" else "" if mounts.copy_reason(one, task) else MOUNT
        stem = re.sub("[^A-Za-z0-9]+", "-", last)[:40].strip("-") or "bucket"
        return KeptFolder(
            name=f"{stem}-{digest([one.source, one.path, kind])[:8]}",
            path=one.path,
            place=one.source.rstrip("/"),
            file=last if is_file else "",
            kind=kind,
        )
    if one.source:
        raise UsageError(
            f"{where}: MOUNT_CACHED starts from the folder in the store, by name, and takes no source of this machine; "
            f"write {one.path}: {one.source}, which copies the files"
        )
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", one.name):
        raise UsageError(f"{where}: name {one.name!r} is not a valid folder name: letters, digits, . _ -")
    return KeptFolder(name=one.name, path=one.path)


def _mount(file: JobFile, one: Mount, name_of: Any) -> tuple[str, str, str]:
    _check_copied(file, one)
    source = Path(one.source)
    if source.is_dir():
        return name_of("mount", source.resolve()), "", one.path
    return name_of("mount", source.resolve().parent, source.name), source.name, one.path


def _check_copied(file: JobFile, one: Mount) -> None:
    """Raise UsageError for a mount of this machine's files that cannot be copied to the path."""
    where = f"{file.where}: line {one.line}: file_mounts: {one.path}"
    if one.sources:
        raise UsageError(f"{where}: source: several folders cannot be mounted at one path; give each folder a path")
    if one.mode == "MOUNT":
        raise UsageError(f"{where}: MOUNT is for buckets; write {one.path}: {one.source}, which copies the files")
    if not one.source:
        raise UsageError(f"{where}: COPY needs a source; write mode: MOUNT_CACHED, or a source")
    if one.path.rstrip("/") == f"~/{WORKDIR}" and Path(one.source).is_file():
        raise UsageError(
            f"{where}: a file cannot replace the folder of the scripts; write {one.path.rstrip('/')}/"
            f"{Path(one.source).name}: {one.source}"
        )


def steps_of(
    file: JobFile,
    layout: Layout,
    envs: Sequence[Mapping[str, str]],
    withheld: Sequence[str],
    is_own: bool,
    launch: str,
    images: Sequence[str] = (),
) -> tuple[Step, ...]:
    """Return the steps of all tasks.

    `withheld` lists Slipway variables that no task requested. `launch` identifies this launch, so that a new launch of
    the same file executes the run steps again. `images` has the container image of each task, "" for none.
    """
    found = []
    images = images or [""] * len(file.tasks)
    for number, task in enumerate(file.tasks):
        restarts, codes = recovery_of(task)
        sent = {layout.workdirs[number], *(name for name, _, _ in layout.mounts[number])}
        inputs = digest([stamps(one) for one in layout.carried if one.name in sent])

        def script(text: str, inputs: str, number: int = number, task: JobTask = task, **more: Any) -> dict[str, Any]:
            made = Script(
                text=text,
                name=task.name,
                workdir=layout.workdirs[number],
                envs=dict(envs[number]),
                mounts=layout.mounts[number],
                kept=tuple(one.words for one in layout.kept[number]),
                own_home=is_own or bool(images[number]),
                environment=task.environment,
                image=images[number],
                task=number,
                num_tasks=len(file.tasks),
                inputs=inputs,
                withheld=tuple(withheld),
                **more,
            )
            return dict(json.loads(json.dumps(asdict(made))))

        prefix = "" if len(file.tasks) == 1 else f"{number + 1}-{task.name or 'task'}-"
        clone, enter = _repository_lines(task)
        if (setup := clone + task.setup).strip():
            found.append(Step(f"{prefix}{SETUP}", TEXT_WORDS, task.environment, script(setup, inputs)))
        if task.run.strip():
            config = script(enter + task.run, f"{inputs} {launch}", restarts=restarts, restart_codes=codes)
            most = ALWAYS if codes else max(3, restarts)
            found.append(
                Step(
                    f"{prefix}{RUN}",
                    TEXT_WORDS,
                    task.environment,
                    config,
                    max_restarts=most,
                    together=ALONE,
                    everywhere=True,
                )
            )
    return tuple(found)


def _repository_lines(task: JobTask) -> tuple[str, str]:
    """Return the lines that clone the repository of a task, and the line that enters the clone; "" without one."""
    one = task.repository
    if one is None:
        return "", ""
    at = f"~/.workdir-{digest([one.url])[:8]}"  # An engine may use ~/sky_workdir for its own files.
    enter = f"[ -L ~/sky_workdir ] || [ ! -e ~/sky_workdir ] && ln -sfn {at} ~/sky_workdir\ncd {at} || exit 1\n"
    clone = f"[ -d {at}/.git ] || git clone {_in_shell(one.url)} {at} || exit 1\n{enter}"
    return clone + (f"git checkout --quiet {_in_shell(one.ref)} || exit 1\n" if one.ref else ""), enter


def _in_shell(text: str) -> str:
    """Return a text as a word of the shell; the shell replaces variables, which are secrets of the job."""
    found, end = [], 0
    for one in file_variables.NAMED.finditer(text):
        found += [shlex.quote(text[end : one.start()]), f'"${{{one[1] or one[2]}}}"']
        end = one.end()
    return "".join([*found, shlex.quote(text[end:])])


def stamps(one: Carried) -> list[Any]:
    """Return the name, sizes and modification times of the files, as a cheap change detector."""
    root = Path(one.source)
    names = {one.file: (root / one.file).stat()} if one.file else shipment.survey(root)
    return [one.name, [[name, seen.st_size, seen.st_mtime_ns] for name, seen in names.items()]]


def digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]
