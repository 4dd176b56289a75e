"""Records and receipts of allowances, and the files that a user of an agent can reach."""

import grp
import json
import math
import os
import stat
import sys
import tempfile
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from infra.errors import OutOfMoney, UsageError
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.spend import PodCost
from infra.settings import Settings
from packs.agents.commands import skill
from packs.agents.commands.allow import chosen_gpus, print_receipt
from packs.agents.control import ending, files, guarantee, money, place, starts
from packs.agents.control.account import Account
from packs.agents.control.admission import check_machine, is_inside
from packs.agents.control.files import StartedRuns
from packs.agents.control.receipt import Receipt
from packs.agents.control.reconciliation import Reconciliation, differences, money_differences, starts_in
from packs.agents.records.allowance import Allowance, digest, new_token
from tests.world import ROOT

ONE = Allowance(
    name="demo", token_sha256="a" * 64, micro_usd=5_000_000, begins=100.0, ttl_s=100.0, boot_id="b", boot_s=5.0
)
NOTHING = Reconciliation(machines=(), counted=0, ledger=0, billed=0, differences=(), unanswered=())


@pytest.fixture
def settings(tmp_path, monkeypatch) -> Settings:
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(tmp_path / "journal.sqlite"))
    with Journal.open(tmp_path / "journal.sqlite"):
        return Settings.load(ROOT)


def test_token_is_stored_as_a_digest_and_the_file_is_of_the_owner_only(settings):
    token, known = new_token()
    files.save(replace(ONE, token_sha256=known, gpus=("H100-SXM",)), settings)
    path = place.folder(settings) / "demo.json"
    assert token not in path.read_text() and path.stat().st_mode & 0o777 == 0o600
    assert digest(token) == files.load("demo", settings).token_sha256 and len(token) > 40
    assert files.load("demo", settings).gpus == ("H100-SXM",)


@pytest.mark.parametrize("name", ["../x", "A", "", "a/b", "x" * 40])
def test_name_that_could_be_a_path_is_refused(settings, name):
    with pytest.raises(UsageError, match="is not the name of an allowance"):
        files.load(name, settings)


def test_damaged_or_unknown_allowance_is_named_and_others_stay(settings):
    files.save(ONE, settings)
    texts = ["{", "[]", '{"name": "b0"}', '{"name": "b0", "evil": 1}', "x" * 100]
    texts += [json.dumps({**asdict(ONE), **odd}) for odd in ({"ttl_s": "x"}, {"user": 1}, {"begins": math.nan})]
    for number, text in enumerate(texts):
        (place.folder(settings) / f"b{number}.json").write_text(text)
        with pytest.raises(UsageError, match=f"b{number}.json.*inv down b{number}"):
            files.load(f"b{number}", settings)
    with pytest.raises(UsageError, match="no allowance is called gone; known: b0, .*, demo"):
        files.load("gone", settings)
    assert files.names(settings) == [*(f"b{number}" for number in range(len(texts))), "demo"]


def test_allowance_ends_and_has_an_inside():
    assert ONE.refusal(50.0) == "" and "has ended" in ONE.refusal(0.0)
    assert "was revoked" in replace(ONE, is_revoked=True).refusal(50.0)
    narrow = replace(ONE, providers=("lium",), may=("rent",))
    assert "may rent, and not serve" in narrow.refuse_kind("serve") and not narrow.refuse_kind("rent")
    assert "runpod is outside" in narrow.refuse_provider("runpod") and not narrow.refuse_provider("lium")


