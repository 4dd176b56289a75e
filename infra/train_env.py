"""Runner for `python -m data|trainer ...` in an environment with torch, for a control side without torch.

`run` takes the words after the interpreter and an optional step configuration, and yields the step's records live. The
step's output goes to stderr and leaves stdout free for data.
"""

import collections
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import IO, Any, NoReturn

from infra.agent.environments import environment
from infra.errors import HubUnreachable, SlipwayError, UsageError
from infra.interrupts import ExitRequested
from store.terminal import show_while

POLL_S = 0.05
LEAVING_S = 2.0
GRACE_S = 30.0  # seconds for a step to save and exit before the kill
RESUMABLE = 75
UNREACHABLE = 69  # exit code of a step: the hub does not answer
PARENT = "SLIPWAY_PARENT"  # variable with a process id; a step reading the variable exits with the process


def interpreter(root: Path, cache: Path, say: Callable[[str], None], name: str = "train") -> Path:
    """Return the Python of environment `name` for the checkout `root`. Raises SlipwayError."""
    try:
        with show_while(f"the {name} environment is being made"):
            return environment.ensure(name, root, cache, environment.torch_build(), say)
    except environment.EnvironmentFailed as error:
        raise SlipwayError(str(error)) from error


def run(
    words: Sequence[str],
    config: Mapping[str, Any] | None,
    *,
    root: Path,
    python: Path,
    environ: Mapping[str, str] | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Run `python *words [--config FILE]` in `root` and yield the records (`data/events.py`) as they arrive.

    `config` is JSON-like, or None for words without a configuration. `environ` is added to this process's environment.
    The child runs in a separate session: Ctrl-C in the terminal and a SIGINT to this process both reach the child
    exactly once, through this function, which waits for the child and then re-raises KeyboardInterrupt. ExitRequested
    works the same way. A caller ends the child by closing the generator, and must do so if interrupted between two
    records.

    Raises UsageError if the child exits with code 2, and SlipwayError with the child's last line for other failures.
    """
    import tempfile  # slow import, kept out of command listings

    with tempfile.TemporaryDirectory(prefix="slipway-") as private:
        records = Path(private, "records.jsonl")
        records.touch()
        name = " ".join(word for word in takewhile(lambda word: not word.startswith("--"), words) if word != "-m")
        words = [str(python), *words]
        if config is not None:
            Path(private, "config.json").write_text(json.dumps(config), encoding="utf-8")
            words += ["--config", str(Path(private, "config.json"))]
        process = subprocess.Popen(
            words,
            cwd=root,
            env={**_environ(root), **(environ or {}), "SLIPWAY_RECORDS": str(records), PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        last: collections.deque[str] = collections.deque(maxlen=1)
        relay = threading.Thread(target=_relay, args=(process.stdout, last), daemon=True)
        relay.start()
        try:
            with records.open(encoding="utf-8") as file:
                yield from _follow(process, file)
        except (KeyboardInterrupt, ExitRequested, GeneratorExit) as leaving:
            process.send_signal(signal.SIGINT if isinstance(leaving, KeyboardInterrupt) else signal.SIGTERM)
            _has_left(process, GRACE_S)
            relay.join(LEAVING_S)
            if last:  # the result of the child's shutdown
                _write(last.pop().removeprefix(f"{name}: "))
            raise
        finally:
            _end(process)
            relay.join(GRACE_S)
    if process.returncode:
        raise _failure(name, process.returncode, last[0].strip() if last else "no output")
    if last:
        _write(last[0])


def exec_interactive(words: Sequence[str], *, root: Path, python: Path) -> NoReturn:
    """Replace this process by `python *words` in `root`, on the same terminal. Does not return."""
    sys.stdout.flush()
    os.chdir(root)
    os.execve(python, [str(python), *words], _environ(root))


def _environ(root: Path) -> dict[str, str]:
    """Return an environment with unbuffered output; with buffering, the last line read might not be the last one."""
    return {**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}


def _relay(stream: IO[str], last: "collections.deque[str]") -> None:
    """Relay the child's output through sys.stderr, since a live display may replace sys.stderr and print above itself.

    The last line is held back: a failed child's last line is the error, which is reported once.
    """
    for line in stream or ():
        if last:
            _write(last.pop())
        last.append(line)


def _write(line: str) -> None:
    sys.stderr.write(line)
    sys.stderr.flush()


def _follow(process: "subprocess.Popen[str]", file: IO[str]) -> Iterator[dict[str, Any]]:
    part = ""
    ended = False
    while not ended:
        ended = _has_left(process, POLL_S)  # records from before the exit are read once more
        for line in file:
            part += line
            if part.endswith("\n"):
                yield json.loads(part)
                part = ""


def _end(process: "subprocess.Popen[str]") -> None:
    """Terminate, then kill, a child after a late exit or unreadable records."""
    try:
        if not _has_left(process, LEAVING_S):
            process.terminate()
            _has_left(process, GRACE_S)
    finally:
        process.kill()
        process.wait()


def _has_left(process: "subprocess.Popen[str]", timeout_s: float) -> bool:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _failure(name: str, code: int, last: str) -> SlipwayError:
    if code == RESUMABLE:
        return SlipwayError(f"{name} stopped in good order; run the same command to resume")
    words = last.removeprefix(f"{name}: ")
    if code == 2:
        return UsageError(words)
    if code == UNREACHABLE:
        return HubUnreachable(words)
    if words != last:  # the child reported the error itself
        return SlipwayError(words)
    how = f"was ended by signal {-code}" if code < 0 else f"failed with exit code {code}"
    return SlipwayError(f"{name} {how}: {last}")
