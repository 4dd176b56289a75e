"""`--rehearse`, `audit`, `reap`, `cost`, `rehearse`: whole commands in a separate world with real servers."""

import contextlib
import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from infra.agent.job import Job, Limits
from infra.agent.limits import Clocks, read_clocks
from infra.ledger import reap, reconcile
from infra.names import new_token
from infra.providers.by_name import open_market
from infra.records import Request
from infra.rehearsal import attach
from infra.runs import pods
from infra.units import in_usd
from store import packs
from tests.hosts import until
from tests.infra.market.rehearsed import KINDS, ORDERS, Rehearsal
from tests.programs import source
from tests.world import World

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
LIMITS = Limits(time_s=86_400.0)
RENT_AND_DIE = source("rent_and_die")


def test_offers_starts_a_world_and_lists_offers_in_order(tmp_path):
    rehearsal = Rehearsal(tmp_path)
    code, err = rehearsal.fails("status")
    assert code == 2 and "no rehearsal runs; start a rehearsal with: inv rehearse" in err
    try:
        out = rehearsal.inv("offers", "--gpu", "B200", "--num-gpus", "8")
        rows = [line.split()[1:9] for line in out.splitlines()[2:]]
        assert out.startswith("=== Available B200 Instances (sorted by price) ===\n#  Provider")
        assert rows[:3] == [
            ["shadeform/hyperstack", "canada-1", "8x", "B200", "192GB", "$33.60", "$4.20", "No"],
            ["shadeform/datacrunch", "FIN-01", "8x", "B200", "192GB", "$35.84", "$4.48", "No"],
            ["shadeform/tensordock", "us-east", "8x", "B200", "192GB", "$38.40", "$4.80", "No"],
        ]
        assert {row[4] for row in rows if row[0].startswith("lium")} == {"180GB"}
        whole, slices = (rehearsal.inv("offers", "--gpu", f"RTXPRO6000{kind}") for kind in ("", "-MIG"))
        assert "runpod/SECURE" in whole and "MIG" not in whole and "1x RTXPRO6000-MIG-1G.24GB" in slices
        stopped = json.loads(rehearsal.user.inv("rehearse", "--stop", "--json"))
        assert stopped["running"] == 0
    finally:
        with contextlib.suppress(attach.NoWorld):
            attach.stop(rehearsal.base)
    code, err = rehearsal.fails("audit")
    assert code == 2 and "the last rehearsal ended at" in err


def test_orphans_are_named_and_ended_and_foreign_machines_run_on(rehearsal):
    with rehearsal.journal() as journal:
        installation = journal.installation
    orphans = {rehearsal.order(vendor, new_token(installation)) for vendor in ORDERS}
    foreign = {rehearsal.order("runpod", "somebody-elses"), rehearsal.order("shadeform", new_token("zzzzzzzz"))}
    seen = rehearsal.json("audit", code=5)
    assert {one["id"]: one["whose"] for one in seen["machines"]} == {
        **dict.fromkeys(orphans, "orphaned"),
        **dict.fromkeys(foreign, "foreign"),
    }
    assert all(float(one["usd_per_hour"]) > 0 and one["age_s"] >= 0 for one in seen["machines"])
    code, err = rehearsal.fails("audit")
    assert code == 5 and "3 machines of ours at 2.07 USD/h" in err and all(one in err for one in orphans)
    killed = rehearsal.json("audit", "--kill")
    assert {one["id"] for one in killed["machines"]} == foreign
    assert rehearsal.running() == foreign
    assert {rehearsal.truth()[one]["ended_by"] for one in orphans} == {"client"}