@pytest.mark.parametrize(
    "kinds, inside, outside",
    [
        (
            "H100,A100",
            ["H100", "h100-sxm", "H100-PCIe", "A100-80GB-SXM", "H100:8,A100", "NVIDIA H100 PCIe"],
            ["H200", "A10", "H100,L4"],
        ),
        ("H100-SXM", ["H100-SXM"], ["H100", "H100-PCIe"]),
        ("", ["H100", "CustomGPU"], []),
        ("RTXPRO6000", ["RTXPRO6000-MaxQ"], ["RTXPRO6000-MIG-1G.24GB"]),
    ],
)
def test_kind_of_gpu_covers_every_form_of_the_gpu(kinds, inside, outside):
    one = replace(ONE, gpus=chosen_gpus(kinds))
    for gpu in inside:
        check_machine(one, "", gpu)
        assert all(is_inside(one, {"provider": "lium", "gpu": kind.partition(":")[0]}) for kind in gpu.split(","))
    for gpu in outside:
        with pytest.raises(UsageError, match="is outside the allowance"):
            check_machine(one, "", gpu)
    assert is_inside(one, {"provider": "lium", "gpu": None}) is (not kinds)


def test_misspelt_kind_of_gpu_is_refused_with_the_near_kind():
    with pytest.raises(UsageError, match="no GPU is called H1000; did you mean H100"):
        chosen_gpus("A100,H1000")


def written(settings, count: int = 4) -> Receipt:
    """Return a receipt with `count` lines."""
    files.save(ONE, settings)
    receipt = Receipt("demo", settings)
    for number in range(count):
        receipt.add({"at": float(number), "tool": "plan", "outcome": "done"})
    assert [one["at"] for one in receipt.read().calls] == [*range(count)] and not receipt.read().problems
    return receipt


@pytest.mark.parametrize(
    "harm, said",
    [
        (lambda lines: [lines[0], lines[1].replace(b"plan", b"down"), *lines[2:]], ["line 2 was changed"]),
        (lambda lines: [lines[0], *lines[2:]], ["line 2 is lost"]),
        (lambda lines: lines[1:], ["line 1 is lost"]),
        (lambda lines: lines[:-1], ["line 4 is lost"]),
        (lambda lines: lines[:1], ["the lines 2 to 4 are lost"]),
        (lambda lines: [], ["the lines 1 to 4 are lost"]),
        (lambda lines: [*lines[:-1], lines[-1].replace(b"plan", b"down")], ["line 4 was changed"]),
        (lambda lines: [*lines[:-1], lines[-1][:30]], ["line 4 cannot be read", "line 4 was changed"]),
        *(
            (lambda lines, odd=odd: [lines[0], odd, *lines[2:]], ["line 2 cannot be read"])
            for odd in (
                b'{"number": 2}\n',
                b'{"number": 2, "tool": "plan"}\n',
                b'{"number": 2, "tool": "launch", "outcome": "done", "run": [1]}\n',
                b'{"number": 2, "tool": "launch", "outcome": "done", "call": {}}\n',
                b'{"number": 2, "tool": "launch", "outcome": "done", "run": "demo-1", "limit_usd": "much"}\n',
                b'{"number": 2, "tool": "plan", "outcome": "done", "at": "noon"}\n',
                b'{"number": 2, "tool": "plan", "outcome": "done", "at": NaN}\n',
                b"[" * 100_000 + b"\n",
            )
        ),
    ],
)
def test_damage_of_a_receipt_shows_also_after_the_next_call_and_the_rest_is_readable(settings, harm, said):
    receipt = written(settings)
    receipt.path.write_bytes(b"".join(harm(receipt.path.read_bytes().splitlines(keepends=True))))
    for _ in range(2):
        problems = receipt.read().problems
        assert len(problems) >= len(said) and all(any(one in each for each in problems) for one in said), problems
        before = len(receipt.read().calls)
        starts_in(receipt.read().calls)
        print_receipt(receipt.read().calls, NOTHING)
        receipt.add({"at": 9.0, "tool": "status", "outcome": "done"})
        assert receipt.read().calls[-1]["at"] == 9.0 and len(receipt.read().calls) == before + 1


