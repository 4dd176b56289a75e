"""Resolution of a user's own job: a job file, `--cmd` or `--script`, together with flags, becomes a `ResolvedLaunch`.

    load -> provider_of -> understand      then flows.runs.launch: prepare -> check -> start

The result holds the requests, the limits and a `JobWork`, which makes the plan.
"""

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from flows.limits import shared_resources
from flows.runs import launch, same_request
from flows.specs import files
from flows.specs.launch import LaunchSpec
from flows.specs.work import WorkSpec
from infra import job_environment
from infra.agent.execution.container import LOGIN
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flags_of, given_flag_names
from infra.market import gpus
from infra.names import check_name
from infra.notices import hooks
from infra.providers import Provider
from infra.providers.container_images import CONTAINERS
from infra.selection import registry
from infra.selection.machine_spec import MachineSpec, counted, request_for
from infra.selection.preflight import limits_for
from infra.settings import MARKET, Settings, is_rented, is_secret, read_dotenv
from packs.jobs.control import images, job_file, job_steps, machines, pipelines, typed_jobs
from packs.jobs.control.job_file import JobFile, JobTask
from packs.jobs.control.path_variables import UNKNOWN, Values
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.work import JobWork
from store import packs

SHARED_SECRET = (
    "{0}: {1} has a different value in an earlier task, and the tasks of a file share their secrets; write the same "
    "value, or choose a different name in one of the tasks"
)
# The quoted texts of a script stay, because a quoted `#` begins no comment.
QUOTED_OR_COMMENT = re.compile(r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)|(?:^|(?<=[\s;&|()]))#.*$""", re.MULTILINE)
NOT_SECRETS = ("PATH", "HOME", "USER", "SHELL", "PWD", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH")


def load(path: str, cmd: str, script: str, workdir: str, refused: Refusals, values: Values = UNKNOWN) -> JobFile | None:
    """Return the requested job, or None if the user launches Slipway phases; collect the refusals of a file.

    Raise UsageError for conflicting flags.
    """
    if script:
        if cmd or path:
            raise UsageError(f"--script and {'--cmd' if cmd else path} are two jobs; give one of them")
        return typed_jobs.of_script(Path(script), Path(workdir) if workdir else None)
    if cmd:
        if path:
            raise UsageError(f"--cmd and {path} are two jobs; give one of them")
        return typed_jobs.of_command(cmd, Path(workdir) if workdir else None)
    if not path:
        if workdir:
            raise UsageError("--workdir needs a job of your own: --cmd COMMAND, or a job file")
        return None
    file = job_file.read(Path(path), refused, values)
    if workdir:
        sent = job_file.folder("--workdir", Path(workdir))
        file = replace(file, tasks=tuple(replace(one, workdir=sent, repository=None) for one in file.tasks))
    return file


def check(
    file: JobFile, refused: Refusals, provider: str, is_rented: bool, is_own: bool, is_rehearsed: bool, only: str = ""
) -> None:
    """Collect the refusals of a job file for a provider; "" for any provider that rents.

    is_own: the job runs in a folder of this machine or of a machine of the user. only: the single provider with a key,
    without a typed provider.
    """
    is_engine = provider in packs.engines()
    job_file.refuse_keys(file, refused, is_engine)
    tasks = job_steps.for_engine(file).tasks if is_engine else file.tasks
    for task in tasks:
        if not is_engine:
            machines.collect_refusals(task, file.where, refused)
            images.refuse(task, only or provider, is_rehearsed, refused)
        elif task.workdir:
            _refuse_folder_of_engine(task, refused)
        job_steps.collect_refusals(file, task, is_own, is_rehearsed, refused)
    _refuse_shared_secrets(file, refused)
    _refuse_buckets_by_name(tasks, file, refused)
    with refused.collecting():
        common_alternatives(file, MachineSpec(), provider, is_rented)


def _refuse_folder_of_engine(task: JobTask, refused: Refusals) -> None:
    """Collect scripts that name ~/sky_workdir: at an engine, this folder holds the files of Slipway."""
    for key in ("setup", "run"):
        if "sky_workdir" in QUOTED_OR_COMMENT.sub(lambda found: found[1] or "", getattr(task, key)):
            refused.add(
                task.document.line(key),
                f"{key}: with an engine, ~/sky_workdir has the files of Slipway; `setup` and `run` start in the "
                "workdir: remove `cd ~/sky_workdir`, and write paths relative to the workdir",
            )


def _refuse_shared_secrets(file: JobFile, refused: Refusals) -> None:
    """Collect the secrets of the file with different values in two tasks."""
    known: dict[str, str] = {}
    for task in file.tasks:
        for section, names in (("envs", task.envs), ("secrets", task.secrets)):
            for name, value in names.items():
                is_hidden = section == "secrets" or is_secret(name) or name in LOGIN
                if is_hidden and value is not None and known.setdefault(name, value) != value:
                    refused.add(task.document.line(section, name), SHARED_SECRET.format(section, name))


def _refuse_buckets_by_name(tasks: Sequence[JobTask], file: JobFile, refused: Refusals) -> None:
    """Collect the named folders, which the store has, whose name is a bucket that a mount of the file reads."""
    read = {
        urlsplit(one.source).netloc: one.source for task in file.tasks for one in task.mounts if "://" in one.source
    }
    for task in tasks:
        for one in task.mounts:
            if not one.source and one.name in read:
                address = f"{urlsplit(read[one.name]).scheme}://{one.name}"
                refused.add(
                    one.line,
                    f"file_mounts: {one.path}: Slipway keeps the folder {one.name} in the store, and a mount of this "
                    f"file reads the bucket {address}; write source: {address}, a bucket that exists",
                )


def provider_of(file: JobFile, spec: LaunchSpec) -> str:
    """Return the provider of the --provider flag or of the file, "" for none or several.

    Raise UsageError if only the file names a machine of the user.
    """
    if spec.provider:
        return spec.provider
    named: set[str] = set()
    for one in file.tasks:
        with contextlib.suppress(UsageError):  # `check` names the line of an unknown cloud.
            named.add(machines.provider_of(one, file.where))
    named -= {""}
    found = named.pop() if len(named) == 1 else ""
    if found and found in machines.accepted_providers() and not is_rented(found):
        raise _own_machine(file, f"--provider {found}")
    return found if found in machines.accepted_providers() else ""


def understand(
    spec: LaunchSpec, file: JobFile, given_secrets: Mapping[str, str], settings: Settings
) -> launch.ResolvedLaunch:
    """Return the resolved launch of a job. Raise UsageError for an impossible job, with the line number."""
    _refuse_flags_of_trainings(spec, file)
    if spec.self_end:
        raise UsageError(
            f"--self-end is for Slipway's own trainings: {file.where} runs code on the pod, which could "
            "use the key of the guard. Leave the flag out: the vendor's own limit ends the pod"
        )
    if spec.on_failure not in ("", "keep", "end"):
        raise UsageError(f"--on-failure {spec.on_failure}: known: end, keep")
    hooks.check((*hooks.split(spec.notify), *hooks.for_all(settings)), settings)
    candidates = registry.candidates(settings)
    vendor = candidates[0]
    launch.check_stages(spec, vendor)
    if not vendor.is_rented and not spec.provider and not spec.dry_run:
        raise _own_machine(file, f"--provider {vendor.name}")
    given = job_environment.of_own_job(settings)
    envs, secrets = values_of(file, {**given, **given_secrets}, set(given_secrets), settings)
    refused = Refusals(file.where)
    logs_in = vendor.is_run_engine or (len(candidates) == 1 and vendor.name in CONTAINERS)
    for task in file.tasks:
        (images.refuse_part_of_login if logs_in else images.refuse_login)(task, secrets, refused)
    refused.raise_all()
    gpu = spec.gpu or given.get(launch.ACCELERATOR, "")
    typed = MachineSpec(**{one.name: getattr(spec, one.name) for one in flags_of(MachineSpec)})
    found = shared_alternatives(file, replace(typed, gpu=gpu), spec, vendor)
    name = check_name(spec.run_name) if spec.run_name else ""
    nodes = file.tasks[0].num_nodes if spec.nodes is None else spec.nodes
    if nodes < 1:
        raise UsageError(f"--nodes is {nodes}; expected at least 1")
    notes = list(found.notes)
    if not vendor.is_rented and not spec.provider:  # a dry run
        notes.append(f"the launch needs --provider {vendor.name}, because the commands run on your own machine")
    requests = []
    for wish in found.wishes:
        machine = with_number(wish.machine)
        if not vendor.is_rented:
            machine, said = for_own_machine(machine, vendor)
            notes += said
        chosen = wish.provider or (vendor.name if len(candidates) == 1 else MARKET)
        request = replace(
            request_for(machine),
            run=name or "new",
            provider=chosen,
            nodes=nodes,
            pool=spec.pool or wish.pool,
            host=spec.host,
        )
        request = shared_resources.on_devices(request, spec.devices, vendor)
        if vendor.is_run_engine and not typed.gpu and request.gpu:
            kind, number = gpus.read_set(request.gpu, request.num_gpus or 1)[0]
            request = replace(request, gpu=kind, num_gpus=number)  # The engine gets the keys of the file as written.
        elif vendor.restarts_runs:
            request = counted(request)
        requests += [] if request in requests else [request]
    if len(requests) > 1 and not vendor.is_rented:
        notes.append(f"{len(requests)} kinds of machine fit; the first is used")
        requests = requests[:1]
    limits = limits_for(settings, vendor.is_rented, spec)
    asked_for = () if settings.sources["provider"].startswith("default") else tuple(one.name for one in candidates)
    spec = replace(spec, nodes=nodes)
    asked = same_request.typed_launch(spec, requests[0], limits, vendors=asked_for, env={})
    limits = replace(limits, spend_micro_usd=limits.spend_micro_usd and limits.spend_micro_usd // nodes)
    tasks = tuple(replace(one, num_nodes=nodes) for one in file.tasks)
    work = JobWork(
        file=replace(file, tasks=tasks),
        envs=envs,
        secrets=secrets,
        notes=tuple(dict.fromkeys(notes)),
        name=name,
        send_anyway=spec.send_anyway,
        typed=replace(typed, gpu=gpu),
    )
    return launch.ResolvedLaunch(
        spec=spec,
        work=work,
        request=requests[0],
        limits=limits,
        asked=asked,
        others=tuple(requests[1:]),
        is_ordered=found.is_ordered,
    )


def outside_values(given_secrets: Mapping[str, str], settings: Settings) -> Values:
    """Return the values of variables from outside of a job file, in the order of `values_of`."""
    given = {**job_environment.of_own_job(settings), **given_secrets}
    usual = {**os.environ, **read_dotenv(ROOT / ".env"), **job_environment.secrets(settings)}
    return Values(given=given, usual=usual, hidden=frozenset(given_secrets))


def values_of(
    file: JobFile, given: Mapping[str, str], secret: set[str], settings: Settings
) -> tuple[tuple[Mapping[str, str], ...], dict[str, str]]:
    """Return the plain variables of each task, and the secrets of all tasks.

    Values on the command line override the file. A missing value falls back to the settings' keys, to .env and, for
    secrets, to the shell. Raise UsageError for a variable without a value.
    """
    ours = job_environment.secrets(settings)
    written = read_dotenv(ROOT / ".env")
    envs: list[Mapping[str, str]] = []
    secrets: dict[str, str] = {}
    hidden = {*secret, *LOGIN}
    refused = Refusals(file.where)
    for task in file.tasks:
        plain: dict[str, str] = {}
        for section, names in (("envs", task.envs), ("secrets", task.secrets)):
            for name, said in names.items():
                shell = os.environ.get(name) if section == "secrets" else None
                value = next(
                    (
                        one
                        for one in (given.get(name), said, ours.get(name), written.get(name), shell)
                        if one is not None
                    ),
                    None,
                )
                if value is None:
                    flag = "--secret" if section == "secrets" else "-e"
                    refused.add(
                        task.document.line(section, name),
                        f"{section}: {name} has no value; give {flag} {name}=VALUE (or {flag} {name}, if the shell has "
                        "a value), or set the variable in .env",
                    )
                    continue
                if section == "secrets" or is_secret(name) or name in hidden:
                    if secrets.setdefault(name, value) != value:
                        refused.add(task.document.line(section, name), SHARED_SECRET.format(section, name))
                else:
                    plain[name] = value
        for name, value in given.items():
            if name not in task.envs and name not in task.secrets:
                (secrets if name in hidden or is_secret(name) else plain)[name] = value
        envs.append(plain)
    for name in secrets:
        if name in NOT_SECRETS:
            refused.add(
                next((one.document.line("secrets", name) for one in file.tasks if name in one.secrets), 1),
                f"secrets: all programs read {name}, so the variable cannot be a secret; move {name} to envs",
            )
    refused.raise_all()
    return tuple(envs), secrets


def _own_machine(file: JobFile, flag: str) -> UsageError:
    return UsageError(
        f"{file.where} runs commands of the job on your own machine only with {flag}; add the flag. "
        "To practise renting a machine for the job: inv rehearse with the same flags"
    )


def _refuse_flags_of_trainings(spec: LaunchSpec, file: JobFile) -> None:
    typed = given_flag_names(spec)
    for one in files.known(WorkSpec).values():
        if one.name in typed and one.name != "store":
            raise UsageError(f"--{one.spelling} is for Slipway's own trainings; {file.where} is a job of your own")


def shared_alternatives(
    file: JobFile, typed: MachineSpec, spec: LaunchSpec, vendor: Provider
) -> machines.MachineWishes:
    """Return the machine alternatives shared by all tasks. Raise UsageError if two tasks ask for different machines."""
    provider = spec.provider or ("" if vendor.is_rented else vendor.name)
    return common_alternatives(file, typed, provider, vendor.is_rented)


def common_alternatives(file: JobFile, typed: MachineSpec, provider: str, is_rented: bool) -> machines.MachineWishes:
    said = [one for one in file.tasks if one.said.resources is not None or one.num_nodes != 1] or [file.tasks[0]]
    found = [machines.wishes(one, typed, provider, is_rented, file.where) for one in said]
    for task in file.tasks:
        if task.num_nodes != file.tasks[0].num_nodes:
            raise UsageError(
                f"{file.where}: line {task.document.line('num_nodes')}: the tasks of a pipeline run on the same "
                "machines, one after the other; write the same num_nodes in each task, or launch the tasks separately"
            )
    if all(one.wishes == found[0].wishes for one in found) and not pipelines.differ(said):
        return found[0]
    shared = machines.wishes(replace(said[0], resources=pipelines.merged(file)), typed, provider, is_rented, file.where)
    notes = [note for each in found for note in each.notes]
    return replace(shared, notes=tuple(dict.fromkeys((*notes, *shared.notes, pipelines.NOTE))))


def with_number(machine: MachineSpec) -> MachineSpec:
    """Return the machine with `H100:8` split into GPU kind and number; the number tells the job about its GPUs.

    Return the machine unchanged for a set with different numbers.
    """
    pairs = gpus.read_set(machine.gpu, machine.num_gpus)
    numbers = {number for _, number in pairs}
    if len(numbers) != 1:
        return machine
    return replace(machine, gpu=",".join(kind for kind, _ in pairs), num_gpus=numbers.pop())


def for_own_machine(machine: MachineSpec, vendor: Provider) -> tuple[MachineSpec, list[str]]:
    """Return the part of a request that applies to an unrented machine, and notes about GPUs missing here.

    Vendor-only keys are dropped; the notes of `machines.wishes` already report these keys.
    """
    plain = replace(
        machine,
        use_spot=False,
        disk_size="",
        max_price="",
        network="",
        region="",
        instance_type="",
        cloud="",
        country="",
        city="",
        min_upload_mbps=0,
        min_download_mbps=0,
    )
    if not vendor.is_here:
        return plain, []
    plain = replace(plain, cpus="", memory="")
    wanted = f"{plain.num_gpus or ''} {plain.gpu}".strip()
    if not plain.gpu or vendor.offers(request_for(plain)):
        return plain, []
    return replace(plain, gpu="", num_gpus=0), [f"accelerators: this machine has no {wanted}; the job gets no GPU"]


def secrets_of(words: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the secrets of the `--secret` flags. Raise UsageError for an invalid flag, without the value."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not job_file.VARIABLE.fullmatch(name):
            raise UsageError("--secret: expected KEY=VALUE, or KEY with the shell's value")
        if not equals and name not in environ:
            raise UsageError(f"--secret {name}: the variable is not set in the shell; write --secret {name}=VALUE")
        found[name] = value if equals else environ[name]
    return found
