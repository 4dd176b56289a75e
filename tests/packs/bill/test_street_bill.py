"""Bills of rehearsed runs against the books of the simulated market: time, money and the moments of its machines.

Clients, journal, agent and followers are real. The market has its own clock, bills, and times of every machine.
"""

import contextlib
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import READY
from infra.rehearsal import attach
from infra.rehearsal.clock import parse_iso
from infra.settings import Settings
from packs.bill.control import sources
from tests.seeds import seed
from tests.world import ROOT, World, until

pytestmark = [
    pytest.mark.process,
    pytest.mark.nightly,
    pytest.mark.pack("jobs"),
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(3000),
]
VENDORS = {"runpod": "L40S,A100-80GB", "lium": "RTX4090,RTX3090,RTX5090", "shadeform": "L40S,L40,A6000"}
RUNS, SIDE_BY_SIDE = int(os.environ.get("BILL_RUNS", "12")), 3
CLOSE_S = 2.0  # the largest distance between our moments and the market's, in real seconds
MOST_UNEXPLAINED = 0.03


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    world = World(tmp_path_factory.mktemp("user"), {f"{name.upper()}_API_KEY": "" for name in VENDORS})
    base = attach.worlds_folder(world.folder / "state" / "journal.db")
    attach.start(base, speed=20)
    yield world, attach.find(base)
    world.run("down", "--all", "--rehearse")
    world.inv("rehearse", "--stop")


def run_once(world: World, market: attach.Running, number: int, preemptions: list[float]) -> None:
    """Run a job whose machines are preempted after drawn times."""
    (vendor, gpu), name = [*VENDORS.items()][number % len(VENDORS)], f"job-{number}"
    words = ["launch", "--cmd", "sleep 10", "--provider", vendor, "--gpu", gpu, "--run-name", name]
    launch = world.begin(*words, "--spend-limit", "20", "--yes", "--json", "--rehearse")
    tried = set[str]()

    def new_machine() -> str:
        with Journal.open(market.folder / attach.JOURNAL) as journal:
            found = [op.remote_id or "" for op in journal.ops(run=name) if op.state == READY]
        return next((one for one in found if one not in tried), "ended" if launch.poll() is not None else "")

    for after_s in preemptions:
        machine = until(new_machine, f"a machine of {name}", 300)
        time.sleep(after_s)
        if launch.poll() is None and machine != "ended":
            tried.add(machine)
            with contextlib.suppress(UsageError):  # The machine has just ended.
                market.send_command("/preempt", {"id": machine})
    _, err = launch.communicate(timeout=600)
    assert launch.returncode == 0, err


def test_bills_of_fifty_rehearsed_runs_agree_with_the_books_of_the_market(user):
    world, market = user
    draw = random.Random(seed())
    plans = [[draw.uniform(0, 12) for _ in range(draw.choice((0, 1, 1, 2)))] for _ in range(RUNS)]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        list(pool.map(lambda at: run_once(world, market, at, plans[at]), range(RUNS)))
    told = {at: world.json("cost", f"job-{at}", "--rehearse") for at in range(RUNS)}
    truth, now = market.truth(), time.time()
    machines = {pod["id"]: pod for pod in truth["pods"]}

    def real(moment: str) -> float:
        return now - (parse_iso(truth["now"]) - parse_iso(moment)) / truth["speed"]

    settings = Settings.load(ROOT, environ={**world.environ, attach.INSIDE: str(market.folder)})
    far, problems = [], []
    with Journal.open(settings.state_file) as journal:
        for at in range(RUNS):
            bill, rows = told[at]["bill"], journal.ops(run=f"job-{at}")
            assert bill["total_s"] == pytest.approx(bill["wall_s"], rel=0.01)
            assert bill["seconds"]["unexplained"] <= MOST_UNEXPLAINED * bill["total_s"], (at, bill)
            assert bill["seconds"]["steps"] > 0
            pods = sources.pods_of(rows, journal, settings, problems.append, False)
            assert sum(one.spans[-1].end - one.spans[0].begin for one in pods) <= bill["total_s"] / truth["speed"] + 1
            assert bill["total_usd"] == told[at]["usd"]
            paid = {row["id"]: row["billed_usd"] for row in told[at]["pods"]}
            for one in pods:
                machine = machines.get(one.pod_id)
                if machine is None:  # refused, or taken by others
                    continue
                if paid[one.pod_id] is not None:
                    assert float(paid[one.pod_id]) == pytest.approx(machine["billed_micro_usd"] / 1e6, abs=0.011)
                far += [(at, one.vendor, what, round(off, 2)) for what, off in distances(one.spans, machine, real)]
    kinds = sorted({what for *_, what, _ in far})
    print(
        {kind: max(one[-1] for one in far if one[2] == kind) for kind in kinds}, len(told), "runs", len(far), "moments"
    )
    assert not [one for one in far if one[-1] > CLOSE_S], far


def distances(spans, machine, real):
    """Yield how far the moments of a bill are outside of what the market says about a machine."""
    provided = next((one.end for one in spans if one.part == "wait"), spans[0].begin)
    created_at = real(machine["created_at"])
    yield "created", max(spans[0].begin - created_at, created_at - max(provided, spans[0].begin), 0.0)
    booted = next((one.end for one in spans if one.part == "boot"), None)
    if booted is not None and machine["active_at"]:
        yield "up", max(0.0, real(machine["active_at"]) - booted)
    over = next((one.begin for one in spans if one.part == "deletion"), spans[-1].end)
    taken = next((real(at) for at, what in machine["history"] if what.endswith("preempted")), None)
    if taken is not None:
        yield "preempted", abs(over - taken)
    elif machine["ended_at"]:
        yield "ended", max(0.0, over - real(machine["ended_at"]))
