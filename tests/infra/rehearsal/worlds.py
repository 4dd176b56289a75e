"""A world in a separate process, with clients for tests."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.hosts import make_key, until
from tests.needs import needs
from tests.vendors import contract

ROOT = Path(__file__).parents[3]


@dataclass
class Running:
    """`truth` is the state for tests; `key` opens the world's pods."""

    process: subprocess.Popen[str]
    about: dict[str, Any]
    key: Path
    _client: httpx.Client
    _owner: int = field(default_factory=os.getpid)
    violations: list[str] = field(default_factory=list)  # violations of the vendors' documents, by answers to `call`

    @property
    def client(self) -> httpx.Client:
        """Return the client of this process: a connection shared with the parent process would mix up answers."""
        if self._owner != os.getpid():
            self._client, self._owner = new_client(), os.getpid()
        return self._client

    def call(self, vendor: str, method: str, path: str, body: Any = None, **more: Any) -> httpx.Response:
        about = self.about[vendor]
        header = {"Authorization": f"Bearer {about['key']}"} if vendor == "runpod" else {"X-API-KEY": about["key"]}
        headers = {**header, **more.pop("headers", {})}
        answer = self.client.request(method, about["url"] + path, json=body, headers=headers, **more)
        if vendor in contract.FILES:
            self.violations += contract_violations(vendor, method, path, answer)
        return answer

    def truth(self) -> dict[str, Any]:
        return self.client.get(self.about["truth"] + "/truth").json()

    def pod(self, pod_id: str) -> dict[str, Any]:
        """Return the true state of a pod."""
        return next(one for one in self.truth()["pods"] if one["id"] == pod_id)

    def send_command(self, path: str, body: Any) -> httpx.Response:
        return self.client.post(self.about["truth"] + path, json=body)

    def fault(self, **plan: Any) -> None:
        assert self.send_command("/faults", plan).status_code == 200

    def move(self, seconds: float) -> None:
        assert self.send_command("/move", {"seconds": seconds}).status_code == 200

    def delete(self, vendor: str, pod_id: str) -> httpx.Response:
        method, path = {
            "shadeform": ("POST", f"/instances/{pod_id}/delete"),
            "runpod": ("DELETE", f"/v2/pods/{pod_id}"),
            "lium": ("DELETE", f"/pods/{pod_id}"),
        }[vendor]
        return self.call(vendor, method, path)

    def shadeform_key(self) -> str:
        """Return the id of our key at Shadeform."""
        rows = self.call("shadeform", "GET", "/sshkeys").json()["ssh_keys"]
        if rows:
            return rows[0]["id"]
        body = {"name": "mine", "public_key": self.public_key}
        return self.call("shadeform", "POST", "/sshkeys/add", body).json()["id"]

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
    """Start a world; return once the world answers. The caller ends the world."""
    needs("sshd", "ssh", "ssh-keygen")
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "infra.rehearsal", "--state", str(folder / "state"), "--speed", str(speed), *words]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"no world: exit code {process.wait(10)}"
    key = folder / "user"
    return Running(process, json.loads(line), key if key.exists() else make_key(key), new_client())


def contract_violations(vendor: str, method: str, path: str, answer: httpx.Response) -> list[str]:
    """Return the places where an answer violates the vendor's OpenAPI document. The document does not describe
    refusals.
    """
    document, bare = contract.load(vendor), path.partition("?")[0]
    if document.operation(method, bare) is None or vendor == "shadeform" and answer.status_code >= 400:
        return []
    body = answer.json() if answer.content else None
    found = document.violations_of_answer(method, bare, answer.status_code, body)
    return [f"{method} {bare} {answer.status_code}: {one}" for one in found]


def new_client() -> httpx.Client:
    """Return a client for many calls, on loopback only. Reading the world's certificates takes longer than a call."""
    return httpx.Client(timeout=20, trust_env=False, verify=False)


@contextmanager
def world(folder: Path, *words: str, speed: float = 600) -> Iterator[Running]:
    running = begin(folder, *words, speed=speed)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            assert running.end() == 0
        running.client.close()
        assert running.process.stdout is not None
        running.process.stdout.close()


__all__ = ["Running", "begin", "until", "world"]
