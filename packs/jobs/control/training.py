"""Job files that describe a Slipway training: `slipway.train` holds flags of a launch.

    name: train
    resources: {accelerators: H100:4, use_spot: true}
    envs: {MODEL: smollm2_135m, STAGE: 2}
    slipway:
      train: {phase: $STAGE, profile: $MODEL}

Flags on the command line override the file. The result is a `LaunchSpec`, planned like any other training; the machine
comes from SkyPilot's `resources` as in every job file.
"""

from collections.abc import Mapping
from dataclasses import fields, replace
from string import Template
from typing import Any, TypeVar

from flows.runs import launch
from flows.specs import files, work
from flows.specs.launch import LaunchSpec
from flows.specs.variables import FLAGS, OF_FILES, of_hub, sizes
from flows.specs.work import filled
from infra.errors import UsageError
from infra.flags import flags_of, given_flag_names
from infra.runs.timing import Say
from infra.selection import registry
from infra.selection.machine_spec import MachineSpec, PlaceSpec
from infra.settings import Settings
from packs.jobs.control import resolve
from packs.jobs.control.job_file import JobFile

NOT_THERE = ("nodes", "run_name", "dry_run", *(one.name for kind in (MachineSpec, PlaceSpec) for one in flags_of(kind)))
S = TypeVar("S", bound=LaunchSpec)
TRUTHS = {"true": True, "false": False}


def is_training(file: JobFile) -> bool:
    """Return True if any task of the file is a Slipway training."""
    return any(task.train is not None for task in file.tasks)


def variables(file: JobFile, settings: Settings) -> dict[str, str]:
    """Return the variables of the file with `-e` overrides. Raise UsageError for a variable without a value."""
    _check_known(str(file.where), file.tasks[0].envs, settings.given)
    envs, _ = resolve.values_of(file, settings.given, set(), settings)
    written = file.tasks[0].envs
    values = {name: value for name, value in envs[0].items() if name in written}
    return _with_model(str(file.where), written, values, settings.given)


def _with_model(
    file: str, written: Mapping[str, str | None], values: Mapping[str, str], given: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables with a MODEL from the hub moved to INIT; MODEL then falls back to the profile in the file.

    `written` holds the file's values and `values` the values with overrides. Raise UsageError if the user sets both a
    hub MODEL and an INIT.
    """
    model = of_hub(values.get("MODEL", ""))
    if not model or "INIT" not in written:
        return dict(values)
    if given.get("INIT") and "MODEL" in given:
        raise UsageError(f"{file}: -e MODEL={given['MODEL']} is on the hub, and INIT names another model; choose one")
    profile = written["MODEL"] or ""
    return {**values, "MODEL": "" if of_hub(profile) else profile, "INIT": model}


def _check_known(file: str, known: Mapping[str, object], given: Mapping[str, str]) -> None:
    """Raise UsageError if the user sets a known training variable missing from the job file."""
    for name in (*FLAGS, *sizes(), *OF_FILES):
        if name in given and name not in known:
            there = OF_FILES.get(name, "")
            other = f"; {there} has this variable" if there else ""
            raise UsageError(f"-e {name}: {file} has no such variable (known: {', '.join(known) or 'none'}){other}")


def spec_of(file: JobFile, spec: S, settings: Settings, tell: Say) -> S:
    """Return the launch of a training file. `spec` holds the typed flags. Raise UsageError with the line number."""
    task = file.tasks[0]
    if len(file.tasks) > 1:
        raise UsageError(f"{file.where}: a training is one task; write the phases as a sum, such as `phase: base+sft`")
    vendor = registry.candidates(settings)[0]
    typed = MachineSpec(**{one.name: getattr(spec, one.name) for one in flags_of(MachineSpec)})
    gpu = spec.gpu or settings.given.get(launch.ACCELERATOR, "")
    found = resolve.shared_alternatives(file, replace(typed, gpu=gpu), spec, vendor)
    notes, machine = list(found.notes), resolve.with_number(found.wishes[0].machine)
    if len(found.wishes) > 1:
        notes.append(f"{len(found.wishes)} kinds of machine fit; the first is used")
    if not vendor.is_rented:
        machine, said = resolve.for_own_machine(machine, vendor)
        notes += said
    for note in dict.fromkeys(notes):
        tell(note)
    nodes = (task.num_nodes if task.num_nodes > 1 else None) if spec.nodes is None else spec.nodes
    asked = {one.name: getattr(machine, one.name) for one in fields(MachineSpec)}
    more = {"pool": spec.pool or found.wishes[0].pool, "nodes": nodes, **asked}
    return filled(spec, {**given_flags(file, spec, variables(file, settings)), **more})


def work_spec(file: JobFile, spec: S, settings: Settings) -> S:
    """Return the training without a machine. `spec` holds the typed flags. Raise UsageError with the line number."""
    return filled(spec, given_flags(file, spec, variables(file, settings)))


def given_flags(file: JobFile, spec: LaunchSpec, values: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields set by the file and not overridden by a flag. Raise UsageError with the line number."""
    task = file.tasks[0]
    where = f"{file.where}: line {task.document.line('slipway', 'train')}: slipway.train"
    own = files.read(where, _filled(where, dict(task.train or {}), values), LaunchSpec, NOT_THERE)
    typed = given_flag_names(spec)
    found = {name: value for name, value in own.items() if name not in typed and name != "options"}
    options = work.read_options(own.get("options", ()))
    return {**found, "options": {**options, **spec.options}}


def _filled(where: str, said: Any, values: Mapping[str, str]) -> Any:
    """Replace `$NAME` and `${NAME}` with the file's variables, recursively. Raise UsageError for an unknown name."""
    if isinstance(said, Mapping):
        flags = files.known(LaunchSpec)
        return {
            key: _typed(flags.get(str(key).replace("_", "-")), _filled(f"{where}.{key}", value, values))
            for key, value in said.items()
        }
    if isinstance(said, list):
        return [_filled(where, one, values) for one in said]
    if not isinstance(said, str):
        return said
    try:
        return Template(said).substitute(values)
    except (KeyError, ValueError):
        known = ", ".join(values) or "none"
        raise UsageError(
            f"{where} is {said!r}; $NAME stands for a variable of `envs` (here: {known}), and $$ for a dollar sign"
        ) from None


def _typed(flag: Any, value: Any) -> Any:
    """Convert the text of a variable to the flag's number or boolean type; return other values unchanged."""
    if flag is None or flag.is_many or flag.kind is str or not isinstance(value, str):
        return value
    try:
        return TRUTHS.get(value.lower(), value) if flag.kind is bool else flag.kind(value)
    except ValueError:
        return value
