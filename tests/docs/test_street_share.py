"""Each linked file of docs/street.md runs in a launch, and the linked files hold a fixed share of the lines that run.

Measured by coverage.py during one launch on a machine with a real sshd: the laptop and the agent. A training step runs
in an environment without coverage.py.
"""

import ast
import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import coverage
import pytest

from tests.docs.test_street import linked_files
from tests.hosts import sshd  # noqa: F401
from tests.world import ONE_THREAD, ROOT, World

pytestmark = [pytest.mark.process, pytest.mark.nightly]

OTHERS = ("tests/", "store/", "infra/agent/environments/")  # pages of their own, docs/contributing/store.md
IN_A_STEP = ("trainer/run.py", "trainer/loop.py", "trainer/phases/", "store/")  # linked, but run by a training step
LEAST_SHARE = 0.27  # of the lines in functions; see dev/decisions/0081-the-share-of-the-street.md


def agent_python(folder: Path, settings: Path) -> Path:
    """Return an interpreter for the agent: ours, without our packages, measured from its start."""
    subprocess.run(
        [getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--without-pip", folder], check=True
    )
    (site,) = folder.glob("lib/python*/site-packages")
    packages = str(Path(coverage.__file__).parents[1])
    begin = f"os.environ.setdefault('COVERAGE_PROCESS_START', {str(settings)!r}); sys.path.append({packages!r})"
    measure = f"import coverage; coverage.process_startup(); sys.path.remove({packages!r})"
    (site / "measured.pth").write_text(f"import os, sys; {begin}; {measure}\n")
    return folder / "bin" / "python"


def test_linked_files_run_in_a_launch_and_hold_a_share_of_its_lines(tmp_path, sshd):  # noqa: F811
    data, settings = tmp_path / "measured", tmp_path / "coveragerc"
    data.mkdir()
    settings.write_text(f"[run]\nparallel = true\ndata_file = {data}/run\npatch = fork, execv, _exit\n")
    python = agent_python(tmp_path / "python", settings)
    machine = {"ip": sshd.address.host, "port": sshd.address.port, "identity_file": sshd.address.key}
    pools = {"box": {"user": sshd.address.user, "hosts": [{**machine, "python": str(python)}]}}
    (tmp_path / "pools.yaml").write_text(json.dumps(pools))
    own = {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml"), "SLIPWAY_ACCEPT_FREE_GB": "1", **ONE_THREAD}
    world = World(tmp_path, {**own, "COVERAGE_PROCESS_START": str(settings)})
    for words in (("launch", "--phase", "sft", "--provider", "ssh", "--run-name", "one", "--yes"), ("down", "one")):
        process = world.begin(*words)  # a new interpreter, because coverage.py begins with the interpreter
        out, err = process.communicate()
        assert process.returncode == 0, f"{words}\n{out}\n{err}"
    ran, linked = lines_that_ran(data, tmp_path), linked_files()
    assert [name for name in linked if name not in ran and not name.startswith(IN_A_STEP)] == []
    in_functions = {name: len(lines & lines_in_functions(name)) for name, lines in ran.items()}
    total, ours = sum(in_functions.values()), sum(in_functions.get(name, 0) for name in linked)
    print(f"{ours} of {total} lines in functions, {sum(map(len, ran.values()))} lines in all")
    assert ours >= LEAST_SHARE * total, (ours, total)


def lines_that_ran(data: Path, folder: Path) -> dict[str, set[int]]:
    """Return the measured lines of each file of the project, in the checkout or in the copy of a pod."""
    found = defaultdict(set)
    bases = [ROOT, *folder.glob("**/code")]
    for path in data.iterdir():
        measured = coverage.CoverageData(str(path))
        measured.read()
        for file in measured.measured_files():
            for base in bases:
                name = Path(file).relative_to(base).as_posix() if Path(file).is_relative_to(base) else ""
                if name and (ROOT / name).is_file() and not name.startswith(OTHERS):
                    found[name] |= set(measured.lines(file) or [])
    return found


def lines_in_functions(name: str) -> set[int]:
    """Return the lines of all function bodies, as opposed to the lines that run at an import."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [node for node in ast.walk(ast.parse((ROOT / name).read_text("utf-8"))) if isinstance(node, functions)]
    return {line for node in found for one in node.body for line in range(one.lineno, (one.end_lineno or 0) + 1)}
