"""One amount for many pods, with crashes: the amount is never exceeded, no reservation is lost, and none leaks."""

import tempfile
import threading
from unittest import mock

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from infra.agent.limits import read_clocks
from infra.agent.process import Identity
from infra.errors import OutOfMoney, UsageError
from infra.journal_file import Fenced
from infra.ledger import budgets, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.names import new_token
from tests import seeds

AMOUNT = 3000
RATE = 3600  # micro-USD per hour: one per second, so that the duration of the test costs almost nothing
RUNS, PROCESSES = "abcd", (1, 2, 3)


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def journal(environ):
    with Journal.open(environ=environ) as opened:
        yield opened


def rent(journal, run, cap, rank=0):
    def admit(rows, new):
        budgets.admit(journal, rows, new)

    return journal.plan(
        token=new_token(journal.installation),
        run=run,
        rank=rank,
        vendor="lium",
        admit=admit,
        rate=RATE,
        cap=cap,
        budget_name="b",
        budget_run=run,
    )


def passed(journal, op, seconds):
    """Let time pass for a pod."""
    return journal.note(op, boot_s=op.boot_s - seconds)


def end(journal, op, outcome=""):
    return journal.advance(journal.advance(op, "end", reason="test", outcome=outcome), "gone")


class Purse(RuleBasedStateMachine):
    """Reserve, rent, spend, return and crash in any order, in three processes that may die and restart."""

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.environ = {"XDG_STATE_HOME": self.folder.name, "XDG_CONFIG_HOME": self.folder.name}
        self.lives = dict.fromkeys(PROCESSES, 0)  # number of deaths of each process
        self.me = PROCESSES[0]
        names = ("infra.ledger.budgets", "infra.ledger.leases")
        self.patches = [mock.patch(f"{name}.current_identity", self.identity) for name in names]
        self.patches += [mock.patch(f"{name}.is_alive", self.is_alive) for name in names]
        for one in self.patches:
            one.start()
        self.journal = Journal.open(environ=self.environ)
        budgets.open_budget(self.journal, "b", AMOUNT, None)
        self.promised = {}  # by run: the amount, and the reserving process
        self.keepers = {}  # by run: the lease of the keeper, and the keeper

    def teardown(self):
        self.journal.close()
        for one in self.patches:
            one.stop()
        self.folder.cleanup()

    def identity(self, process=0):
        number = process or self.me
        return Identity("boot", number, str(self.lives[number]))

    def is_alive(self, identity):
        return identity.pid in self.lives and identity == self.identity(identity.pid)

    def live(self, run=""):
        return [op for op in self.journal.ops(live=True) if run in ("", op.run)]

    def is_due(self, run):
        """Return true if the reservation of a run must still exist."""
        _, holder = self.promised[run]
        if self.is_alive(holder) or self.live(run):
            return True
        rows = self.journal.ops(run=run)
        return bool(rows) and not rows[-1].outcome and run in self.keepers  # a run that died recently is resumed

    def due(self):
        """Return the reservations that must still exist; the next reserve or rent frees the rest."""
        return {run: it for run, it in self.promised.items() if self.is_due(run)}

    @rule(run=st.sampled_from(RUNS), amount=st.integers(1, 2000), process=st.sampled_from(PROCESSES))
    def reserve(self, run, amount, process):
        self.me = process
        before = budgets.state(self.journal, "b")
        own, due = before.runs.get(run, budgets.BudgetRun(run)), self.due()
        try:
            budgets.reserve(self.journal, "b", run, amount)
        except OutOfMoney:
            assert before.committed - own.committed + max(amount, own.most) > AMOUNT
        else:
            self.promised = {**due, run: (amount, self.identity())}

    @rule(run=st.sampled_from(RUNS), cap=st.integers(100, 2000), process=st.sampled_from(PROCESSES))
    def rent(self, run, cap, process):
        self.me = process
        if self.live(run):
            return
        own, due = budgets.state(self.journal, "b").runs.get(run, budgets.BudgetRun(run)), self.due()
        try:
            rent(self.journal, run, cap)
        except OutOfMoney:
            assert run not in due or own.most + cap > due[run][0], "what is reserved for a run is there for it"
        else:
            self.promised = due

    @precondition(lambda self: self.live())
    @rule(choice=st.integers(0, 9), part=st.floats(0, 0.9))
    def spend(self, choice, part):
        op = self.live()[choice % len(self.live())]
        left = op.cap - 20 - spend.spent(op, read_clocks())
        if left > 0:
            passed(self.journal, op, left * part)

    @precondition(lambda self: self.live())
    @rule(choice=st.integers(0, 9), event=st.sampled_from(["taken away", "succeeded", "refused", "lost"]))
    def gone(self, choice, event):
        op = self.live()[choice % len(self.live())]
        if event == "refused" and op.state == "PLANNED":
            self.journal.advance(self.journal.advance(op, "sending"), "refused")
        elif event == "lost" and op.state == "PLANNED":  # a lost answer: the pod may exist and cost
            self.journal.advance(self.journal.advance(op, "sending"), "unclear")
        else:
            end(self.journal, op, "succeeded" if event == "succeeded" else "")

    @rule(run=st.sampled_from(RUNS))
    def give_back(self, run):
        budgets.release_reservation(self.journal, "b", run)
        self.promised.pop(run, None)

    @rule(run=st.sampled_from(RUNS), process=st.sampled_from(PROCESSES))
    def keep(self, run, process):
        self.me = process
        _, holder = self.keepers.get(run, (None, None))
        if holder is None or not self.is_alive(holder):
            self.keepers[run] = self.journal.leases.acquire(keeper_lease(run)), self.identity()

    @rule(run=st.sampled_from(RUNS))
    def leave(self, run):
        lease, holder = self.keepers.get(run, (None, None))
        if holder is not None and self.is_alive(holder):
            self.journal.leases.release(lease)
            del self.keepers[run]

    @rule(process=st.sampled_from(PROCESSES))
    def crash(self, process):
        self.lives[process] += 1

    @rule()
    def open_again(self):
        self.journal.close()
        self.journal = Journal.open(environ=self.environ)

    @invariant()
    def the_amount_is_never_passed(self):
        now = read_clocks()
        worst = sum(op.cap if op.is_live else spend.spent(op, now) for op in self.journal.ops())
        found = budgets.state(self.journal, "b")
        assert worst <= found.committed <= AMOUNT
        assert found.free == AMOUNT - found.committed

    @invariant()
    def what_is_reserved_is_neither_lost_nor_leaks(self):
        found = budgets.state(self.journal, "b").runs
        due = {run: amount for run, (amount, _) in self.due().items()}
        assert {run: found[run].reserved if run in found else 0 for run in RUNS} == dict.fromkeys(RUNS, 0) | due


