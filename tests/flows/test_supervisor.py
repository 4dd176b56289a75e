"""The supervisor keeps unattended runs on other machines, and no other runs."""

import json
import time
from dataclasses import replace

import pytest

from flows.supervisor import due, supervisor_client
from flows.supervisor import supervisor as supervisor_module
from infra.agent.job import Limits
from infra.errors import OutOfMoney, SlipwayError, UsageError
from infra.journal_file import JournalFull
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, keeper_lease
from infra.providers.local import Local
from infra.records import Request
from infra.runs import journal_upkeep
from infra.runs.keepers import due_ends
from infra.runs.keepers.recovery import RUN
from infra.runs.lookup import between_pods
from infra.runs.observation import Observation
from infra.settings import Settings
from infra.transport.protocol import ConnectionLost
from store.backoff import Backoff
from tests.world import ROOT, until


@pytest.fixture
def settings(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"), "HOME": str(tmp_path)}
    return Settings.load(ROOT, environ={**environ, "SLIPWAY_PODS": str(tmp_path / "pods")})


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file) as opened:
        yield opened


@pytest.fixture
def supervisor_of(settings, journal, monkeypatch):
    """Return a factory of supervisors. Threads end with the test, or would use the environment of the next test."""
    monkeypatch.setattr(supervisor_module, "load", lambda: settings)
    made = []

    def make(tell=print):
        made.append(supervisor_module.Supervisor(settings, journal, 0.0, tell))
        return made[-1]

    yield make
    for one in made:
        one.is_leaving.set()
        for thread in filter(None, (one.watch_thread, one.end_thread)):
            thread.join()


def begun(journal, run, vendor="ssh", token="", **more):
    """Return a run with a pod at work."""
    token = token or f"sw1-{run}"
    op = journal.plan(**{"token": token, "run": run, "vendor": vendor, "remote_id": f"{token}@box/a", **more})
    for event in ("sending", "created", "armed"):
        op = journal.advance(op, event)
    return op


def kept(journal, settings):
    return [op.run for op in due.runs_to_keep(journal, settings)]


def die(journal, lease):
    """Turn the holder into a dead process: no process has this pid and this start time."""
    held = journal.leases.acquire(lease)
    journal.leases._update_row(held, "another boot", 1, "0")


def test_a_run_elsewhere_is_kept_once_and_a_local_run_keeps_itself(journal, settings):
    begun(journal, "far-1")
    begun(journal, "near-2", vendor="local")
    begun(journal, "idle-3", owner_kind="held")
    begun(journal, "busy-4", owner_kind="held", target="t", store="s")
    begun(journal, "demo-0", owner_kind="service", owner="demo")
    begun(journal, "far-5.1", rank=1)
    assert kept(journal, settings) == ["far-1", "busy-4"]
    lease = journal.leases.acquire(keeper_lease("far-1"))
    assert kept(journal, settings) == ["busy-4"]
    journal.leases.release(lease)
    assert kept(journal, settings) == ["far-1", "busy-4"]


@pytest.mark.parametrize(
    ("verdict", "minutes_past", "is_left"),
    [({}, 1, False), ({"state": "limit"}, 1, True), ({"state": "limit"}, 6, False)],
    ids=["nothing is heard of it", "its results are brought home", "for too long"],
)
def test_a_pod_beyond_its_limit_ends_with_any_keeper(journal, settings, monkeypatch, verdict, minutes_past, is_left):
    """A living keeper has minutes to fetch the results of a pod with a verdict; without a verdict no results are
    expected.
    """
    settings, now = replace(settings, runpod_api_key="k" * 32), int(time.time())
    common = {"vendor": "runpod", "rate": 2_000_000, "ttl_s": 3600.0}
    past = begun(journal, "over-1", **common)
    past = journal.note(past, sent_at=now - 3600 - 60 * minutes_past)
    begun(journal, "young-2", **common)
    journal.leases.acquire(keeper_lease("over-1"))
    monkeypatch.setattr(due_ends, "is_kept_by_another", lambda op, journal: True)  # this process holds the lease
    assert [op.run for op in due.pods_to_end(journal, settings)] == ["over-1"]
    assert due.is_needed(journal, settings)
    assert due_ends.is_being_concluded(past, Observation(verdict=verdict), journal, settings) is is_left
    journal.advance(past, "end", reason="its limit", outcome="limit")
    assert [op.run for op in due.pods_to_end(journal, settings)] == ["over-1"]  # until the pod is proven gone


