"""Names: a run or service of an allowance is found by its rows in the journal, and never by the beginning of a name."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from flows.pods.stop import StopResult
from infra.errors import UsageError
from infra.ledger import budgets, service_rows
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.agents.control import ending, files, readings, taken
from packs.agents.control.account import Account
from packs.agents.control.inv_lines import InvLines
from packs.agents.records.allowance import Allowance
from packs.agents.records.arguments import AnyRun, AskArguments, LogArguments, OneRun, WhyArguments
from tests.world import ROOT

LLAMA = Allowance(
    name="llama", token_sha256="a" * 64, micro_usd=5_000_000, begins=100.0, ttl_s=100.0, boot_id="b", boot_s=5.0
)
FOREIGN = ("llama-3-8b-sft", "llama-10", "llama-3")


class Lines(InvLines):
    """Records the lines of `inv`; the answers are of an owner with many runs."""

    def __init__(self) -> None:
        self.seen = list[tuple[str, ...]]()

    def text(self, command: str, flags: Mapping[str, Any], words: Sequence[str] = (), held: Sequence[int] = ()) -> str:
        self.seen.append((command, *words, *([flags["endpoint"]] if "endpoint" in flags else [])))
        return "text"

    def json(self, command: str, flags: Mapping[str, Any], words: Sequence[str] = (), held: Sequence[int] = ()) -> Any:
        self.text(command, flags, words)
        key = "service" if command == "serve.status" else "run"
        names = (*FOREIGN, "llama-2" if key == "service" else "llama-1")
        return [{key: name, "state": "running"} for name in names] if "status" in command else {}


@pytest.fixture
def account(tmp_path, monkeypatch) -> Account:
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "journal.sqlite"))
    with Journal.open(tmp_path / "journal.sqlite"):
        settings = Settings.load(ROOT)
    files.save(LLAMA, settings)
    return Account("llama", settings, Lines())


def add(account: Account, run: str, budget: str = "", service: str = "") -> None:
    """Write the row of a live machine."""
    owner = {"owner_kind": "service", "owner": service} if service else {}
    with Journal.open(account.settings.state_file) as journal:
        row = {"budget_name": budget, "budget_run": run if budget else "", "rate": 100_000, "cap": 200_000, **owner}
        if budget:
            budgets.open_budget(journal, budget, 5_000_000, None)
        journal.plan(token=f"t-{run}-{budget}", run=run, vendor="lium", **row)


def wanted(account: Account, name: str) -> None:
    with Journal.open(account.settings.state_file) as journal:
        service_rows.write_desired_state(journal, name, "{}", None)


CALLS = {
    "logs": (readings.logs, LogArguments),
    "why": (readings.why, WhyArguments),
    "results": (readings.results, OneRun),
    "down": (readings.down, OneRun),
    "serve_ask": (readings.serve_ask, AskArguments),
}


def ask(account: Account, tool: str, name: str) -> dict[str, Any]:
    work, kind = CALLS[tool]
    return work(account, kind(run=name, **({"prompt": "x"} if tool == "serve_ask" else {})))


@pytest.mark.parametrize("tool", [*CALLS])
@pytest.mark.parametrize("is_service", [False, True])
def test_name_of_a_refused_start_is_no_run_of_the_allowance(account, tool, is_service):
    name = account.new_run(0, 1, 1_000_000 if is_service else 0)
    add(account, f"{name}-8b")  # a command would take the name for the beginning of this name
    wanted(account, f"{name}-8b")
    with pytest.raises(UsageError, match="is no run or service of this allowance"):
        ask(account, tool, name)
    assert account.inv.seen == [] and account.new_run(0, 1) == "llama-2"


@pytest.mark.parametrize("tool", ["logs", "results", "down", "why"])
def test_run_of_the_owner_with_a_name_of_the_allowance_is_foreign(account, tool):
    name = account.new_run(0, 1)
    add(account, name)
    with pytest.raises(UsageError, match="is no run or service of this allowance"):
        ask(account, tool, name)
    assert account.inv.seen == []
    with Journal.open(account.settings.state_file) as journal:
        assert ending.own_rows("llama", journal, account.settings) == []


@pytest.mark.parametrize("tool", ["logs", "serve_ask"])
def test_ended_service_is_not_asked_and_down_of_an_ended_service_runs_no_command(account, tool):
    name = account.new_run(0, 1, 1_000_000)
    add(account, f"{name}-0", service=name)
    wanted(account, f"{name}-8b")
    with pytest.raises(UsageError, match="the service llama-1 has ended; call: why"):
        ask(account, tool, name)
    assert ask(account, "down", name)["ended"] == [name] and account.inv.seen == []
    ask(account, "why", name)
    assert account.inv.seen == [("why", "llama-1-0")]


def test_own_runs_and_services_are_read_asked_and_ended_by_their_whole_names(account):
    run, service = account.new_run(0, 1), account.new_run(0, 1, 1_000_000)
    add(account, run, budget=LLAMA.budget)
    wanted(account, service)
    for tool, name in (("logs", run), ("down", run), ("serve_ask", service), ("down", service), ("why", service)):
        ask(account, tool, name)
    lines = [("logs", run), ("down", run), ("chat", service), ("serve.down", service), ("why", service)]
    assert account.inv.seen == lines
    seen = readings.status(account, AnyRun())
    assert [row["run"] for row in seen["runs"]] == [run] and [row["service"] for row in seen["services"]] == [service]


def test_names_that_are_in_use_or_the_beginning_of_a_name_are_skipped(account):
    for run in ("llama-1", "llama-20-sft", "llama-3-8b-sft"):
        add(account, run)
    wanted(account, "llama-4")
    assert [account.new_run(0, 1) for _ in range(3)] == ["llama-5", "llama-6", "llama-7"]
    wanted(account, "llama")  # a service of the owner, with the replicas llama-0, llama-1 ...
    with pytest.raises(UsageError, match="a service of the owner is called llama"):
        account.new_run(0, 1)


def test_run_with_the_name_of_a_group_ends_without_the_group(account, monkeypatch):
    run = account.new_run(0, 1)
    add(account, run, budget=LLAMA.budget)
    monkeypatch.setattr(taken, "groups", lambda journal, settings: {run})
    ended = list[str]()
    monkeypatch.setattr(
        "flows.pods.stop.end_pods", lambda ops, *_: iter([ended.append(op.token) or StopResult(op.run) for op in ops])
    )
    ending.end(account, run, print)
    assert ended == [f"t-{run}-allow-llama"] and account.inv.seen == []


@pytest.mark.parametrize(
    "name, known, others, said",
    [
        ("llama", ["llama-3-8b-sft"], [], "is called llama-3-8b-sft"),
        ("llama", ["llama"], [], "is called llama"),
        ("demo-1", [], ["demo"], "runs of the allowance demo are called demo-1"),
        ("demo", [], ["demo-1"], "runs of the allowance demo are called demo-1"),
        ("llama", ["llamas-1", "a-llama"], ["lla", "llama2", "l"], ""),
        ("demo-b", [], ["demo"], ""),
    ],
)
def test_name_of_a_new_allowance_is_not_in_use(name, known, others, said):
    if said:
        with pytest.raises(UsageError, match=said):
            taken.check_allowance(name, known, others)
    else:
        taken.check_allowance(name, known, others)
