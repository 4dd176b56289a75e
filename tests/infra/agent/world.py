"""A real pod folder on this machine, with a real guard, agent and steps, for the tests of the agent."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from infra.agent.job import Job, PodFolder, Step
from infra.agent.process import Identity, end_all, find, send
from infra.agent.state import live_process

AGENT = Path(__file__).parents[3] / "infra" / "agent"
DEADLINE_S = 30.0
SCAN_S = 0.1  # between two scans of all processes, which take milliseconds of the CPU


def until(truth: Callable[[], Any], what: str = "", within_s: float = DEADLINE_S, pause_s: float = 0.02) -> Any:
    """Return the first true answer; fail after `within_s`."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        answer = truth()
        if answer:
            return answer
        time.sleep(pause_s)
    raise AssertionError(f"not within {within_s} s: {what or truth}")


class World:
    """A pod: write step programs, hand over a job, observe the pod, break the pod."""

    def __init__(self, root: Path) -> None:
        self.pod = PodFolder(root)
        self.token = f"sw1-test-{root.name}-{os.getpid()}"
        # With the compiled modules: else the first processes of each pod compile the agent.
        shutil.copytree(AGENT, self.pod.code / "infra" / "agent", ignore=shutil.ignore_patterns("*.pyc.*"))
        (self.pod.code / "infra" / "__init__.py").touch()
        self.pod.work.mkdir()

    def program(self, name: str, text: str) -> None:
        """Write a step program, run as `-m <name>`."""
        (self.pod.code / f"{name}.py").write_text(text)

    def job(self, *steps: Step, token: str = "", **more: Any) -> None:
        job = Job(run="brave-otter-1", token=token or self.token, steps=steps, **more)
        self.pod.job.write_text(job.to_json())

    def command(self, verb: str, environ: Mapping[str, str] = {}) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "infra.agent", verb, str(self.pod.root)],
            cwd=self.pod.root,  # the pod's own copy of the agent; our copy is in the current folder
            env={**os.environ, "PYTHONPATH": str(self.pod.code), "SLIPWAY_GRACE_S": "3", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, verb: str, environ: Mapping[str, str] = {}, code: int = 0) -> Any:
        """Return the JSON output of a command; with a nonzero `code`, the stderr."""
        process = self.command(verb, environ)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, (process.returncode, out, err, self.words())
        return json.loads(out) if out else err

    def start(self, **environ: str) -> Any:
        return self.call("start", environ)

    def verdict(self) -> dict[str, Any]:
        """Return the verdict of the current job, after the exit of guard and agent."""
        until(self.pod.verdict.exists, "a verdict")
        until(lambda: not self.members(), "the end of every process", pause_s=SCAN_S)
        return json.loads(self.pod.verdict.read_text())

    def verdict_or_death(self) -> dict[str, Any]:
        """Return the verdict; {} if the last process of the pod died before the verdict."""
        until(lambda: not self.members(), "the end of every process", pause_s=SCAN_S)
        return json.loads(self.pod.verdict.read_text()) if self.pod.verdict.exists() else {}

    def progress(self) -> dict[str, Any]:
        return json.loads(self.pod.progress.read_text())

    def step(self, name: str) -> dict[str, Any]:
        return next(step for step in self.progress()["steps"] if step["name"] == name)

    def members(self) -> list[Identity]:
        return find(self.token)

    def living(self, role: str) -> Identity:
        return until(lambda: live_process(self.pod, role), f"a living {role}")

    def kill(self, *roles: str) -> None:
        """Send SIGKILL to all given processes at once, and wait for their end."""
        targets = [self.living(role) for role in roles]
        for target in targets:
            send(target, signal.SIGKILL)
        until(lambda: not set(targets) & set(self.members()), "the death of the killed", pause_s=SCAN_S)

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file in the work folder; [] without the file."""
        path = self.pod.work / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def words(self) -> str:
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.pod.logs.glob("*.log")))

    def end(self) -> None:
        assert not end_all(self.token, 0.0)


def module(name: str, **more: Any) -> Step:
    return Step(name=name, words=("-m", name), **more)


def names(states: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    return {step["name"]: step["state"] for step in states}
