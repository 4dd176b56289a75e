"""Keepers with real pods: on this machine, and on two machines over SSH."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from flows.pods import stop
from flows.runs import resume
from infra.agent.job import Job, Limits, NodeGroup, Step
from infra.agent.process import Identity, end_all, send
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.leases import LeaseHeld, keeper_lease
from infra.ledger.op import AlreadyLive, Leased, Op
from infra.machines.host_memory import HostMemory
from infra.machines.inventory import Host as Machine
from infra.names import new_token
from infra.providers import Provider
from infra.providers.local import Local
from infra.providers.ssh import SshPools
from infra.records import Plan, Request
from infra.runs import launch, observation, pods, renting, run_rows
from infra.runs.keepers import keeper as keep
from infra.runs.keepers import run_keeper
from infra.runs.keepers.recovery import RUN
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror, snapshot
from infra.selection.choose import of_machines
from infra.settings import Settings
from infra.transport.protocol import Unreachable
from infra.transport.ssh import Ssh
from store.backoff import Backoff
from store.manifest import StoreError
from tests.loopback import loopback
from tests.programs import source
from tests.street import launch_on
from tests.world import ROOT, until

COUNT = source("count_and_save")


@pytest.fixture
def journal(tmp_path):
    with Journal.open(environ={"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) as opened:
        yield opened


@pytest.fixture
def code(tmp_path):
    """Return a checkout with the agent and a counting job."""
    folder = tmp_path / "checkout"
    shutil.copytree(ROOT / "infra", folder / "infra", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "count.py").write_text(COUNT)
    return folder


def plan_of(provider: str) -> Plan:
    job = Job("", "", (Step(name="count", words=("count.py",)),), Limits(time_s=600))
    return Plan(target="t", store="", artifacts=(), job=job, request=Request(run="a-1", provider=provider))


def kill_pod_processes(op: Op) -> None:
    """Kill guard, agent and step at once."""
    state = observation.folder_of(op).state
    both = [Identity(**json.loads((state / f"{role}.json").read_text())["identity"]) for role in ("guard", "agent")]
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: each process would restart the other
        assert all([send(one, number) for one in both])
    end_all(op.token, 0.0)


def keeper_of(journal: Journal, provider: Provider, home: Path) -> RunKeeper:
    return RunKeeper(
        journal, lambda _: provider, lambda request: of_machines(provider, request), RunHome(home), {}, print
    )


def keeping(keeper: RunKeeper, op: Op) -> Iterator[tuple]:
    with keeper.hold_lease(op.run):
        yield from keeper.follow_run(op)


def counted(text: str) -> list[int]:
    return [int(line.split()[1]) for line in text.splitlines() if line.startswith("step")]


@pytest.mark.nightly
@pytest.mark.process
def test_a_pod_with_killed_guard_and_agent_is_restarted_on_its_machine(journal, code, tmp_path):
    local = Local(tmp_path / "pods")
    op = launch_on(local, plan_of("local"), journal, code, print)
    folder = observation.folder_of(op)
    try:
        keeper = keeper_of(journal, local, tmp_path / "home")
        until(lambda: (folder.work / "checkpoints" / "count" / "step-000000010").exists(), "half of it")
        seen = keeping(keeper, op)
        next(seen)
        kill_pod_processes(op)
        (folder.code / "GO").touch()
        *_, (_, verdict) = seen
        assert verdict["state"] == "succeeded"
        assert journal.op(op.token).recoveries == 1
        assert folder.log("count").read_text().count("from 10") == 1
        assert counted(folder.log("count").read_text()) == list(range(1, 21))
        assert journal.leases.holder(keeper_lease("a-1")) is None
    finally:
        pods.end(local, journal.op(op.token), journal)


class Fleeting(Local):
    """Pods that may vanish with all their files."""

    is_ephemeral = True


@pytest.mark.process
@pytest.mark.parametrize("error", [Unreachable("no server answers"), SlipwayError("the report is damaged")])
def test_a_read_without_an_answer_is_repeated_while_a_look_finds_the_run(journal, code, tmp_path, monkeypatch, error):
    local, real = Local(tmp_path / "pods"), run_keeper.follow
    op = launch_on(local, plan_of("local"), journal, code, print)
    errors = [error] * 2

    def follow(*words):
        if errors:
            raise errors.pop()
        yield from real(*words)

    monkeypatch.setattr(run_keeper, "follow", follow)
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.05)
    try:
        (observation.folder_of(op).code / "GO").touch()
        seen = keeping(keeper_of(journal, local, tmp_path / "home"), op)
        if isinstance(error, Unreachable):
            *_, (_, verdict) = seen
            assert verdict["state"] == "succeeded" and journal.op(op.token).recoveries == 0
        else:
            with pytest.raises(SlipwayError, match="the report is damaged"):
                list(seen)
    finally:
        pods.end(local, journal.op(op.token), journal)


@pytest.mark.process
@pytest.mark.parametrize("is_settled", [True, False])
def test_a_run_that_ended_before_the_first_look_of_its_launch_has_succeeded(journal, code, tmp_path, is_settled):
    """`inv status` or the supervisor may settle the run first; the listing of a vendor only shows the machine."""
    provider = Fleeting(tmp_path / "pods")
    op = launch_on(provider, plan_of("local"), journal, code, print)
    folder = observation.folder_of(op)
    (folder.code / "GO").touch()
    until(folder.verdict.exists, "its verdict")
    keeper = keeper_of(journal, provider, tmp_path / "home")
    keeper.home.pod.state.mkdir(parents=True)
    shutil.copy(folder.verdict, keeper.home.pod.verdict)
    if is_settled:
        pods.end(provider, journal.op(op.token), journal, "the work has ended: succeeded", "succeeded")
    else:
        journal.advance(journal.op(op.token), "gone", reason="its vendor ended it", outcome="")
    ((_, verdict),) = keeping(keeper, journal.op(op.token))
    now = journal.op(op.token)
    assert verdict["state"] == now.outcome == "succeeded" and run_rows.is_over(now)
    assert (now.state, now.reason) == ("TERMINATED", "the work has ended: succeeded")
    end_all(op.token, 0.0)


@pytest.mark.process
def test_a_run_ended_on_purpose_stays_ended(journal, code, tmp_path):
    local = Local(tmp_path / "pods")
    request = Request(run="a-1")
    op = pods.rent(local, request, local.offers(request)[0], Job("", "", ()), journal)
    op = journal.advance(op, "armed")
    pods.end(local, op, journal)
    with pytest.raises(SlipwayError, match="was ended in the meantime"):
        list(keeping(keeper_of(journal, local, tmp_path / "home"), op))
    assert len(journal.ops()) == 1


@pytest.mark.process
def test_a_run_ended_during_the_search_for_a_machine_is_not_continued(journal, tmp_path):
    local, home = Local(tmp_path / "pods"), tmp_path / "home"
    request = Request(run="a-1")
    op = journal.advance(pods.rent(local, request, local.offers(request)[0], Job("", "", ()), journal), "armed")
    gone = pods.end(local, op, journal, observation.GONE)
    RunHome(home).snapshot.code.mkdir(parents=True)

    def find(wanted):
        assert not run_rows.is_over(pods.end(local, journal.op(gone.token), journal))  # no pod is left to end
        pods.ask_to_end(gone, journal)
        return of_machines(local, wanted)

    keeper = replace(keeper_of(journal, local, home), find=find)
    with keeper.hold_lease("a-1"), pytest.raises(renting.EndedDuringStart, match="was ended by inv down"):
        keeper.restart_on_next_offer(gone, recoveries=1)
    assert [op.outcome for op in journal.ops()] == ["asked"]
    with keeper.hold_lease("a-1"), pytest.raises(renting.EndedDuringStart, match="was ended by inv down"):
        keeper._recover(gone, SlipwayError("its pod is gone"))


@pytest.mark.process
def test_a_living_process_holds_its_lease_and_death_frees_the_lease(journal, tmp_path):
    script = f"""
