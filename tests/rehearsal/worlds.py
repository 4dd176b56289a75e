"""A world in its own process, and the ways to it, for tests."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.hosts import make_key, until

ROOT = Path(__file__).parents[2]


@dataclass
class Running:
    """`truth` is what tests read; `key` opens its pods."""

    process: subprocess.Popen[str]
    about: dict[str, Any]
    key: Path

    def call(self, vendor: str, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        about = self.about[vendor]
        header = {"Authorization": f"Bearer {about['key']}"} if vendor == "runpod" else {"X-API-KEY": about["key"]}
        headers = {**header, **more.pop("headers", {})}
        return httpx.request(method, about["url"] + path, json=body, headers=headers, timeout=20, **more)

    def truth(self) -> dict[str, Any]:
        return httpx.get(self.about["truth"] + "/truth", timeout=20).json()

    def pod(self, pod_id: str) -> dict[str, Any]:
        """What is true of it."""
        return next(one for one in self.truth()["pods"] if one["id"] == pod_id)

    def tell(self, path: str, body: Any) -> httpx.Response:
        return httpx.post(self.about["truth"] + path, json=body, timeout=20)

    def fault(self, **plan: Any) -> None:
        assert self.tell("/faults", plan).status_code == 200

    def move(self, seconds: float) -> None:
        assert self.tell("/move", {"seconds": seconds}).status_code == 200

    @property
    def public_key(self) -> str:
        return self.key.with_suffix(".pub").read_text().strip()

    def ssh(self, user: str, host: str, port: int, *words: str) -> subprocess.CompletedProcess[str]:
        options = ["-F", "/dev/null", "-i", str(self.key), "-p", str(port)]
        for option in ("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=no", "ConnectTimeout=10"):
            options += ["-o", option]
        options += ["-o", f"UserKnownHostsFile={self.key.parent}/known-{port}", "-o", "LogLevel=ERROR"]
        command = ["ssh", *options, f"{user}@{host}", *words]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


def begin(folder: Path, *words: str, speed: float = 600) -> Running:
    """Returns once it answers; the caller ends it."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "infra.rehearsal", "--state", str(folder / "state"), "--speed", str(speed), *words]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"no world: exit code {process.wait(10)}"
    key = folder / "user"
    return Running(process, json.loads(line), key if key.exists() else make_key(key))


@contextmanager
def world(folder: Path, *words: str, speed: float = 600) -> Iterator[Running]:
    running = begin(folder, *words, speed=speed)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            assert running.end() == 0
        assert running.process.stdout is not None
        running.process.stdout.close()


__all__ = ["Running", "begin", "until", "world"]