def test_a_machine_of_a_second_installation_is_shown_and_ended_only_by_name(rehearsal):
    with rehearsal.journal() as journal:
        ours = rehearsal.order("runpod", new_token(journal.installation))
    config = Path(rehearsal.user.environ["XDG_CONFIG_HOME"]) / "slipway" / "installation_id@0123456789ab"
    config.write_text("zzzzzzzz\n0123456789abcdef\nlaptop\n/home/me/journal.sqlite\n")
    tokens = [new_token("zzzzzzzz") for _ in range(2)]
    theirs = [rehearsal.order("shadeform", token) for token in tokens]
    strange = rehearsal.order("runpod", "somebody-elses")
    seen = {one["id"]: one for one in rehearsal.json("audit", code=5)["machines"]}
    assert "owned by /home/me/journal.sqlite on laptop" in seen[theirs[0]]["note"] and seen[strange]["note"] is None
    assert rehearsal.json("reap")["due"] == [] and rehearsal.running() == {*theirs, strange}
    rehearsal.inv("audit", "--kill")
    assert rehearsal.running() == {*theirs, strange} and rehearsal.truth()[ours]["ended_by"] == "client"
    for name, why in (
        (strange, "does not carry Slipway's mark"),
        ("nowhere", "matches no machine"),
        (theirs[0][:5], "no machine"),
    ):
        code, err = rehearsal.fails("audit", "--kill", name)
        assert code == 2 and why in err and len(rehearsal.running()) == 3, err
    killed = rehearsal.json("audit", "--kill", theirs[0])
    assert [one["what"] for one in killed["done"]] == [f"{theirs[0]} is gone"]
    assert rehearsal.running() == {theirs[1], strange}
    rehearsal.inv("audit", f"--kill={tokens[1]}")
    assert rehearsal.running() == {strange}
    config.unlink()


def test_an_unreachable_account_is_not_clean(rehearsal):
    rehearsal.world.send_command(
        "/faults", {"requests": [{"vendor": "lium", "kind": "error", "status": 403, "count": None}]}
    )
    code, err = rehearsal.fails("audit")
    assert code == 5 and "not every account answered" in err and "lium" in err
    assert rehearsal.json("reap", code=5)["problems"]


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("when", ["before its answer", "after its answer"])
def test_reap_ends_the_machine_of_a_dead_launcher(rehearsal, when):
    run = f"cut-off-{when.split()[0]}"
    environ = {**rehearsal.user.environ, "SLIPWAY_REHEARSAL": str(rehearsal.world.folder)}
    died = subprocess.run([sys.executable, "-c", RENT_AND_DIE, run, when], cwd=ROOT, env=environ, timeout=60)
    assert died.returncode == 9 and len(rehearsal.running()) == 1
    assert [one["whose"] for one in rehearsal.json("audit")["machines"]] == ["claimed"]  # a row owns the machine
    reaped = rehearsal.json("reap")
    said = [one["what"] for one in reaped["done"] if one["run"] == run]
    assert ("adopted" in said) == (when == "before its answer") and "it is to end: its launch was cut off" in said
    assert not rehearsal.running() and reaped["due"] == []
    assert rehearsal.json("reap")["done"] == []
    with rehearsal.journal() as journal:
        assert [op.state for op in journal.ops(run=run)] == ["TERMINATED"]


def later(now: float) -> Clocks:
    """Advance all clocks by the difference between `now` and the wall clock."""
    clocks = read_clocks()
    return replace(clocks, boot_s=clocks.boot_s + now - clocks.wall_s, wall_s=now)


def test_a_machine_that_does_not_end_is_named_with_its_price(rehearsal):
    market, now = open_market("runpod", rehearsal.settings), [time.time()]
    with rehearsal.journal() as journal:
        pod_id = rehearsal.order("runpod", new_token(journal.installation))
        rehearsal.world.send_command("/faults", {"requests": [{"call": "delete", "kind": "error", "count": None}]})

        def sleep(seconds):
            now[0] += seconds + reap.PATIENCE_S

        left = reap.reap(market, journal, clock=lambda: later(now[0]), sleep=sleep)
        assert [(one.pod_id, one.kind, one.wastes_money) for one in left.findings] == [(pod_id, "ending", True)]
        assert any("the machine may still cost 0.793 USD/h" in problem for problem in left.problems)
    code, err = rehearsal.fails("audit")
    assert code == 5 and f"runpod {pod_id} (ending)" in err and "at 0.79 USD/h" in err
    with rehearsal.journal() as journal:
        (row,) = journal.ops(live=True)
        journal.note(row, del_requested_at=int(time.time()) - 16)  # sixteen minutes of the vendor's clock
    for words in (("status",), ("cost", "--offline")):
        code, err = rehearsal.fails(*words)
        assert (
            code == 5
            and "ALARM: the deletion of these pods was requested more than 15 minutes ago" in err
            and "0.793 USD/h" in err
        ), words
        assert f"inv down --rehearse {row.run}" in err
    rehearsal.world.send_command("/faults", {})
    assert rehearsal.json("reap")["due"] == [] and not rehearsal.running()


