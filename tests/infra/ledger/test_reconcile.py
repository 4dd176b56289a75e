"""No orphan and no false end, for any vendor and any dying launcher, on a market with a known true state."""

import itertools
import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from infra import providers
from infra.agent.limits import Clocks, read_clocks
from infra.errors import SlipwayError
from infra.ledger import accounts, audit, reap, reconcile
from infra.ledger.journal import Journal, JournalError
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import BOOTING, CREATING, FAILED, PLANNED, READY, TERMINATED, TERMINATING, UNKNOWN, Op
from infra.ledger.reconcile import APART_S, AdoptedRow, Delete, Listing, RowEvent, decide
from infra.names import new_token
from infra.providers import Abilities
from infra.providers.local import Local
from infra.records import Account, Pod
from infra.runs import observation

SETTLE_S, LAG_S, FLIGHT_S = 600, 90, 500
PREFIX, BOOT = "sw1-aaaaaaaa-", "this-boot"


def at(now, boot_s=None, boot=BOOT):
    """Return the time by both clocks, or a different time by the boot clock."""
    return Clocks(boot, float(now if boot_s is None else boot_s), float(now))


def pod(token="a", pod_id="id-1", rate=100, created_at=5):
    return Pod(
        provider="m",
        pod_id=pod_id,
        token=PREFIX + token,
        run="r",
        address="x",
        micro_usd_per_hour=rate,
        created_at=created_at,
    )


def row(state, token="a", **facts):
    """Return a row with a request sent at the same time by both clocks, unless `facts` differ."""
    sent_at = facts.get("sent_at", 0)
    usual = {"rate": 100, "sent_at": sent_at, "boot_id": BOOT, "boot_s": float(sent_at)}
    return Op(**{"token": PREFIX + token, "run": "r", "vendor": "m", "state": state, **usual, **facts})


def decided(rows, *pods, began_at=10_000, **listing):
    said = Listing(began=at(began_at), pods=tuple(pods), **listing)
    return decide(rows, said, prefix=PREFIX, settle_s=SETTLE_S)


def events(actions):
    return [action.event if isinstance(action, RowEvent) else type(action).__name__ for action in actions]


def test_a_launch_cut_off_before_its_request_has_failed():
    assert events(decided([row(PLANNED)])) == ["unsent"]


@pytest.mark.parametrize("state", [CREATING, UNKNOWN])
def test_the_oldest_pod_of_a_lost_answer_is_adopted_and_others_are_ended(state):
    twins = [pod(pod_id="young", created_at=9), pod(pod_id="old", created_at=3)]
    actions = decided([row(state)], *twins)
    assert events(actions) == ["unclear"] * (state == CREATING) + ["found", "Delete"]
    assert actions[-2].facts["remote_id"] == "old" and actions[-1].pod_id == "young"


def test_a_pod_above_the_agreed_price_is_ended():
    assert events(decided([row(UNKNOWN)], pod(rate=105))) == ["found"]
    assert events(decided([row(UNKNOWN)], pod(rate=106))) == ["found", "end", "Delete"]


def test_an_incomplete_listing_only_leads_to_adoption():
    rows = [row(UNKNOWN), row(READY, "b", remote_id="id-b"), row(TERMINATED, "c"), row(UNKNOWN, "d")]
    pods = [pod(), pod(pod_id="id-2"), pod("c", "id-c"), pod("unheard-of", "id-9")]
    assert events(decided(rows, *pods, is_complete=False, denied=frozenset({"id-b"}))) == ["found"]


def test_absence_needs_the_settle_time_and_two_listings_a_minute_apart():
    unknown, seen = row(UNKNOWN), pod("other", "id-2")
    others = [row(READY, "other", remote_id="id-2", last_seen_at=5)]
    assert decided([unknown, *others], seen, began_at=SETTLE_S) == []
    first = decided([unknown, *others], seen, began_at=SETTLE_S + 1)
    assert first == [RowEvent(unknown.token, "note", {"absent_n": 1, "first_absent_at": SETTLE_S + 1})]
    once = row(UNKNOWN, absent_n=1, first_absent_at=SETTLE_S + 1)
    assert decided([once, *others], seen, began_at=SETTLE_S + APART_S) == []
    assert events(decided([once, *others], seen, began_at=SETTLE_S + 1 + APART_S)) == ["absent"]