TestPurse = Purse.TestCase
TestPurse.settings = settings(max_examples=seeds.examples(8, 1000), stateful_step_count=25, database=None)


def test_eight_concurrent_requests_are_paid_only_up_to_the_amount(journal, environ):
    budgets.open_budget(journal, "b", 500, None)
    paid, barrier = [], threading.Barrier(8)

    def ask(number):
        with Journal.open(environ=environ) as own:
            barrier.wait()
            try:
                rent(own, f"run-{number}", 120)
            except OutOfMoney as error:
                assert "are free; reserved by: run-" in str(error)
            else:
                paid.append(number)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(paid) == 4 and len(journal.ops()) == 4


def test_a_possibly_existing_pod_costs_its_maximum_until_its_state_is_known(journal):
    budgets.open_budget(journal, "b", 500, None)
    op = journal.advance(journal.advance(rent(journal, "a", 400), "sending"), "unclear")
    with pytest.raises(OutOfMoney, match="reserved by: a"):
        rent(journal, "other", 200)
    journal.advance(op, "absent")
    assert rent(journal, "other", 500).is_live


def test_a_pod_without_a_limit_or_with_an_unopened_budget_is_refused(journal):
    with pytest.raises(UsageError, match="budget 'b' does not exist; known: none"):
        rent(journal, "a", 1)
    budgets.open_budget(journal, "b", 500, None)
    with pytest.raises(OutOfMoney, match="a pod without a limit cannot be paid from b"):
        rent(journal, "a", None)
    assert not journal.ops()


def test_one_command_at_a_time_changes_an_amount_and_never_below_the_debt(journal, environ):
    first = budgets.open_budget(journal, "b", 500, None)
    with Journal.open(environ=environ) as other:
        assert budgets.open_budget(other, "b", 500, None) == first  # two terminals that open the same budget at once
        more = budgets.open_budget(other, "b", 900, first)
    with pytest.raises(Fenced, match="a concurrent command changed the limit"):
        budgets.open_budget(journal, "b", 700, first)
    rent(journal, "a", 600)
    with pytest.raises(UsageError, match=r"Give at least 0\.01 USD: --budget b=USD, or end"):
        budgets.open_budget(journal, "b", 599, more)
    assert budgets.open_budget(journal, "b", 600, more).amount == 600
