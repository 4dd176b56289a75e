"""A frozen sshd: the table still appears, with the last known facts of the pod and their age."""

import shutil
import sys

import pytest

from infra.agent.job import Job, Step
from infra.ledger.journal import Journal
from infra.machines.host_memory import HostMemory
from infra.machines.inventory import Host as Machine
from infra.providers.ssh import SshPools
from infra.records import Plan, Request
from infra.runs import observation, pod_views
from infra.runs.pods import end
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.transport.ssh import Ssh
from tests.loopback import loopback
from tests.street import launch_on
from tests.world import ROOT, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]


def test_an_unreachable_pod_delays_no_other_row_and_shows_its_last_known_state(tmp_path):
    code, homes = tmp_path / "checkout", tmp_path / "homes"
    shutil.copytree(ROOT / "infra", code / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    (code / "wait.py").write_text("import time\nwhile True: time.sleep(1)\n")
    job = Job("", "", (Step(name="wait", words=("wait.py",)),))
    with (
        loopback(tmp_path / "one") as one,
        loopback(tmp_path / "two") as two,
        Journal.open(environ={"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) as journal,
    ):
        machines = tuple(
            Machine(pool="box", name=name, address=host.address, python=sys.executable)
            for name, host in (("one", one), ("two", two))
        )
        links = {machine: Ssh(machine.address, tmp_path / f"known-{machine.name}") for machine in machines}
        for link in links.values():
            link.python = sys.executable
        vendor = SshPools(machines, links.__getitem__, HostMemory(tmp_path / "hosts.json"))
        try:
            for name in ("one", "two"):
                request = Request(run=f"on-{name}", provider="ssh", host=f"box/{name}")
                plan = Plan(target=name, store="", artifacts=(), job=job, request=request)
                op = launch_on(vendor, plan, journal, code, print)
                transport = links[machines[name == "two"]]
                until(
                    lambda op=op, way=transport: observation.query_agent(op, way)["progress"].get("step"), "a step", 30
                )
                reports.download(op, transport, RunHome.for_run(op.run, homes))
            one.freeze()
            deaf, well = pod_views.snapshot(journal, {"ssh": vendor}, homes, deadline_s=3)
            assert (deaf.run, deaf.state, deaf.note) == ("on-one", "running", "no answer in 3 s")
            assert deaf.ends[0].startswith("guard last heard ")  # not dead: the pod was not asked
            assert deaf.step == "wait" and deaf.age_s > 2 and deaf.progress["machine"]["disk_free_bytes"] > 0
            assert (well.run, well.state, well.note, well.step) == ("on-two", "running", "", "wait")
        finally:
            one.thaw()
            for op in journal.ops(live=True):
                end(vendor, op, journal)
            for link in links.values():
                link.close()
