"""The keys and variables of a job file that a plan neither carries out nor names."""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from string import Template
from types import MappingProxyType
from typing import Any

from infra.records import Plan
from packs.jobs.control import pipelines
from packs.jobs.control.schema import ALIASES

OF_REQUEST = {  # keys of `resources`, with the field of the request that carries them out
    "accelerators": ("gpu", "without_gpu"),
    "gpus": ("gpu", "without_gpu"),
    "cpus": ("cpus",),
    "memory": ("memory_bytes",),
    "disk_size": ("disk_bytes",),
    "ephemeral_storage": ("disk_bytes",),
    "use_spot": ("spot",),
    "region": ("region",),
    "instance_type": ("instance_type",),
    "network_tier": ("network",),
    "max_hourly_cost": ("max_micro_usd_per_hour",),
    "image_id": ("image",),
}
HEAD = ("name", "execution", "primary_tasks", "termination_delay")


def missing(
    documents: Sequence[Any],
    plan: Plan,
    requests: Sequence[Any],
    said: str,
    values: Mapping[str, str] = MappingProxyType({}),
) -> list[str]:
    """Return the places of the file that are not in the plan, such as `resources.labels`.

    requests: all alternatives for the machine. said: the messages of the command beside the plan. values: the variables
    of the command line.
    """
    told = "\n".join((*plan.notes, said))
    tasks = [_filled(one, values) for one in documents if isinstance(one, dict) and not {*one} <= {*HEAD}]
    if plan.engine_keys:
        return [place for one in tasks for place in _of_engine(one, plan, told)]
    return [place for one in tasks for place in _of_task(one, plan, requests, told)]


def _filled(task: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    """Return the task with the values of its variables in `file_mounts`."""
    envs = task.get("envs") if isinstance(task.get("envs"), dict) else {}
    known = {**{str(name): str(value) for name, value in (envs or {}).items() if value is not None}, **values}

    def fill(one: Any) -> Any:
        if isinstance(one, dict):
            return {fill(key): fill(value) for key, value in one.items()}
        if isinstance(one, list):
            return [fill(each) for each in one]
        return Template(one).safe_substitute(known) if isinstance(one, str) else one

    return {**task, **({"file_mounts": fill(task["file_mounts"])} if "file_mounts" in task else {})}


def _of_task(task: Mapping[str, Any], plan: Plan, requests: Sequence[Any], told: str) -> Iterator[str]:
    assert plan.job is not None
    scripts = [one.config for one in plan.job.steps if one.config.get("text")]
    envs: dict[str, Any] = {name: value for one in scripts for name, value in one["envs"].items()}
    for key, value in task.items():
        if value in (None, "", [], {}) or is_named(key, told):
            continue
        if key in ("run", "setup"):
            found = any(one["text"].strip().endswith(str(value).strip()) for one in scripts)
        elif key == "name":
            found = any(one["name"] == str(value) for one in scripts) or str(value).lower() in plan.job.run
        elif key == "num_nodes":
            found = all(one.nodes == value for one in requests)
        elif key == "workdir":
            url = value.get("url") if isinstance(value, dict) else None
            found = any(f"git clone {url} " in one["text"] if url else one["workdir"] for one in scripts)
        elif key in ("envs", "secrets"):
            names = {one: said for one, said in value.items()} if isinstance(value, dict) else dict.fromkeys(value)
            for name, said in names.items():
                if not (str(name) in plan.job.secrets or (str(name) in envs and _same(envs[str(name)], said))):
                    yield f"{key}.{name}"
            continue
        elif key == "file_mounts":
            paths = [*(one[2] for each in scripts for one in each["mounts"])]
            kept = {one[2]: one for each in scripts for one in each["kept"]}
            for path, one in value.items():
                yield from _of_mount(str(path), one, paths, kept, told)
            continue
        elif key == "resources":
            yield from _of_resources(value, requests, plan, told)
            continue
        else:
            found = False
        if not found:
            yield key


def _same(seen: str, said: Any) -> bool:
    """Return whether a variable has the value of the file; a date or number keeps the text of the file."""
    if said is None or not isinstance(said, str):
        return bool(seen) or said in ("", None)
    return seen == said


def _of_mount(path: str, said: Any, paths: Sequence[str], kept: Mapping[str, Any], told: str) -> Iterator[str]:
    if path not in paths and path not in kept:
        yield f"file_mounts.{path}"
    for key, value in said.items() if isinstance(said, dict) else ():
        if value in (None, "", [], {}):
            continue
        is_kept = key == "name" and any(value == one[0] for one in kept.values())
        words = [one for one in told.splitlines() if path in one and key in one and "no effect" in one]
        if key not in ("mode", "source") and not is_kept and not words:
            yield f"file_mounts.{path}.{key}"


def _of_resources(said: Mapping[str, Any], requests: Sequence[Any], plan: Plan, told: str) -> Iterator[str]:
    alternatives = [*(said.get("any_of") or ()), *(said.get("ordered") or ())]
    for place, one in (("resources", said), *((f"resources[{n}]", one) for n, one in enumerate(alternatives))):
        for key, value in one.items():
            if key in ("any_of", "ordered") or value in (None, "", [], {}, False) or is_named(key, told):
                continue
            if key in ("infra", "cloud"):
                cloud = str(value).split("/")[0].lower()
                found = cloud in ("*", *(each.provider for each in requests)) or f"{cloud}" in told.lower()
            elif key == "job_recovery":
                found = any(step.config.get("restarts") or step.config.get("restart_codes") for step in plan.job.steps)
            elif (key, str(value).lower()) in (("network_tier", "standard"), ("accelerators", "none")):
                found = True
            else:
                fields = OF_REQUEST.get(key, ())
                of_steps = [step.config.get("image") for step in plan.job.steps] if key == "image_id" else []
                found = any((*of_steps, *(getattr(each, field, None) for each in requests for field in fields)))
            if not found:
                yield f"{place}.{key}"


def is_named(key: str, told: str) -> bool:
    """Return whether a message says that a key has no effect."""
    pattern = re.compile(rf"\b{re.escape(key)}\b.*(no effect|left out|only for sky serve up)")
    return any(pattern.search(line) for line in told.splitlines())


def _of_engine(task: Mapping[str, Any], plan: Plan, told: str) -> Iterator[str]:
    keys = json.loads(json.dumps(plan.engine_keys, default=str))
    own = _of_task({key: value for key, value in task.items() if key not in keys and key != "resources"},
                   dataclasses.replace(plan, engine_keys={}), [plan.request], told)  # fmt: skip
    yield from own
    scripts = [one.config for one in plan.job.steps] if plan.job else []
    ours = [one[2] for each in scripts for one in (*each.get("mounts", ()), *each.get("kept", ()))]
    for key, value in task.items():
        if key == "file_mounts" and key in keys:
            for path, one in value.items():
                if path not in ours and _beside_source(keys[key].get(path)) != _beside_source(one):
                    yield f"file_mounts.{path}"
        elif key == "resources":
            for name, one in value.items():
                there = keys[key].get(ALIASES.get(name, name), keys[key].get(name))
                is_same = str(there) == str(one) or (pipelines.NOTE in told and there is not None)
                if one is not None and not is_named(name, told) and not is_same:
                    yield f"resources.{name}"
        elif key in keys and key != "name" and not is_named(key, told) and str(keys[key]) != str(value):
            yield key


def _beside_source(said: Any) -> Any:
    """Return a section of `file_mounts` without local paths, which the plan has in full."""
    return {key: value for key, value in said.items() if key != "source"} if isinstance(said, dict) else type(said)
