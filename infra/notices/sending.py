"""The sending of a notice through a hook.

`send` returns "" or an error text without the target of the hook, which is a secret; a failing hook raises no
exception.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from infra.notices.hooks import COMMAND, DESKTOP, PATIENCE_S, Hook
from infra.units import duration

POLL_S = 0.02
READ_BYTES = 1 << 16  # read size of stderr: capacity of a pipe
TITLE = "Slipway"
HOOK_TEXT = "SLIPWAY_HOOK_COMMAND"  # passed in the environment, since other users can read process arguments
# Processes of a running command end with the sending process; background processes of a finished command stay.
SHELL = f"""(while sleep 1 && kill -0 $PPID; do :; done; kill -KILL 0) </dev/null >/dev/null 2>&1 &
(eval "${HOOK_TEXT}"); code=$?; kill $!; exit $code"""
LINE = {
    "succeeded": "done",
    "recovered": "back at work",
    "near limit": "near the limit",
    "beyond limit": "expected to exceed the limit",
    "idle": "GPUs are idle",
    "audit": "the audit found something",
}
URGENT = ("failed", "lost", "limit", "near limit", "beyond limit", "orphan", "audit", "unhealthy", "given up")


def send(hook: Hook, said: Mapping[str, str]) -> str:
    """Send `said` (run, state, cost_usd, note) through a hook; return "" or the error text."""
    if hook.kind == COMMAND:
        return _command(hook, said)
    if hook.kind == DESKTOP:
        return _desktop(said)
    return _post(hook, said)


def format_notice(said: Mapping[str, str]) -> str:
    """Return a notice as a readable line."""
    state = LINE.get(said["state"], said["state"])
    note = f": {said['note']}" if said["note"] else ""
    cost = f" ({said['cost_usd']} USD)" if said["cost_usd"] not in ("", "0", "0.00") else ""
    return f"{said['run']}: {state}{note}{cost}"


def _post(hook: Hook, said: Mapping[str, str]) -> str:
    import httpx

    text = format_notice(said)
    request: dict[str, Any]
    if hook.kind == "slack":
        request = {"json": {"text": text}}
    elif hook.kind == "discord":
        request = {"json": {"content": text[:2000], "allowed_mentions": {"parse": []}}}
    elif hook.kind == "ntfy":
        urgency = "high" if said["state"] in URGENT else "default"
        request = {"content": text.encode(), "headers": {"Title": TITLE, "Priority": urgency}}
    else:
        request = {"json": dict(said)}
    try:
        with httpx.stream("POST", hook.target, timeout=PATIENCE_S, **request) as answer:  # ignores the response body
            return "" if answer.is_success else f"answered with {answer.status_code}"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return type(error).__name__  # the address may hold a secret


def _command(hook: Hook, said: Mapping[str, str]) -> str:
    environ = {**os.environ, **{f"SLIPWAY_{name.upper()}": text for name, text in said.items()}}
    environ[HOOK_TEXT] = hook.target
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(dict(said)).encode())
        given.seek(0)
        try:
            process = subprocess.Popen(
                ["sh", "-c", SHELL],
                env=environ,
                stdin=given,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            return f"the command of the hook cannot be started: {error.strerror}"
    with process:
        words = _last_words(process)
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all child processes
            return f"the command of the hook has not ended after {duration(PATIENCE_S)}"
    return f"exit code {process.returncode}: {words.strip()[-200:]}" if process.returncode else ""


def _last_words(process: "subprocess.Popen[bytes]") -> str:
    """Return the end of a command's stderr, read until the command exits or PATIENCE_S passes.

    A background process may hold stderr open or write without end.
    """
    assert process.stderr is not None
    end, last, pipe = time.monotonic() + PATIENCE_S, b"", process.stderr.fileno()
    is_open, has_ended = True, False
    while not has_ended and time.monotonic() < end:
        has_ended = process.poll() is not None  # checked before a last read of stderr
        if is_open and select.select([pipe], [], [], 0 if has_ended else POLL_S)[0]:
            part = os.read(pipe, READ_BYTES)
            is_open, last = bool(part), (last + part)[-READ_BYTES:]
        elif not has_ended:
            time.sleep(POLL_S)
    return last.decode("utf-8", "replace")


def _desktop(said: Mapping[str, str]) -> str:
    text = format_notice(said)
    if sys.platform == "darwin":
        words = ["osascript", "-e", f"display notification {json.dumps(text)} with title {json.dumps(TITLE)}"]
    else:
        words = ["notify-send", "--app-name", TITLE, TITLE, text]
    if shutil.which(words[0]) is None:
        return f"{words[0]} is not installed on this machine"
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return type(error).__name__
    return f"exit code {done.returncode}: {done.stderr.strip()[-200:]}" if done.returncode else ""
