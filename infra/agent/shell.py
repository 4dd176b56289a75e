"""A step that runs the user's own shell text: `setup` or `run` of a job file, or the value of `--cmd`.

`--config FILE` holds the fields of `Script`. The exit code is the exit code of bash, or 75 (restart this step) if the
job file allows a retry. The text runs in the folder of the job's files, in a separate process group. The process group
receives the SIGTERM of this process, and this process waits for the whole group: a program can save its work, although
bash itself exits at once.

Before the text, bash reads `begin.bash`: `run` finds what `setup` wrote into `~/.bashrc` or installed into
`~/.local/bin`, and an installed conda.

Standard library only, and syntax that Python 3.9 accepts, because this module runs on any machine.
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
from typing import Any, Dict, List, Mapping, Sequence, Tuple

from infra.agent.execution import bucket_mount, own_root
from infra.agent.execution.steps import LEFTOVER_GRACE_S, RESUME_ME

POLL_S = 0.05
FAILED = 1
BIN = "bin"
WORKDIR = "sky_workdir"  # every script finds this path in the home folder, as with SkyPilot
BEGIN = Path(__file__).with_name("begin.bash")
TASK_VARIABLES = (  # variables of SkyPilot that every script gets
    *("SKYPILOT_TASK_ID", "SKYPILOT_TASK_IDS", "SKYPILOT_NUM_JOBS", "SKYPILOT_JOB_RANK", "SKYPILOT_USER"),
    *("SKYPILOT_INTERNAL_JOB_ID", "SKYPILOT_CLUSTER_INFO", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_IPS"),
    *("SKYPILOT_NODE_RANK", "SKYPILOT_NUM_GPUS_PER_NODE", "SKYPILOT_SETUP_NODE_IPS", "SKYPILOT_SETUP_NODE_RANK"),
    "SKYPILOT_SETUP_NUM_GPUS_PER_NODE",
)
NOT_HANDED_ON = ("PYTHONPATH", "PYTHONUNBUFFERED", "VIRTUAL_ENV")  # variables of the agent, not of the job


@dataclass(frozen=True)
class Script:
    """A script of a job, with the files and settings of the script."""

    text: str
    name: str
    """Name of the task in the job file, or ""."""
    workdir: str = ""
    """Folder beside the code with the job's files; "" means no files, and the script starts in an empty folder."""
    envs: Dict[str, str] = field(default_factory=dict)
    mounts: Sequence[Sequence[str]] = ()
    """Uploaded files and folders: [folder beside the code, file name in the folder or "", target path in the job]."""
    kept: Sequence[Sequence[str]] = ()
    """Folders that the uploader downloads and uploads again: [name in `work/mounts`, file in it or "", path in the job,
    address in a bucket or "", "still" for a copy whose changes stay on the pod, or "mount" for a bucket that rclone
    mounts if the machine can]."""
    own_home: bool = False
    """True on the user's own machine: `~` and packages from `pip install` are in the folder of the pod.

    Both are removed with the pod. Absolute paths of `mounts` and `kept` are visible only to the script, in a separate
    root. True with an image, too."""
    environment: str = ""
    """Name of the Slipway environment for the script; "" uses the machine's own environment."""
    image: str = ""
    """Image of the container that runs the script; "" runs the script on the machine itself."""
    task: int = 0
    num_tasks: int = 1
    restarts: int = 0
    """Number of failures after which the script is restarted."""
    restart_codes: Sequence[int] = ()
    """Exit codes that always restart the script."""
    inputs: str = ""
    """Digest of the input files and of the launch; a mark is valid only for equal inputs."""
    withheld: Sequence[str] = ()
    """Variables for other steps, not requested by the script and hidden from the script."""


def main(words: Sequence[str]) -> int:
    flag, path = words
    assert flag == "--config"
    root, name = Path(os.environ["SLIPWAY_WORK"]).parent, Path(path).stem
    script = Script(**json.loads(Path(path).read_text(encoding="utf-8")))
    restarts = root / "state" / "scripts" / f"{name}.restarts"
    restarts.parent.mkdir(parents=True, exist_ok=True)
    try:
        with bucket_mount.mounted(root, script.kept, os.environ) as buckets:
            code, is_told = execute(root, name, script, {one.name: one.point for one in buckets})
            problems = bucket_mount.await_uploads(buckets)
    except bucket_mount.MountError as error:
        code, is_told, problems = FAILED, False, [str(error)]
    for problem in problems:
        print(problem, flush=True)
        code = code or FAILED
    return code if is_told else _verdict(code, script, restarts)


def execute(root: Path, name: str, script: Script, buckets: Mapping[str, Path]) -> Tuple[int, bool]:
    """Run a script; return the exit code in shell convention, and whether a signal to leave was received.

    buckets: folders of mounted buckets by name.
    """
    environ, folder, binds = prepare(root, script, buckets)
    text = root / "state" / "scripts" / f"{name}.sh"
    text.write_text(script.text if script.text.endswith("\n") else script.text + "\n", encoding="utf-8")
    at = root / "state" / "root"
    at.mkdir(exist_ok=True)
    environ = {**environ, "BASH_ENV": str(BEGIN), "SLIPWAY_BASH_ENV": environ.get("BASH_ENV", "")}
    if script.image:
        from infra.agent.execution import container  # few jobs have an image

        return container.of_task(script.image, root, script.task, binds).run(text, environ, folder, script.envs)
    return _run(["bash", str(text)], environ, folder, binds, at, ends_all=bool(buckets))


Binds = List[Tuple[str, str]]  # files and folders of the pod, with the paths at which only the script sees them


