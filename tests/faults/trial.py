"""A small test bed for fault trials: a checkout, a counting job, and machines."""

import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.agent.job import Job, Limits, PodFolder, Step
from infra.machines import inventory
from infra.machines.host_memory import HostMemory
from infra.providers.ssh import SshPools
from infra.records import Plan, Request
from infra.transport.ssh import Ssh
from tests.hosts import Host
from tests.infra.agent.test_kills import COUNTER
from tests.infra.agent.world import AGENT

RUN = "brave-otter-1"
COUNT = Step(name="count", words=("-m", "counter"))
# An environment of an empty wheel, made by pip from a folder of the checkout, without network.
SMALL = {"SLIPWAY_INSTALLER": "pip", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "wheels", "PIP_NO_CACHE_DIR": "1"}


def rounds(few: int, many: int) -> pytest.MarkDecorator:
    """Return a mark to repeat a test: `few` times for every change, `many` times at night."""
    night = [pytest.mark.nightly, pytest.mark.timeout(1200)]
    return pytest.mark.parametrize("rounds", [few, pytest.param(many, marks=night)])


def checkout(root: Path, ballast_bytes: int = 0) -> Path:
    """Return a checkout: the agent, a counting program, and files that make a push take a while."""
    shutil.copytree(AGENT, root / "infra" / "agent", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "infra" / "__init__.py").touch()
    (root / "counter.py").write_text(COUNTER)
    (root / "ballast").write_bytes(os.urandom(ballast_bytes))
    (root / "pyproject.toml").write_text('[dependency-groups]\nsmall = [\n    "small==1.0",\n]\n')
    (root / "constraints").mkdir()
    (root / "constraints" / "small.txt").write_text("small==1.0\n")
    (root / "wheels").mkdir()
    about = {
        "METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(root / "wheels" / "small-1.0-py3-none-any.whl", "w") as wheel:
        for name, text in about.items():
            wheel.writestr(f"small-1.0.dist-info/{name}", text)
    return root


def plan(store: Path, *steps: Step, run: str = RUN, **more: Any) -> Plan:
    job = Job(run="", token="", steps=steps, limits=Limits(time_s=300), **more)
    return Plan(target=run, store=str(store), artifacts=(), job=job, request=Request(run=run))


@dataclass(frozen=True)
class Counted:
    """The results of the counting job in its work folder."""

    pod: PodFolder

    def lines(self, name: str = "count.txt") -> list[str]:
        path = self.pod.work / name
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def enough(self) -> None:
        (self.pod.work / "enough").touch()

    def check(self) -> None:
        """Check that each number was counted once, and never by two processes at the same time."""
        assert self.lines() and self.lines() == [str(number) for number in range(len(self.lines()))]
        assert self.lines("overlap.txt") == []


def counted(host: Host, run: str = RUN) -> Counted:
    """Return the counting pod on a host in a namespace; this machine mounts the home of the host elsewhere."""
    return Counted(PodFolder(host.folder / "home" / ".slipway" / "pods" / run))


def provider_of(host: Host, ssh: Ssh, folder: Path) -> SshPools:
    """Return an inventory of a machine, reached by `ssh`, with its memory in `folder`."""
    machine = inventory.Host(pool="lab", name=host.address.host, address=host.address)
    return SshPools((machine,), lambda _: ssh, HostMemory(folder / "hosts.json"))


def environ(folder: Path) -> dict[str, str]:
    """Return the environment of a journal in `folder`."""
    return {"XDG_STATE_HOME": str(folder / "state"), "XDG_CONFIG_HOME": str(folder / "config")}
