"""Export of a run as plain files without Slipway commands, for `inv eject`.

The receipt of a run becomes a folder with `run.sh`, the configuration of each step, the code and the inputs of the
steps, and pinned requirements. `sh run.sh` creates an environment, or uses the interpreter in `PYTHON`, and runs the
steps in order; finished steps are skipped.
"""

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.runs import receipt
from flows.runs.receipt import Receipt
from infra.agent.environments import environment
from infra.checkout import ROOT
from infra.errors import UsageError
from store.artifacts.artifacts import Store

CODE = ("data", "trainer", "store", "packs")
SCRIPT = """#!/bin/sh
# What {run} was: its steps, one after another, by plain commands. See README.md.
set -eu
cd "$(dirname "$0")"
here=$PWD
if [ -z "${{PYTHON:-}}" ]; then
    if [ ! -e venv/whole ]; then
        if command -v uv >/dev/null; then uv venv --seed --allow-existing venv; else python3 -m venv venv; fi
        # On Linux, PyTorch for CPUs is a version of its own: pip may find it in the sources that it is set up with, and
        # uv knows the index where PyTorch keeps it.
        build=
        [ {backend} != cpu ] || [ "$(uname)" != Linux ] || build=$(sed -n 's/^torch==.*/&+cpu/p' requirements.txt)
        if ! venv/bin/python -m pip install -r requirements.txt $build; then
            venv/bin/python -m pip install uv
            venv/bin/python -m uv pip install --python venv/bin/python --torch-backend {backend} -r requirements.txt
        fi
        : > venv/whole
    fi
    PYTHON=$here/venv/bin/python
fi
export PYTHONPATH="$here/code" PYTHONUNBUFFERED=1 SLIPWAY_WORK="$here/work" SLIPWAY_RUN_ID={run}
mkdir -p work done
step() {{
    name=$1; shift
    if [ -e "done/$name" ]; then echo "$name: done already"; return; fi
    echo "$name: begins"
    SLIPWAY_RECORDS="$here/work/$name.jsonl" env "$@" --config "config/$name.json"
    : > "done/$name"
}}
{check}{steps}
echo "all is done; the models: $here/store"
"""
CHECK = """found=$("$PYTHON" -c 'import torch; print(torch.__version__)')
[ "$found" = {torch} ] || echo "PyTorch is $found here and was "{torch}": the last bits of the weights may differ" >&2
"""
README = """# {run}

These files repeat the run {run} of {when}, without Slipway's commands:

    sh run.sh                                  # makes venv/ with requirements.txt first
    PYTHON=/path/to/python sh run.sh           # in an existing environment

`config/` has the configuration of each step, `code/` the code of the steps (commit {commit}), `store/` the inputs and
outputs. An interrupted step continues from the newest checkpoint in `work/`. On several GPUs, put
`-m torch.distributed.run --nproc-per-node N` in front of `-m trainer`.

## The same weights

{same}
"""
ON_CPU = """The weights are the same bits on a CPU of the same kind, with the same number of threads, which
`run.sh` sets for each step, the same build of PyTorch, which `run.sh` compares, and the same number of processes.
Otherwise sums are taken in another order, and the last bits differ. The run had: {machine}."""
ELSEWHERE = """The run did not compute on a CPU, or the machine is unknown: the last bits differ between runs, unless
`deterministic` was set in the configuration of a phase."""


def eject(one: Receipt, folder: Path, code: Path = ROOT) -> list[str]:
    """Write the files of a run into a new or empty folder; return the sorted names of the entries.

    Raises UsageError for a folder with content and for a run without Slipway steps; StoreError from the copy of inputs.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} exists and is not empty; choose another folder: --out FOLDER")
    if not one.steps:
        raise UsageError(f"{one.run} is not a Slipway training; the job already is a file of your own")
    folder.mkdir(parents=True, exist_ok=True)
    for name in CODE:
        shutil.copytree(code / name, folder / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))
    steps = receipt.rebased(one.steps, "store")
    (folder / "config").mkdir()
    for step in steps:
        (folder / "config" / f"{step['name']}.json").write_text(json.dumps(step["config"], indent=1), encoding="utf-8")
    receipt.carry_inputs(one, Store(str(folder / "store")))
    machines = [found for step in steps if (found := receipt.machine_of(one, step))]
    check = CHECK.format(torch=shlex.quote(machines[0]["torch"])) if machines else ""
    backend = "cpu" if (one.job.get("torch") or "cpu") == "cpu" else "auto"
    lines = "\n".join(line_of(one, step) for step in steps)
    script = folder / "run.sh"
    script.write_text(SCRIPT.format(run=one.run, steps=lines, check=check, backend=backend), encoding="utf-8")
    script.chmod(0o755)
    (folder / "requirements.txt").write_text("\n".join(requirements()) + "\n", encoding="utf-8")
    when = time.strftime("%Y-%m-%d", time.gmtime(one.at))
    about = README.format(run=one.run, when=when, commit=one.commit[:12] or "not known", same=same_by(machines))
    (folder / "README.md").write_text(about, encoding="utf-8")
    subprocess.run(["sh", "-n", str(script)], check=True)
    return sorted(path.name for path in folder.iterdir())


def line_of(one: Receipt, step: Mapping[str, Any]) -> str:
    """Return the script line of a step, with the recorded environment variables."""
    variables = [f"{name}={value}" for name, value in receipt.environ_of(one, step).items()]
    return f'{shlex.join(["step", step["name"], *variables])} "$PYTHON" {shlex.join(step["words"])}'


def same_by(machines: Sequence[Mapping[str, Any]]) -> str:
    """Return the README paragraph on the conditions for bit-identical weights."""
    if not machines or any(one["device"] != "cpu" for one in machines):
        return ELSEWHERE
    return ON_CPU.format(machine="; ".join(dict.fromkeys(map(receipt.machine_words, machines))))


def requirements() -> Iterator[str]:
    """Yield the requirements of the steps in pip format: pinned packages first, then unpinned packages of the group."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = {one.partition("==")[0] for one in environment.read_group(pyproject, "train")}
    pins = (ROOT / "constraints" / "train.txt").read_text(encoding="utf-8").splitlines()
    yield from (line for line in pins if line and not line.startswith("#"))
    known = {line.partition("==")[0] for line in pins}
    yield from sorted(wanted - known)