def prepare(root: Path, script: Script, buckets: Mapping[str, Path]) -> Tuple[Dict[str, str], Path, Binds]:
    """Create the layout for the script; return the environment, the working folder and the private paths."""
    environ = {key: value for key, value in os.environ.items() if key not in (*NOT_HANDED_ON, *script.withheld)}
    work = root / "work"
    if script.own_home:
        environ["HOME"] = str(work / "home")
        Path(environ["HOME"]).mkdir(parents=True, exist_ok=True)
    home = Path(environ.get("HOME", str(work)))
    there = [(root / sent / file if file else root / sent, wanted) for sent, file, wanted in script.mounts]
    for name, file, wanted, *_ in script.kept:
        if name not in buckets:
            (work / "mounts" / name).mkdir(parents=True, exist_ok=True)
        there.append((buckets.get(name, work / "mounts" / name) / file, wanted))
    mounted = next((target for target, wanted in there if wanted.rstrip("/") == f"~/{WORKDIR}"), root / WORKDIR)
    folder = root / script.workdir if script.workdir else mounted
    folder.mkdir(parents=True, exist_ok=True)
    brought = home / WORKDIR
    # otherwise SkyPilot itself created the folder
    if brought.is_symlink() or not brought.exists():
        _link(brought, folder)
    if (script.own_home or script.environment) and not script.image:
        environ = {**environ, **_python(work / "python", environ)}
    binds: Binds = []
    for target, wanted in there:
        if script.own_home and wanted.startswith("/"):
            binds.append((str(target.resolve()), wanted))
        else:
            _link(Path(home, wanted[2:]) if wanted.startswith("~/") else folder / wanted, target)
    environ["PYTHONPATH"] = str(root / "code" / "sdk")
    if work.is_symlink():  # VOLUME/slipway/RUN/work: the pod has a volume of the vendor
        environ["SLIPWAY_VOLUME"] = str(work.resolve().parents[2])
    environ.update(_of_task(script, environ))
    environ.update(script.envs)
    if "PYTHONPATH" in script.envs:
        environ["PYTHONPATH"] = os.pathsep.join([script.envs["PYTHONPATH"], str(root / "code" / "sdk")])
    return environ, folder, binds


def _of_task(script: Script, environ: Dict[str, str]) -> Dict[str, str]:
    """Return SkyPilot's variables for a task, beyond the variables of every step."""
    run = environ.get("SLIPWAY_RUN_ID", "")
    ids = [run] if script.num_tasks == 1 else [f"{run}-{task}" for task in range(script.num_tasks)]
    found = {
        "SKYPILOT_TASK_ID": ids[script.task],
        "SKYPILOT_TASK_IDS": "\n".join(ids),
        "SKYPILOT_NUM_JOBS": "1",
        "SKYPILOT_JOB_RANK": "0",
        "SKYPILOT_INTERNAL_JOB_ID": str(script.task + 1),
        "SKYPILOT_USER": environ.get("USER", ""),
    }
    about = {"cluster_name": run, "cloud": environ.get("SLIPWAY_CLOUD", ""), "region": None, "zone": None}
    found["SKYPILOT_CLUSTER_INFO"] = json.dumps(about)
    for name in ("NODE_IPS", "NODE_RANK", "NUM_GPUS_PER_NODE"):
        found[f"SKYPILOT_SETUP_{name}"] = environ.get(f"SKYPILOT_{name}", "")
    return found


def _python(folder: Path, environ: Dict[str, str]) -> Dict[str, str]:
    """Create a virtual environment over this interpreter, which pip then leaves unchanged; return its variables."""
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
    """Create a link from `path` to `target`; replace an existing link, exit with a message for other existing files."""
    if os.path.realpath(path) == os.path.realpath(target):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        raise SystemExit(f"{path} already exists and is not a link; move {path} away")
    path.symlink_to(target)


def _run(
    words: List[str], environ: Dict[str, str], folder: Path, binds: Binds, at: Path, ends_all: bool = False
) -> Tuple[int, bool]:
    """Run a command; return the exit code in shell convention, and whether a signal to leave was received.

    `at` is an empty folder, the mount point of the private root if the command has private paths. `ends_all`: end the
    processes that the command has left behind, which may have files of a mounted bucket open.
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
    if process.poll() is None and told:  # the signal arrived before the handlers were installed
        _signal(process.pid, told[-1])
    code = process.wait()
    while told and _signal(process.pid, 0):  # children of bash may still be saving work
        time.sleep(POLL_S)
    if ends_all:
        _end(process.pid)
    return (128 - code if code < 0 else code), bool(told)


def _end(group: int) -> None:
    """End a process group: SIGTERM, and SIGKILL for processes that stay."""
    deadline = time.monotonic() + LEFTOVER_GRACE_S
    _signal(group, signal.SIGTERM)
    while _signal(group, 0) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    _signal(group, signal.SIGKILL)


def _signal(group: int, number: int) -> bool:
    """Signal a process group; return False if the group is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
        return True
    return False


def _verdict(code: int, script: Script, counted: Path) -> int:
    """Return the exit code for the agent: RESUME_ME if the job file allows a restart."""
    if code in (0, RESUME_ME):
        return code
    tried = int(counted.read_text(encoding="utf-8")) if counted.exists() else 0
    if code in script.restart_codes:
        print(f"exit code {code} is in recover_on_exit_codes: restarting the job", flush=True)
        return RESUME_ME
    if tried < script.restarts:
        counted.write_text(str(tried + 1), encoding="utf-8")
        print(f"exit code {code}: restart {tried + 1} of {script.restarts} (max_restarts_on_errors)", flush=True)
        return RESUME_ME
    with contextlib.suppress(FileNotFoundError):  # a later resume starts with a fresh count
        counted.unlink()
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
