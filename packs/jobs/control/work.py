"""The work of a user's own job: turns steps, files, variables and secrets into the plan of a launch."""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flows.planning import estimates, training_plan
from infra import job_environment
from infra.agent.job import Job, Limits
from infra.errors import UsageError
from infra.providers import Provider, container_images
from infra.records import Offer, Plan, Request
from infra.runs.engine import RunEngine, engine_of
from infra.selection import missing_programs, registry
from infra.selection.machine_spec import OWN_PACKAGES_BYTES, MachineSpec, disk_needed, expected_gpus
from infra.settings import MARKET, Settings
from infra.units import count
from packs.jobs.control import images, job_steps, mounts, pipelines, placeholders
from packs.jobs.control.job_file import JobFile, JobTask
from store import credentials


@dataclass(frozen=True, kw_only=True)
class JobWork:
    """A user's own job with variables and secrets."""

    file: JobFile
    envs: tuple[Mapping[str, str], ...]
    """Plain environment variables of each task."""
    secrets: Mapping[str, str] = field(repr=False)
    """Secret environment variables of all tasks."""
    notes: tuple[str, ...] = ()
    name: str = ""
    """Name of the run from the --run-name flag; "" without the flag."""
    remake_policy: str = ""
    send_anyway: tuple[str, ...] = ()
    """Files and mounts that the user sends despite a scan finding."""
    typed: MachineSpec = MachineSpec()
    """The machine from command line flags, which override the file."""

    @property
    def name_prefix(self) -> str:
        """Return the name of the run without a number."""
        return self.file.name.lower()

    def draft_request(self, request: Request, settings: Settings) -> Request:
        """Return the request unchanged, because the job file already describes the machine."""
        return request

    def plan(
        self, settings: Settings, request: Request, vendor: Provider, limits: Limits, offer: Offer | None = None
    ) -> Plan:
        """Return the job and the files to send. The duration is unknown until the same job has run once.

        Raise UsageError for invalid mounts or keys.
        """
        is_own = not vendor.is_ephemeral or bool(settings.rehearsal)
        taker = engine_of(vendor)
        file = job_steps.for_engine(self.file) if taker else self.file
        layout = job_steps.lay_out(file, is_own, self.send_anyway, bool(settings.rehearsal))
        unwritable = self._check_stores(vendor, settings)
        ours = {**job_environment.secrets(settings), **bucket_secrets(self.file, settings)}
        stores = {**training_plan.store_endpoints(settings), **_bucket_endpoints(self.file)}
        withheld = sorted({*ours, *stores} - {*self.secrets, *(name for envs in self.envs for name in envs)})
        containers = [
            "" if taker else images.of_container(one, vendor.name, bool(settings.rehearsal)) for one in file.tasks
        ]
        own = job_steps.steps_of(file, layout, self.envs, withheld, is_own, f"{time.time_ns():x}", containers)
        torch, environments = training_plan.environments_of(settings, request, vendor)
        job = Job(
            run=request.run,
            token="",
            steps=own,
            limits=limits,
            torch=torch,
            environments=environments,
            environ=stores,
            secrets=tuple(sorted({*ours, *self.secrets})),
            num_gpus=0 if settings.rehearsal else expected_gpus(request),
            clock_scale=settings.clock_scale if settings.rehearsal else 1.0,
        )
        about = [
            [one.setup, one.run, str(one.repository or one.workdir), one.num_nodes, [str(each) for each in one.mounts]]
            for one in self.file.tasks
        ]
        about += [[one] for one in map(images.first_image, self.file.tasks) if one]
        target = job_steps.digest([self.name, self.file.name, about, self.envs, sorted(self.secrets)])
        sent = sum(one.bytes for one in layout.planned)
        need = disk_needed(OWN_PACKAGES_BYTES, limits.reserve_bytes, 0 if request.volume else sent)
        request = replace(request, work_disk_bytes=need)
        keys, notes = self._engine_keys(request, taker) if taker else ({}, [])
        plan = Plan(
            engine_keys=keys,
            target=target,
            store=settings.store,
            artifacts=(),
            job=job,
            request=request,
            carried=layout.carried,
            mounts=layout.planned,
            notes=(*self._shown(is_own, vendor, request, settings), *unwritable, *self.notes, *notes),
        )
        return estimates.of_plan(plan, settings, vendor, offer)

    def _check_stores(self, vendor: Provider, settings: Settings) -> list[str]:
        """Return notes about the buckets that the job writes. Raise StoreError before a machine is rented."""
        tasks, keys = self.file.tasks, bucket_secrets(self.file, settings).keys()
        has_uploader = vendor.is_ephemeral or any(mounts.is_kept(one) for task in tasks for one in task.mounts)
        if "://" in settings.store and has_uploader:
            training_plan.check_writable(settings.store)
        with_key = {kind for kind in _kinds(self.file) if keys & {*credentials.KEYS.get(kind, ())}}
        return list(mounts.unwritable(tasks, with_key))

    def _engine_keys(self, request: Request, taker: RunEngine) -> tuple[dict[str, Any], list[str]]:
        """Return the engine's keys of the job file, and notes about unused keys. Raise UsageError for a conflict."""
        said = {**pipelines.keys_of_engine(self.file), "resources": pipelines.resources_of(self.file)}
        said["file_mounts"] = {}
        for task in self.file.tasks:
            for one in filter(mounts.is_of_engine, task.mounts):
                source = _with_full_paths(task.document.value["file_mounts"][one.path])
                if said["file_mounts"].setdefault(one.path, source) != source:
                    raise UsageError(
                        f"{self.file.where}: line {one.line}: file_mounts: {one.path} is a different mount in an "
                        "earlier task, and the tasks run on the same machine; choose a different path"
                    )
        # The engine runs the callback, outside of the job's scripts.
        callback = str(said.get("event_callback") or "")
        said["envs"] = {
            name: value for envs in self.envs for name, value in envs.items() if re.search(rf"\b{name}\b", callback)
        }
        return taker.job_keys(said, vars(self.typed), request, self.file.where)

    def _shown(self, is_own: bool, vendor: Provider, request: Request, settings: Settings) -> list[str]:
        """Return descriptions of the planned actions for the user."""
        found, store = [], settings.store
        providers = registry.names(settings, MARKET) if request.provider == MARKET else (vendor.name,)
        for task, envs in zip(self.file.tasks, self.envs, strict=True):
            texts = [("setup once per pod", task.setup.strip()), ("run", task.run.strip())]
            parts = [f"{name}, {count(len(text.splitlines()), 'line')}" for name, text in texts if text]
            nodes = f" on {count(task.num_nodes, 'node')}" if task.num_nodes > 1 else ""
            found.append(f"{task.name or self.file.name or self.file.where}{nodes}: {'; '.join(parts)}")
            image = "" if engine_of(vendor) else images.first_image(task)
            if image:
                found.append(container_images.in_plan(image, vendor.name, bool(settings.rehearsal), self.secrets))
            scripts = {"setup": task.setup, "run": task.run}
            lacking = missing_programs.find(scripts, providers, task.num_nodes, bool(image))
            found += [one.text for one in lacking]
            for one in task.mounts:
                if mounts.is_kept(one):
                    at = store if "://" in store else vendor.pod_store or store
                    found.append(mounts.in_plan(one, task, vendor.is_here, at))
            if repository := task.repository:
                at = f" at {repository.ref}" if repository.ref else ""
                found.append(f"setup clones {repository.url}{at}, and run starts in the clone")
            if unsent := _unsent(task, Path(self.file.where).parent):
                flag = "--workdir ." if self.file.where == "--cmd" else "the line `workdir: .`"
                found.append(f"{', '.join(unsent)}: not sent, because the job has no workdir; add {flag}")
            if envs:
                found.append(f"envs: {', '.join(f'{name}={value}' for name, value in envs.items())}")
        for kind in sorted(_kinds(self.file)):
            if kind in ("s3", "gs") and not bucket_secrets(self.file, settings).keys() & {*credentials.KEYS[kind]}:
                names = " and ".join(credentials.KEYS[kind][:2])
                found.append(f"{names} not set, so {kind}:// is read without a key; set the key in .env")
        if self.secrets:
            found.append(f"secrets: {', '.join(sorted(self.secrets))} (set; values go to the pod in a private file)")
        examples = [name for name, value in sorted(self.secrets.items()) if placeholders.is_placeholder(value)]
        found += [f"secrets: {placeholders.advice(name)}" for name in examples]
        for one in (mount for task in self.file.tasks for mount in task.mounts if is_own):
            if one.path.startswith("/"):
                found.append(f"{one.path} is in the pod's folder; only the job sees the folder at this path")
        if is_own:
            found.append("the home folder of the job, and packages from pip, are in the pod's folder")
        if vendor.is_ephemeral:
            written = ("MOUNT", "MOUNT_CACHED")
            kept = [one.path for task in self.file.tasks for one in task.mounts if one.mode in written]
            found.append(
                "the files of the job are lost with the machine, at the end of the run or earlier, except checkpoints "
                f"of slipway.checkpoint{', and the files in ' if kept else ''}{', '.join(dict.fromkeys(kept))}"
            )
            if not kept:
                found.append(
                    "to keep other files: write them to a folder of file_mounts with mode: MOUNT_CACHED, or save them "
                    "with slipway.checkpoint (docs/guides/jobs.md)"
                )
        return found


