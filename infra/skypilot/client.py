"""The process that holds SkyPilot's SDK, and questions to it.

In: a question and what belongs to it. Out: its answer, plain JSON. The process is begun at the first question, answers
one after the other, and ends with this one. What SkyPilot raises becomes an error of ours, with what to do about it.
"""

import atexit
import json
import os
import select
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from infra.agent import environment
from infra.checkout import ROOT
from infra.errors import Ambiguous, AuthError, NoOffer, SlipwayError, UsageError

WORKER = Path(__file__).with_name("worker.py")
ENVIRONMENT = "skypilot"
ANSWER_S = 300.0  # the first question to a server that has just begun takes it minutes on a busy machine
LAUNCH_S = 600.0
VARIABLE = "SKYPILOT_API_SERVER_ENDPOINT"
HIDDEN = {"SKYPILOT_DISABLE_USAGE_COLLECTION": "1", "PYTHONWARNINGS": "ignore"}


class NotAnswered(Ambiguous):
    """SkyPilot was asked, and has not answered in time, or its process has died."""


@dataclass
class Client:
    """SkyPilot, as one process answers for it."""

    python: Callable[[], Path]
    """Its interpreter, made on the first question."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    _child: "subprocess.Popen[bytes] | None" = None
    _turn: threading.Lock = field(default_factory=threading.Lock)
    _rest: bytes = b""

    @staticmethod
    def here(environments: Path) -> "Client":
        """Return the client whose environment lies in that folder; it is made when it is first needed."""
        return Client(lambda: environment.ensure(ENVIRONMENT, ROOT, environments, "", _quiet))

    def ask(self, what: str, *, timeout_s: float = ANSWER_S, **given: Any) -> Any:
        """Return the answer. Raises SlipwayError: NotAnswered where what was asked for may have been done."""
        with self._turn:
            answer = self._exchange({"what": what, "given": given}, timeout_s)
        if "kind" in answer:
            raise self._error(answer["kind"], str(answer["error"]).strip())
        return answer["answer"]

    def close(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin and child.stdout
        child.stdin.close()
        try:
            child.wait(5)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()

    def _exchange(self, asked: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        child = self._child if self._child and self._child.poll() is None else self._begin()
        assert child.stdin and child.stdout
        try:
            child.stdin.write(json.dumps(asked).encode() + b"\n")
            child.stdin.flush()
            line = self._line(child, time.monotonic() + timeout_s)
        except OSError:
            line = b""
        if line is None:
            child.kill()
            raise NotAnswered(f"skypilot: {asked['what']}: no answer in {timeout_s:g} s")
        if not line:
            raise NotAnswered(f"skypilot: {asked['what']}: its process ended (exit code {child.wait()})")
        return dict(json.loads(line))

    def _begin(self) -> "subprocess.Popen[bytes]":
        self.close()
        self._rest = b""
        # What SkyPilot prints for people has its place in SkyPilot's own logs.
        self._child = subprocess.Popen([str(self.python()), str(WORKER)], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
                                       env={**self.environ, **HIDDEN})  # fmt: skip
        atexit.register(self.close)
        return self._child

    def _line(self, child: "subprocess.Popen[bytes]", deadline: float) -> bytes | None:
        """Return the next line, b"" at its end, None when it is late."""
        assert child.stdout
        while b"\n" not in self._rest:
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([child.stdout], [], [], left_s)[0]:
                return None
            piece = os.read(child.stdout.fileno(), 1 << 20)
            if not piece:
                return b""
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _error(self, kind: str, said: str) -> SlipwayError:
        sky = self.python().with_name("sky")
        one_line = " ".join(said.split())
        if kind == "unreachable":
            return SlipwayError(f"skypilot: no API server answers: {one_line}; start one on this machine: {sky} api "
                                f"start; or name another one: {VARIABLE}=https://...")  # fmt: skip
        if kind == "skew":
            return SlipwayError(f"skypilot: the API server has another version than {ENVIRONMENT} here "
                                f"(constraints/skypilot.txt): {one_line}")  # fmt: skip
        if kind == "missing":
            return UsageError(f"skypilot: its environment lacks something ({one_line}); managed jobs need grpcio, "
                              "which every extra of SkyPilot brings: see the group skypilot in pyproject.toml, then "
                              "uv pip compile its constraints again")  # fmt: skip
        if kind == "auth":
            return AuthError(f"skypilot: {one_line}; log in: {sky} api login")
        if kind == "none":
            return NoOffer(f"skypilot: {one_line}; what it may use: {sky} check")
        return UsageError(f"skypilot: {one_line}") if kind == "usage" else SlipwayError(f"skypilot: {one_line}")


def _quiet(said: str) -> None:
    """Drop what is said while the environment is made: it is told once, in front."""
