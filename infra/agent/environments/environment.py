"""Virtual environments, keyed by their content, built once and then reused.

An environment counts as complete only after the marker file is written, which is the last step of a build. An
environment is built in place, because a virtual environment does not survive a rename.

    [dependency-groups] of pyproject.toml + constraints/<group>.txt + build of torch -> interpreter

A group named `*-cpu` or `*-cuda` always gets this build of torch, on every machine. Pins marked as the whole list are
installed without their dependencies. uv installs the packages where uv is available, otherwise pip; both follow pip's
configuration. Pins are exact, so uv takes cached packages without a request to an index.

The control environment, the agent (step 0 of a job) and commands that run code outside of the control environment use
this module. Standard library only, and syntax that Python 3.9 accepts.
"""

import ast
import configparser
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union

from infra.agent import permission_hints
from infra.agent.environments.packages import (
    NOTHING,
    CarriedSources,
    forbids_index,
    pip_environ,
    settings_here,
    uv_environ,
)
from infra.agent.job import write_durably
from infra.agent.state import acquire_lock

Say = Callable[[str], None]

CODE = Path(__file__).resolve().parents[3]
OLDEST = (3, 10)  # the oldest supported Python
MARKER = "slipway-environment"
TELL_TORCH = "import torch; print('cuda' if torch.version.cuda else 'cpu')"
TELLING = re.compile(r"\s*(Resolved|Downloading|Building|Installed|Successfully installed) ")
MANAGED = "3.12"  # the Python that uv installs when every installed Python is too old
OLDEST_UV = (0, 5)  # the oldest uv with support for all variables set here
OWN_UV = ("~/.local/bin/uv", "~/.cargo/bin/uv", "/usr/local/bin/uv")  # not on PATH in a non-login shell
OFFLINE = "--offline"
NO_INDEX = "no package index answers"
ADVICE = (
    "check the network and `pip config list`. Without a network, write `find-links = FOLDER` (a folder of wheels)"
    " under [global] into ~/.config/pip/pip.conf, or copy a uv cache to ~/.cache/uv"
)
NO_VENV = "this Python cannot create virtual environments (on Debian or Ubuntu: apt install python3-venv)"
WHOLE = re.compile(r"^# The whole list", re.M)  # in a constraints file
KNOWN = (  # regular expression for the output of a tool, and the message for the user
    (r"no space left|os error 28", "the disk is full"),
    (r"ensurepip|no module named venv", NO_VENV),
    (
        r"python-build-standalone|no interpreter found",
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is not installed, and uv cannot download Python; install it first",
    ),
    (
        r"dns error|error sending request|failed to establish|name resolution|timed out|connection refused|unreachable",
        NO_INDEX,
    ),
    (
        r"ResolutionImpossible|no matching distribution",
        "the configured package index does not have the pinned versions",
    ),
)


class EnvironmentFailed(Exception):
    """Raised when an environment cannot be built; the message is one line: attempt, cause and next step for the user.

    `seen` holds the cause alone.
    """

    def __init__(self, message: str, seen: str = "") -> None:
        super().__init__(message)
        self.seen = seen or message


@dataclass(frozen=True)
class Spec:
    """The content of an environment; environments with equal keys are interchangeable."""

    name: str
    requirements: Tuple[str, ...]
    constraints: Optional[Path]
    torch: str  # "cpu", "cuda", or "" when torch is not among the requirements
    python: str  # path of the base interpreter, or MANAGED
    key: str
    is_fully_pinned: bool = False  # install exactly the constraints, without further dependencies


def ensure(name: str, code: Path, cache: Path, torch: str, say: Say, carried: CarriedSources = NOTHING) -> Path:
    """Return the interpreter of environment `name` for the checkout `code`; build the environment if missing.

    The environment is a folder below `cache`.
    `torch` is "cpu" or "cuda". `say` receives progress messages, and is not called for a complete environment.
    `carried` holds the package sources that were sent with a job. Raises EnvironmentFailed.
    """
    spec = read_spec(name, code, torch)
    return ensure_at(cache / f"{name}-{spec.key[:12]}", spec, cache, say, carried)


def find(name: str, code: Path, cache: Path, torch: str) -> Optional[Path]:
    """Return the interpreter of an already complete environment, or None. Raises EnvironmentFailed."""
    spec = read_spec(name, code, torch)
    target = cache / f"{name}-{spec.key[:12]}"
    return _interpreter(target) if _is_whole(target, spec.key) else None