import time
from infra.ledger.journal import Journal
with Journal.open({str(journal.path)!r}) as journal:
    journal.leases.acquire("keep:a-1")
    print("ok", flush=True)
    time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, env=os.environ)
    try:
        assert other.stdout and other.stdout.readline() == b"ok\n"
        with pytest.raises(LeaseHeld, match=str(other.pid)):
            journal.leases.acquire(keeper_lease("a-1"))
        holder = journal.leases.holder(keeper_lease("a-1"))
        assert holder and holder.pid == other.pid
        keep.end_keeper("a-1", journal, patience_s=0)  # as `inv down` does with a slow process
        assert other.wait(30) == -signal.SIGTERM
    finally:
        other.kill()
        other.communicate()
    assert journal.leases.holder(keeper_lease("a-1")) is None
    assert journal.leases.acquire(keeper_lease("a-1")).epoch == 2


@pytest.mark.parametrize(
    ("error", "is_left"), [(KeyboardInterrupt(), True), (OSError("full"), True), (SlipwayError("given up"), False)]
)
def test_an_interrupted_keeper_leaves_the_run_to_the_next_keeper(journal, tmp_path, error, is_left):
    """A pod may vanish at the same moment: then only this record shows that the run should continue."""
    keeper = RunKeeper(journal, lambda name: Local(tmp_path), lambda _: (), RunHome(tmp_path), {}, print)
    with pytest.raises(type(error)), keeper.hold_lease("a-1"):
        raise error
    assert journal.leases.holder(keeper_lease("a-1")) is None
    assert (keeper_lease("a-1") in journal.leases.abandoned_names()) == is_left
    with keeper.hold_lease("a-1"):
        assert journal.leases.holder(keeper_lease("a-1"))
    assert journal.leases.abandoned_names() == set()


