"""A step that is somebody's own shell text: `setup` or `run` of a job file, or what `--cmd` says.

In: `--config FILE` holding the fields of `Script`; the folders that were sent beside the code, and the environment
that the agent gives to every step. Out: the exit code of bash; 75, by which a step asks to be begun again, where the
job file says that its failure is worth another try. The text runs in the folder of the job's own files, in a process
group of its own, which gets the SIGTERM that this process gets and is waited for as a whole: a program that saves its
work when it is told to leave can do so, although bash itself leaves at once.

Standard library only, and a grammar that Python 3.9 reads: this runs on any machine.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

from infra.agent.execution import own_root
from infra.agent.execution.steps import RESUME_ME
from infra.agent.job import Step

SETUP = "setup"
WORDS = ("-m", "infra.agent.shell")
POLL_S = 0.05
BIN = "bin"
NOT_HANDED_ON = ("PYTHONPATH", "PYTHONUNBUFFERED", "VIRTUAL_ENV")  # ours, and not the job's


@dataclass(frozen=True)
class Script:
    """One script of a job, and the files and settings it runs with."""

    text: str
    name: str
    """Name of its task in the job file; "" where it has none."""
    workdir: str = ""
    """The folder beside the code that holds the job's own files; "" = it has none, and begins in its home."""
    envs: Dict[str, str] = field(default_factory=dict)
    mounts: Sequence[Sequence[str]] = ()
    """Files and folders sent with it: [folder beside the code, name in it or "", path at which the job wants it]."""
    kept: Sequence[Sequence[str]] = ()
    """Folders that the courier brings from the store and carries back: [name in `work/mounts`, path]."""
    own_home: bool = False
    """The machine is somebody's own: `~` and what `pip install` installs are in the pod's folder, and go with it.

    An absolute path among `mounts` and `kept` is seen by the script alone, in a root of its own."""
    environment: str = ""
    """The environment of ours that it runs in; "" = what the machine has."""
    task: int = 0
    num_tasks: int = 1
    restarts: int = 0
    """Number of failures after which the script is run again."""
    restart_codes: Sequence[int] = ()
    """Exit codes after which it is always run again."""
    inputs: str = ""
    """Digest of the files that it reads, and of its launch: its mark is only valid for these."""
    withheld: Sequence[str] = ()
    """Variables that other steps of the job need, and that it did not ask for."""


def is_own_text(step: Step) -> bool:
    """Return whether a step carries out somebody's own text, so that its mark is good on the pod that has made it."""
    return step.words == WORDS


def is_setup(step: Step) -> bool:
    """Return whether a step sets up what the run of somebody's own text needs."""
    return is_own_text(step) and (step.name == SETUP or step.name.endswith(f"-{SETUP}"))


def main(words: Sequence[str]) -> int:
    flag, path = words
    assert flag == "--config"
    root, name = Path(os.environ["SLIPWAY_WORK"]).parent, Path(path).stem
    script = Script(**json.loads(Path(path).read_text(encoding="utf-8")))
    environ, folder, binds = prepare(root, script)
    text = root / "state" / "scripts" / f"{name}.sh"
    text.parent.mkdir(parents=True, exist_ok=True)
    text.write_text(script.text if script.text.endswith("\n") else script.text + "\n", encoding="utf-8")
    at = root / "state" / "root"
    at.mkdir(exist_ok=True)
    code, is_told = _run(["bash", str(text)], environ, folder, binds, at)
    return code if is_told else _verdict(code, script, root / "state" / "scripts" / f"{name}.restarts")


Binds = List[Tuple[str, str]]  # files and folders of the pod, and the paths at which the script alone sees them


def prepare(root: Path, script: Script) -> Tuple[Dict[str, str], Path, Binds]:
    """Lay out what the text is to find; return its environment, the folder that it begins in, and its own paths."""
    environ = {key: value for key, value in os.environ.items() if key not in (*NOT_HANDED_ON, *script.withheld)}
    work = root / "work"
    if script.own_home:
        environ["HOME"] = str(work / "home")
        Path(environ["HOME"]).mkdir(parents=True, exist_ok=True)
    home = Path(environ.get("HOME", str(work)))
    folder = root / script.workdir if script.workdir else home
    folder.mkdir(parents=True, exist_ok=True)
    brought = home / "sky_workdir"
    if script.workdir and (brought.is_symlink() or not brought.exists()):  # else SkyPilot itself has brought us there
        _link(brought, folder)
    if script.own_home or script.environment:
        environ = {**environ, **_python(work / "python", environ)}
    binds: Binds = []
    there = [(root / sent / file if file else root / sent, wanted) for sent, file, wanted in script.mounts]
    for name, wanted in script.kept:
        (work / "mounts" / name).mkdir(parents=True, exist_ok=True)
        there.append((work / "mounts" / name, wanted))
    for target, wanted in there:
        if script.own_home and wanted.startswith("/"):
            binds.append((str(target.resolve()), wanted))
        else:
            _link(Path(home, wanted[2:]) if wanted.startswith("~/") else folder / wanted, target)
    environ["PYTHONPATH"] = str(root / "code" / "sdk")
    if work.is_symlink():  # VOLUME/slipway/RUN/work: the pod has a volume of its vendor's
        environ["SLIPWAY_VOLUME"] = str(work.resolve().parents[2])
    environ.update(_of_task(script, environ))
    environ.update(script.envs)
    if "PYTHONPATH" in script.envs:
        environ["PYTHONPATH"] = os.pathsep.join([script.envs["PYTHONPATH"], str(root / "code" / "sdk")])
    return environ, folder, binds


