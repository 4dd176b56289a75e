"""Client for SkyPilot's SDK, which runs in a single worker process (`worker.py`) per installation.

    question and arguments -> Unix socket in the state folder -> worker -> plain JSON answer

A client starts the worker when no worker runs. A client replaces a worker after the worker's death, or without a
greeting within `HEAR_S`. The worker serves every process with access to the socket and exits after `IDLE_S` without
requests. The client turns SkyPilot's exceptions into `SlipwayError`s with a remedy.
"""

import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.agent.environments import environment
from infra.agent.process import TOKEN, end_all
from infra.checkout import ROOT
from infra.errors import Ambiguous, AuthError, NoOffer, SlipwayError, UsageError
from infra.transport.unix_socket import short
from infra.units import size

WORKER = Path(__file__).with_name("worker.py")
ENVIRONMENT = "skypilot"
ANSWER_S = 300.0  # a busy machine needs minutes for the first request to a new API server
LAUNCH_S = 600.0
HEAR_S = 30.0  # time from the connection to the worker's greeting
PATIENCE_S = 2.5  # time to wait for a fresh answer when an older answer is known
IDLE_S = 900.0
POLL_S = 0.05
LONGEST_ANSWER = 256 << 20  # characters of an answer: a job log, with up to six characters per escaped character
LONGEST_LOG = 1 << 20
# Read-only requests; safe to retry.
READS = (
    *("server", "validate", "limits", "price", "queue", "log"),
    *("check_service", "services", "has_cluster", "service_log"),
)
VARIABLE = "SKYPILOT_API_SERVER_ENDPOINT"
HIDDEN = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "PYTHONWARNINGS": "ignore"}
TELLING = re.compile(r"HOME|SKY.*|.*_proxy|SSL_CERT_.*|REQUESTS_CA_BUNDLE", re.IGNORECASE)


class SkyPilotTimeout(Ambiguous):
    """Raised when SkyPilot does not answer in time, or the worker dies; the request may have taken effect."""


class NoServer(SlipwayError):
    """Raised when no API server answers; jobs already started continue without the server."""


@dataclass(frozen=True)
class SkyPilotAnswer:
    """Answer of SkyPilot, with the time of the request."""

    answer: Any
    at: float
    """UTC epoch seconds."""