@pytest.mark.process
@pytest.mark.parametrize("error", [NoOffer("all are taken\nsee: inv offers"), SlipwayError("nobody answers")])
def test_a_run_without_pod_waits_for_a_machine_until_it_is_ended(journal, tmp_path, monkeypatch, error):
    op = pods.rent(
        Local(tmp_path), Request(run="a-1"), Local(tmp_path).offers(Request(run="a-1"))[0], Job("", "", ()), journal
    )
    gone = pods.end(Local(tmp_path), journal.advance(op, "armed"), journal, observation.GONE)
    said, looks = list[str](), list[Op]()
    keeper = replace(keeper_of(journal, Local(tmp_path), tmp_path / "home"), say=said.append)

    def finds_no_machine(op, *_):
        looks.append(op)
        if len(looks) > 2 * RUN.retries.most:
            pods.ask_to_end(op, journal)
        raise error

    monkeypatch.setattr(keep, "AGAIN", Backoff(first_s=0.001, longest_s=0.002))
    monkeypatch.setattr(keeper, "_restart_on_new_pods", finds_no_machine)
    with keeper.hold_lease("a-1"), pytest.raises(renting.EndedDuringStart, match="was ended by inv down"):
        keeper._recover(gone, SlipwayError("its pod is gone"))
    why = str(error).partition("\n")[0]
    assert len(looks) == 2 * RUN.retries.most + 1 and looks[-1].reason == f"{observation.GONE}{keep.WAITS}{why}"
    assert len(said) == 1 and "retrying until success. To end the run: inv down a-1" in said[0]
    assert journal.recovered_at("a-1") == []


def test_recoveries_count_from_the_last_requested_pod(journal):
    for number, recoveries in enumerate((0, 1, 2, 0, 3)):
        op = journal.plan(token=f"sw1-{number}", run="a-1", vendor="local", recoveries=recoveries)
        for event in ("sending", "created", "armed", "gone"):
            op = journal.advance(op, event)
        journal.note(op, intent_at=1000 + number)
    assert keep.requested_at("a-1", journal) == 1003.0 and keep.requested_at("b-2", journal) == 0.0
    recovered = [at for at in journal.recovered_at("a-1") if at >= keep.requested_at("a-1", journal)]
    assert recovered == [1004.0]


def test_a_run_for_a_named_machine_does_not_wait_for_long(journal, tmp_path, monkeypatch):
    op = journal.plan(token="sw1-a", run="a-1", vendor="local", request=json.dumps({"run": "a-1", "host": "desk"}))
    for event in ("sending", "created", "armed", "gone"):
        op = journal.advance(op, event)

    def finds_no_machine(*_):
        raise NoOffer("no pod desk is held")

    keeper = keeper_of(journal, Local(tmp_path), tmp_path / "home")
    monkeypatch.setattr(run_keeper, "RUN", replace(RUN, retries=replace(RUN.retries, backoff=Backoff(0.0, 0.0))))
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.001)
    monkeypatch.setattr(keeper, "_restart_on_new_pods", finds_no_machine)
    with keeper.hold_lease("a-1"), pytest.raises(NoOffer, match="no pod desk is held"):
        keeper._recover(op, SlipwayError("it was gone"))


def test_failing_rented_machines_count_and_the_run_is_given_up(journal, tmp_path, monkeypatch):
    def gone(recoveries: int) -> Op:
        op = journal.plan(token=f"sw1-{recoveries}", run="a-1", vendor="local", recoveries=recoveries)
        for event in ("sending", "created", "armed", "gone"):
            op = journal.advance(op, event)
        return op

    first, tried = gone(0), list[Op]()

    def fails(*_):
        tried.append(gone(len(tried) + 1))
        raise SlipwayError("the hand-over failed")

    keeper = keeper_of(journal, Local(tmp_path), tmp_path / "home")
    monkeypatch.setattr(run_keeper, "RUN", replace(RUN, retries=replace(RUN.retries, backoff=Backoff(0.0, 0.0))))
    monkeypatch.setattr(run_keeper, "RETRY_S", 0.001)
    monkeypatch.setattr(keeper, "_restart_on_new_pods", fails)
    with keeper.hold_lease("a-1"), pytest.raises(keep.GivenUp, match="it was gone; the run was restarted 5 times"):
        keeper._recover(first, SlipwayError("it was gone"))
    assert len(tried) == RUN.retries.most


