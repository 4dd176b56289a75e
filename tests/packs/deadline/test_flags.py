"""The flags set a limit and the end of the schedule, and nothing else."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flows.planning.training_plan import PlannedWork, plan_for
from flows.runs import launch
from flows.runs.same_request import typed_launch
from flows.specs.launch import LaunchSpec
from infra.agent.job import Limits
from infra.agent.limits import FINISH_BY
from infra.errors import UsageError
from infra.ledger.op import Op
from infra.records import Offer, Request
from infra.selection import registry
from infra.settings import Settings
from packs.deadline.control import flags as deadline_flags
from packs.deadline.control.finish import ending_at_limit, read_time
from packs.deadline.control.flags import FinishFlags
from packs.deadline.records.job_variables import FEW, LIMIT, VARIABLE
from tests.trainer.conftest import tiny
from tests.world import ROOT


def test_time_is_the_next_one_on_the_clock_or_a_date():
    now = datetime.now().astimezone()
    soon, past = (now + timedelta(hours=some) for some in (1, -1))
    for said in (soon, past):
        found = read_time(said.strftime("%H:%M"))
        assert (found.hour, found.minute) == (said.hour, said.minute)
        assert timedelta() < found - now <= timedelta(days=1)
    assert read_time("2030-01-02 03:04") == datetime(2030, 1, 2, 3, 4).astimezone()
    assert read_time("2030-01-02T03:04:00+00:00") == datetime(2030, 1, 2, 3, 4, tzinfo=UTC)
    for wrong in ("960", "25:00", "tomorrow", "16.00", ""):
        with pytest.raises(UsageError, match="expected a time such as 16:00"):
            read_time(wrong)


@pytest.mark.parametrize(
    ("now", "said", "expected"),
    [
        (datetime(2026, 10, 24, 17), "16:00", datetime(2026, 10, 25, 15, tzinfo=UTC)),  # the end of summer time
        (datetime(2026, 10, 24, 15), "16:00", datetime(2026, 10, 24, 14, tzinfo=UTC)),
        (datetime(2026, 3, 28, 17), "16:00", datetime(2026, 3, 29, 14, tzinfo=UTC)),
    ],
)
def test_time_of_tomorrow_counts_in_the_zone_of_tomorrow(monkeypatch, now, said, expected):
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    try:
        assert read_time(said, now) == expected
    finally:
        monkeypatch.undo()
        time.tzset()


def spec_of(is_typed: str = "", **flags: str) -> LaunchSpec:
    own = {name: value for name, value in flags.items() if name.startswith("finish")}
    others = {name: value for name, value in flags.items() if name not in own}
    return LaunchSpec(phase="base", **others, added=(FinishFlags(**own),))


def with_limits(spec: LaunchSpec, is_rented: bool, provider: str = "local") -> LaunchSpec:
    settings = Settings.load(ROOT, {"provider": provider} if provider else {}, environ={})
    return deadline_flags.with_limits(spec, is_rented, settings)


def test_limits_of_the_pod_follow_from_the_flags():
    within = with_limits(spec_of(finish_within="15"), is_rented=True)
    assert (within.spend_limit, within.ttl) == ("15", "") and "spend_limit" in within.typed
    at = datetime.fromtimestamp(time.time() + 7200).astimezone().isoformat()
    by = with_limits(spec_of(finish_by=at), is_rented=False)
    assert by.spend_limit == "" and 7190 <= float(by.ttl.rstrip("s")) <= 7200
    assert with_limits(spec_of(finish_by="23:59"), False).added_record(FinishFlags).finish_by[10:16] == "T23:59"
    plain = LaunchSpec(phase="base")
    assert with_limits(plain, True) is plain


@pytest.mark.parametrize(
    ("before", "again", "differs"),
    [
        ({"finish_by": "2030-01-01 16:00"}, {"finish_by": "2030-01-01 16:00"}, ""),
        ({"finish_by": "2030-01-01 16:00"}, {"finish_by": "2030-01-01 18:00"}, "--finish-by 2030-01-01T18:00"),
        ({"finish_within": "15"}, {"finish_within": "$15.00"}, ""),
        ({"finish_within": "15"}, {"finish_within": "20"}, "--finish-within 20.00 (there: 15.00)"),
        ({"spend_limit": "15"}, {"finish_within": "15"}, "--finish-within 15.00 (there: not on record)"),
    ],
)
def test_same_launch_later_follows_its_run(before, again, differs):
    """The seconds until a time of day are fewer at the second launch, and the user has not typed --ttl."""

    def asked(flags, passed_s):
        spec = with_limits(spec_of(**flags), is_rented=True)
        ttl_s = float(spec.ttl.rstrip("s")) - passed_s if spec.ttl else None
        spend = int(float(spec.spend_limit.lstrip("$")) * 1e6) if spec.spend_limit else None
        limits = Limits(time_s=ttl_s, spend_micro_usd=spend)
        return typed_launch(
            replace(spec, ttl=f"{ttl_s}s" if ttl_s else ""), Request(run="new"), limits, vendors=(), env={}
        )

    op = Op(token="sw1-a", run="otter", vendor="lium", asked=asked(before, 0).to_json())
    said = asked(again, 3600).difference(op)
    assert differs in said and bool(said) is bool(differs) and "--ttl" not in said


@pytest.mark.parametrize(
    ("flags", "is_rented", "said"),
    [
        (
            {"finish_within": "15"},
            False,
            "--finish-within is for rented machines; this .* nothing. For a time: --finish",
        ),
        ({"finish_within": "15", "spend_limit": "3"}, True, "leave --spend-limit out"),
        ({"finish_by": "23:59", "ttl": "2h"}, True, "leave --ttl out"),
        ({"finish_by": "2001-01-01 10:00"}, True, "this time has passed"),
        ({"finish_within": "a lot"}, True, "--finish-within"),
        ({"finish_within": "0"}, True, "--finish-within is 0; give an amount above 0"),
    ],
)
def test_contradictions_are_refused(flags, is_rented, said):
    with pytest.raises(UsageError, match=said):
        with_limits(spec_of(**flags), is_rented)


def test_limit_of_money_without_a_key_names_the_keys_and_the_rehearsal():
    with pytest.raises(UsageError, match="RUNPOD_API_KEY.*: inv rehearse --gpu H100 --finish-within 15. For a time"):
        with_limits(spec_of(finish_within="15", gpu="H100"), False, provider="")


@pytest.mark.pack("sweeps")
def test_run_of_a_sweep_cannot_have_the_flags():
    from packs.sweeps.control.sweep_file import read

    with pytest.raises(UsageError, match="unknown key 'finish_within'"):
        read("a.yaml", {"each": {"phase": "base", "finish_within": "15"}, "seeds": [1, 2]}, "a")


def test_job_on_gpus_has_the_seconds_after_the_last_step_of_each_phase(tmp_path):
    environ = {"SLIPWAY_STORE": f"{tmp_path}/store", "SLIPWAY_STATE_FILE": f"{tmp_path}/state/journal.db"}
    settings = Settings.load(ROOT, environ={**environ, "HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 20})
    settings = replace(settings, profile="d20")
    work = PlannedWork.from_spec(replace(spec_of(finish_by="2040-01-01 16:00"), phase="base+sft"), settings)
    request, vendor = Request(run="new", gpu="H100", num_gpus=8), registry.provider(settings, "runpod")
    offer = Offer(provider="runpod", offer_id="o", gpu="H100-SXM", num_gpus=8, micro_usd_per_hour=10_000_000)
    plan = plan_for(work, settings, request, vendor, Limits(), offer)
    seconds = {phase: one[3:] for phase, one in json.loads(plan.job.environ[VARIABLE]).items()}
    base_s, mid_s, sft_s = 22 + 15, 22, 22  # saves; evaluation of the held-out docstrings
    expected = {"base": [base_s, mid_s + sft_s], "mid": [mid_s, sft_s], "sft": [sft_s, 0]}
    assert seconds == {phase: pytest.approx(one, abs=1) for phase, one in expected.items()}


def test_only_the_end_of_the_schedule_changes_and_the_fingerprint_with_it():
    plain = tiny()
    found = ending_at_limit(FinishFlags(finish_within="15"), plain)
    assert found == replace(plain, schedule=replace(plain.schedule, end=LIMIT))
    assert found.digest() != plain.digest()
    assert ending_at_limit(FinishFlags(finish_within="99"), plain) == found


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("flag", ["finish_within", "finish_by"])
@pytest.mark.parametrize("share", [0.03, 0.07])
def test_plan_warns_of_a_limit_far_below_the_expected_time(tmp_path, flag, share, nodes):
    environ = {"SLIPWAY_STORE": f"{tmp_path}/store", "SLIPWAY_STATE_FILE": f"{tmp_path}/state/journal.db"}
    settings = Settings.load(ROOT, environ={**environ, "HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 20})
    settings = replace(settings, profile="qwen3_4b")
    offer = Offer(provider="runpod", offer_id="o", gpu="H100-SXM", num_gpus=4, micro_usd_per_hour=10_000_000)
    request = Request(run="new", provider="runpod", gpu="H100", num_gpus=4, nodes=nodes)
    by = (datetime.now() + timedelta(days=1)).isoformat()
    work = PlannedWork.from_spec(spec_of(**{flag: by if flag == "finish_by" else "15"}), settings)
    vendor = registry.provider(settings, "runpod")

    def plan(limits):
        return plan_for(work, settings, request, vendor, limits, offer)

    whole_s = sum(one.seconds for one in plan(Limits()).displayed_estimate.steps)
    usd = f"{share * whole_s * nodes * 10 / 3600:.6f}"
    spec = replace(spec_of(**{flag: by if flag == "finish_by" else usd}), gpu="H100", num_gpus=4, nodes=nodes)
    limits = launch.resolve(spec, settings).limits
    limits = replace(limits, time_s=limits.time_s and share * whole_s)
    warned = [one for one in plan(limits).notes if f"the limit is {share:.1%} of the expected time" in one]
    assert len(warned) == (share < FEW)


def test_plan_of_a_launch_has_the_limit_the_later_work_and_a_note(tmp_path):
    environ = {"SLIPWAY_PROVIDER": "local", "SLIPWAY_STORE": str(tmp_path / "store"),
               "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db")}  # fmt: skip
    settings = Settings.load(ROOT, environ=environ)
    spec = replace(spec_of(finish_by="23:59"), phase="base+sft", profile="tiny", dry_run=True)
    settings = replace(settings, profile="tiny")
    resolved = launch.resolve(spec, settings)
    from infra.ledger.journal import Journal

    with Journal.open(settings.state_file) as journal:
        plan = launch.prepare(resolved, journal, settings, lambda *said: None).plan
    assert plan.job is not None and plan.job.limits.time_s is not None
    later = json.loads(plan.job.environ[VARIABLE])
    assert float(plan.job.environ[FINISH_BY]) == read_time("23:59").timestamp()
    assert [*later] == ["base", "mid", "sft"] and later["base"][1] > 0 == later["mid"][1]
    assert (later["base"][2], later["sft"]) == (2, [0, 0, 0, 0, 0])
    assert any("to finish by" in note for note in plan.notes)
    ends = {
        one.name: one.config["spec"]["schedule"]["end"]
        for one in plan.job.steps
        if "schedule" in one.config.get("spec", {})
    }
    assert ends == {"base": LIMIT, "mid": "", "sft": LIMIT}  # mid is not named