@pytest.mark.parametrize("rank", [0, 1])
def test_detached_pod_of_a_kept_run_is_ended_while_the_run_goes_on(journal, settings, rank):
    settings, run = replace(settings, runpod_api_key="k" * 32), "far-1.1" if rank else "far-1"
    unclear = journal.advance(
        journal.plan(token="sw1-lost", run=run, rank=rank, vendor="runpod", rate=2_000_000), "sending"
    )
    journal.advance(journal.advance(unclear, "unclear"), "detach", reason="no answer")
    begun(journal, run, token="sw1-next", vendor="runpod", rate=2_000_000, rank=rank)
    journal.leases.acquire(keeper_lease("far-1"))
    assert [op.token for op in due.pods_to_end(journal, settings)] == ["sw1-lost"]


def test_a_finished_run_stays_finished_and_a_run_of_a_dead_keeper_continues(journal, settings, monkeypatch):
    asked = journal.advance(begun(journal, "asked-1"), "end", reason="asked for", outcome="asked")
    lost = journal.advance(begun(journal, "lost-2", rate=790_000), "gone")
    assert kept(journal, settings) == ["lost-2"]  # the launch died before it could follow the run
    journal.leases.release(journal.leases.acquire(keeper_lease("lost-2")))
    assert kept(journal, settings) == []  # the keeper has given up, and a user can resume the run
    for op in (asked, lost):
        die(journal, keeper_lease(op.run))
    assert kept(journal, settings) == ["lost-2"]
    monkeypatch.setattr(budgets, "RECENT_S", -1.0)
    assert kept(journal, settings) == []  # a laptop that was off for a week rents nothing by itself


@pytest.mark.parametrize(("event", "more"), [("end", {"reason": "asked for", "outcome": "asked"}), ("gone", {})])
def test_an_ended_run_stays_ended_if_its_new_launch_is_cut_off(journal, settings, event, more):
    """A run that was at work until its pod was gone continues, also if the first replacement is cut off."""
    first = journal.advance(begun(journal, "again-1"), event, **more)
    journal.advance(first, "gone") if event == "end" else None
    second = begun(journal, "again-1", token="sw1-again-1b")
    second = journal.advance(second, "end", reason="its launch was cut off: the terminal was closed")
    journal.advance(second, "gone")
    die(journal, keeper_lease("again-1"))
    assert kept(journal, settings) == ([] if event == "end" else ["again-1"])
    assert [op.run for op in between_pods(journal)] == kept(journal, settings), "the status says the same"


def test_an_abandoned_run_continues_even_if_its_pod_is_gone_before_the_first_look(tmp_path, monkeypatch):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path), "LIUM_API_KEY": "a-key"}
    settings = Settings.load(ROOT, environ=environ)
    monkeypatch.setattr(supervisor_client, "ensure", lambda _: None)
    with Journal.open(settings.state_file) as journal:
        op = begun(journal, "far-1", vendor="lium")
        journal.leases.release(journal.leases.acquire(keeper_lease("far-1")))  # as the earlier follower does
        supervisor_client.hand_over(op, settings)
        journal.advance(op, "gone")
        assert kept(journal, settings) == ["far-1"]


def test_no_supervisor_starts_without_need(journal, settings):
    assert supervisor_client.ensure(settings) is None and journal.leases.holder(SUPERVISOR) is None
    assert supervisor_client.last_state(settings) is None
    supervisor_client.state_file(settings).write_text(json.dumps({"pid": 7}))
    assert supervisor_client.last_state(settings) is None  # written by a different version of Slipway


def test_a_failing_duty_is_restarted_with_backoff_and_then_given_up(journal, settings, supervisor_of, monkeypatch):
    op = begun(journal, "far-1")
    supervisor = supervisor_of()
    tried, now = [], [1000.0]

    def fails(run):
        tried.append(now[0])
        raise OSError("no file")

    monkeypatch.setattr(supervisor, "_keep", fails)
    monkeypatch.setattr(supervisor_module.time, "time", lambda: now[0])
    for _ in range(600):
        assert supervisor.start_due_work() or supervisor.items[keeper_lease("far-1")].failure_reason
        supervisor.items[keeper_lease("far-1")].thread.join()
        now[0] += 1.0
    assert len(tried) == 5 and [b - a for a, b in zip(tried, tried[1:], strict=False)] == [1.0, 2.0, 4.0, 8.0]
    assert (
        supervisor.start_due_work() is False and "5 times" in supervisor_client.last_state(settings).given_up["far-1"]
    )
    assert due.is_needed(journal, settings) and not supervisor.has_more_work(), "it would begin anew, without an end"
    journal.note(journal.op(op.token), reason="somebody has done something")
    assert supervisor.has_more_work()
    supervisor.start_due_work()
    assert len(tried) == 6


