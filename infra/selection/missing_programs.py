"""Programs that the scripts of a job or service call and machines lack, found before a machine is rented.

`setup` and `run`, providers, number of nodes -> `find` -> the calls, each with the line to write
"""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.providers.container_images import boots
from infra.settings import LOCAL, VENDORS
from store import packs

INSTALL_CONDA = (
    "curl -fsSLo /tmp/conda.sh https://github.com/conda-forge/miniforge/releases/latest/download/"
    'Miniforge3-Linux-$(uname -m).sh && bash /tmp/conda.sh -b -p ~/miniforge3 && eval "$(~/miniforge3/bin/conda '
    'shell.bash hook)"'
)
BEGIN = r"(?:^|[;&|(]|\s)"  # of a command in a line
NEVER = r"(?!)"


@dataclass(frozen=True, kw_only=True)
class Program:
    """A program that machines lack."""

    name: str
    """The program in the message `machines have no ...`."""
    called: str
    """Pattern of a line that calls the program."""
    is_missing: Callable[[str], bool]
    """Return whether the machines of a provider are known to lack the program."""
    installed: str = NEVER
    """Pattern of a `setup` that installs the program."""
    tested: str = NEVER
    """Pattern of scripts that look for the program first, or have another way."""
    advice: str
    least_nodes: int = 1
    is_in_images: bool = False
    """True if the image of a job may have the program."""


@dataclass(frozen=True, kw_only=True)
class MissingProgram:
    """A call of a program that machines lack."""

    section: str
    """`setup` or `run`."""
    line: int
    """Line of the call in the section, counted from 0."""
    text: str
    """The missing program, and the line to write."""


def _lacks_conda(provider: str) -> bool:
    return provider != LOCAL or not any(map(shutil.which, ("conda", "micromamba", "/opt/conda/bin/conda")))


def _lacks_docker(provider: str) -> bool:
    return not shutil.which("docker") if provider == LOCAL else boots(provider)  # A pod is a container.


def _lacks_keys(provider: str) -> bool:
    return provider in VENDORS


def _lacks_templates(provider: str) -> bool:
    return provider not in packs.engines() and not (provider == LOCAL and Path("~/sky_templates").expanduser().is_dir())


PROGRAMS = (
    Program(
        name="conda",
        called=BEGIN + r"conda\s+(?:activate|create|install|run|env|update|init)\b",
        is_missing=_lacks_conda,
        installed=r"(?i)mini(?:conda|forge)|mambaforge|anaconda3?\b|micromamba|conda\.sh",
        advice=f"write as the first line of setup: {INSTALL_CONDA}",
        is_in_images=True,
    ),
    Program(
        name="Docker daemon",
        called=BEGIN + r"docker(?:-compose|\s+compose|\s+(?:run|build|exec|pull|start|login))\s",
        is_missing=_lacks_docker,
        tested=r"(?:command\s+-v|which|type)\s+docker\b",
        advice="install the program of the container in `setup`, or write `image_id: docker:IMAGE` under resources and "
        "the command of the container as `run`; machines of shadeform have Docker (--provider shadeform)",
    ),
    Program(
        name="ssh key for each other",
        called=BEGIN + r"(?:(?:mpirun|mpiexec|horovodrun)\s(?:.*\s)?(?:-H|-{1,2}host(?:s|file)?|-{1,2}machinefile)[\s=]"
        r"|deepspeed\s(?:.*\s)?(?:-H|--hostfile)[\s=]|pdsh\s+-)",
        is_missing=_lacks_keys,
        tested=r"ssh-keygen|authorized_keys",
        advice="start one process on each node in `run`, as with torchrun --nnodes=$SKYPILOT_NUM_NODES "
        "--node-rank=$SKYPILOT_NODE_RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT",
        least_nodes=2,
    ),
    Program(
        name="~/sky_templates",
        called=r"\bsky_templates/",
        is_missing=_lacks_templates,
        tested=r"(?:-[efrxd]|ls|test)\s+\S*sky_templates|sky_templates\S*[^\n]*\|\||\s(?:mkdir|git)\s[^\n]*sky_templates",
        advice="install ray in `setup`, and write into run, on node 0: ray start --head --port=6379; on other nodes: "
        "ray start --address=$MASTER_ADDR:6379",
    ),
)


def find(
    scripts: Mapping[str, str], providers: Sequence[str] = tuple(VENDORS), num_nodes: int = 1, has_image: bool = False
) -> Iterator[MissingProgram]:
    """Yield the first call of each missing program in `setup` and `run`. `providers`: possible ones, usually one."""
    setup, both = scripts.get("setup", ""), "\n".join(scripts.values())
    for one in PROGRAMS:
        lacking = [name for name in providers if one.is_missing(name)]
        if not lacking or num_nodes < one.least_nodes or has_image and one.is_in_images:
            continue
        if re.search(one.installed, setup) or re.search(one.tested, both):
            continue
        calls = [
            (section, number)
            for section, text in scripts.items()
            for number, line in _lines(text)
            if re.search(one.called, line)
        ]
        for section, number in calls[:1]:
            yield MissingProgram(section=section, line=number, text=f"{_owner(lacking)} no {one.name}; {one.advice}")


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line without a comment, joined with its continuation lines."""
    lines = text.splitlines()
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#") or number and lines[number - 1].endswith("\\"):
            continue
        end = number
        while lines[end].endswith("\\") and end + 1 < len(lines):
            end += 1
        yield number, " ".join(each.rstrip("\\") for each in lines[number : end + 1])


def _owner(providers: Sequence[str]) -> str:
    if tuple(providers) == (LOCAL,):
        return "this machine has"
    return f"the machines of {'vendors' if {*VENDORS} <= {*providers} else ' and '.join(providers)} have"
