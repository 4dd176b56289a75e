"""Replicas that run the `setup` and `run` of a service file as their engine, as SkyServe does.

The gateway forwards every path to the program of the user, and the probe is the probe of the file alone.
"""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from infra.agent.job import SETUP, TEXT_WORDS, Step
from infra.agent.shell import Script
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.records import Carried
from infra.runs.timing import Say
from infra.settings import Settings, read_dotenv
from serve.engines import OWN_RUN
from serve.policy.service_state import environ_of
from serve.service import Service

WORKDIR = "workdir"


def is_wanted(service: Service, engine: str, model: str, own_model: str) -> bool:
    """Return whether the `run` of a file is the engine: on request, or without any model for an engine of ours."""
    return engine == OWN_RUN or bool(service.file.run and not (engine or model or own_model))


def check(service: Service, is_here: bool, settings: Settings) -> None:
    """Raise UsageError for a file whose `run` cannot be the engine of its replicas."""
    file = service.file
    if not file.run.strip():
        raise UsageError(f"--engine {OWN_RUN}: the file has no `run`; add the line `run: COMMAND`")
    if file.file_mounts:
        path = next(iter(file.file_mounts))
        raise UsageError(f"file_mounts: {path}: replicas of `run` get the workdir alone; fetch the files in `setup`")
    if is_here and service.policy.most > 1:
        raise UsageError(
            f"on this machine all replicas of `run` would listen on port {service.port}; add --replicas 1, or "
            "--provider NAME"
        )
    secrets(service, settings)


def with_full_paths(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document with the absolute path of the work folder."""
    folder = document.get("workdir")
    return {**document, "workdir": str(Path(folder).expanduser().absolute())} if folder else document


def with_one_replica(document: dict[str, Any], service: Service, tell: Say) -> dict[str, Any]:
    """Return the document for this machine: all replicas would listen on the same port."""
    if service.policy.most <= 1:
        return document
    tell(f"on this machine one replica runs, because all replicas would listen on port {service.port}")
    section = {key: value for key, value in document["service"].items() if key != "replica_policy"}
    return {**document, "service": {**section, "replicas": 1}}


def secrets(service: Service, settings: Settings) -> dict[str, str]:
    """Return the values of the file's secrets, from the settings, .env and the shell. Raises UsageError."""
    written = read_dotenv(ROOT / ".env")
    found = {}
    for name in service.secrets:
        value = getattr(settings, name.lower(), "") or written.get(name) or os.environ.get(name)
        if not value:
            raise UsageError(f"secrets: {name} has no value; set the variable in .env")
        found[name] = str(value)
    return found


def carried(service: Service) -> tuple[Carried, ...]:
    """Return the work folder to send."""
    if not service.file.workdir:
        return ()
    return (Carried(name=WORKDIR, source=str(Path(service.file.workdir).expanduser().absolute())),)


def steps(service: Service, name: str, is_near: bool) -> tuple[Step, ...]:
    """Return the steps of a replica: `setup` once, then `run` for ever. `name`: name of the last step."""
    file = service.file
    return tuple(
        Step(one, TEXT_WORDS, "", _script(text, service, is_near), max_restarts=0)
        for one, text in ((SETUP, file.setup), (name, file.run))
        if text.strip()
    )


def _script(text: str, service: Service, is_near: bool) -> dict[str, Any]:
    made = Script(
        text=text,
        name=service.file.name or "",
        workdir=WORKDIR if service.file.workdir else "",
        envs=dict(environ_of(service)),
        own_home=is_near,
    )
    return dict(json.loads(json.dumps(asdict(made))))