@pytest.fixture
def finished(journal, settings):
    """Return a function that gives a run on this machine, whose work has succeeded, a row and files."""

    def make(run, **more):
        folder = settings.pods / run
        at = {"remote_id": f"sw1-{run}@{folder}", "address": str(folder)}
        op = begun(journal, run, vendor="local", target=run, **at, **more)
        local = Local(settings.pods)
        local.create(Request(run=run), local.offers(Request(run=run))[0], op.token, Limits())
        verdict = {"token": op.token, "state": "succeeded", "reason": "", "step": "", "at": time.time()}
        (folder / "state" / "verdict.json").write_text(json.dumps(verdict))
        return op, folder

    return make


@pytest.mark.process
def test_a_finished_run_is_settled_again_until_its_pod_has_ended(
    journal, settings, supervisor_of, monkeypatch, finished
):
    """A connection that breaks during the last download must not leave the pod at work: the pod bills on."""
    op, _ = finished("far-1")
    supervisor, said, errors = supervisor_of(lambda text: said.append(text)), [], [ConnectionLost("closed")] * 2
    real = journal_upkeep.download_results

    def download(*words):
        if errors:
            raise errors.pop()
        return real(*words)

    monkeypatch.setattr(journal_upkeep, "download_results", download)
    monkeypatch.setattr(supervisor_module, "ENDS", Backoff(0.0, 0.0))
    row = supervisor._keep("far-1")
    assert (row.token, row.is_live, row.outcome, errors) == (op.token, False, "succeeded", [])
    assert said[1:] == ["far-1: succeeded, but the pod was not ended; retrying"]


@pytest.mark.process
def test_a_supervisor_that_exits_leaves_a_finished_run_with_a_live_pod_to_the_next_one(
    journal, supervisor_of, monkeypatch, finished
):
    def download(*words):
        supervisor.is_leaving.set()
        raise ConnectionLost("closed")

    finished("far-1")
    supervisor = supervisor_of()
    monkeypatch.setattr(journal_upkeep, "download_results", download)
    assert supervisor._keep("far-1") is None and journal.ops(run="far-1")[-1].is_live


@pytest.mark.process
def test_a_node_with_an_unreadable_verdict_ends_with_its_run(journal, settings, monkeypatch, finished):
    head, _ = finished("far-1")
    other, folder = finished("far-1.1", rank=1)
    (folder / "state" / "verdict.json").unlink()
    (folder / "state" / "verdict.json").mkdir()
    monkeypatch.setattr(journal_upkeep, "OTHERS_S", 0.0)
    journal_upkeep.end_others(head, journal, settings, "succeeded", print)
    assert not journal.op(other.token).is_live


def test_a_failure_for_the_user_is_given_up_at_once_and_reported(journal, settings, supervisor_of, monkeypatch):
    begun(journal, "far-1")
    supervisor, told = supervisor_of(), []
    monkeypatch.setattr(supervisor_module, "send_now", lambda notice, *_: told.append((notice.event, notice.note)))

    def fails(run):
        raise OutOfMoney("the balance is 0.10 USD")

    monkeypatch.setattr(supervisor, "_keep", fails)
    for _ in range(3):
        supervisor.start_due_work()
        supervisor.items[keeper_lease("far-1")].thread.join()
    assert supervisor.start_due_work() is False and told == [("given up", "the balance is 0.10 USD")]
    assert supervisor_client.last_state(settings).given_up == {"far-1": "the balance is 0.10 USD"}
    assert not supervisor.has_more_work()