def test_an_unanswered_request_is_not_clean_before_the_settle_time(rehearsal):
    """The requested machine may still appear for ten minutes of the vendor's clock."""
    with rehearsal.journal() as journal:
        op = journal.plan(token=new_token(journal.installation), run="lost", vendor="lium", rate=280_000)
        op = journal.advance(journal.advance(op, "sending"), "unclear")
    code, err = rehearsal.fails("audit")
    assert code == 5 and "at 0.28 USD/h" in err and "may run" in err and "run: inv reap" in err
    market, now = open_market("lium", rehearsal.settings), [time.time()]
    with rehearsal.journal() as journal:
        for later_s, state in ((0, "UNKNOWN"), (11, "UNKNOWN"), (61, "FAILED")):
            now[0] += later_s
            found = reap.reap(market, journal, clock=lambda: later(now[0])).findings
            assert journal.op(op.token).state == state
            assert [one.kind for one in found] == ["unclear"] * (state == "UNKNOWN")


def test_an_adopted_pod_keeps_the_limits_shown_by_the_vendor(rehearsal):
    """Shadeform's listing has no limits, and the journal with the row of the pod was lost."""
    market = open_market("shadeform", rehearsal.settings)
    request = Request(run="adopted", gpu="L40", num_gpus=1)
    limits = Limits(time_s=7_200.0, spend_micro_usd=9_000_000)
    with rehearsal.journal() as journal:
        made = market.create(request, market.offers(request)[0], new_token(journal.installation), limits)
    for path in rehearsal.settings.state_file.parent.glob(f"{rehearsal.settings.state_file.name}*"):
        if path.is_file():
            path.unlink()
    until(lambda: made.pod_id in {one.pod_id for one in market.list()}, "the listing")
    with rehearsal.journal() as journal:
        reconcile.reconcile(market, journal)
        (op,) = journal.ops()
        assert (op.remote_id, op.state, op.cap) == (made.pod_id, "LOST", 9_000_000)
        assert op.ttl_s == pytest.approx(7_200, abs=60)
        pods.end(market, op, journal)


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("command", ["reap", "status", "keep"])
def test_the_next_command_ends_an_unreachable_pod_beyond_its_limit(rehearsal, command):
    market, run = open_market("runpod", rehearsal.settings), f"past-its-limit-{command}"
    request = Request(run=run, gpu="L40S", num_gpus=1)
    with rehearsal.journal() as journal:
        job = Job(run="", token="", steps=(), limits=LIMITS)
        op = journal.advance(pods.rent(market, request, market.offers(request)[0], job, journal), "armed")
        journal.note(op, address=market.keys.address(op.token, "root", "127.0.0.1", 1))
        assert rehearsal.json("reap")["done"] == [] and rehearsal.running() == {op.remote_id}
        journal.note(journal.op(op.token), ttl_s=60.0)  # a second of real time
        until(lambda: time.time() >= (op.sent_at or 0) + 1, "the limit")
        why = "the time limit of 1 min 00 s is reached"
        if command == "status":  # exceeding a limit is reported with exit code 5, also after the end
            said = rehearsal.json("status", code=5)
            assert next(one for one in said if one["run"] == run)["over_limit_s"] > 0
        else:
            code, err = rehearsal.fails(command, *([run] if command == "keep" else []))
            assert code == 0 and f"{run}: never heard; over its limit by" in err and "the pod was ended" in err
        assert (
            journal.op(op.token).state == "TERMINATED"
            and journal.op(op.token).reason == why
            and journal.op(op.token).outcome == "limit"
        )
        assert not rehearsal.running()