def test_an_unreadable_pod_may_be_the_missing_pod():
    """Ask the vendor about a pod with a known id; an unreadable pod may belong to a row without id."""
    unread = replace(pod(pod_id="id-9"), token="", is_legible=False)
    once = row(UNKNOWN, absent_n=1, first_absent_at=SETTLE_S + 1)
    assert decided([once], unread) == []
    assert events(decided([row(READY, remote_id="id-1")], unread, denied=frozenset({"id-1"}))) == ["gone"]


def test_our_pod_without_an_id_is_ended_by_the_id_of_its_row():
    (delete,) = decided([row(TERMINATING, remote_id="id-1", last_seen_at=5)], pod(pod_id=""))
    assert delete == Delete(PREFIX + "a", "id-1")
    assert decided([row(UNKNOWN)], pod(pod_id=""))[0].facts["remote_id"] is None


def test_an_empty_listing_of_an_account_needs_a_third_request():
    rows = [row(UNKNOWN, absent_n=1, first_absent_at=1_000), row(READY, "b", remote_id="id-b", last_seen_at=5)]
    assert events(decided(rows, began_at=2_000)) == ["note"]
    rows[0] = row(UNKNOWN, absent_n=2, first_absent_at=1_000)
    assert events(decided(rows, began_at=2_000)) == ["absent"]


def test_setting_the_wall_clock_does_not_affect_the_proof_of_absence():
    """Count ten minutes by the boot clock, independent of the wall clock; after a reboot, count from the boot."""
    unknown, others = row(UNKNOWN, boot_id=BOOT, boot_s=500.0), (pod("other", "id-2"),)
    other = row(READY, "other", remote_id="id-2", last_seen_at=5)

    def events_at(one, clocks):
        return decide([one, other], Listing(began=clocks, pods=others), prefix=PREFIX, settle_s=SETTLE_S)

    for wall in (-80_000, 0, 80_000):
        assert events_at(unknown, at(wall, 500 + SETTLE_S)) == []
        assert events_at(unknown, at(wall, SETTLE_S, "next")) == []
        (first,) = events_at(unknown, at(wall, 501 + SETTLE_S))
        assert first.facts == {"absent_n": 1, "first_absent_at": SETTLE_S + 1}
        once = replace(unknown, **first.facts)
        assert events_at(once, at(wall, 500 + SETTLE_S + APART_S)) == []
        assert events(events_at(once, at(wall, 501 + SETTLE_S + APART_S))) == ["absent"]
        (again,) = events_at(replace(once, first_absent_at=90_000), at(wall, 1 + SETTLE_S, "next"))
        assert again.facts == {"absent_n": 1, "first_absent_at": SETTLE_S + 1}
        booting = row(BOOTING, remote_id="id-1", boot_id=BOOT, boot_s=500.0)
        for boot_s, are in ((500 + providers.LAG_S, []), (501 + providers.LAG_S, ["gone"])):
            said = Listing(began=at(wall, boot_s), pods=others, denied=frozenset({"id-1"}))
            assert events(decide([booting, other], said, prefix=PREFIX, settle_s=SETTLE_S)) == are


@pytest.mark.parametrize("state", [BOOTING, READY, TERMINATING])
def test_a_known_pod_is_gone_only_when_the_vendor_denies_it(state):
    known = row(state, remote_id="id-1")
    assert "gone" not in events(decided([known]))
    assert events(decided([known], denied=frozenset({"id-1"}))) == ["gone"]


@pytest.mark.parametrize(("state", "are"), [(CREATING, []), (BOOTING, []), (READY, ["gone"]), (TERMINATING, ["gone"])])
def test_only_pods_being_rented_are_left_to_the_renter(state, are):
    known = row(state, remote_id="id-1")
    said = Listing(began=at(10_000), denied=frozenset({"id-1"}))
    assert events(decide([known], said, prefix=PREFIX, settle_s=SETTLE_S, busy={known.token})) == are


def test_a_row_with_an_unknown_id_takes_the_id_of_the_marked_pod():
    damaged = row(READY, remote_id="id- ", last_seen_at=5)
    assert decided([damaged], pod()) == []  # the listing may be slightly late
    (note,) = decided([damaged], pod(), denied=frozenset({"id- "}))
    assert note == RowEvent(damaged.token, "note", {"last_seen_at": 10_000, "remote_id": "id-1"})
    fresh = row(BOOTING, remote_id="id-2", sent_at=9_990)  # an earlier request made "id-1"
    assert decided([fresh], pod(), denied=frozenset({"id-2"}))[0].facts["remote_id"] == "id-2"


