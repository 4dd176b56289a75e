"""Transport view of a managed job: the job's output and SkyPilot's queue row, presented as a pod's files.

Only SkyPilot reaches the machines of its jobs. `packs.skypilot.agent.managed` prints step logs and periodic reports
there; SkyPilot stores the output. This module parses the stored output and answers requests for a pod's files.
"""

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError
from infra.transport.protocol import LIMIT_BYTES, LIST, LOGS, READ_BYTES, Result, Unreachable
from packs.skypilot.agent.managed import BETWEEN, REPORT
from packs.skypilot.control.client import NoServer, SkyPilotAnswer, SkyPilotTimeout
from store.untrusted_input import is_part

OVER = {  # final states of a managed job in SkyPilot
    "SUCCEEDED": "succeeded",
    "CANCELLED": "stopped",
    "FAILED": "failed",
    "FAILED_SETUP": "failed",
    "FAILED_PRECHECKS": "failed",
    "FAILED_NO_RESOURCE": "failed",
    "FAILED_CONTROLLER": "failed",
}
ENDING = ("CANCELLING", "WINDING_DOWN")
RECENT_LINES = 400
FRESH_S = 4.0  # age up to which a read is reused: each read is a request to the API server
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
PREFIX = re.compile(r"\([^()]*?(?:rank=(\d+), )?pid=\d+(?:, ip=[^)]*)?\) ?")


@dataclass(frozen=True)
class JobLog:
    """Output of the newest attempt of a job."""

    steps: Mapping[str, str]
    """Text of each step, by the name of its log without the suffix: `run`, and `run.1` for node 1."""
    report: Mapping[str, Any]
    """Last report of node 0; {} before the first report."""


def read(text: str) -> JobLog:
    """Parse the output of a job into step logs and the last report of node 0."""
    steps: dict[str, list[str]] = {}
    report: dict[str, Any] = {}
    for raw in text.splitlines():
        line = COLOURS.sub("", raw).rstrip("\r")
        prefix = PREFIX.match(line)
        rank = int(prefix[1] or 0) if prefix else 0
        said = line[prefix.end() :] if prefix else line
        if said.startswith(REPORT):
            if rank == 0:
                with contextlib.suppress(ValueError):  # a truncated report at the end
                    report = json.loads(said.removeprefix(REPORT))
            continue
        name, between, rest = said.partition(BETWEEN)
        is_step = bool(between) and is_part(name)
        step = f"{name}.{rank}" if is_step and rank else name if is_step else "skypilot"
        steps.setdefault(step, []).append(rest if is_step else line)
    return JobLog({name: "\n".join(lines) + "\n" for name, lines in steps.items()}, report)


def words(row: Mapping[str, Any], log: JobLog, token: str, run: str, now: float) -> dict[str, dict[str, Any]]:
    """Return progress, verdict, guard and agent of the run in the format of a pod's files.

    row: the job's row in SkyPilot's queue. now: UTC epoch seconds. Only report parts with the run's `token` count. The
    verdict is {} until SkyPilot's status is final.
    """
    status = str(row.get("status") or "")
    recoveries = int(row.get("recovery_count") or 0)
    told = {key: dict(part) for key, part in log.report.items() if part and part.get("token") == token}
    progress = {
        "run": run,
        "token": token,
        "state": "waiting",
        "step": "",
        "steps": [],
        "updated_at": now,
        **told.get("progress", {}),
        "recoveries": recoveries,
    }
    if status not in ("RUNNING", *OVER):
        progress = {**progress, "step": f"SkyPilot: {status}", "updated_at": now}
    verdict = told.get("verdict", {}) if status in OVER else {}
    if status in OVER and (not verdict or (verdict["state"] == "succeeded") is not (status == "SUCCEEDED")):
        verdict = {
            "run": run,
            "token": token,
            "state": OVER[status],
            "step": progress["step"],
            "exit_code": None,
            "lost": None,
            "tail": "",
            "at": row.get("end_at") or now,
            "reason": f"SkyPilot: {status} {row.get('failure_reason') or ''}".strip(),
        }
    guard = {**told.get("guard", {}), "token": token, "alive": status not in OVER}
    return {"progress": progress, "verdict": verdict, "guard": guard, "agent": {"token": token, "alive": False}}


