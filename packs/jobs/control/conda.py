"""Recognition of tasks that call conda without an installation, and the line for `setup` that installs conda."""

import re

CALLED = re.compile(r"(?:^|[;&|(]|\s)conda\s+(?:activate|create|install|run|env|update|init)\b")
INSTALLED = re.compile(r"mini(?:conda|forge)|mambaforge|anaconda3?\b|micromamba|conda\.sh", re.I)
INSTALL = (
    "curl -fsSLo /tmp/conda.sh https://github.com/conda-forge/miniforge/releases/latest/download/"
    'Miniforge3-Linux-$(uname -m).sh && bash /tmp/conda.sh -b -p ~/miniforge3 && eval "$(~/miniforge3/bin/conda '
    'shell.bash hook)"'
)


def is_called(line: str) -> bool:
    """Return whether a line of a script calls conda."""
    return not line.lstrip().startswith("#") and bool(CALLED.search(line))


def is_missing(setup: str, run: str) -> bool:
    """Return whether a task calls conda, and its `setup` does not install conda."""
    return not INSTALLED.search(setup) and any(map(is_called, f"{setup}\n{run}".splitlines()))