@pytest.mark.parametrize("kept", [1, 30])
def test_line_of_a_receipt_that_a_kill_has_torn_is_named_and_the_chain_goes_on(settings, kept):
    receipt = written(settings, 2)
    mark = receipt.mark.read_bytes()
    receipt.add({"at": 2.0, "tool": "launch", "outcome": "begun"})
    whole = receipt.path.read_bytes()
    receipt.mark.write_bytes(mark)  # a kill between the line and the mark
    assert not receipt.read().problems and len(receipt.read().calls) == 3
    receipt.path.write_bytes(b"".join(whole.splitlines(keepends=True)[:2]) + whole.splitlines()[2][:kept])
    for calls in (2, 3, 4):
        (problem,) = receipt.read().problems
        assert "line 3 cannot be read: the broker was killed" in problem and len(receipt.read().calls) == calls
        receipt.add({"at": 3.0, "tool": "status", "outcome": "done"})


def test_call_of_a_receipt_that_a_kill_has_cut_short_keeps_the_run_and_no_outcome(settings):
    receipt = written(settings, 0)
    receipt.add({"at": 1.0, "call": "a", "tool": "launch", "run": "demo-1", "outcome": "begun"})
    receipt.add({"at": 2.0, "call": "b", "tool": "launch", "run": "demo-2", "outcome": "begun"})
    receipt.add({"at": 3.0, "call": "b", "tool": "launch", "outcome": "done"})
    found = [(one["run"], one["outcome"]) for one in receipt.read().calls]
    assert found == [("demo-1", "begun"), ("demo-2", "done")]


def test_money_for_the_end_of_a_machine_stays_reserved_until_the_machine_is_gone(settings):
    started = StartedRuns(runs=("demo-1",), held_back={"demo-1": 83_334})
    assert money.held_back(1_000_000, 1) == 83_334
    with Journal.open(settings.state_file) as journal:
        budgets.open_budget(journal, ONE.budget, ONE.micro_usd, None)
        starting = money.state(ONE, started, journal, 1.0)
        assert starting.free == starting.for_runs == ONE.micro_usd - 83_334
        row = {"budget_name": ONE.budget, "budget_run": "demo-1", "rate": 1_000_000, "cap": 900_000}
        op = journal.plan(token="t1", run="demo-1", vendor="lium", **row)
        assert money.state(ONE, started, journal, 1.0).free == ONE.micro_usd - 900_000 - 83_334
        journal.advance(op, "unsent")
        assert money.state(ONE, started, journal, 1.0).free == ONE.micro_usd


def test_budget_of_the_journal_has_no_money_of_services_and_ends_at_any_later_rent(settings):
    files.save(ONE, settings)
    account = Account("demo", settings)
    assert [account.new_run(0, 1, 2_500_000), account.new_run(83_334, 1)] == ["demo-1", "demo-2"]
    with Journal.open(settings.state_file) as journal:
        budgets.open_budget(journal, ONE.budget, ONE.micro_usd, None)
        account.fit_budget()
        assert budgets.state(journal, ONE.budget).budget.amount == 2_500_000 - 83_334
        row = {"budget_name": ONE.budget, "budget_run": "demo-2", "rate": 1_000_000, "cap": 2_500_000 - 83_334}
        op = journal.plan(token="t1", run="demo-2", vendor="lium", **row)  # the reply was lost, the machine may exist
        with pytest.raises(OutOfMoney), journal.writing():
            budgets.admit(journal, journal.ops(), replace(op, token="t2"))
        journal.advance(op, "unsent")
        files.save(replace(ONE, micro_usd=6_000_000), settings)
        account.fit_budget()  # after a top-up
        assert budgets.state(journal, ONE.budget).budget.amount == 3_500_000
        account.new_run(0, 1, 3_400_000)
        account.fit_budget()
        with pytest.raises(OutOfMoney):  # the owner resumes the ended run with the limit of its launch
            budgets.reserve(journal, ONE.budget, "demo-2", 2_400_000)
        account.forget_unstarted("demo-1")
        account.fit_budget()
        budgets.reserve(journal, ONE.budget, "demo-2", 2_400_000)