@dataclass
class Client:
    """Client of the worker process with SkyPilot's SDK."""

    python: Callable[[], Path]
    """Returns the interpreter with SkyPilot; creates the environment on the first call."""
    folder: Path
    """Folder of the worker's socket; private to the user."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    worker: Path = WORKER
    idle_s: float = IDLE_S
    hear_s: float = HEAR_S
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @staticmethod
    def for_environments(environments: Path, folder: Path) -> "Client":
        """Return a client with SkyPilot's environment in `environments`, created on first use."""
        return Client(lambda: environment.ensure(ENVIRONMENT, ROOT, environments, "", _quiet), folder)

    def ask(self, what: str, *, timeout_s: float = ANSWER_S, **given: Any) -> Any:
        """Send the request `what` and return the answer; wait at most `timeout_s` seconds.

        Raises SkyPilotTimeout when the request may have taken effect, and other SlipwayErrors for errors of SkyPilot.
        """
        return self._exchange({"what": what, "given": given}, timeout_s).answer

    def read_cached(
        self, what: str, *, since: float = 0.0, timeout_s: float = ANSWER_S, **given: Any
    ) -> SkyPilotAnswer:
        """Return a cached or fresh answer to the read-only request `what`, read no earlier than `since`.

        `since` is in UTC epoch seconds. An answer older than a few seconds is returned only when SkyPilot needs longer
        than `PATIENCE_S` for a fresh answer. Raises SlipwayError when SkyPilot cannot be reached.
        """
        asked = {"what": what, "given": given, "since": since, "patience_s": PATIENCE_S}
        return self._exchange(asked, timeout_s)

    @property
    def socket_file(self) -> Path:
        """Return the socket of the worker for this interpreter, worker code and configuration."""
        telling = sorted((name, value) for name, value in self.environ.items() if TELLING.fullmatch(name))
        about = json.dumps([str(self.python()), self.worker.read_text(encoding="utf-8"), telling])
        return self.folder / f"worker-{hashlib.sha256(about.encode()).hexdigest()[:12]}.sock"

    def _exchange(self, asked: Mapping[str, Any], timeout_s: float) -> SkyPilotAnswer:
        what, deadline = asked["what"], time.monotonic() + timeout_s
        line = ""
        for _ in range(2 if what in READS else 1):
            try:
                with self._connected(deadline) as caller:
                    line = self._answer(caller, asked, deadline)
            except TimeoutError:
                raise SkyPilotTimeout(f"skypilot: {what}: no answer in {timeout_s:g} s") from None
            if line:
                break
        if not line:
            raise SkyPilotTimeout(f"skypilot: {what}: SkyPilot's worker process ended; see the log: {self._log}")
        said = json.loads(line)
        if "kind" in said:
            raise self._error(said["kind"], str(said["error"]).strip())
        return SkyPilotAnswer(said["answer"], said["at"])

    @staticmethod
    def _answer(caller: socket.socket, asked: Mapping[str, Any], deadline: float) -> str:
        """Send the request and return the answer line, or "" when the worker dies. Raises TimeoutError."""
        try:
            with caller.makefile("rw", encoding="utf-8") as stream:
                caller.settimeout(max(0.1, deadline - time.monotonic()))
                stream.write(json.dumps(asked) + "\n")
                stream.flush()
                line = stream.readline(LONGEST_ANSWER)
        except ConnectionError:
            return ""
        if len(line) >= LONGEST_ANSWER:
            raise SlipwayError(f"skypilot: {asked['what']}: the answer is longer than {size(LONGEST_ANSWER)}")
        return line if line.endswith("\n") else ""

    @contextlib.contextmanager
    def _connected(self, deadline: float) -> Iterator[socket.socket]:
        """Yield a connection to a worker after the worker's greeting. Raises SlipwayError, TimeoutError."""
        place = self.socket_file
        with self._turn:  # One worker for all threads of a command.
            caller = self._call(place, deadline)
        with caller:
            yield caller

    def _call(self, place: Path, deadline: float) -> socket.socket:
        child: subprocess.Popen[bytes] | None = None
        deaf_at = time.monotonic() + self.hear_s
        while True:
            caller = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            caller.settimeout(self.hear_s)
            try:
                with short(place) as name:
                    caller.connect(name)
                if _line(caller):
                    return caller
            except (TimeoutError, BlockingIOError):  # BlockingIOError: the socket's backlog is full
                if time.monotonic() > deaf_at:
                    end_all(self._mark(place), 0.0)
                    deaf_at = time.monotonic() + self.hear_s
            except (FileNotFoundError, ConnectionError):
                if child is not None and child.poll():
                    raise SlipwayError(
                        f"skypilot: SkyPilot's worker process did not start (exit code {child.returncode}); see the "
                        f"log: {self._log}"
                    ) from None
                if child is None or child.poll() is not None:
                    child = self._begin(place)
            caller.close()
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(POLL_S)

    def _begin(self, place: Path) -> "subprocess.Popen[bytes]":
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileNotFoundError):
            if self._log.stat().st_size > LONGEST_LOG:
                self._log.unlink()
        words = [str(self.python()), str(self.worker), str(self.folder), place.stem, f"{self.idle_s:g}"]
        environ = {**self.environ, **HIDDEN, TOKEN: self._mark(place)}
        with open(os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
            return subprocess.Popen(
                words, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def _log(self) -> Path:
        return self.folder / "worker.log"

    @staticmethod
    def _mark(place: Path) -> str:
        """Return the token in the environment of the worker of this socket, used to find and end the worker."""
        return f"skypilot:{place}"

    def _error(self, kind: str, said: str) -> SlipwayError:
        sky = self.python().with_name("sky")
        one_line = " ".join(said.split())
        if kind == "unreachable":
            return NoServer(
                f"skypilot: no API server answers: {one_line}; start a server on this machine: {sky} api "
                f"start; or name a different server: {VARIABLE}=https://..."
            )
        if kind == "skew":
            return SlipwayError(
                f"skypilot: the API server and {ENVIRONMENT} on this machine (constraints/skypilot.txt) have "
                f"different versions: {one_line}"
            )
        if kind == "missing":
            return UsageError(
                f"skypilot: the environment of SkyPilot lacks a package ({one_line}); managed jobs need "
                "grpcio, which every extra of SkyPilot installs. See the group skypilot in pyproject.toml, "
                "then run uv pip compile for the constraints again"
            )
        if kind == "auth":
            return AuthError(f"skypilot: {one_line}; log in: {sky} api login")
        if kind == "none":
            return NoOffer(f"skypilot: {one_line}; list the usable clouds: {sky} check")
        return UsageError(f"skypilot: {one_line}") if kind == "usage" else SlipwayError(f"skypilot: {one_line}")


def _line(caller: socket.socket) -> bytes:
    """Return the first line from the worker, or b"" when the worker closes the connection."""
    said = b""
    while not said.endswith(b"\n"):
        piece = caller.recv(1)  # byte by byte: the next line stays unread
        if not piece:
            return b""
        said += piece
    return said


def _quiet(said: str) -> None:
    """Discard progress messages of the environment's installation; the caller announces the installation."""