def test_the_keeper_asks_the_store_for_the_verdict_of_a_gone_pod_until_an_answer(journal, tmp_path, monkeypatch):
    op = journal.plan(token="sw1-a", run="a-1", vendor="lium", rate=790_000)
    for event in ("sending", "created", "armed", "gone"):
        op = journal.advance(op, event)
    said, answers = list[str](), [StoreError("nobody answers"), StoreError("nobody answers"), {"state": "succeeded"}]
    keeper = replace(keeper_of(journal, Local(tmp_path), tmp_path / "home"), say=said.append)

    def words(op, home):
        answer = answers.pop(0)
        if isinstance(answer, StoreError):
            raise answer
        return answer

    monkeypatch.setattr(keep, "AGAIN", Backoff(first_s=0.001, longest_s=0.002))
    monkeypatch.setattr(mirror, "final_verdict", words)
    monkeypatch.setattr(Local, "is_ephemeral", True)
    with keeper.hold_lease("a-1"):
        assert keeper._unobserved_verdict(op) == {"state": "succeeded"}
    assert len(said) == 1 and "the state of the work is unknown: nobody answers; retrying" in said[0]
    assert journal.ops()[-1].outcome == "succeeded"


def replace_disk(op: Op, home: Path) -> None:
    """Give the machine a new disk: the machine answers, and does not know the pod."""
    kill_pod_processes(op)
    shutil.rmtree(home / ".slipway")


@pytest.mark.process
def test_a_run_lost_by_its_machine_continues_elsewhere_from_the_snapshot(journal, code, tmp_path):
    home = tmp_path / "home"
    with loopback(tmp_path / "one") as first, loopback(tmp_path / "two") as second:
        one, two = (
            Machine(pool="box", name=host.folder.name, address=host.address, python=sys.executable)
            for host in (first, second)
        )
        links = {host: Ssh(host.address, tmp_path / f"known-{host.name}") for host in (one, two)}
        for host, link in links.items():
            link.python = host.python
        provider = SshPools((one, two), links.__getitem__, HostMemory(tmp_path / "hosts.json"))
        op = launch_on(provider, plan_of("ssh"), journal, code, print)
        snapshot.keep_code(op, code, RunHome(home))
        (code / "count.py").write_text("raise SystemExit('the code of later is not the code of this run')")
        keeper = keeper_of(journal, provider, home)
        try:
            seen = keeping(keeper, op)
            half = home / "pod" / "work" / "checkpoints" / "count" / "step-000000010" / "MANIFEST.json"
            while not half.exists():
                next(seen)
            replace_disk(op, {"box/one": first, "box/two": second}[op.place].folder)
            while (now := journal.ops(run="a-1")[-1]).token == op.token or now.state != "READY":
                next(seen)
            (observation.folder_of(now).code / "GO").touch()
            *_, (_, verdict) = seen
            assert verdict["state"] == "succeeded"
            new = journal.ops(run="a-1")[-1]
            assert (new.recoveries, journal.op(op.token).reason) == (1, observation.GONE)
            there = observation.folder_of(new).log("count").read_text()
            assert "from 10" in there and counted(there) == list(range(1, 21))  # the log also continues
            assert Job.from_json(new.job).limits.time_s < 600  # the time of the first pod counts
        finally:
            pods.end(provider, journal.ops(run="a-1")[-1], journal)
            for link in links.values():
                link.close()


def two_nodes(journal: Journal) -> list[Op]:
    """Return the rows of a run at work on two machines."""
    rows = []
    for rank, run in enumerate(("a-1", "a-1.1")):
        token = new_token(journal.installation)
        group = NodeGroup("a-1", rank, ("10.0.0.1", "10.0.0.2"))
        op = journal.plan(
            token=token,
            run=run,
            rank=rank,
            vendor="ssh",
            target="" if rank else "t",
            store="s",
            job=Job(run, token, (), group=group).to_json(),
            request=json.dumps({"run": run, "nodes": 2}),
            place=f"box/{rank}",
            remote_id=f"{token}@box/{rank}",
        )
        for event in ("sending", "created", "armed"):
            op = journal.advance(op, event)
        rows.append(op)
    return rows


