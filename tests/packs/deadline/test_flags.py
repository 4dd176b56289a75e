"""The flags set a limit and the end of the schedule, and nothing else."""

import json
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from flows.runs import launch
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.settings import Settings
from packs.deadline.control.finish import ending_at_limit, read_time
from packs.deadline.control.flags import FinishFlags, with_limits
from packs.deadline.records.words import LIMIT, VARIABLE
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


def spec_of(is_typed: str = "", **flags: str) -> LaunchSpec:
    own = {name: value for name, value in flags.items() if name.startswith("finish")}
    others = {name: value for name, value in flags.items() if name not in own}
    return LaunchSpec(phase="base", **others, added=(FinishFlags(**own),))


def test_limits_of_the_pod_follow_from_the_flags():
    within = with_limits(spec_of(finish_within="15"), is_rented=True)
    assert (within.spend_limit, within.ttl) == ("15", "") and "spend_limit" in within.typed
    at = datetime.fromtimestamp(time.time() + 7200).astimezone().isoformat()
    by = with_limits(spec_of(finish_by=at), is_rented=False)
    assert by.spend_limit == "" and 7190 <= float(by.ttl.rstrip("s")) <= 7200
    plain = LaunchSpec(phase="base")
    assert with_limits(plain, True) is plain


@pytest.mark.parametrize(
    ("flags", "is_rented", "said"),
    [
        ({"finish_within": "15"}, False, "--finish-within is for rented machines"),
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


@pytest.mark.pack("sweeps")
def test_run_of_a_sweep_cannot_have_the_flags():
    from packs.sweeps.control.sweep_file import read

    with pytest.raises(UsageError, match="unknown key 'finish_within'"):
        read("a.yaml", {"each": {"phase": "base", "finish_within": "15"}, "seeds": [1, 2]}, "a")


def test_only_the_end_of_the_schedule_changes_and_the_fingerprint_with_it():
    plain = tiny()
    found = ending_at_limit(FinishFlags(finish_within="15"), plain)
    assert found == replace(plain, schedule=replace(plain.schedule, end=LIMIT))
    assert found.digest() != plain.digest()
    assert ending_at_limit(FinishFlags(finish_within="99"), plain) == found


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
    assert [*later] == ["base", "mid", "sft"] and later["base"][1] > 0 == later["mid"][1]
    assert (later["base"][2], later["sft"]) == (2, [0, 0, 0])
    assert any("to finish by" in note for note in plan.notes)
    ends = {
        one.name: one.config["spec"]["schedule"]["end"]
        for one in plan.job.steps
        if "schedule" in one.config.get("spec", {})
    }
    assert ends == {"base": LIMIT, "mid": "", "sft": LIMIT}  # mid is not named
