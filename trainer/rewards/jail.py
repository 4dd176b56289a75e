"""Code that a model wrote, run where it can do no harm: it reads Python's own library, and nothing else.

In: code, calls to evaluate, assertions. Out: what each gave. The jail is Landlock and seccomp where the kernel has both
(Linux 5.13, x86_64 and aarch64), else bubblewrap where it is installed; with neither there is none, and mbpp is
refused. Bounds of memory, processor and wall time come on top; a group of processes ends together.
"""

import contextlib
import functools
import json
import os
import platform
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.rewards import jailed

WALL_S = 5.0
MEMORY_BYTES = 1 << 30
OUT_BYTES = 1 << 20
CHILD = Path(jailed.__file__)
PROBE = "import os\ntry:\n    os.listdir('/proc/1')\n    seen = 'files'\nexcept OSError:\n    seen = 'none'"


@dataclass(frozen=True)
class Outcome:
    """The result of one call or assertion."""

    value: str | None
    """repr of the value that the call returned; None where it did not end."""
    error: str = ""


@functools.cache
def kind() -> str:
    """Return the jail that can be had on this machine: `landlock`, `bubblewrap`, or ""; tried, not read off."""
    for one in ("landlock", "bubblewrap"):
        if one == "landlock" and not (platform.machine() in jailed.ARCHITECTURES and jailed.abi()):
            continue
        if one == "bubblewrap" and not shutil.which("bwrap"):
            continue
        (seen,) = run(PROBE, ["seen"], [], one)
        if seen.value == "'none'":
            return one
    return ""


def run(code: str, calls: Sequence[str], asserts: Sequence[str], jail: str) -> list[Outcome]:
    """Run `code`, then evaluate each call and each assertion; one outcome for each, in that order.

    jail: as `kind` gives it; "" = limits alone.
    """
    nonce = secrets.token_hex(16)
    asked = {
        "code": code, "calls": list(calls), "asserts": list(asserts), "nonce": nonce, "memory_bytes": MEMORY_BYTES,
        "jail": jail,
    }  # fmt: skip
    wanted = len(calls) + len(asserts)
    said, problem = _talk(_command(jail), json.dumps(asked).encode())
    found = []
    for line in said.split(b"\n")[:-1][:wanted]:
        try:
            one: Any = json.loads(line)
            value, error = one.get("value"), one.get("error", "")
        except (ValueError, AttributeError):
            value, error = None, "it wrote what is no answer"
        is_text = isinstance(value, str) and isinstance(error, str)
        found.append(Outcome(value if is_text else None, error if isinstance(error, str) else ""))
    if found and found[0].value is None and len(found) < wanted:
        found = [found[0]] * wanted  # the code itself could not be run
    found += [Outcome(None, problem or "it ended before")] * (wanted - len(found))
    held = [Outcome("True" if one.value == nonce else None, one.error) for one in found[len(calls) :]]
    return [*found[: len(calls)], *held]


def _command(jail: str) -> list[str]:
    inside = [sys.executable, "-I", "-S", str(CHILD)]
    if jail != "bubblewrap":
        return inside
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    folders = dict.fromkeys([sys.base_prefix, str(Path(sys.executable).parent), "/usr", "/lib", "/lib64"])
    for folder in (*folders, str(CHILD)):
        words += ["--ro-bind-try", folder, folder]
    return [*words, "--size", str(16 << 20), "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev", *inside]


def _talk(command: list[str], asked: bytes) -> tuple[bytes, str]:
    """Return the child's output, at most OUT_BYTES, and why it did not end by itself."""
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.DEVNULL, env={}, cwd="/",
            start_new_session=True,
        )  # fmt: skip
        try:
            child.communicate(asked, timeout=WALL_S)
            problem = ""
        except subprocess.TimeoutExpired:
            problem = f"no end after {WALL_S:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)  # its leftovers
            child.wait()
        out.seek(0)
        return out.read(OUT_BYTES), problem