def test_a_new_pod_may_be_denied_until_the_vendor_has_listed_it():
    fresh, denied = row(BOOTING, remote_id="id-1", sent_at=9_900), frozenset({"id-1"})
    assert decided([fresh], began_at=9_900 + int(providers.LAG_S), denied=denied) == []
    assert events(decided([fresh], began_at=9_901 + int(providers.LAG_S), denied=denied)) == ["gone"]
    shown = RowEvent(fresh.token, "note", {"last_seen_at": 9_910, "remote_id": "id-1"})
    assert decided([fresh], pod(), began_at=9_910) == [shown]
    seen = row(BOOTING, remote_id="id-1", sent_at=9_900, last_seen_at=9_910)
    assert decided([seen], pod(), began_at=9_915) == []
    assert events(decided([seen], began_at=9_920, denied=denied)) == ["gone"]


def test_a_pod_ended_by_the_vendor_at_its_limit_has_the_outcome_limit():
    known = row(READY, remote_id="id-1", sent_at=1_000, last_seen_at=2_000)
    said = Listing(began=at(10_000), denied=frozenset({"id-1"}))
    for at_limit, why in (
        ({}, "m ended the pod"),
        ({known.token: "its time is up"}, "its time is up; m ended the pod"),
    ):
        (move,) = decide([known], said, prefix=PREFIX, settle_s=SETTLE_S, at_limit=at_limit)
        assert (move.event, move.facts) == ("gone", {"reason": why, "outcome": "limit" if at_limit else ""})


def test_an_ending_pod_without_an_id_gets_the_id_from_the_listing():
    actions = decided([row(TERMINATING)], pod())
    assert events(actions) == ["note", "Delete"] and actions[0].facts["remote_id"] == "id-1"


def test_pods_being_rented_belong_to_the_renter_and_rented_pods_to_all():
    said = Listing(began=at(10_000), pods=(pod(),))
    renting = [row(state) for state in (PLANNED, CREATING, UNKNOWN)]
    ending = row(TERMINATING, remote_id="id-1", last_seen_at=5)
    for one in (*renting, ending):
        actions = decide([one], said, prefix=PREFIX, settle_s=SETTLE_S, busy={one.token})
        assert events(actions) == (["Delete"] if one is ending else [])


def test_a_pod_after_its_end_or_without_a_row_is_ended():
    actions = decided([row(FAILED)], pod(), pod("never-heard-of", "id-7"))
    assert events(actions) == ["resurfaced", "Delete", "AdoptedRow", "Delete"]
    assert [action.pod_id for action in actions if isinstance(action, Delete)] == ["id-1", "id-7"]
    assert next(action.pod.pod_id for action in actions if isinstance(action, AdoptedRow)) == "id-7"


def test_a_pod_with_a_possible_row_in_a_lost_journal_is_kept():
    pods = [
        pod("before", "id-1", created_at=5_000),
        pod("just-after", "id-2", created_at=5_600),
        pod("later", "id-3", created_at=5_601),
    ]
    said = Listing(began=at(10_000), pods=tuple(pods))
    actions = decide([], said, prefix=PREFIX, settle_s=SETTLE_S, replaced_ago_s=5_000)
    kept, kept_too, orphan = (AdoptedRow(one, is_kept=one is not pods[2]) for one in pods)
    assert actions == [kept, kept_too, orphan, Delete(pods[2].token, "id-3")]
    partly = Listing(began=at(10_000), pods=tuple(pods), is_complete=False)
    assert decide([], partly, prefix=PREFIX, settle_s=SETTLE_S, replaced_ago_s=5_000) == []


def test_an_action_that_cannot_be_recorded_is_not_done(tmp_path, monkeypatch):
    environ = {"XDG_STATE_HOME": f"{tmp_path}/state", "XDG_CONFIG_HOME": f"{tmp_path}/config"}
    with Journal.open(tmp_path / "journal", environ) as journal:
        market = Market(SETTLE_S)
        market.start(new_token(journal.installation), market.now)
        market.pass_time(LAG_S)

        def is_full(*words):
            raise JournalError("the disk is full")

        monkeypatch.setattr(journal, "claim", is_full)
        done = reconcile.reconcile(market, journal, lambda: at(market.now))
        assert len(market.running) == 1 and done.actions == ()
        assert "the disk is full; the machine may still cost" in done.problems[0]
        monkeypatch.undo()
        reconcile.reconcile(market, journal, lambda: at(market.now))
        assert market.running == {} and [op.state for op in journal.ops()] == [TERMINATING]