@dataclass
class JobView:
    """Transport to a managed job: serves the job's files from SkyPilot's data; cannot run programs or write files."""

    row: Callable[[], SkyPilotAnswer]
    """Returns the job's row in SkyPilot's queue; {} for an unknown job."""
    log: Callable[[int | None, float], str]
    """Returns the last lines of the job's log (None: all lines), read at or after the given UTC epoch second."""
    end: Callable[[], None]
    token: str
    run_name: str
    python: str = "python3"
    agent: str = "infra.agent"
    shell_banner: bytes = b""
    _seen: dict[str, tuple[float, Any]] = field(default_factory=dict)

    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] | None = None,
        timeout_s: float,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> Result:
        """Answer the agent commands `status` and log listing from SkyPilot's data; `stop` cancels the job."""
        verb = list(words)
        if verb[1:4] == ["-m", "infra.agent", "status"]:
            return Result(0, json.dumps(self._status_reports()), "")
        if verb[1:4] == ["-m", "infra.agent", "stop"]:
            self.end()
            return Result(0, "{}", "")
        if verb[1:3] == ["-c", LIST]:
            logs = self._all_logs().steps if LOGS in verb else {}
            return Result(0, "".join(f"{len(text.encode())} logs/{name}.log\0" for name, text in logs.items()), "")
        raise self._refusal(f"running {' '.join(verb[:4])}")

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        name = Path(path).name
        part = {"progress.json": "progress", "verdict.json": "verdict", "guard.json": "guard"}.get(name)
        if part:
            found = self._status_reports()[part]
            if not found:
                raise FileNotFoundError(str(path))
            return json.dumps(found).encode()
        return self._log_bytes(path)

    def read(self, path: str | Path, offset: int) -> bytes:
        return self.get(path)[offset:][:READ_BYTES]

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        raise self._refusal(f"writing {Path(path).name}")

    def forward(self, local_port: int, remote_port: int) -> "contextlib.AbstractContextManager[int]":
        raise self._refusal("forwarding a port")

    def run_in_background(self, words: Sequence[str], cwd: str | Path | None = None) -> Any:
        raise self._refusal("running a program beside the job")

    def shell(self, words: Sequence[str] | None = None, cwd: str | Path | None = None) -> int:
        raise self._refusal("a shell on the machine")

    def _refusal(self, what: str) -> SlipwayError:
        return SlipwayError(
            f"{self.run_name}: {what}: only SkyPilot reaches the machines of the job; for the output: inv "
            f"logs {self.run_name}"
        )

    def _status_reports(self) -> dict[str, dict[str, Any]]:
        seen = self._read_cached("row", self.row)
        status, text = str(seen.answer.get("status") or ""), ""
        since = seen.at if status in OVER else 0.0  # a read after the job's end includes the last lines
        if status in ("RUNNING", "RECOVERING", *ENDING, *OVER):
            text = self._read_cached(f"tail {status}", lambda: self.log(RECENT_LINES, since))
            if REPORT not in text and text.count("\n") >= RECENT_LINES:
                text = self._read_cached(f"log {status}", lambda: self.log(None, since))
        return words(seen.answer, read(text), self.token, self.run_name, seen.at)

    def _all_logs(self) -> JobLog:
        return read(self._read_cached("log", lambda: self.log(None, 0.0)))

    def _log_bytes(self, path: str | Path) -> bytes:
        try:
            return self._all_logs().steps[Path(path).stem].encode()
        except KeyError:
            raise FileNotFoundError(str(path)) from None

    def _read_cached(self, what: str, ask: Callable[[], Any]) -> Any:
        """Return a read of at most `FRESH_S` seconds ago, or read again.

        Raises Unreachable when SkyPilot does not answer.
        """
        at, found = self._seen.get(what, (0.0, None))
        if found is None or time.monotonic() - at > FRESH_S:
            try:
                found = ask()
            except (SkyPilotTimeout, NoServer) as error:  # the job continues meanwhile; the caller retries
                raise Unreachable(str(error)) from error
            self._seen[what] = (time.monotonic(), found)
        return found
