"""Lines of `inv` for the tools, and starts that outlast the patience of a client."""

import contextlib
import fcntl
import os
import shlex
import socket
import sys
import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace

import pytest

from infra.agent.limits import boottime_s
from infra.agent.process import identify
from infra.errors import UsageError
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.settings import Settings
from packs.agents.control import calls, files, inv_lines
from packs.agents.control.account import Account
from packs.agents.control.broker import Broker
from packs.agents.control.inv_lines import CommandFailed, InvLines
from packs.agents.control.plans import TRAIN, StartPlan, training_flags
from packs.agents.records import client
from packs.agents.records.allowance import digest
from packs.agents.records.arguments import PlanArguments
from tests.infra.agent.world import until
from tests.packs.agents.holder import new_allowance
from tests.world import ROOT
from trainer.plan import profile_named

OTHER = "theirs (lium, 2.50 USD/h, since noon); they may still bill: theirs. Run: inv down theirs"
EXISTS = "every artifact exists; no machine was rented"
ALARM = f'{{"error": "ALARM: the deletion of these pods is not proven: {OTHER}", "exit_code": 5}}'
LATE = f"theirs: past a limit\ninv logs: ALARM: the deletion of these pods: {OTHER}"


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Return a function that replaces `inv` by a program with this output."""

    def replace(stdout: str, stderr: str, code: int) -> None:
        path = tmp_path / "python"
        path.write_text(
            f"#!/bin/sh\nprintf %s {shlex.quote(stdout)}\nprintf %s {shlex.quote(stderr)} >&2\nexit {code}\n"
        )
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))

    return replace


@pytest.mark.process
@pytest.mark.parametrize(
    "stdout, code, found, said",
    [
        ('{\n "run": "demo-1"\n}\n', 0, {"run": "demo-1"}, ""),
        (f'{{"run": "demo-1"}}\n{ALARM}\n', 5, {"run": "demo-1"}, ""),  # the start has worked
        ('[{"run": "demo-1"}]\n', 5, [{"run": "demo-1"}], ""),
        ('{"error": "no offer", "exit_code": 3}\n', 3, None, "no offer"),
        ('{"run": "demo-1"}\n', 1, None, "inv launch failed with exit code 1"),
        ("", 5, None, "inv launch failed with exit code 5"),
        ("", 137, None, "inv launch failed with exit code 137"),
    ],
)
def test_first_document_of_a_command_is_the_answer_and_other_runs_are_not_shown(program, stdout, code, found, said):
    program(stdout, "theirs: past a limit, may still bill\ninv launch: theirs", code)
    if not said:
        assert InvLines().json("launch", {}) == found
        return
    with pytest.raises(CommandFailed, match=said) as raised:
        InvLines().json("launch", {})
    assert "theirs" not in str(raised.value)


@pytest.mark.process
@pytest.mark.parametrize(
    "stderr, code, said",
    [
        ("", 0, ""),
        (LATE, 5, ""),
        ("theirs: past a limit\ninv logs: demo-1 has no log yet", 2, "demo-1 has no log yet"),
        ("theirs: past a limit", 2, "inv logs failed with exit code 2"),
    ],
)
def test_text_of_a_command_is_the_answer_and_an_error_has_no_lines_about_other_runs(program, stderr, code, said):
    program("line 1\n", stderr, code)
    if not said:
        assert InvLines().text("logs", {}) == "line 1\n"
        return
    with pytest.raises(CommandFailed, match=said) as raised:
        InvLines().text("logs", {})
    assert "theirs" not in str(raised.value)


def broker_with_a_plan(tmp_path, monkeypatch):
    """Return the calls of an allowance with a plan, and the id of the plan."""
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "journal.sqlite"))
    one = new_allowance()
    with Journal.open(tmp_path / "journal.sqlite") as journal:
        budgets.open_budget(journal, one.budget, one.micro_usd, None)
    settings = Settings.load(ROOT)
    files.save(one, settings)
    broker = calls.Calls("demo", settings)
    plan = StartPlan(
        plan_id="plan-aaaaaaaaaaaa",
        at=boottime_s(),
        kind=TRAIN,
        flags={"ttl": "100s"},
        machines=1,
        micro_usd=1_000_000,
        held_back=0,
        machine="1 x L4 at lium",
        max_price="0.30",
    )
    broker.plans.by_id[plan.plan_id] = plan
    return broker, plan.plan_id


def test_slow_start_is_answered_with_the_name_of_the_run_and_goes_on(tmp_path, monkeypatch):
    begun, may_end, lines = threading.Event(), threading.Event(), list[str]()

    class Impatient(Future):
        def result(self, timeout=None):
            assert begun.wait(60)
            raise FutureTimeout

    def boot(self, command, flags, words=(), held=(), most_s=0.0):
        lines.append(flags["run-name"])
        assert most_s == 3700.0
        begun.set()
        assert may_end.wait(60)
        return {}

    monkeypatch.setattr(calls, "Future", Impatient)
    monkeypatch.setattr(InvLines, "json", boot)
    broker, plan_id = broker_with_a_plan(tmp_path, monkeypatch)
    first, second = (broker.answer("launch", {"plan_id": plan_id})["result"] for _ in range(2))
    assert first == {"run": "demo-1", "state": "starting", "next": "status"}
    assert second == {"state": "waits for another start", "next": "status"}
    may_end.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and thread.name.startswith("start "):
            thread.join(60)
    ends = {one["outcome"]: one.get("run") for one in broker.receipt.read().calls}
    assert ends == {"done": "demo-1", "refused": None} and lines == ["demo-1"]


@pytest.mark.process
def test_call_without_an_answer_is_no_failed_call(tmp_path, monkeypatch):
    monkeypatch.setattr(client, "ANSWER_S", 0.05)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        made.listen()
        client.place_file(tmp_path, "demo").write_text(f"{tmp_path}/socket\n")
        said = client.call(tmp_path, "demo", "t", "launch", {})
    assert said == {"refused": "no answer yet; the call may have had effect: call status"}


def at_work(account: Account, run: str, budget: str, target: str) -> Op:
    """Write the row of a run at work on a target."""
    with Journal.open(account.settings.state_file) as journal:
        row = {"budget_name": budget, "budget_run": run, "rate": 100, "cap": 200} if budget else {}
        return journal.plan(
            token=f"t-{run}", run=run, vendor="lium", target=target, store=account.settings.store, **row
        )


DRY_RUN = {"artifacts": [], "steps": ["sft"], "notes": [], "offers": [], "run": "theirs", "target": "a-target"}


@pytest.mark.parametrize(
    ("run", "target", "message"),
    [
        ("demo-1", "a-target", "the same work is running"),
        ("theirs", "a-target", "a run of the owner does this work; no machine was rented"),
        ("demo-1", "other", ""),
        ("theirs", "", ""),
    ],
)
def test_work_that_a_run_does_already_starts_no_second_run_and_names_no_run_of_the_owner(
    tmp_path, monkeypatch, run, target, message
):
    broker, plan_id = broker_with_a_plan(tmp_path, monkeypatch)
    plan = broker.plans.by_id[plan_id]
    broker.plans.by_id[plan_id] = replace(plan, target=target and "a-target")
    files.save(replace(broker.account.allowance, machines=3), broker.account.settings)
    is_own = run == "demo-1" and broker.account.new_run(0, 1) == run
    op = at_work(broker.account, run, "allow-demo" if is_own else "", target)
    lines = list[str]()

    def answer(self, command, flags, words=(), held=(), most_s=0.0):
        lines.append(command)
        return {**DRY_RUN, "target": target and "a-target"}

    monkeypatch.setattr(InvLines, "json", answer)
    planned = broker.answer("plan", {"spend_usd": 1, "gpu": "L4"})["result"]
    found = broker.answer("launch", {"plan_id": plan_id})["result"]
    assert lines == ["launch"] * (1 if message else 2) and "theirs" not in str((planned, found))
    for said in (planned, found):
        assert said.get("same_as") == (run if message and is_own else None)
        assert said.get("message") == (message or (said is found and EXISTS) or None) and "plan_id" not in said
    with Journal.open(broker.account.settings.state_file) as journal:
        journal.advance(op, "unsent")
    assert "same_as" not in broker.answer("plan", {"spend_usd": 1, "gpu": "L4"})["result"]


def test_run_that_is_ending_or_abandoned_without_a_pod_is_not_at_work(tmp_path, monkeypatch):
    broker, _ = broker_with_a_plan(tmp_path, monkeypatch)
    account = broker.account
    files.save(replace(account.allowance, machines=3), account.settings)
    op = at_work(account, account.new_run(0, 1), "allow-demo", "a-target")

    def planned():
        offer = {"provider": "lium", "gpu": "L4", "num_gpus": 1, "usd_per_hour": "0.30"}
        document = {**DRY_RUN, "offers": [offer], "cost_usd": (), "cost_s": (), "ends": []}
        monkeypatch.setattr(InvLines, "json", lambda *_, **__: document)
        found = broker.answer("plan", {"spend_usd": 1, "gpu": "L4"})["result"]
        return found.get("same_as") or found.get("message") or found["plan_id"][:5]

    with Journal.open(account.settings.state_file) as journal:
        for event in ("sending", "created", "armed"):
            op = journal.advance(op, event)
        assert planned() == "demo-1"
        held = journal.leases.acquire(keeper_lease("demo-1"))
        moving = journal.advance(op, "end", reason="lost")
        assert planned() == "demo-1"
        moving = journal.advance(moving, "gone")
        assert planned() == "demo-1"
        journal.leases._update_row(held, "another boot", 1, "0")  # the keeper is dead
        assert planned() == "demo-1"
        monkeypatch.setattr(budgets, "RECENT_S", -1.0)
        assert planned() == "plan-"
        other = at_work(account, account.new_run(0, 1), "allow-demo", "a-target")
        for event in ("sending", "created", "armed"):
            other = journal.advance(other, event)
        journal.advance(other, "end", reason="asked for", outcome="asked")
    assert planned() == "the run demo-2 of the same work is ending; call plan after the end"


@pytest.mark.parametrize(
    ("said", "refused"),
    [
        ({"kind": "serve", "model": "hf://a/b", "replicas": 2}, "the plan needs 2 machines, and the allowance has 1"),
        ({"hours": 0.0001}, "hours is 0.0001, which is too short for a machine; the least is 0.034"),
    ],
)
def test_plan_that_never_starts_is_refused(tmp_path, monkeypatch, said, refused):
    broker, _ = broker_with_a_plan(tmp_path, monkeypatch)
    offer = {"provider": "lium", "gpu": "L4", "num_gpus": 1, "usd_per_hour": "0.30"}
    document = {"model_name": "b", "engine": "vllm", "placement": [offer]}
    monkeypatch.setattr(InvLines, "json", lambda *_, **__: document)
    assert broker.answer("plan", {"spend_usd": 1, **said})["refused"] == refused


def test_least_hours_of_a_refusal_are_accepted(tmp_path, monkeypatch):
    broker, _ = broker_with_a_plan(tmp_path, monkeypatch)
    one, settings = broker.account.allowance, broker.account.settings
    with pytest.raises(UsageError, match="the least is ") as refused:
        training_flags(one, PlanArguments(spend_usd=1, hours=0.033), 1e4, settings)
    least = float(str(refused.value).rpartition(" ")[2])
    assert training_flags(one, PlanArguments(spend_usd=1, hours=least), 1e4, settings)["ttl"] == "122s"


def test_start_in_the_last_seconds_of_an_allowance_is_refused_in_words(tmp_path, monkeypatch):
    broker, plan_id = broker_with_a_plan(tmp_path, monkeypatch)
    files.save(replace(broker.account.allowance, ttl_s=60.0), broker.account.settings)
    assert "too short for a machine" in broker.answer("launch", {"plan_id": plan_id})["refused"]
    assert plan_id in broker.plans.by_id


def test_text_of_a_plan_is_never_the_source_of_the_owner(tmp_path, monkeypatch):
    private = tmp_path / "private.jsonl"
    private.write_text('{"text": "canary"}\n')
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("profile: speedrun\n")
    monkeypatch.setenv("SLIPWAY_SOURCE", str(private))
    broker, _ = broker_with_a_plan(tmp_path, monkeypatch)
    one, settings = broker.account.allowance, broker.account.settings
    assert settings.source == str(private)

    def source(settings, **said):
        return training_flags(one, PlanArguments(spend_usd=1, **said), 60.0, settings)["source"]

    speedrun = profile_named("speedrun", ()).source
    assert speedrun.startswith("hf://") and source(settings, profile="speedrun") == speedrun
    assert source(settings) == source(settings, profile="tiny") == source(settings, profile="gone") == "pydocs"
    assert source(settings, source="fineweb", profile="speedrun") == "fineweb"
    assert source(replace(settings, profile=str(recipe))) == speedrun


def test_error_of_a_command_is_cut_for_the_agent_and_whole_for_the_owner(tmp_path, monkeypatch, capfd):
    broker, _ = broker_with_a_plan(tmp_path, monkeypatch)
    error = f"artifacts would go to {tmp_path}/artifacts; choose a remote store: --store hf://user/repo"

    def fail(*_, **__):
        raise inv_lines.failure("launch", error)

    monkeypatch.setattr(InvLines, "json", fail)
    said = broker.answer("plan", {"spend_usd": 1})
    assert said == {"refused": "artifacts would go to (a path of the owner)"}
    (call,) = broker.receipt.read().calls
    assert call["for_the_owner"] == "choose a remote store: --store hf://user/repo" and error in capfd.readouterr().err


def test_error_of_a_command_has_no_address_of_the_store_and_is_never_empty(tmp_path, monkeypatch):
    monkeypatch.setenv("SLIPWAY_STORE", "hf://owner/private")
    broker, _ = broker_with_a_plan(tmp_path, monkeypatch)
    error = "the model m is not in hf://owner/private; hf://owner/private holds no model"

    def fail(*_, **__):
        raise inv_lines.failure("launch", error)

    monkeypatch.setattr(InvLines, "json", fail)
    said = broker.answer("plan", {"spend_usd": 1})
    assert said == {"refused": "the model m is not in the store; the store holds no model"}
    error = "--wait: no such flag"
    assert "inv launch failed; the owner sees" in broker.answer("plan", {"spend_usd": 1})["refused"]


@pytest.mark.process
def test_end_is_answered_while_other_calls_hang_and_after_a_while_goes_on(tmp_path, monkeypatch):
    class Impatient(Future):
        def result(self, timeout=None):
            raise FutureTimeout

    calls_of, _ = broker_with_a_plan(tmp_path, monkeypatch)
    files.save(replace(calls_of.account.allowance, token_sha256=digest("t")), calls_of.account.settings)
    with Broker(tmp_path / "socket", calls_of) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client.place_file(tmp_path, "demo").write_text(f"{tmp_path}/socket\n")
        while server.slots.acquire(blocking=False):
            pass
        assert "calls are at work" in client.call(tmp_path, "demo", "t", "status", {})["refused"]
        assert "is no run" in client.call(tmp_path, "demo", "t", "down", {"run": "demo-7"})["refused"]
        monkeypatch.setattr(calls, "Future", Impatient)
        said = client.call(tmp_path, "demo", "t", "down", {"run": "demo-7"})
        assert said == {"result": {"state": "ending", "next": "status"}}
        server.shutdown()


@pytest.mark.process
@pytest.mark.parametrize("trap", ["exit 9", ""])
def test_command_that_hangs_ends_with_its_children_and_releases_the_lock(tmp_path, monkeypatch, trap):
    monkeypatch.setattr(inv_lines, "GRACE_S", 0.5)
    path = tmp_path / "python"
    path.write_text(
        f"#!/bin/sh\ntrap '{trap}' TERM\nsleep 600 &\necho $! > {tmp_path}/child\nwhile :; do sleep 0.1; done\n"
    )
    path.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(path))
    lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(CommandFailed, match="inv launch has not ended after 3 s, and was ended; see: status"):
        InvLines().json("launch", {}, held=[lock], most_s=3.0)
    child = int((tmp_path / "child").read_text())
    until(lambda: identify(child) is None, "the end of the child")
    os.close(lock)
    other = os.open(tmp_path / "lock", os.O_RDWR)

    def is_free():
        with contextlib.suppress(BlockingIOError):  # a killed process holds files until the kernel has ended it
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True

    until(is_free, "the lock")
    os.close(other)