def test_a_sweep_waits_for_a_concurrent_sweep_and_names_a_hanging_sweep(tmp_path, monkeypatch):
    provider = Local(tmp_path / "pods")
    with Journal.open(tmp_path / "journal.db") as journal:
        held = [journal.leases.acquire("reconcile:local")]
        monkeypatch.setattr(reconcile.time, "sleep", lambda _: journal.leases.release(held.pop()))
        assert reconcile.reconcile_in_turn(provider, journal) == reconcile.ReconcileResult((), ())
        assert not held
        held.append(journal.leases.acquire("reconcile:local"))
        monkeypatch.setattr(reconcile, "TURN_S", 0.0)
        said = f"process {os.getpid()}, an inv command, has been reading this account .* check again: inv status"
        with pytest.raises(LeaseHeld, match=said):
            reconcile.reconcile_in_turn(provider, journal)


def test_foreign_pods_are_never_touched():
    foreign = Pod(provider="m", pod_id="theirs", token="sw1-bbbbbbbb-a", run="r", address="")
    assert decided([], foreign, Pod(provider="m", pod_id="other", token="", run="", address="")) == []


def test_pods_of_a_second_account_are_neither_gone_nor_ended_without_its_key(tmp_path):
    """The key in .env is replaced, or two checkouts with two keys share a journal: the pods continue to bill."""
    environ = {"XDG_STATE_HOME": f"{tmp_path}/state", "XDG_CONFIG_HOME": f"{tmp_path}/config"}
    first, second = Market(SETTLE_S), Market(SETTLE_S, owner="another", numbers=itertools.count(100))
    second.start("", 0)
    with Journal.open(tmp_path / "journal", environ) as journal:

        def rented(run, **facts):
            op = journal.plan(
                token=new_token(journal.installation),
                run=run,
                vendor="market",
                rate=3_600_000_000,
                account_fp=accounts.fingerprint(first),
                **facts,
            )
            return journal.advance(op, "sending")

        known, lost = rented("known"), journal.advance(rented("lost"), "unclear", reason="no answer")
        known = journal.advance(known, "created", remote_id=first.start(known.token, 0), last_seen_at=1)
        first.start(lost.token, 0)
        for hours in (1, 2, 3):
            clocks = read_clocks()
            later = Clocks(clocks.boot_id, clocks.boot_s + hours * 3600, clocks.wall_s + hours * 3600)
            found = reconcile.reconcile(second, journal, lambda later=later: later)
            assert [one for one in found.actions if not isinstance(one, Delete)] == []
            assert all(
                "restore the key of that account" in one and "the machine may still cost" in one
                for one in found.problems
            )
            assert len(found.problems) == 2
        assert [op.state for op in journal.ops()] == [BOOTING, UNKNOWN]
        kinds = {one.run: one.kind for one in reap.inspect(second, journal)[0] if one.run}
        assert kinds == {"known": audit.UNCLEAR, "lost": audit.UNCLEAR}
        with pytest.raises(SlipwayError, match="another account of market rented id-"):
            observation.is_absent(second, journal.op(known.token))
        # The account's own key finds both under any name: the account is the same.
        reconcile.reconcile(first, journal)
        assert [op.state for op in journal.ops()] == [BOOTING, BOOTING]
        # A key that shows a pod of an account is a key of the account.
        both, rotated = dict(first.running), replace(first, owner="a new key")
        rotated.running = {key: one for key, one in both.items() if one.token == lost.token}
        reconcile.reconcile(rotated, journal, lambda: later)
        assert [op.state for op in journal.ops()] == [TERMINATED, BOOTING]
        # A pod ended by the vendor's own timer is over in any account; without a timer the state is unknown.
        op = journal.note(journal.op(lost.token), ttl_s=60)
        reconcile.reconcile(second, journal, lambda: later)
        assert [op.state for op in journal.ops()] == [TERMINATED, BOOTING]
        assert accounts.is_another(second, op, later) and not accounts.is_another(
            Timed(SETTLE_S, owner="another"), op, later
        )


@dataclass
class Machine:
    pod_id: str
    token: str
    created_at: int
    seen_from: int