def test_the_ledger_is_never_below_the_bill_and_shows_the_vendors_sums(rehearsal):
    ops = {}
    with rehearsal.journal() as journal:
        for vendor, kind in KINDS.items():
            market = open_market(vendor, rehearsal.settings)
            request = Request(run=f"paid-{vendor}", gpu=kind, num_gpus=1)
            offer = min(market.offers(request), key=lambda one: one.micro_usd_per_hour)
            ops[vendor] = pods.rent(market, request, offer, Job(run="", token="", steps=(), limits=LIMITS), journal)
        until(
            lambda: all(rehearsal.truth()[op.remote_id]["active_at"] for op in ops.values()), "three machines that run"
        )
        until(lambda: rehearsal.truth()[ops["shadeform"].remote_id]["billed_micro_usd"] > 20_000, "cents on every bill")
        live = {one["provider"]: one for one in rehearsal.json("cost")["pods"] if one["run"].startswith("paid-")}
        assert all(float(one["billed_usd"]) > 0 and one["ended_at"] is None for one in live.values())
        for vendor in ("runpod", "lium"):
            market, op = open_market(vendor, rehearsal.settings), ops[vendor]
            market.delete(op.remote_id)
            until(lambda op=op: rehearsal.truth()[op.remote_id]["state"] == "gone", "a machine that is gone")
            pods.end(market, op, journal)
        told = rehearsal.json("cost")
    true = {vendor: rehearsal.truth()[op.remote_id]["billed_micro_usd"] for vendor, op in ops.items()}
    found = {one["provider"]: one for one in told["pods"] if one["run"].startswith("paid-")}
    for vendor in ("runpod", "lium"):
        assert round(float(found[vendor]["billed_usd"]) * 1e6) == true[vendor] > 0
        assert float(found[vendor]["quoted_usd"]) * 1e6 >= true[vendor] and found[vendor]["ended_at"]
        counted = "quoted_usd" if vendor == "runpod" else "billed_usd"  # RunPod may book the last hour later
        assert told["runs"][f"paid-{vendor}"] == found[vendor]["usd"] == found[vendor][counted]
    month = time.strftime("%Y-%m", time.gmtime())
    assert told["months"] == {month: told["usd"]} or len(told["months"]) == 2
    assert rehearsal.json("cost", "paid-lium", "--offline")["usd"] == found["lium"]["usd"]
    assert rehearsal.json("cost", "--month", "2020-01")["pods"] == []
    out = rehearsal.inv("cost", "paid-lium", "--offline")
    assert f"total: {in_usd(true['lium'])}" in out.splitlines()


@pytest.mark.nightly
@pytest.mark.pack("jobs")
def test_an_estimate_shows_the_unit_price_and_the_time_of_the_plan(rehearsal):
    words = ("--phase", "base", "--profile", "qwen3_4b", "--gpu", "H100", "--num-gpus", "4", "--provider", "runpod")
    (one,) = rehearsal.json("cost", "--estimate", *words)["estimates"]
    plan = rehearsal.json("launch", *words, "--dry-run")
    inputs_s = sum(each["estimate_s"] for each in plan["artifacts"] if each["step"] != "base")
    assert one["hours_from"] == plan["estimate_from"] == "from a table" and plan["machine"] == f"4 x {one['machine']}"
    assert 3600 * one["hours"]["expected"] == pytest.approx(plan["estimate_s"] - inputs_s, rel=1e-3)
    boot_h, price = 300 / 3600, 4 * float(one["usd_per_gpu_hour"]["expected"])
    assert float(one["usd"]["expected"]) == pytest.approx((one["hours"]["expected"] + boot_h) * price, rel=1e-3)
    out = rehearsal.inv(
        "cost", "--estimate", "--stage", "2", "--gpu", "H100", "--num-gpus", "4", "--hours", "24", "--price", "2.10"
    )
    cells = re.split(" {2,}", out.splitlines()[-1].strip())
    assert cells == ["4x H100", "24 h 00 min", "2.10 (as given)", *["201.60"] * 3, "as given"]
    compared = rehearsal.json("cost", "--estimate", "--job", "dlm", "-e", "TOKENS=4000000000", "--num-gpus", "8")
    assert [one["gpu"] for one in compared["estimates"]] == ["B200", "H200", "H100", "A100"]
    of_job, typed = (
        rehearsal.json("cost", "--estimate", "--stage", "2", "--profile", "smollm2_135m", *more)
        for more in ((), ("--gpu", "A100"))
    )
    machines = [(one["gpu"], one["num_gpus"]) for told in (of_job, typed) for one in told["estimates"]]
    assert machines == [("H100", 4), ("A100", 1)] and "stage 2 of smollm2_135m" in typed["work"]
    fewer = rehearsal.json("cost", "--estimate", "--job", "dlm", "-e", "TOKENS=1000000000", "--num-gpus", "8")
    ratios = [
        more["hours"]["expected"] / less["hours"]["expected"]
        for more, less in zip(compared["estimates"], fewer["estimates"], strict=True)
    ]
    assert all(3 < ratio < 4.1 for ratio in ratios)