@pytest.mark.parametrize(
    "planned, live, counted",
    [
        ({"demo-1": 2, "demo-2": 1}, [], 3),  # starts under way, without a row yet
        ({"demo-1": 2, "demo-2": 1}, ["demo-1"], 3),
        ({"demo-1": 1, "demo-2": 1}, ["demo-1", "demo-1"], 3),  # one of the two may exist at a vendor
        ({}, ["demo-1", "demo-2"], 2),  # a file without numbers
        ({"demo-1": 1, "demo-2": 3}, ["demo-2"], 4),
    ],
)
def test_machine_counts_from_the_start_to_the_end_of_its_run_or_service(settings, planned, live, counted):
    started = StartedRuns(runs=("demo-1", "demo-2"), services={"demo-2": 1_000_000}, machines=planned)
    with Journal.open(settings.state_file) as journal:
        budgets.open_budget(journal, ONE.budget, ONE.micro_usd, None)
        row = {"budget_name": ONE.budget, "budget_run": "demo-1"}
        service = {"owner_kind": "service", "owner": "demo-2"}
        ops = [
            journal.plan(
                token=f"t{number}",
                run=f"{name}-{number}" if name == "demo-2" else name,
                detached=number < len(live) - 1,  # a new machine needs the name
                vendor="lium",
                rate=1_000,
                cap=900,
                **(service if name == "demo-2" else row),
            )
            for number, name in enumerate(live)
        ]
        seen = money.state(ONE, started, journal, 1.0)
        assert (seen.machines, len(seen.rows)) == (counted, len(live))
        for op in ops:
            journal.advance(op, "unsent")
        left = sum(count for name, count in planned.items() if name not in live)
        assert money.state(ONE, started, journal, 1.0).machines == left


def test_money_of_a_service_whose_start_was_killed_returns_after_the_end_of_the_start(settings):
    files.save(ONE, settings)
    account = Account("demo", settings)
    for name in ("demo-1", "demo-2"):
        assert account.new_run(0, 1, 2_000_000) == name
    with Journal.open(settings.state_file) as journal:
        budgets.open_budget(journal, ONE.budget, ONE.micro_usd, None)
        journal.plan(
            token="t2",
            run="demo-2-0",
            vendor="lium",
            owner_kind="service",
            owner="demo-2",
            rate=1_000_000,
            cap=2_000_000,
        )
    assert account.state().free == ONE.micro_usd - 4_000_000
    with ending.locked(account):  # as the process of `inv` holds the lock after the kill
        waiting = threading.Thread(target=starts.forget_interrupted, args=(account,))
        waiting.start()
        waiting.join(0.2)
        assert waiting.is_alive() and len(account.started.services) == 2
    waiting.join()
    assert account.state().free == ONE.micro_usd - 2_000_000 and [*account.started.services] == ["demo-2"]