@dataclass
class Market:
    """A vendor with lagging listings and lost answers; the test sees the true state."""

    settle_s: float
    name = "market"
    is_rented = False  # the vendor's clock is ours
    pod_store = ""
    is_rented = False  # the vendor keeps no keys
    owner: str = "test"
    now: int = 1_000_000
    running: dict[str, Machine] = field(default_factory=dict)
    in_flight: list[tuple[int, str]] = field(default_factory=list)  # requests with a late arrival
    listing_fails: bool = False
    deletes_fail: bool = False
    numbers: itertools.count = field(default_factory=itertools.count)

    def start(self, token: str, at: int) -> str:
        pod_id = f"id-{next(self.numbers)}"
        self.running[pod_id] = Machine(pod_id, token, at, at + LAG_S)
        return pod_id

    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        for at, token in self.in_flight:
            if at <= self.now:
                self.start(token, at)
        self.in_flight = [due for due in self.in_flight if due[0] > self.now]

    def account(self):
        return Account(provider="market", owner=self.owner)

    def list(self):
        if self.listing_fails:
            raise SlipwayError("page 2 of 3 did not come")
        return [self._pod(one) for one in self.running.values() if one.seen_from <= self.now]

    def find(self, name):
        shown = [one for one in self.running.values() if one.seen_from <= self.now]
        return next((self._pod(one) for one in shown if name in (one.pod_id, one.token)), None)

    def delete(self, pod_id):
        if self.deletes_fail:
            raise SlipwayError("503")
        self.running.pop(pod_id, None)

    def _pod(self, one: Machine) -> Pod:
        return Pod(
            provider="market",
            pod_id=one.pod_id,
            token=one.token,
            run="",
            address="x",
            micro_usd_per_hour=100,
            created_at=one.created_at,
        )


# Ends of a launch, with the actions of later sweeps, including the sweeps at the end of the world.
ENDS = {
    "answered": {"gone", "note", "Delete"},
    "refused": set(),
    "killed before sending": {"unsent"},
    "killed, arrived": {"unclear", "found", "gone", "Delete"},
    "killed, arrives late": {"unclear", "found", "gone", "Delete"},
    "killed, lost": {"unclear", "note", "absent"},
    "answer lost, arrived": {"found", "gone", "Delete"},
    "answer lost, arrives late": {"found", "gone", "Delete"},
    "answer lost, lost": {"note", "absent"},
    "no row at all": {"AdoptedRow", "gone", "Delete"},
}


class Timed(Market):
    """A vendor that ends a pod at the limit."""

    is_rented, clock_scale, can = True, 1.0, Abilities(time_limit=True)


class Launches(RuleBasedStateMachine):
    """Each launch ends in one way in which a launcher can die or a vendor can answer; sweeps come at any time."""

    settle_s = float(SETTLE_S)

    @initialize()
    def begin(self):
        self.seen: Counter[str] = Counter()
        self.folder = tempfile.TemporaryDirectory()
        environ = {"XDG_STATE_HOME": f"{self.folder.name}/state", "XDG_CONFIG_HOME": f"{self.folder.name}/config"}
        self.journal = Journal.open(Path(self.folder.name) / "state" / "journal.db", environ)
        self.market = Market(self.settle_s)
        self.names = itertools.count()
        self.foreign = {self.market.start(token, self.market.now) for token in ("sw1-zzzzzzzz-theirs", "")}
        self.was_ended: set[str] = set()

    @rule(how=st.sampled_from(sorted(ENDS)), flight_s=st.integers(1, FLIGHT_S))
    def launch(self, how, flight_s):
        token, journal = new_token(self.journal.installation), self.journal
        if how == "no row at all":  # a journal restored from a backup
            self.market.start(token, self.market.now)
            return
        op = journal.plan(token=token, run=f"run-{next(self.names)}", vendor="market", rate=100)
        if how == "killed before sending":
            return
        op = journal.advance(op, "sending", sent_at=self.market.now, boot_id=BOOT, boot_s=self.market.now)
        if how.endswith("late"):
            self.market.in_flight.append((self.market.now + flight_s, token))
        arrived = how == "answered" or how.endswith("arrived")
        pod_id = self.market.start(token, self.market.now) if arrived else ""
        if how == "answered":
            journal.advance(op, "created", remote_id=pod_id)
        elif how == "refused":
            journal.advance(op, "refused")
        elif how.startswith("answer lost"):
            journal.advance(op, "unclear")

    @rule(seconds=st.sampled_from([1, 30, APART_S, LAG_S, SETTLE_S, 3 * SETTLE_S]))
    def wait(self, seconds):
        self.market.pass_time(seconds)

    @rule(data=st.data())
    def request_end(self, data):
        live = [op for op in self.journal.ops(live=True) if op.state != TERMINATING]
        if live:
            self.journal.advance(data.draw(st.sampled_from(live)), "end")

    @rule(data=st.data())
    def preempt(self, data):
        ours = sorted(self.market.running.keys() - self.foreign)
        if ours:
            del self.market.running[data.draw(st.sampled_from(ours))]

    @rule(listing_fails=st.booleans(), deletes_fail=st.booleans())
    def sweep(self, listing_fails, deletes_fail):
        self.market.listing_fails, self.market.deletes_fail = listing_fails, deletes_fail
        done = reconcile.reconcile(self.market, self.journal, lambda: at(self.market.now))
        assert bool(done.problems) or not listing_fails
        for action in done.actions:
            self.seen[action.event if isinstance(action, RowEvent) else type(action).__name__] += 1

    @rule()
    def sweep_repeatedly(self):
        for _ in range(3):
            self.sweep(False, False)
            self.market.pass_time(APART_S)

    @invariant()
    def no_running_pod_is_recorded_as_ended(self):
        """Excludes a row that had ended before its pod appeared, which the next sweep ends."""
        if not hasattr(self, "market"):
            return
        running = {one.token for one in self.market.running.values()} | {token for _, token in self.market.in_flight}
        ended = {op.token for op in self.journal.ops(live=False)}
        assert not (ended - self.was_ended) & running
        self.was_ended = ended

    @invariant()
    def no_foreign_pod_is_touched(self):
        assert not hasattr(self, "market") or self.foreign <= self.market.running.keys()

    def teardown(self):
        if not hasattr(self, "market"):
            return
        self._rest()
        for op in self.journal.ops(live=True):
            if op.state != TERMINATING:
                self.journal.advance(op, "end")
        self._rest()
        assert self.market.running.keys() == self.foreign, "orphans"
        assert not self.journal.ops(live=True)
        self.journal.close()
        self.folder.cleanup()

    def _rest(self):
        for _ in range(6):
            self.market.pass_time(SETTLE_S)
            self.sweep(False, False)
            self.no_running_pod_is_recorded_as_ended()


