"""Runner for shard tasks on the Ray cluster at RAY_ADDRESS, or on a local cluster: `on_ray HOME CPUS PYTHON NAME...`.

`ray.py` starts this module; the interpreter needs only Ray. Each task is a PYTHON process on a cluster machine, and the
runner restarts a killed or lost task. Exit codes: 0, all tasks ended; 1, some tasks were killed too often;
2, no such cluster. SIGTERM cancels all tasks and waits for their end.
"""

import os
import signal
import socket
import sys
from typing import Any

from data.events import emit
from data.single_writer import PARENT, exit_with_parent

MOST_TRIES = 5
LEAVE_S = 20.0
LOOK_S = 1.0
REACH_S = 5.0
CARRIED = ("HF_", "HUGGINGFACE", "AWS_", "GOOGLE_", "FSSPEC_")
"""Prefixes of environment variables that a task may need to read the source."""


def run_task(root: str, words: list[str], environ: dict[str, str], grace_s: float) -> int:
    """Run a task on a cluster machine and return the exit code.

    Raise FileNotFoundError for a path missing on the machine, and RuntimeError for an exit code other than 0, 1 and 2.
    Ray serializes this function, so the function must not depend on other Slipway code.
    """
    import os
    import socket
    import subprocess

    for path in (root, words[0], words[-2]):
        if not os.path.exists(path):
            raise FileNotFoundError(f"{socket.gethostname()} cannot read {path}, which all machines must share")
    environ = {**os.environ, **environ, "PYTHONPATH": root, PARENT: str(os.getpid())}
    process = subprocess.Popen(words, cwd=root, env=environ, stdin=subprocess.DEVNULL)
    try:
        code = process.wait()
    finally:  # Ray has cancelled the task.
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(grace_s)
            except subprocess.TimeoutExpired:
                process.kill()
    if code not in (0, 1, 2):
        raise RuntimeError(f"{words[-1]} ended with exit code {code}")
    return code


def main(words: list[str]) -> int:
    home, cpus, python, names = words[0], int(words[1]), words[2], words[3:]
    exit_with_parent(os.environ.pop(PARENT, ""))
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "auto")
    try:
        import ray
    except ImportError:
        return _say(f"--engine ray: {sys.executable} has no package ray; HOW", 2)
    try:
        _reach(address)
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, OSError) as error:
        why = str(error).splitlines()[0]
        hint = "set RAY_ADDRESS=HOST:6379, or start a cluster: `ray start --head`"
        return _say(f"no Ray cluster answers at {address} ({why}); {hint}", 2)
    except RuntimeError as error:  # Ray or Python versions differ from the cluster.
        return _say(f"{' '.join(str(error).split())}; HOW", 2)
    nodes = [one for one in ray.nodes() if one["Alive"]]
    most = max((one["Resources"].get("CPU", 0) for one in nodes), default=0)
    if most < cpus:
        return _say(
            f"no machine of the Ray cluster has {cpus} processors; the largest has {most:.0f}. Give fewer --workers", 2
        )
    emit("note", text=f"{len(names)} ranks on {len(nodes)} machines of Ray; `ray list tasks`; logs: {home}")
    return _run_all(ray, home, cpus, python, names)


def _reach(address: str) -> None:
    """Raise OSError if the address does not accept connections; Ray itself would retry for minutes."""
    host, _, port = address.rpartition("://")[2].partition("?")[0].rpartition(":")
    if port.isdigit():
        socket.create_connection((host, int(port)), REACH_S).close()


def _run_all(ray: Any, home: str, cpus: int, python: str, names: list[str]) -> int:
    root = os.getcwd()
    environ = {name: value for name, value in os.environ.items() if name.startswith(CARRIED)}
    task = ray.remote(
        num_cpus=cpus,
        max_retries=MOST_TRIES,
        retry_exceptions=[RuntimeError],
        scheduling_strategy="SPREAD",
    )(run_task)
    started = {
        task.options(name=name).remote(
            root, [python, "-m", "packs.shard_engines.data.task", home, name], environ, LEAVE_S
        ): name
        for name in names
    }
    left, code = list(started), 0
    try:
        while left:
            done, left = ray.wait(left, timeout=LOOK_S)
            for one in done:
                code = max(code, _end_of(ray, one, started[one]))
        return code
    except KeyboardInterrupt:
        for one in left:
            ray.cancel(one)
        ray.wait(left, num_returns=len(left), timeout=LEAVE_S)
        return 130


def _end_of(ray: Any, one: Any, name: str) -> int:
    """Return 0 if the task process exited by itself, with any exit code.

    Otherwise print the reason and return 2 for an unshared path or 1 for a killed task.
    """
    try:
        ray.get(one)
        return 0
    except ray.exceptions.RayTaskError as error:
        unshared = isinstance(error.cause, FileNotFoundError)
        return _say(
            str(error.cause) if unshared else f"killed {MOST_TRIES + 1} times: {error.cause}", 2 if unshared else 1
        )
    except ray.exceptions.RayError as error:
        return _say(f"{name}: {str(error).splitlines()[0]}", 1)


def _say(words: str, code: int) -> int:
    print(words, file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