def test_open_folder_of_an_ended_allowance_is_removed_and_of_other_worlds_stays(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    practice = replace(settings, state_file=tmp_path / "rehearsal" / "journal.sqlite")
    found, other = place.open_folder("demo", settings), place.open_folder("demo", practice)
    (found / "socket").touch()
    for _ in range(2):
        place.remove_open_folder("demo", settings)
        assert not found.exists() and other.exists()


def test_differences_between_calls_and_ledger_are_named():
    def row(run: str, rate: int = 280_000) -> Op:
        return Op(token=f"t-{run}", run=run, vendor="lium", rate=rate, budget_name="allow-demo")

    calls = [
        {"tool": "launch", "run": name, "outcome": outcome, "usd_per_hour": "0.28"}
        for name, outcome in (("demo-1", "done"), ("demo-2", "done"), ("demo-3", "begun"), ("demo-4", "refused"))
    ]
    rows = [row("demo-1"), row("demo-3", 300_000), row("demo-9"), row("demo-5")]
    found = differences(calls, rows, {"t-demo-1", "t-demo-3", "t-demo-9"})
    assert [one.partition(":")[0] for one in found] == ["demo-3", "demo-9", "demo-2", "demo-3"]
    for words in (
        "planned at most at 0.28",
        "no call started",
        "has no machine",
        "killed during the call; machines in the ledger: 1",
    ):
        assert any(words in one for one in found), words
    assert not differences(calls[:1], rows[:1], {"t-demo-1"})


@pytest.mark.parametrize(
    "call, is_starting, is_named",
    [
        ({"tool": "launch", "outcome": "done"}, False, True),
        ({"tool": "launch", "outcome": "done", "rented": False}, False, False),  # every artifact exists
        ({"tool": "serve_up", "outcome": "done"}, False, False),  # waits for a machine, or has ended without one
        ({"tool": "launch", "outcome": "begun"}, False, True),
        ({"tool": "launch", "outcome": "begun"}, True, False),
    ],
)
def test_start_without_a_machine_is_a_difference_only_if_a_machine_was_due(call, is_starting, is_named):
    assert bool(differences([{"run": "demo-1", **call}], [], set(), is_starting)) is is_named


@pytest.mark.parametrize(
    "quoted, billed, limit, said",
    [
        (200_000, 210_000, "1.00", []),
        (200_000, None, "1.00", []),
        (200_000, 300_001, "1.00", ["lium bills 0.31"]),  # 5 minutes cost 0.10
        (200_000, 250_000, "0.24", ["the limit of the call is 0.24"]),
        (900_000, 950_000, "0.50", ["the limit of the call is 0.50"]),
    ],
)
def test_bill_above_price_and_time_and_cost_above_the_limit_are_named(quoted, billed, limit, said):
    facts = {"token": "t", "run": "demo-1", "provider": "lium", "pod_id": "p", "micro_usd_per_hour": 1_200_000}
    times = {"began_at": 0, "ended_at": 9, "elapsed_s": 9.0, "billed_at": 9}
    line = PodCost(**facts, **times, quoted_micro_usd=quoted, billed_micro_usd=billed)
    call = {"tool": "launch", "run": "demo-1", "outcome": "done", "limit_usd": limit}
    found = money_differences([call], {"t": "demo-1"}, [line])
    assert len(found) == len(said) and all(words in one for words, one in zip(said, found, strict=True)), found


def test_bill_of_a_service_counts_if_the_bill_is_higher_than_price_and_time(settings):
    started = StartedRuns(runs=("demo-1",), services={"demo-1": 100})
    with Journal.open(settings.state_file) as journal:
        budgets.open_budget(journal, ONE.budget, ONE.micro_usd, None)
        journal.plan(token="t", run="demo-1-0", vendor="lium", owner_kind="service", owner="demo-1", rate=1, cap=9)
        journal.record_cost("t", "vendor", 700_000)
        seen = money.state(ONE, started, journal, 1.0)
    assert seen.spent == 700_000 and seen.free == ONE.micro_usd - 700_000


@pytest.fixture
def open_home(monkeypatch):
    """Return a home that other users may enter, as pytest's folders are closed."""
    with tempfile.TemporaryDirectory() as made:
        Path(made).chmod(0o755)
        home = Path(made) / "home"
        home.mkdir()
        monkeypatch.setenv("HOME", str(home))
        yield home


@pytest.fixture
def few_files(settings, open_home, monkeypatch):
    """Return settings with a small checkout and small environments: the real folders hold 200,000 files."""
    monkeypatch.setattr(guarantee, "ROOT", open_home.parent / "checkout")
    monkeypatch.setattr(sys, "prefix", sys.base_prefix)
    (open_home.parent / "checkout").mkdir()
    return replace(settings, environments=open_home.parent / "made")


def test_guarantee_lists_the_files_that_the_user_of_the_agent_can_read(few_files, open_home):
    assert "a shell of the agent can read your keys" in guarantee.of(ONE, few_files).about
    key = open_home / ".netrc"
    key.write_text("machine x password y")
    nobody = 65534
    for mode, is_open in ((0o644, True), (0o640, False), (0o600, False)):
        key.chmod(mode)
        assert guarantee.may(key, nobody, {nobody}, 0o004) == is_open
        assert any(str(key) in one for one in guarantee.reachable(nobody, {nobody}, few_files)) == is_open
    key.chmod(0o644)
    key.parent.chmod(0o700)
    assert not guarantee.may(key, nobody, {nobody}, 0o004) and guarantee.may(key, os.getuid(), set(), 0o004)


def test_key_in_a_closed_folder_and_every_file_of_code_are_searched(settings, open_home, monkeypatch):
    nobody, checkout = 65534, open_home.parent / "checkout"
    paths = [open_home / ".ssh" / "id_ed25519", open_home / "google.json", checkout / "credentials" / ".env"]
    paths += [checkout / "serve" / "a" / "b.py", checkout / "new.py", checkout / "var" / "x", checkout / ".git" / "x"]
    paths += [
        checkout / ".venv" / "lib" / "x.pth",
        checkout / ".ci" / "hook",
        open_home.parent / "made" / "dev" / "y.py",
    ]
    paths += [open_home / "application.json", open_home / "aws", open_home / "cloud" / "db", checkout / ".cache" / "x"]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
        path.chmod(0o666)
    (open_home / ".ssh").chmod(0o711)
    monkeypatch.setattr(guarantee, "ROOT", checkout)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(paths[10]))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(paths[11]))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(paths[12].parent))
    paths[12].parent.chmod(0o711)
    seen = replace(settings, google_credentials=str(paths[1]), environments=paths[9].parent.parent)
    found = [one.split(" can be ")[0] for one in guarantee.reachable(nobody, {nobody}, seen)]
    read = [paths[number] for number in (2, 0, 1, 10, 12, 11)]
    assert found == [*map(str, (*read, *(paths[number] for number in (8, 7, 2, 4, 3, 9))))]
    for path in paths:
        path.chmod(0o600)
    assert not [*guarantee.reachable(nobody, {nobody}, seen)]