def test_a_rented_pod_is_watched_until_its_limit_after_its_run_was_given_up(
    journal, settings, supervisor_of, monkeypatch
):
    """Before the fix the supervisor exited after giving up the run, and a pod without guard and timer billed on."""
    settings = replace(settings, runpod_api_key="k" * 32)
    op = begun(journal, "far-1", vendor="runpod", rate=2_000_000, ttl_s=3600.0)
    op = journal.note(op, sent_at=int(time.time()))
    supervisor = supervisor_of()

    def fails(run):
        raise OutOfMoney("the balance is 0.10 USD")

    monkeypatch.setattr(supervisor, "_keep", fails)
    supervisor.start_due_work()
    supervisor.items[keeper_lease("far-1")].thread.join()
    assert (
        supervisor.start_due_work()
        and supervisor.has_more_work()
        and supervisor.items[keeper_lease("far-1")].failure_reason
    )
    ended = []
    monkeypatch.setattr(supervisor_module, "settle_rows", lambda _, __, ___, tokens: ended.append(tokens))
    journal.note(journal.op(op.token), sent_at=int(time.time()) - 3700)
    assert supervisor.start_due_work() and supervisor.has_more_work()
    until(lambda: ended == [[op.token]], "the pod is ended at its limit")
    supervisor.items[keeper_lease("far-1")].thread.join()  # The note made another attempt due.
    journal.advance(journal.op(op.token), "end", reason="its limit", outcome="limit")
    journal.advance(journal.op(op.token), "gone")
    assert not supervisor.start_due_work() and not supervisor.has_more_work()


def test_a_run_without_a_keeper_is_reported(journal, settings, supervisor_of, monkeypatch):
    op = begun(journal, "far-1")
    supervisor, told = supervisor_of(), []
    monkeypatch.setattr(supervisor_module, "send_now", lambda notice, *_: told.append((notice.event, notice.note)))

    def fails(run):
        if journal.op(op.token).is_live and supervisor.items[keeper_lease(run)].started_at[1:]:  # not the first time
            journal.advance(journal.op(op.token), "gone", reason="taken away")
            journal.leases.release(journal.leases.acquire(keeper_lease(run)))
        raise SlipwayError("it cannot go on")

    monkeypatch.setattr(supervisor, "_keep", fails)
    monkeypatch.setattr(supervisor_module, "RUN", replace(RUN, retries=replace(RUN.retries, backoff=Backoff(0.0, 0.0))))
    for number in range(2):
        assert supervisor.start_due_work()
        supervisor.items[keeper_lease("far-1")].thread.join()
        assert told == [("given up", "it cannot go on")] * number
    assert supervisor.start_due_work() is False


def test_a_supervisor_without_its_journal_exits_and_makes_no_new_journal(journal, settings, supervisor_of, tmp_path):
    begun(journal, "rented-1", vendor="lium")
    said = []
    supervisor = supervisor_of(said.append)
    (tmp_path / "state").rename(tmp_path / "elsewhere")
    supervisor.run()
    assert said == [f"{settings.state_file} is gone"] and supervisor.is_leaving.is_set()
    assert not settings.state_file.exists()
    (tmp_path / "elsewhere").rename(tmp_path / "state")  # the fixture closes the journal


@pytest.mark.slow
def test_a_supervisor_that_cannot_write_starts_no_duty_and_waits_for_room(
    journal, settings, supervisor_of, monkeypatch
):
    begun(journal, "far-1")
    supervisor = supervisor_of()

    def fails(run):
        raise JournalFull("journal: database or disk is full")

    monkeypatch.setattr(supervisor, "_keep", fails)
    supervisor.run()
    care = supervisor.items[keeper_lease("far-1")]
    assert supervisor.is_disk_full.is_set() and not supervisor.is_leaving.is_set()
    assert len(care.started_at) == 1 and not care.failure_reason
    said, waits, left = [], [], [JournalFull("full"), JournalFull("full")]
    monkeypatch.setattr(supervisor_module.time, "sleep", waits.append)
    assert supervisor_module._when_there_is_room(lambda: fails("") if left and left.pop() else "written", said.append)
    assert len(waits) == 2 and len(said) == 1
    with pytest.raises(UsageError, match="held"):
        supervisor_module._when_there_is_room(
            lambda: [journal.leases.acquire("a"), journal.leases.acquire("a")], said.append
        )


def test_a_full_disk_differs_from_a_damaged_journal(journal, settings):
    (pages,) = journal.read("PRAGMA page_count")[0]
    journal.read(f"PRAGMA max_page_count = {pages}")  # SQLite's own error for a full disk
    with pytest.raises(JournalFull, match="database or disk is full"):
        for number in range(200):
            begun(journal, f"far-{number}")
    journal.read("PRAGMA max_page_count = 1000000")
    begun(journal, "later-1")
