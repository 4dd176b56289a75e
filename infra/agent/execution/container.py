"""A container around the scripts of a task: the image of a job file, on a machine that boots no image of the user.

Podman or Docker makes one container for each task, with the network, the GPUs and the folders of the pod; `run` finds
the packages of `setup`. Every script starts this container again with the variables of the step. HOME is a folder of
the pod. Signals reach the process group of the script in the container. The container stays as long as the folder of
the pod: the next container on the machine removes the containers of removed folders.

Standard library only, and syntax that Python 3.9 accepts, because this module runs on any machine.
"""

import contextlib
import hashlib
import math
import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Callable, Collection, Dict, List, Sequence, Tuple

POLL_S = 0.1
LOGIN_S = 120.0  # A registry that has not answered a login by then does not answer.
TIMED_OUT = 124  # as the program `timeout`
ENGINES = ("podman", "docker")
LABEL = "slipway.pod"  # the folder of the pod
# Variables of the login at a private registry, with the meaning of SkyPilot: all together, or none.
LOGIN = ("SKYPILOT_DOCKER_USERNAME", "SKYPILOT_DOCKER_PASSWORD", "SKYPILOT_DOCKER_SERVER")
# Variables of the machine, which would replace variables of the image.
OF_MACHINE = (
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "SHELL", "PWD", "OLDPWD", "SHLVL", "_", "USER", "LOGNAME", "MAIL"),
    *("TERM", "TMPDIR", "HOSTNAME", "LANG", "LANGUAGE", "BASH_ENV", "CONDA_PREFIX", "VIRTUAL_ENV", "XDG_RUNTIME_DIR"),
    *("SSH_CLIENT", "SSH_CONNECTION", "SSH_TTY", "SSH_AUTH_SOCK", "DBUS_SESSION_BUS_ADDRESS", "XDG_SESSION_ID"),
)
BEGIN = Path(__file__).resolve().parents[1] / "begin.bash"
GPU_DEVICE = Path("/dev/nvidiactl")
# The first process of the container: Linux ignores signals to this process that have no trap.
FIRST = """. "$0.variables"
rm -f "$0.variables"
set -m
told=
pass() { told=$1; [ -z "$child" ] || kill -"$1" -- "-$child" 2> /dev/null; }
for one in TERM INT USR1; do trap "pass $one" "$one"; done
BASH_ENV="$begin" bash "$text" &
child=$!
[ -z "$told" ] || pass "$told"
while kill -0 "$child" 2> /dev/null; do wait "$child"; code=$?; done
wait "$child" 2> /dev/null; last=$?
[ "$last" -eq 127 ] || code=$last
while [ -n "$told" ] && kill -0 -- "-$child" 2> /dev/null; do sleep 0.1; done
exit "$code"
"""


@dataclass(frozen=True)
class Container:
    """The container of a task."""

    name: str
    image: str
    root: Path
    """Folder of the pod, at the same path in the container."""
    binds: Sequence[Tuple[str, str]] = ()
    """Files and folders of the pod, with absolute paths in the container."""

    @property
    def first(self) -> Path:
        return self.root / "state" / f"{self.name}.bash"

    def run(self, text: Path, environ: Dict[str, str], folder: Path, own: Collection[str]) -> Tuple[int, bool]:
        """Run a script; return the exit code in shell convention, and whether a signal was received.

        own: names of the variables of the job, which replace variables of the image.
        """
        engine = find_engine()
        told: List[int] = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, lambda one, _: told.append(one))
        self._write(text, environ, folder, own)
        _quietly([*engine, "stop", "--time=0", self.name])  # from an attempt whose agent died
        if _quietly([*engine, "container", "inspect", self.name]):
            _remove_forgotten(engine)
            login = [environ.get(name, "") for name in LOGIN]
            image = at_registry(self.image, login[-1]) if all(login) else self.image
            if _quietly([*engine, "image", "inspect", image]):
                private = self.root / "state" / f"{self.name}.login"
                code = (
                    _pull_with_login(engine, image, login, private, told) if all(login) else _pull(engine, image, told)
                )
                if code or told:
                    return code or 128 + told[-1], bool(told)
            words = replace(self, image=image).words(engine)
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        passing = [*engine, "kill", "--signal"]
        start = [*engine, "start", "--attach", "--sig-proxy=false", self.name]
        return _wait(start, told, lambda one: [*passing, str(one), self.name]), bool(told)

    def words(self, engine: Sequence[str]) -> List[str]:
        """Return the command line that creates the container."""
        seen = [(str(self.root), str(self.root))]
        inside = self.root.resolve()
        folders = [one for one in (self.root, self.root / "work", self.root / "code") if one.is_dir()]
        for one in (BEGIN, *(each for folder in folders for each in folder.iterdir())):  # Links lead out of the folder.
            if one.exists() and inside not in (one.resolve(), *one.resolve().parents):
                seen.append((str(one.resolve()), str(one.resolve())))
        more = [f"--volume={source}:{at}" for source, at in dict.fromkeys([*seen, *self.binds])]
        if GPU_DEVICE.exists():
            more += ["--device=nvidia.com/gpu=all"] if engine[-1] == "podman" else ["--gpus=all"]
        if engine[-1] == "podman":
            more += ["--security-opt=label=disable"]  # SELinux denies the folder of the pod to a container.
        else:
            more += ["--ulimit=memlock=-1:-1"]  # for InfiniBand; Podman of a user cannot raise a limit
        more += [f"--label={LABEL}={self.root}", "--network=host", "--ipc=host"]
        more += ["--entrypoint=bash", f"--name={self.name}", self.image]
        return [*engine, "create", *more, str(self.first)]

    def _write(self, text: Path, environ: Dict[str, str], folder: Path, own: Collection[str]) -> None:
        """Write the first script and the variables of a step; the container removes the private file after reading."""
        self.first.write_text(FIRST, encoding="utf-8")
        lines = [f"text={shlex.quote(str(text))}", f"begin={shlex.quote(environ.get('BASH_ENV', ''))}"]
        lines += [f"cd {shlex.quote(str(folder))}"]
        names = [name for name in environ if (name not in OF_MACHINE or name in own) and name.isidentifier()]
        lines += [f"export {name}={shlex.quote(environ[name])}" for name in names]
        path = f"{self.first}.variables"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