def is_cached(name: str, code: Path, torch: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether uv's cache holds the pinned torch build, by far the largest package. Raises EnvironmentFailed."""
    spec = read_spec(name, code, torch)
    pins = spec.constraints.read_text(encoding="utf-8") if spec.constraints else ""
    pin = re.search(r"^torch==([^\s;+]+)", pins, re.M)
    if not (spec.torch and pin):
        return False
    build = "+cpu" if spec.torch == "cpu" and sys.platform == "linux" else ""
    home = Path(environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache")
    cache = Path(environ.get("UV_CACHE_DIR") or home / "uv")
    return any(cache.glob(f"archive-v*/*/torch-{pin[1]}{build}.dist-info"))


def newest(name: str, cache: Path) -> Optional[Path]:
    """Return the interpreter of the newest complete environment called `name`, for any content, or None without one."""
    found = []
    for marker in cache.glob(f"{name}-*/{MARKER}"):
        key = marker.parent.name[len(name) + 1 :]
        with contextlib.suppress(OSError, ValueError):  # Another process is removing the environment.
            whole = marker.read_text(encoding="utf-8").split("\n")[0]
            if len(key) == 12 and whole.startswith(key) and _is_whole(marker.parent, whole):
                found.append((marker.stat().st_mtime, marker.parent))
    return _interpreter(max(found)[1]) if found else None


def ensure_at(
    target: Path, spec: Spec, cache: Path, say: Say, carried: CarriedSources = NOTHING, program: str = "python"
) -> Path:
    """Return the interpreter of the environment in `target`; build the environment if incomplete or without `program`.

    `cache` is the folder for an own copy of uv. Raises EnvironmentFailed.
    """
    if not _is_whole(target, spec.key, program):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with _locked(target, say) as lock:
                if not _is_whole(target, spec.key, program):  # another process may have finished the build
                    _build(target, spec, cache, say, carried, lock)
        except OSError as error:
            said = f"the {spec.name} environment cannot be made: {permission_hints.error_with_hint(error, CODE)}"
            hint = "" if target.parent == CODE else "; to use a different folder, set SLIPWAY_ENVIRONMENTS"
            raise EnvironmentFailed(said + hint) from error
        except (configparser.Error, UnicodeDecodeError) as error:
            raise EnvironmentFailed(f"pip's configuration cannot be read: {error}; run: pip config debug") from error
    return _interpreter(target)


def torch_build() -> str:
    """Return the build of torch for this machine: "cuda" if `nvidia-smi` is installed, else "cpu"."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def read_spec(name: str, code: Path, torch: str) -> Spec:
    """Return the spec of environment `name` of the checkout `code`. Raises EnvironmentFailed."""
    constraints = code / "constraints" / f"{name}.txt"
    try:
        requirements = read_group((code / "pyproject.toml").read_text(encoding="utf-8"), name)
        pins = constraints.read_text(encoding="utf-8")
    except OSError as error:
        raise EnvironmentFailed(f"the definition of the {name} environment cannot be read: {error}") from error
    except (ValueError, SyntaxError) as error:
        raise EnvironmentFailed(f"pyproject.toml: [dependency-groups]: {error}") from error
    fixed = next((build for build in ("cpu", "cuda") if name.endswith(f"-{build}")), torch)
    if fixed == "cuda" != torch:
        raise EnvironmentFailed(f"the {name} environment needs an NVIDIA GPU, but nvidia-smi is not installed here")
    torch = fixed if any(_project(one) == "torch" for one in requirements) else ""
    return _spec(name, requirements, constraints, pins, torch)


def _spec(name: str, requirements: Tuple[str, ...], constraints: Optional[Path], pins: str, torch: str) -> Spec:
    python, about = _tell_python() if name == "uv" else _base_python()  # uv runs on every supported Python
    key = hashlib.sha256("\n".join([*requirements, pins, torch, about]).encode()).hexdigest()
    return Spec(name, requirements, constraints, torch, python, key, WHOLE.search(pins) is not None)


def read_group(pyproject: str, name: str) -> Tuple[str, ...]:
    """Return the requirements of a dependency group (PEP 735), including the requirements of included groups.

    Python 3.10 has no TOML parser, so this function reads only the layout of this project's pyproject.toml: an array
    with one entry per line. Raises ValueError or SyntaxError for a missing group or a different layout.
    """
    table = re.search(r"^\[dependency-groups\]$(.*?)(?=^\[|\Z)", pyproject, re.M | re.S)
    found = table and re.search(rf"^{re.escape(name)} = (\[\n.*?^\])$", table[1], re.M | re.S)
    if not found:
        raise ValueError(f"no group {name!r} with one entry per line")
    entries = ast.literal_eval(re.sub(r"\{include-group = (\"[^\"]+\")\}", r"(\1,)", found[1]))
    requirements: List[str] = []
    for entry in entries:
        requirements.extend(read_group(pyproject, entry[0]) if isinstance(entry, tuple) else [entry])
    return tuple(dict.fromkeys(requirements))


def _project(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower()


def _base_python() -> Tuple[str, str]:
    """Return (interpreter, version text) of a new enough Python outside virtual environments, or MANAGED for uv's."""
    if sys.version_info >= OLDEST:
        return _tell_python()
    for minor in range(14, OLDEST[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        tell = "from infra.agent.environments import environment; print(*environment._tell_python(), sep='\\n')"
        done = path and subprocess.run([path, "-c", tell], capture_output=True, text=True, cwd=CODE)
        if done and done.returncode == 0:  # A launcher on PATH may point to a Python that is not installed.
            executable, about = done.stdout.splitlines()
            return executable, about
    return MANAGED, f"{MANAGED} {sysconfig.get_platform()}"


def _tell_python() -> Tuple[str, str]:
    about = f"{sys.implementation.cache_tag} {sys.version.split()[0]} {sysconfig.get_platform()}"
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable)), about


def _interpreter(target: Path) -> Path:
    return target / "bin" / "python"


def _is_whole(target: Path, key: str, program: str = "python") -> bool:
    try:
        text = (target / MARKER).read_text(encoding="utf-8")
    except OSError:
        return False
    return text == _mark(target, key) and _interpreter(target).exists() and (target / "bin" / program).exists()


def _mark(target: Path, key: str) -> str:
    return f"{key}\n{target.absolute()}\n"  # includes the path, because a moved environment does not work


@contextlib.contextmanager
def _locked(target: Path, say: Say) -> Iterator[int]:
    """Hold the lock of `target` and yield the descriptor; children inherit the lock, which outlives a killed parent."""
    path = target.with_name(f"{target.name}.lock")
    lock = acquire_lock(path, wait_s=0.0)
    if lock is None:
        say(f"waiting for another process that is making {target}")
        lock = acquire_lock(path, wait_s=None)
    assert lock is not None
    try:
        yield lock
    finally:
        os.close(lock)


def _build(target: Path, spec: Spec, cache: Path, say: Say, carried: CarriedSources, lock: int) -> None:
    """Try each way to build the environment in order, until an attempt succeeds. Raises EnvironmentFailed."""
    log = target.with_name(f"{target.name}.log")
    log.write_text("", encoding="utf-8")
    work = _Work(log, lock, say)
    tools, uv, said = _tools(spec), Path(), ""
    problems: List[Tuple[str, str]] = []
    if "uv" in tools:
        try:
            uv = _find_uv(spec, cache, say, carried)
        except EnvironmentFailed as error:
            problems.append(("uv", error.seen))
            tools.remove("uv")
    for tool, flags in _ways(spec, tools):
        if tool != said:
            say(f"making the {spec.name} environment with {tool}: {target}")
        said = tool
        try:
            _remove(target)
            _install(work, target, spec, uv if tool == "uv" else None, flags, carried)
        except EnvironmentFailed as error:
            is_known = any(error.seen == words for _, words in KNOWN)
            seen = error.seen if is_known or OFFLINE not in flags else "some packages are not in the cache"
            problems.append((" ".join([tool, *flags]), seen))
            continue
        write_durably(target / MARKER, _mark(target, spec.key))
        return
    tried = {seen: [way for way, found in problems if found == seen] for _, seen in problems}
    each = [f"{seen} ({', '.join(ways)})" for seen, ways in tried.items()]
    seen = "; ".join(each) if len(each) > 1 else problems[0][1]
    advice = f"; {ADVICE}" if NO_INDEX in seen else ""
    raise EnvironmentFailed(f"the {spec.name} environment could not be made: {seen}; full log: {log}{advice}", seen)


def _install(
    work: "_Work", target: Path, spec: Spec, uv: Optional[Path], flags: List[str], carried: CarriedSources
) -> None:
    """Build `target` with uv, or with pip when `uv` is None. Raises EnvironmentFailed."""
    python = _interpreter(target)
    settings = settings_here(carried, offline=OFFLINE in flags)
    if uv:
        environ = uv_environ(settings)
        work.run([uv, "venv", "--python", spec.python, target], environ)
        install = [str(uv), "pip", "install", "--python", str(python)]
        install += ["--no-index"] if forbids_index(settings) else []
    else:
        environ = pip_environ(settings)
        work.run([spec.python, "-m", "venv", target], environ)
        install = [str(python), "-m", "pip", "install"]
    wanted = [_with_build(one, spec.torch) for one in spec.requirements]
    if spec.is_fully_pinned:
        wanted = ["--no-deps", "-r", str(spec.constraints), *wanted]
    elif spec.constraints:
        wanted = ["-c", str(spec.constraints), *wanted]
    work.run([*install, *flags, *wanted], environ)
    if spec.torch:
        _check_torch(work.run([python, "-c", TELL_TORCH], environ), spec.torch)


def _remove(target: Path) -> None:
    """Remove an environment, marker first, so that an interrupted removal never looks like a complete environment."""
    if target.is_symlink():
        target.unlink()
    elif target.exists():
        (target / MARKER).unlink(missing_ok=True)
        shutil.rmtree(target)


def _tools(spec: Spec) -> List[str]:
    forced = os.environ.get("SLIPWAY_INSTALLER", "")
    if forced not in ("", "uv", "pip"):
        raise EnvironmentFailed(f"SLIPWAY_INSTALLER is {forced!r}; expected uv or pip")
    if spec.name == "uv":
        return ["pip"]
    if spec.python == MANAGED:  # pip cannot install a Python
        return ["uv"]
    return [forced] if forced else ["uv", "pip"]


def _ways(spec: Spec, tools: List[str]) -> Iterator[Tuple[str, List[str]]]:
    """Yield (tool, flags) for every attempt, in order: uv offline, uv online, pip."""
    for tool in tools:
        if tool == "pip":
            yield tool, []
            continue
        builds: List[List[str]] = [[]]
        if spec.torch and sys.platform == "linux":  # uv knows the index of PyTorch's own wheels
            builds.append(["--torch-backend", "cpu" if spec.torch == "cpu" else "auto"])
        for reach in ([OFFLINE], []):
            for build in builds:
                yield tool, [*reach, *build]


def _with_build(requirement: str, torch: str) -> str:
    """Add the build to a torch requirement on Linux.

    A plain `torch==X` means the CUDA build on the default index, but either build in a folder of wheels.
    """
    name, _, version = requirement.partition("==")
    if name != "torch" or sys.platform != "linux":
        return requirement
    return f"torch=={version}+cpu" if torch == "cpu" else f"torch=={version},!={version}+cpu"


def _check_torch(output: str, torch: str) -> None:
    got = output.split()[-1]
    if got != torch and sys.platform == "linux":
        raise EnvironmentFailed(f"the installer chose the {got} build of torch instead of the {torch} build")


def _find_uv(spec: Spec, cache: Path, say: Say, carried: CarriedSources) -> Path:
    """Return the path of uv: of this machine, the copy sent with the job, or from a wheel in a separate environment."""
    places = [Path(sys.prefix) / "bin" / "uv", shutil.which("uv"), *OWN_UV, carried.uv]
    for place in places:
        path = os.path.expanduser(place or "")
        if os.path.isfile(path) and is_usable(_version(path)):
            return Path(path)
    pins = spec.constraints and spec.constraints.with_name("control.txt")
    pin = pins and pins.exists() and re.search(r"^uv==\S+$", pins.read_text(encoding="utf-8"), re.M)
    own = _spec("uv", (pin[0] if pin else "uv",), None, "", "")
    return ensure_at(cache / f"uv-{own.key[:12]}", own, cache, say, carried).parent / "uv"


def _version(uv: str) -> str:
    try:
        done = subprocess.run([uv, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError:  # the binary is for a different platform
        return ""
    return done.stdout if done.returncode == 0 else ""


def is_usable(version: str) -> bool:
    """Return whether the output of `uv --version` names a version of at least OLDEST_UV."""
    found = re.match(r"uv (\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_UV


@dataclass(frozen=True)
class _Work:
    """A runner of build commands for an environment, with a log."""

    log: Path
    lock: int
    say: Say

    def run(self, words: Sequence[Union[str, Path]], environ: Dict[str, str]) -> str:
        """Run a program and return the output; pass progress lines to `say`. Raises EnvironmentFailed."""
        lines: List[str] = []
        with self.log.open("a", encoding="utf-8") as log:
            # The program inherits the lock. If this process is killed, no other process builds here while the program
            # writes.
            process = subprocess.Popen(
                [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=environ,
                text=True,
                errors="replace",
                pass_fds=(self.lock,),
            )
            with process:
                for line in process.stdout or ():
                    log.write(line)
                    lines.append(line)
                    if TELLING.match(line):
                        self.say(line.strip())
        if process.returncode:
            raise EnvironmentFailed(_reason("".join(lines)) or f"exit code {process.returncode}")
        return "".join(lines)


def _reason(output: str) -> str:
    """Return the cause of a failure as one line, extracted from the output of a tool."""
    for pattern, words in KNOWN:
        if re.search(pattern, output, re.I):
            return words
    lines = [line.strip() for line in output.splitlines() if line.strip() and not TELLING.match(line)]
    start = next((at for at, line in enumerate(lines) if line.lower().startswith("error")), 0)
    return " ".join(lines[start : start + 2])[:300]  # uv prints the failed action, then the cause
