"""Recognition of files of other tools and of programs, with the command of `inv` that does the same.

Kubernetes, Docker Compose, dstack, a batch script of Slurm, a shell script, a Python program
"""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from infra import strict_yaml
from infra.errors import UsageError

MOST_BYTES = 64 << 10
PYTHON = re.compile(r"^(import \w|from \w[\w.]* import |def \w+\(|class \w+|print\()", re.M)
SHELL = re.compile(r"#!.*\b(ba|z|da)?sh\b")
BATCH = re.compile(r"^#SBATCH\s+(.*)$", re.M)
DSTACK = ("task", "dev-environment", "service", "fleet", "volume", "gateway")


def about(path: Path) -> str:
    """Return the kind of a foreign file and the equivalent command; "" for a file of Slipway or an unknown file.

    Raises OSError.
    """
    with path.open("rb") as file:
        text = file.read(MOST_BYTES).decode("utf-8", errors="replace")
    name, folder = path.name, shlex.quote(str(path.parent))
    if BATCH.search(text):
        return f"this is a batch script of Slurm; start the script with: {_script(path)}{_batch_flags(text)}"
    if path.suffix == ".sh" or SHELL.match(text):
        return f"this is a shell script; start the script with: {_script(path)}"
    if path.suffix == ".py" or text.startswith("#!") and "python" in text.partition("\n")[0]:
        return f"this is a Python program; start the program with: inv launch --script {shlex.quote(str(path))}"
    if path.suffix == ".ipynb":
        return (
            "this is a notebook; start the notebook with: inv launch --workdir "
            f"{folder} --cmd {shlex.quote(f'pip install nbconvert ipykernel && jupyter nbconvert --execute {name}')}"
        )
    try:
        said = [one.value for one in strict_yaml.documents(path)]
    except (UsageError, yaml.YAMLError):
        return (
            f"this is a Python program; start the program with: inv launch --script {shlex.quote(str(path))}"
            if path.suffix not in (".yaml", ".yml") and PYTHON.search(text)
            else ""
        )
    return next((found for one in said if isinstance(one, Mapping) and (found := _of_yaml(one))), "")


def _of_yaml(said: Mapping[Any, Any]) -> str:
    kind = said.get("kind")
    if "apiVersion" in said and isinstance(kind, str):
        containers = _containers(said)
        return f"this is a Kubernetes {kind}; {_command(containers[0] if containers else {}, ('command', 'args'))}"
    services = said.get("services")
    if isinstance(services, Mapping) and any(
        isinstance(one, Mapping) and {"image", "build", "command"} & set(one) for one in services.values()
    ):
        first = next(one for one in services.values() if isinstance(one, Mapping))
        return f"this is a file of Docker Compose; {_command(first, ('entrypoint', 'command'))}"
    if said.get("type") in DSTACK and ("commands" in said or said["type"] not in ("service", "task")):
        commands = said.get("commands")
        lines = [str(one) for one in commands] if isinstance(commands, list) else []
        if said["type"] == "dev-environment":
            return "this is a dev environment of dstack; rent a machine without work with: inv pod.create"
        if said["type"] not in ("task", "service"):
            return f"this is a {said['type']} of dstack, which Slipway does not need; start the task itself"
        return f"this is a {said['type']} of dstack; start the commands with: {_launch(' && '.join(lines))}"
    return ""


def _containers(said: Any) -> list[Mapping[Any, Any]]:
    """Return the containers of a manifest: of a pod, or of the template in a job or deployment."""
    while isinstance(said, Mapping):
        found = said.get("containers")
        if isinstance(found, list):
            return [one for one in found if isinstance(one, Mapping)]
        said = said.get("spec") or said.get("template") or said.get("jobTemplate")
    return []


def _command(container: Mapping[Any, Any], keys: tuple[str, ...]) -> str:
    words: list[str] = []
    for key in keys:
        one = container.get(key)
        words += [str(word) for word in one] if isinstance(one, list) else shlex.split(str(one)) if one else []
    if len(words) == 3 and re.fullmatch("-[a-z]*c", words[1]):
        words = ["", words[2]]
    text = words[1] if words[:1] == [""] else shlex.join(words)
    gpus = _gpus(container)
    install = "; Slipway starts no container, so write the installation of the image into `setup` of a job file"
    return f"start the command with: {_launch(text)}{gpus}{install if container.get('image') else ''}"


def _gpus(container: Mapping[Any, Any]) -> str:
    """Return the number of GPUs as a flag; Kubernetes counts GPUs in `resources.limits`."""
    resources = container.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    number = limits.get("nvidia.com/gpu") if isinstance(limits, Mapping) else None
    return f" --num-gpus {number}" if number else ""


def _launch(text: str) -> str:
    return f"inv launch --cmd {shlex.quote(text.strip() or 'COMMAND')} --workdir ."


def _script(path: Path) -> str:
    return f"inv launch --cmd {shlex.quote(f'bash {path.name}')} --workdir {shlex.quote(str(path.parent))}"


def _batch_flags(text: str) -> str:
    """Return the nodes, GPUs and time of a batch script as flags of a launch."""
    found = {}
    for line in BATCH.findall(text):
        if match := re.match(r"(?:--nodes[= ]|-N\s*)(\d+)", line):
            found["nodes"] = match[1]
        if match := re.match(r"--(?:gres|gpus(?:-per-node)?)[= ](?:gpu:)?(?:[A-Za-z]\w*:)?(\d+)", line):
            found["num-gpus"] = match[1]
        if match := re.match(r"(?:--time[= ]|-t\s*)(?:(\d+)-)?(\d+):(\d+)(?::\d+)?$", line.strip()):
            hours = int(match[1] or 0) * 24 + int(match[2]) + (1 if int(match[3]) else 0)
            found["ttl"] = f"{max(hours, 1)}h"
    return "".join(f" --{name} {value}" for name, value in found.items())