def _of_task(script: Script, environ: Dict[str, str]) -> Dict[str, str]:
    """Return SkyPilot's variables for a task besides those of every step."""
    run = environ.get("SLIPWAY_RUN_ID", "")
    ids = [run] if script.num_tasks == 1 else [f"{run}-{task}" for task in range(script.num_tasks)]
    found = {"SKYPILOT_TASK_ID": ids[script.task], "SKYPILOT_TASK_IDS": "\n".join(ids), "SKYPILOT_NUM_JOBS": "1",
             "SKYPILOT_JOB_RANK": "0", "SKYPILOT_USER": environ.get("USER", "")}  # fmt: skip
    about = {"cluster_name": run, "cloud": environ.get("SLIPWAY_PROVIDER", ""), "region": None, "zone": None}
    found["SKYPILOT_CLUSTER_INFO"] = json.dumps(about)
    for name in ("NODE_IPS", "NODE_RANK", "NUM_GPUS_PER_NODE"):
        found[f"SKYPILOT_SETUP_{name}"] = environ.get(f"SKYPILOT_{name}", "")
    return found


def _python(folder: Path, environ: Dict[str, str]) -> Dict[str, str]:
    """Make a virtual environment over this interpreter, so that nothing is installed into it; return its variables."""
    python = folder / BIN / "python"
    if not (folder / "whole").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(folder)]
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        if done.returncode:
            raise SystemExit(f"{sys.executable} cannot make a virtual environment: {done.stdout.strip()}")
        asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = subprocess.run([str(python), "-c", asked], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        theirs = subprocess.run([sys.executable, "-c", asked], stdout=subprocess.PIPE, text=True, check=True).stdout
        Path(own, "beneath.pth").write_text(theirs, encoding="utf-8")
        for name in ("pip", "pip3"):
            pip = folder / BIN / name
            pip.write_text(f'#!/bin/sh\nexec "{python}" -m pip "$@"\n', encoding="utf-8")
            pip.chmod(0o755)
        (folder / "whole").touch()
    path = os.pathsep.join([str(folder / BIN), environ.get("PATH", os.defpath)])
    return {"PATH": path, "VIRTUAL_ENV": str(folder), "PIP_REQUIRE_VIRTUALENV": "1"}


def _link(path: Path, target: Path) -> None:
    """Link `path` to `target`; what somebody else has put there stays."""
    if os.path.realpath(path) == os.path.realpath(target):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        raise SystemExit(f"{path} is there already; nothing can be put in its place")
    path.symlink_to(target)


def _run(words: List[str], environ: Dict[str, str], folder: Path, binds: Binds, at: Path) -> Tuple[int, bool]:
    """Return the exit code of the words, as a shell would tell it, and whether they were told to leave.

    at: an empty folder, on which a root of their own is made where they have paths of their own.
    """
    told: List[int] = []

    def begin() -> None:
        os.setpgrp()
        if binds:
            own_root.enter_or_exit(binds, str(folder), str(at))

    process = subprocess.Popen(words, env=environ, cwd=folder, preexec_fn=begin)

    def hand_on(number: int, _: Any) -> None:
        told.append(number)
        _signal(process.pid, number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, hand_on)
    if process.poll() is None and told:  # it came between the two
        _signal(process.pid, told[-1])
    code = process.wait()
    while told and _signal(process.pid, 0):  # children of bash may still be saving their work
        time.sleep(POLL_S)
    return (128 - code if code < 0 else code), bool(told)


def _signal(group: int, number: int) -> bool:
    """Signal a group of processes; return False when none of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def _verdict(code: int, script: Script, counted: Path) -> int:
    """Return the exit code that the agent is told."""
    if code in (0, RESUME_ME):
        return code
    tried = int(counted.read_text(encoding="utf-8")) if counted.exists() else 0
    if code in script.restart_codes:
        print(f"exit code {code} is one of recover_on_exit_codes: it is started again", flush=True)
        return RESUME_ME
    if tried < script.restarts:
        counted.write_text(str(tried + 1), encoding="utf-8")
        print(f"exit code {code}: restart {tried + 1} of {script.restarts} (max_restarts_on_errors)", flush=True)
        return RESUME_ME
    with contextlib.suppress(FileNotFoundError):  # a resume is meant to start anew
        counted.unlink()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