class Impatient(Launches):
    """A wrong rule for the rig to reject: a lost answer counts as a refusal at once."""

    settle_s = 0.0


def play(machine: Launches, *rules: Callable[[Launches], object]) -> Counter[str]:
    """Run a world with exactly these rules to the end; return the actions of the sweeps."""
    machine.begin()
    with machine.journal:
        for happen in rules:
            happen(machine)
            machine.no_running_pod_is_recorded_as_ended()
            machine.no_foreign_pod_is_touched()
        machine.teardown()
    return machine.seen


def explore(examples: int) -> None:
    checks = settings(max_examples=examples, stateful_step_count=25, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Launches, settings=checks)


@pytest.mark.parametrize("how", ENDS)
def test_every_end_of_a_launch_leads_to_the_expected_actions(how):
    rest = (lambda one: one.wait(LAG_S), lambda one: one.sweep_repeatedly(), lambda one: one.wait(SETTLE_S))
    seen = play(Launches(), lambda one: one.launch(how, FLIGHT_S), *rest, lambda one: one.sweep_repeatedly())
    assert seen.keys() == ENDS[how]


@pytest.mark.slow
def test_no_pod_is_orphaned_or_recorded_as_gone_while_running():
    explore(40)


def test_the_rig_rejects_a_rule_that_takes_silence_for_refusal():
    with pytest.raises(AssertionError):
        play(
            Impatient(),
            lambda one: one.wait(LAG_S),
            lambda one: one.launch("answer lost, arrives late", FLIGHT_S),
            lambda one: one.sweep_repeatedly(),
        )


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_a_thousand_worlds_have_no_orphan_and_no_false_end():
    explore(1000)


@pytest.mark.parametrize("state", ["UNKNOWN", "READY", "TERMINATING"])
def test_a_spot_pod_is_not_gone_while_the_spot_listing_is_silent(state):
    known = {"first_absent_at": 1000, "absent_n": 2} if state == "UNKNOWN" else {"remote_id": "id", "last_seen_at": 1}
    spot, other = (row(state, name, request=json.dumps({"spot": name == "s"}), **known) for name in "so")
    denied = frozenset({"id"})
    gone = decided([spot], denied=denied)
    assert gone == decided([replace(other, token=spot.token)], denied=denied) and {"absent", "gone"} & {*events(gone)}
    silent = decided([spot], denied=denied, spot_problem="no answer")
    assert not {"absent", "gone"} & {*events(silent)}
    assert decided([other], denied=denied, spot_problem="no answer") == decided([other], denied=denied)
