"""A run as plain files that need none of our commands: `inv eject`.

In: the receipt of a run. Out: a folder with `run.sh`, the configuration of each step, the code that they run, what they
read, and the versions of what they are installed with. `sh run.sh` makes an environment, or takes `PYTHON`, and runs
the steps one after another; what is done already is not done again.
"""

import json
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from flows.history import receipt
from flows.history.receipt import Receipt
from infra.agent import environment
from infra.checkout import ROOT
from infra.errors import UsageError
from store import Store

CODE = ("data", "trainer", "store")
SCRIPT = """#!/bin/sh
# What {run} was: its steps, one after another, by plain commands. See README.md.
set -eu
cd "$(dirname "$0")"
here=$PWD
if [ -z "${{PYTHON:-}}" ]; then
    [ -x venv/bin/python ] || {{ python3 -m venv venv && venv/bin/pip install -r requirements.txt; }}
    PYTHON=$here/venv/bin/python
fi
export PYTHONPATH="$here/code" PYTHONUNBUFFERED=1 SLIPWAY_WORK="$here/work" SLIPWAY_RUN_ID={run}
mkdir -p work done
step() {{
    name=$1; shift
    if [ -e "done/$name" ]; then echo "$name: done already"; return; fi
    echo "$name: begins"
    SLIPWAY_RECORDS="$here/work/$name.jsonl" "$PYTHON" "$@" --config "config/$name.json"
    : > "done/$name"
}}
{steps}
echo "all is done; the models: $here/store"
"""
README = """# {run}

These files make what the run {run} made on {when}, without Slipway's commands:

    sh run.sh                                  # makes venv/ with requirements.txt first
    PYTHON=/path/to/python sh run.sh           # in an environment that is there

`config/` has the configuration of each step, `code/` what they run (commit {commit}), `store/` what they read and
what they make. A step that was cut off goes on from its newest checkpoint in `work/`. On several GPUs, put
`-m torch.distributed.run --nproc-per-node N` in front of `-m trainer`.
"""


def eject(one: Receipt, folder: Path, code: Path = ROOT) -> list[str]:
    """Write the files into a new folder; return what they are. Raises UsageError, StoreError."""
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is there, and not empty; name another one: --out FOLDER")
    if not one.steps:
        raise UsageError(f"{one.run} is no training of ours; its job is a file of yours already")
    folder.mkdir(parents=True, exist_ok=True)
    for name in CODE:
        shutil.copytree(code / name, folder / "code" / name, ignore=shutil.ignore_patterns("__pycache__"))
    steps = receipt.rebased(one.steps, "store")
    (folder / "config").mkdir()
    for step in steps:
        (folder / "config" / f"{step['name']}.json").write_text(json.dumps(step["config"], indent=1), encoding="utf-8")
    receipt.carry_inputs(one, Store(str(folder / "store")))
    lines = "\n".join(shlex.join(["step", step["name"], *step["words"]]) for step in steps)
    script = folder / "run.sh"
    script.write_text(SCRIPT.format(run=one.run, steps=lines), encoding="utf-8")
    script.chmod(0o755)
    (folder / "requirements.txt").write_text("\n".join(requirements()) + "\n", encoding="utf-8")
    when = time.strftime("%Y-%m-%d", time.gmtime(one.at))
    about = README.format(run=one.run, when=when, commit=one.commit[:12] or "not known")
    (folder / "README.md").write_text(about, encoding="utf-8")
    subprocess.run(["sh", "-n", str(script)], check=True)
    return sorted(path.name for path in folder.iterdir())


def requirements() -> Iterator[str]:
    """Yield what the steps are installed with, as pip reads it."""
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    wanted = {one.partition("==")[0] for one in environment.read_group(pyproject, "train")}
    pins = (ROOT / "constraints" / "train.txt").read_text(encoding="utf-8").splitlines()
    yield from (line for line in pins if line and not line.startswith("#"))
    known = {line.partition("==")[0] for line in pins}
    yield from sorted(wanted - known)