def of_task(image: str, root: Path, task: int, binds: Sequence[Tuple[str, str]]) -> Container:
    """Return the container of a task. A later run in the same folder finds the packages of `setup` again."""
    name = hashlib.sha256(f"{root}\n{image}\n{task}".encode()).hexdigest()[:16]
    return Container(f"slipway-{name}", image, root, binds)


def at_registry(image: str, server: str) -> str:
    """Return the name of an image at a registry, as SkyPilot reads the name beside SKYPILOT_DOCKER_SERVER."""
    return image if image.startswith(f"{server}/") else f"{server}/{image}"


def _pull(engine: Sequence[str], image: str, told: List[int], options: Sequence[str] = ()) -> int:
    return _wait([*engine, "pull", *options, image], told, lambda one: [])


def _pull_with_login(engine: Sequence[str], image: str, login: Sequence[str], private: Path, told: List[int]) -> int:
    """Pull an image after a login, and remove the login; return the exit code.

    Arguments name the private folder, because `sudo` removes variables. The command line has no password.
    """
    user, password, server = login
    shutil.rmtree(private, ignore_errors=True)  # from an attempt whose agent died
    private.mkdir(mode=0o700)
    options = [f"--authfile={private / 'auth.json'}"] if engine[-1] == "podman" else []
    engine = engine if options else [*engine, f"--config={private}"]
    try:
        words = [*engine, "login", *options, f"--username={user}", "--password-stdin", server]
        code = _wait(words, told, lambda one: [], password, LOGIN_S)
        if code == TIMED_OUT:
            print(
                f"image_id: {server} has not answered the login in {LOGIN_S:.0f} s; see SKYPILOT_DOCKER_SERVER",
                flush=True,
            )
        elif code and not told:
            print(f"image_id: the login at {server} as {user} failed; see SKYPILOT_DOCKER_PASSWORD", flush=True)
        return code or _pull(engine, image, told, options)
    finally:
        shutil.rmtree(private, ignore_errors=True)


def find_engine() -> List[str]:
    """Return the words that call Podman or Docker on this machine. Raises SystemExit with the command to install."""
    for name in ENGINES:
        if shutil.which(name):
            is_refused = name == "docker" and os.getuid() and _quietly([name, "version"])
            return ["sudo", "-n", name] if is_refused else [name]
    raise SystemExit(
        "image_id: this machine has neither podman nor docker; install podman (Debian, Ubuntu: apt install podman), or "
        "remove image_id and install the packages in `setup`"
    )


def _remove_forgotten(engine: Sequence[str]) -> None:
    """Remove the containers of pods whose folder is gone."""
    for name in _output([*engine, "ps", "--all", f"--filter=label={LABEL}", "--format={{.Names}}"]).split():
        root = _output([*engine, "inspect", '--format={{index .Config.Labels "%s"}}' % LABEL, name]).strip()
        if root and not Path(root).exists():
            _quietly([*engine, "rm", "--force", name])


def _output(words: Sequence[str]) -> str:
    return subprocess.run(list(words), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True).stdout


def _wait(
    words: List[str],
    told: List[int],
    passing: Callable[[int], List[str]],
    typed: str = "",
    limit_s: float = math.inf,
) -> int:
    """Run a command until its end; return the exit code, or TIMED_OUT after `limit_s` seconds.

    `passing`: the command that passes a signal on; without such a command, the process group of the command receives
    the signal. `typed`: the input of the command, which then shows no output.
    """
    stdin, stdout = (subprocess.PIPE, subprocess.DEVNULL) if typed else (None, None)
    process = subprocess.Popen(words, preexec_fn=os.setpgrp, stdin=stdin, stdout=stdout, text=True)
    if process.stdin:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(typed)
    passed, ends_at = 0, time.monotonic() + limit_s
    while process.poll() is None:
        if time.monotonic() > ends_at:
            if _signal(process.pid, signal.SIGKILL):
                process.wait()
            return TIMED_OUT
        if passed < len(told):
            command = passing(told[passed])
            if not command and not _signal(process.pid, told[passed]):
                return 128 + told[passed]
            # The container may not have begun: ask again until the container takes the signal.
            passed += not command or not _quietly(command)
        time.sleep(POLL_S)
    return 128 - process.returncode if process.returncode < 0 else process.returncode


def _signal(group: int, number: int) -> bool:
    """Signal a process group; return False for a group of root, by `sudo`, which takes no signal of a user."""
    with contextlib.suppress(PermissionError):
        os.killpg(group, number)
        return True
    return False


def _quietly(words: Sequence[str]) -> int:
    """Run a command without output; return the exit code."""
    return subprocess.run(
        list(words), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ).returncode