def test_plan_as_json_has_the_price_the_limit_and_the_ends_that_people_see(rehearsal):
    words = ("launch", "--phase", "base", "--profile", "tiny", "--gpu", "H100", "--spend-limit", "5", "--dry-run")
    plan = rehearsal.json(*words)
    shown = rehearsal.user.run(*words, "--rehearse").stderr
    prices = [float(one["usd_per_hour"]) for one in plan["offers"]]
    low, expected, high = map(float, plan["cost_usd"])
    assert prices == sorted(prices) and 0 < low <= expected <= high <= 5
    assert (plan["limit_usd"], plan["nodes"]) == ("5.00", 1) and {one["gpu"] for one in plan["offers"]} > {"H100-SXM"}
    assert "5.00 USD are spent" in plan["ends"][0]["when"] and plan["caveats"]
    flat = " ".join(shown.split())
    for one in plan["ends"]:
        assert all(" ".join(text.split()) in flat for text in one.values()), one
    if "bill" in packs.installed():
        parts = plan["cost_parts"]["bill"]["parts"]
        assert [*dict.fromkeys(one["step"] for one in parts)] == [None, "base"] and "expected part" in shown
        imitated = float(re.findall(r"first offer: [\d.]+ / ([\d.]+) /", shown)[0])
        assert sum(float(one["usd"]) for one in parts) == pytest.approx(imitated, abs=0.02)


@pytest.mark.day_cases(3)
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        pytest.param(["--estimate", "--job", "bert_ddp"], 2, "give --hours", marks=pytest.mark.pack("jobs")),
        (["--estimate", "--phase", "sft", "--tokens", "1e6"], 2, "for sft, give --steps"),
        pytest.param(
            ["--estimate", "--phase", "sft", "--stage", "2"], 2, "give only one of", marks=pytest.mark.pack("jobs")
        ),
        (["--estimate"], 2, "no work is named"),
        (["--estimate", "--phase", "sft", "--gpu", "TPU"], 2, "TPU"),
        (["--estimate", "--hours", "1", "--gpu", "B300", "--num-gpus", "3"], 3, "no price"),
        (["--gpu", "H100"], 2, "needs --estimate"),
        (["--month", "soon"], 2, "expected a month such as 2026-11"),
    ],
)
def test_invalid_arguments_of_cost_are_reported(rehearsal, words, code, said):
    left, err = rehearsal.fails("cost", *words)
    assert left == code and said in err


def test_a_rehearsal_reports_market_events_and_cost(rehearsal, monkeypatch, capsys, tmp_path):
    """Run the parts of `rehearse` around a launch, here a preempted pod."""
    from scripts.runs import rehearse

    world = rehearsal.world
    monkeypatch.setitem(os.environ, attach.INSIDE, str(world.folder))
    monkeypatch.setitem(os.environ, "XDG_CONFIG_HOME", rehearsal.user.environ["XDG_CONFIG_HOME"])
    world.send_command("/faults", rehearse.plan_of("", preempt=1, bad_host=2))
    before, began_at = world.truth(), int(time.time())
    market = open_market("runpod", rehearsal.settings)
    request = Request(run="watched", gpu="L40S", num_gpus=1)
    with rehearsal.journal() as journal:
        world.send_command("/faults", {"requests": [{"call": "create", "kind": "lost"}], "preempt_at_work": 1})
        offer = market.offers(request)[0]
        op = pods.rent(market, request, offer, Job(run="", token="", steps=(), limits=LIMITS), journal)
        until(lambda: rehearsal.truth()[op.remote_id]["state"] == "running", "a machine that runs")
        rehearse.report(world, before, began_at, None, False)  # as after Ctrl-C, which leaves the pod at work
        assert "1 preemption is pending" in capsys.readouterr().err
        world.send_command("/preempt", {"id": op.remote_id})
        pods.end(market, op, journal)
    rehearse.report(world, before, began_at, None, True)
    told = json.loads(capsys.readouterr().out)
    assert [one["what"] for one in told["timeline"]] == [
        f"rented runpod/NVIDIA L40S/{offer.region}",
        "booting",
        "create: lost, answered 201",
        "running",
        "stopped (preempted)",
        "deleting (client)",
    ]
    true = rehearsal.truth()[op.remote_id]
    assert round(float(told["billed_usd"]) * 1e6) == true["billed_micro_usd"] > 0
    assert float(told["ledger_usd"]) >= float(told["billed_usd"])
    assert (told["still_running"], told["preemptions_left"], told["problems"]) == ([], 1, [])
    rehearse.report(world, before, began_at, None, False)
    out, err = capsys.readouterr()
    assert "+0:00:" in out and "stopped (preempted)" in out and "1 preemption did not happen" in err


