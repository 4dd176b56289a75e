"""The single machine of a pipeline: the tasks run one after the other, on a machine that satisfies all tasks.

the documents of the tasks -> the keys for a provider, or the line of the conflict
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from infra.errors import UsageError
from infra.units import amount
from packs.jobs.control import schema
from packs.jobs.control.job_file import JobFile, JobTask
from packs.jobs.control.schema import Resources

AMOUNTS = ("cpus", "memory", "disk_size")
OF_SLIPWAY = "name workdir num_nodes resources envs secrets file_mounts setup run slipway service pool".split()
OF_EVERY_TASK = ("use_spot", "image_id")  # keys with a meaning for tasks that leave the key out
NOTE = "the tasks run one after the other on one machine, which satisfies the resources of each task"


def resources_of(file: JobFile) -> dict[str, Any]:
    """Return the resources that satisfy every task, in the words of the file. Raise UsageError for a conflict."""
    if len(file.tasks) == 1:
        return dict(file.tasks[0].document.value.get("resources") or {})
    said = [(task, _without_aliases(task.document.value.get("resources") or {})) for task in file.tasks]
    said = [(task, one) for task, one in said if one]
    _refuse_replaced(file, said)
    found: dict[str, Any] = {}
    for task, one in said:
        for key, value in one.items():
            found[key] = value if key not in found else _larger(file, task, key, found[key], value)
    for key in OF_EVERY_TASK:
        for task, one in said:
            if (one.get(key) or None) != (found.get(key) or None):
                raise _conflict(file, task, key)
    return found


def _refuse_replaced(file: JobFile, said: Sequence[tuple[JobTask, dict[str, Any]]]) -> None:
    """Raise UsageError for a value of a task that an alternative of a different task would replace."""
    for _, one in said:
        for way in (*(one.get("any_of") or ()), *(one.get("ordered") or ())):
            for task, other in said:
                for key, value in other.items() if other != one else ():
                    if way.get(key) not in (None, value):
                        raise _conflict(file, task, key)


def differ(tasks: Sequence[JobTask]) -> bool:
    """Return whether the tasks ask for different resources."""
    return any(one.said.resources != tasks[0].said.resources for one in tasks)


def merged(file: JobFile) -> Resources:
    """Return the resources that satisfy every task, as a record. Raise UsageError for a conflict."""
    import msgspec

    return msgspec.convert(resources_of(file), Resources)


def keys_of_engine(file: JobFile) -> dict[str, Any]:
    """Return the keys of the tasks that an engine may carry out. Raise UsageError for a conflict."""
    found: dict[str, Any] = {}
    for task in file.tasks:
        for key, value in task.document.value.items():
            if key not in OF_SLIPWAY and value and found.setdefault(key, value) != value:
                raise _conflict(file, task, key)
    return found


def _larger(file: JobFile, task: JobTask, key: str, one: Any, other: Any) -> Any:
    """Return the value that satisfies two tasks. Raise UsageError if no value does."""
    if one == other:
        return one
    if key in AMOUNTS and not any(str(each).endswith("x") for each in (one, other)):
        where = f"{file.where}: line {task.document.line('resources', key)}: {key}"
        return max(one, other, key=lambda each: (amount(each, where), str(each).endswith("+")))
    if key == "infra":
        shorter, longer = sorted(map(str, (one, other)), key=len)
        if longer.startswith(f"{shorter}/"):
            return longer
    raise _conflict(file, task, key)


def _conflict(file: JobFile, task: JobTask, key: str) -> UsageError:
    place = ("resources", key) if key in {one.name for one in fields(Resources)} else (key,)
    return UsageError(
        f"{file.where}: line {task.document.line(*place)}: the tasks of a pipeline run on the same machines, one after "
        f"the other, and no machine satisfies {key} of all tasks; ask for the same {key} in each task, or launch the "
        "tasks separately"
    )


def _without_aliases(said: dict[str, Any]) -> dict[str, Any]:
    found = {schema.ALIASES.get(key, key): value for key, value in said.items() if value is not None}
    several = {key: found[key] for key in ("any_of", "ordered") if found.get(key)}
    return {**found, **{key: [_without_aliases(one) for one in ways] for key, ways in several.items()}}