@pytest.mark.parametrize("mode, is_named", [(0o700, False), (0o711, True)])
def test_file_that_the_owner_cannot_examine_is_named_if_the_user_may_enter_its_folder(
    few_files, open_home, monkeypatch, mode, is_named
):
    nobody, closed = 65534, open_home / ".aws" / "credentials"
    closed.parent.mkdir()
    closed.parent.chmod(mode)
    real = os.stat

    def of_root(path, *words, **options):
        if Path(path).parent == closed.parent:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *words, **options)

    monkeypatch.setattr(os, "stat", of_root)
    found = [*guarantee.reachable(nobody, {nobody}, few_files)]
    assert any(str(closed) in one for one in found) is is_named


def test_file_that_vanishes_during_the_search_is_no_error(settings, open_home):
    assert not guarantee.may(open_home / "gone", 65534, set(), stat.S_IROTH)
    assert not guarantee.may(open_home / "gone" / "x", 65534, set(), stat.S_IROTH)


def test_member_of_a_group_with_the_rights_of_root_is_named():
    assert [*guarantee.root_like(set())] == []
    known = {one.gr_name: one.gr_gid for one in grp.getgrall()}
    for name in {*guarantee.ROOT_LIKE} & known.keys():
        assert any(f"the group {name}," in one for one in guarantee.root_like({known[name]}))


def test_skill_is_generated_and_short():
    assert skill.FILE.read_text("utf-8") == skill.text(), "run: ./inv skill > skills/slipway/SKILL.md"
    assert len(skill.text().splitlines()) <= skill.MOST_LINES and skill.text().startswith("---\nname: slipway\n")