@pytest.mark.nightly
def test_a_rehearsed_launch_runs_from_offer_to_bill(rehearsal):
    words = ["--provider", "runpod", "--gpu", "L40S", "--num-gpus", "1", "--phase", "base", "--profile", "tiny"]
    told = json.loads(rehearsal.user.inv("rehearse", *words, "--spend-limit", "50", "--yes", "--json"))
    assert told["launch"]["state"] == "succeeded" and "base" in told["launch"]["ran"]
    kinds = [one["what"].split()[0] for one in told["timeline"]]
    assert kinds == ["rented", "booting", "running", "deleting"] and told["still_running"] == []
    assert 0 < float(told["billed_usd"]) <= float(told["ledger_usd"]) and told["problems"] == []
    run = told["launch"]["run"]
    assert {one["run"]: one["state"] for one in rehearsal.json("status")}[run] == "succeeded"
    paid = rehearsal.json("cost", run)
    assert paid["usd"] == told["ledger_usd"] and not rehearsal.running()


def test_a_rehearsal_in_a_running_world_starts_no_second_world(rehearsal, tmp_path):
    rehearsal.order("runpod", "somebody's")  # a world with running machines does not end
    plan = tmp_path / "faults.yaml"
    plan.write_text("prices: [{at_s: 60, factor: 2}]\n")
    for words, said in (
        (["--speed", "7"], "60 times real time"),
        (["--faults", str(plan)], "prices can be set only at the start"),
        (["--faults", str(tmp_path / "none.yaml")], "--faults"),
        (["--preempt", "-1"], "--preempt is -1"),
    ):
        process = rehearsal.user.run("rehearse", "--dry-run", *words)
        err = process.stderr
        assert process.returncode == 2 and said in err, err
    process = rehearsal.user.run("rehearse", "--provider", "local", "--dry-run", "--bad-host", "1")
    assert "nothing was started" in process.stderr and "Events in the market" not in process.stdout


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("vendor", KINDS)
def test_doctor_shows_the_owner_and_the_machines_of_an_account(rehearsal, vendor):
    user, inside = rehearsal.user, {"SLIPWAY_REHEARSAL": str(rehearsal.world.folder)}
    market = open_market(vendor, rehearsal.settings)
    request = Request(run=f"seen-{vendor}", gpu=KINDS[vendor], num_gpus=1)
    with rehearsal.journal() as journal:
        pod = pods.rent(
            market, request, market.offers(request)[0], Job(run="", token="", steps=(), limits=LIMITS), journal
        )
    found = {one["name"]: one for one in World(user.folder, inside).json("doctor", "--provider", vendor)}
    assert {one["state"] for one in found.values()} == {"ok"} and found["dashboard"]["detail"].startswith("https://")
    assert pod.remote_id in found["machines"]["detail"] and "1 at " in found["machines"]["detail"]
    assert ("balance of" in found["account"]["detail"]) == (vendor != "shadeform")
    rehearsal.world.send_command("/faults", {"requests": [{"kind": "error", "status": 403, "count": None}]})
    said = World(user.folder, inside).json("doctor", "--provider", vendor, code=1)
    assert [one["state"] for one in said] == ["ok", "ok", "bad"]
    none = World(user.folder, {f"{vendor.upper()}_API_KEY": ""}).json("doctor", "--provider", vendor, code=1)
    assert none[0]["detail"] == f"disabled: {vendor.upper()}_API_KEY is not set"