@pytest.mark.parametrize("rank", [0, 1])
def test_a_detached_pod_leaves_its_name_and_target_and_keeps_its_machine(journal, rank):
    rows = two_nodes(journal)
    assert not run_rows.is_in_pieces(rows[0], journal)
    lost = pods.detach(rows[rank], journal, "its node was lost")
    assert (lost.state, lost.is_live, lost.detached, lost.place) == ("TERMINATING", True, True, f"box/{rank}")
    assert (run_rows.run_of(lost), lost.rank, lost.is_head) == ("a-1", rank, False) and not run_rows.is_over(lost)
    assert run_rows.detached_of("a-1", journal) == [lost]
    first = journal.ops(run="a-1")[-1]
    assert run_rows.is_in_pieces(first, journal)
    with pytest.raises(UsageError, match="inv keep a-1"):
        launch.resume(first, SshPools((), lambda host: None, HostMemory(Path("nowhere"))), journal, {})

    def again(**more: str) -> Op:
        same = {"run": lost.run, "rank": rank, "vendor": "ssh", "target": lost.target, "store": "s"}
        return journal.plan(token=new_token(journal.installation), **same, **more)

    with pytest.raises(Leased, match=f"box/{rank} is in use by {lost.run}"):
        again(place=lost.place)
    new = again(place="box/2")
    assert journal.ops(run=lost.run)[-1] == new and run_rows.detached_of("a-1", journal) == [lost]
    with pytest.raises(AlreadyLive):
        again(place="box/3")
    assert journal.advance(lost, "gone").detached


def test_pod_of_a_node_that_has_not_met_the_others_belongs_to_the_run(journal):
    """The nodes get a group only after code and inputs are on all nodes."""
    first, second = two_nodes(journal)
    for op in (first, second):
        journal.note(op, job=replace(op.read_job(), group=NodeGroup()).to_json())
    lost = pods.detach(journal.op(second.token), journal, "the request for the machine was not answered")
    assert run_rows.run_of(lost) == "a-1" and run_rows.detached_of("a-1", journal) == [lost]
    assert [op.token for op in stop.rows_of("a-1", journal)] == [first.token, lost.token]
    with pytest.raises(UsageError, match="a-1.1 was a node of a-1; run: inv resume a-1"):
        resume.resumption(lost.run, "", "", journal, Settings.load(ROOT, environ={}), print)


@pytest.mark.parametrize(
    ("run", "rank", "expected"), [("a", 0, "a"), ("a.1", 1, "a"), ("a.1", 0, "a.1"), ("a.1.12", 12, "a.1")]
)
def test_name_of_a_run_follows_from_the_name_and_the_rank_of_a_pod(run, rank, expected):
    op = Op(token="t", run=run, rank=rank, vendor="ssh")
    assert run_rows.run_of(op) == op.run_of_nodes == expected and run_rows.name_of(expected, rank) == run


def test_a_run_with_a_lost_node_is_not_over(journal):
    first, _ = two_nodes(journal)
    ended = journal.advance(journal.advance(first, "end", reason="its work has ended", outcome="lost"), "gone")
    assert not run_rows.is_over(ended)


@pytest.mark.process
def test_the_keeper_waits_for_a_silent_machine_and_says_so(journal, code, tmp_path):
    said: list[str] = []
    with loopback(tmp_path / "one") as host:
        machine = Machine(pool="box", name="one", address=host.address, python=sys.executable)
        link = Ssh(host.address, tmp_path / "known")
        link.python = sys.executable
        provider = SshPools((machine,), lambda _: link, HostMemory(tmp_path / "hosts.json"))
        op = launch_on(provider, plan_of("ssh"), journal, code, print)
        keeper = replace(keeper_of(journal, provider, tmp_path / "home"), say=said.append, report_after_s=0.5)
        try:
            seen = keeping(keeper, op)
            half = observation.folder_of(op).work / "checkpoints" / "count" / "step-000000010"
            while not half.exists():
                next(seen)
            host.stop()
            while not any("waiting for box/one" in line for line in said):
                next(seen)
            host.start()
            (observation.folder_of(op).code / "GO").touch()
            *_, (_, verdict) = seen
            assert verdict["state"] == "succeeded"
            assert [row.token for row in journal.ops()] == [op.token] and journal.op(op.token).recoveries == 0
            (waiting,) = [line for line in said if "waiting for" in line]
            assert "inv status a-1" in waiting and "inv down a-1" in waiting
            assert "a-1: box/one answers again" in said
        finally:
            pods.end(provider, journal.op(op.token), journal)
            link.close()