def _unsent(task: JobTask, folder: Path) -> list[str]:
    """Return the files of `folder` that the commands of a task without a workdir name."""
    words = (
        re.findall(r"(?<![\w./~$-])[\w-][\w./-]*\.\w+", f"{task.setup}\n{task.run}")
        if not (task.workdir or task.repository)
        else []
    )
    sent = tuple(one.path for one in task.mounts)
    return [one for one in dict.fromkeys(words) if not one.startswith(sent) and (folder / one).is_file()]


def bucket_secrets(file: JobFile, settings: Settings) -> dict[str, str]:
    """Return the keys of the buckets that a file mounts; the uploader has the keys, and the job has none."""
    names = {name for kind in _kinds(file) for name in credentials.KEYS.get(kind, ())}
    found = {name: getattr(settings, name.lower()) for name in names}
    if "GOOGLE_CREDENTIALS" in found:
        found["GOOGLE_CREDENTIALS"] = credentials.google_key(found["GOOGLE_CREDENTIALS"])
    return {name: value for name, value in found.items() if value}


def _bucket_endpoints(file: JobFile) -> dict[str, str]:
    names = [name for kind in _kinds(file) for name in credentials.PLACES.get(kind, ())]
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _kinds(file: JobFile) -> set[str]:
    """Return the kinds of the buckets that a file mounts: s3, gs, hf."""
    return {credentials.kind(one.source) for task in file.tasks for one in task.mounts if "://" in one.source}


def _with_full_paths(said: Any) -> Any:
    """Return a section of `file_mounts` with absolute local paths, because an engine runs in a different folder."""
    if isinstance(said, list):
        return [_with_full_paths(one) for one in said]
    if isinstance(said, str):
        return said if "://" in said else str(Path(said).expanduser().absolute())
    return {**said, "source": _with_full_paths(said["source"])} if said.get("source") else said
