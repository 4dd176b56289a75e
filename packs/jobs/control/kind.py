"""The work kind `job`: connects `inv launch` and `inv cost` to job files.

A job file, `--cmd` or `--script` becomes either the user's own commands or a Slipway training with flags from the file.
This module also provides estimates, variables and lint findings of job files.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from flows.planning.training_plan import PlannedWork
from flows.runs import launch
from flows.runs.work_kinds import HIDDEN, EstimatedWork, FileFinding, RequestedWork, WorkKind
from flows.specs.launch import LaunchSpec
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import Typed
from infra.market import gpus
from infra.runs.timing import Say
from infra.selection import registry
from infra.selection.machine_spec import MachineSpec
from infra.settings import MARKET, Settings, is_secret
from packs.jobs.control import job_file, lint, machines, resolve, training
from packs.jobs.control.flags import JobCostFlags, JobFlags
from packs.jobs.control.job_file import JobFile
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.work import JobWork, bucket_secrets

JOBS = ROOT / "examples" / "jobs"
STAGES = "train"  # name of the job with the 1.58-bit stages
OF_JOBS = {"dlm": "dlm_train"}  # aliases for example jobs
S = TypeVar("S", bound=LaunchSpec)


@dataclass
class RequestedJob(RequestedWork):
    """The job of a command line."""

    file: JobFile
    path: str = ""
    """Path of the file; "" for --cmd and --script."""
    workdir: str = ""
    secret: tuple[str, ...] = field(default=(), repr=False)
    """The words of the --secret flags."""

    def with_provider(self, spec: S) -> S:
        return replace(spec, provider=resolve.provider_of(self.file, spec))

    def variables(self, settings: Settings) -> Mapping[str, str]:
        """Return no variables; raise UsageError with all lines of the file that the provider cannot carry out."""
        (vendor, *others), is_rehearsed = registry.candidates(settings), bool(settings.rehearsal)
        is_own = not vendor.is_ephemeral or is_rehearsed
        is_default = settings.sources["provider"].startswith("default")
        named = "" if is_default and vendor.is_rented else MARKET if settings.provider == MARKET else vendor.name
        refused = Refusals(self.file.where)
        if self.path:  # Now the values of the variables are known.
            secrets = resolve.secrets_of(self.secret, os.environ)
            values = resolve.outside_values(secrets, settings)
            file = resolve.load(self.path, "", "", self.workdir, refused, values)
            assert file is not None
            self.file = file
        only = "" if others else vendor.name
        resolve.check(self.file, refused, named, vendor.is_rented, is_own, is_rehearsed, only)
        refused.raise_all()
        return {}


class OwnCommands(RequestedJob):
    """A job with the user's own commands."""

    def with_flags(self, spec: S, settings: Settings, tell: Say) -> S:
        return spec

    def resolve(self, spec: LaunchSpec, settings: Settings) -> launch.ResolvedLaunch:
        """Return the resolved launch and export the secrets to the environment of this process for the run's keeper."""
        secrets = resolve.secrets_of(spec.added_record(JobFlags).secret, os.environ)
        resolved = resolve.understand(spec, self.file, secrets, settings)
        assert isinstance(resolved.work, JobWork)
        os.environ.update({**bucket_secrets(self.file, settings), **resolved.work.secrets})
        return resolved


@dataclass
class TrainingFile(RequestedJob):
    """A Slipway training with flags from a job file."""

    is_tag_typed: bool = False

    def variables(self, settings: Settings) -> Mapping[str, str]:
        super().variables(settings)
        return training.variables(self.file, settings)

    def with_flags(self, spec: S, settings: Settings, tell: Say) -> S:
        return training.spec_of(self.file, spec, settings, tell)

    def resolve(self, spec: LaunchSpec, settings: Settings) -> launch.ResolvedLaunch:
        found = launch.resolve(spec, settings)
        assert isinstance(found.work, PlannedWork)
        return replace(found, work=replace(found.work, names_tag=not self.is_tag_typed))


class JobFiles(WorkKind):
    """The work kind of job files, `--cmd` and `--script`."""

    def work_of_command(self, spec: LaunchSpec, file: str) -> RequestedWork | None:
        typed = spec.added_record(JobFlags)
        job = resolve.load(file, typed.cmd, typed.script, typed.workdir, Refusals(file))
        if job is None:
            return None
        if training.is_training(job):
            return TrainingFile(job, file, typed.workdir, typed.secret, bool(spec.tag))
        return OwnCommands(job, file, typed.workdir, typed.secret)

    def cost_variables(self, spec: Typed, profile: str) -> Mapping[str, str]:
        named = {"STAGE": spec.added_record(JobCostFlags).stage, "MODEL": profile}
        return {name: value for name, value in named.items() if value}

    def work_to_estimate(self, spec: Typed, wanted: LaunchSpec, settings: Settings) -> EstimatedWork | None:
        typed = spec.added_record(JobCostFlags)
        stage, job = typed.stage, typed.job
        if stage and job:
            raise UsageError("--phase, --stage and --job exclude each other; give one of them")
        file = job_file.load(_file_of(job or STAGES))
        if not training.is_training(file):
            raise UsageError(
                f"--job {job}: the duration of the job's own command is unknown before the first run; give --hours"
            )
        machine = machines.wishes(file.tasks[0], MachineSpec(), "", True, str(file.where)).wishes[0].machine
        if gpu := settings.given.get(launch.ACCELERATOR, ""):
            ((kind, number),) = gpus.read_set(gpu, 1)
            machine = replace(machine, gpu=kind, num_gpus=number)
        return EstimatedWork(
            words=f"stage {stage}" if stage else f"job {job}",
            machine=machine,
            spec=training.work_spec(file, wanted, settings),
        )

    def file_variables(self, path: Path) -> Mapping[str, str | None]:
        tasks = job_file.load(path).tasks
        hidden = {name for task in tasks for name in task.secrets}
        return {
            name: HIDDEN if value and (name in hidden or is_secret(name)) else value
            for task in tasks
            for name, value in {**task.envs, **task.secrets}.items()
        }

    def findings(self, path: Path, provider: str) -> list[FileFinding]:
        return lint.lint(path, provider)


def _file_of(job: str) -> Path:
    """Return the path of a job: a YAML path, or the name of an example job. Raise UsageError for an unknown name."""
    known = {path.stem: path for path in sorted(JOBS.glob("*.yaml"))}
    if Path(job).suffix in (".yaml", ".yml"):
        return Path(job)
    if (name := OF_JOBS.get(job, job)) not in known:
        raise UsageError(f"--job {job}: known: {', '.join((*OF_JOBS, *known))}, or a job file")
    return known[name]
