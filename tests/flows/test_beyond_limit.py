"""A forecast compared with the limits of a run: the message, and the command that raises the limits."""

import json
from dataclasses import replace

import pytest

from flows.limits.beyond_limit import estimate_time_left, forecast_excess, is_comparable
from flows.supervisor.notice_watch import of_forecast
from infra.agent.job import Job, Step
from infra.agent.limits import Clocks
from infra.ledger.op import Op
from infra.ledger.timings import RunTimes, Timings
from infra.records import Expected, Request, StepWork
from infra.settings import Settings
from tests.world import ROOT

OP = Op(token="sw1-a", run="calm-1", vendor="lium", state="READY", remote_id="x", rate=3_600_000, cap=5_000_000,
        intent_at=1000, sent_at=1000, boot_id="b", boot_s=0.0)  # fmt: skip


def at(seconds: float) -> Clocks:
    return Clocks("b", seconds, 1000 + seconds)


def test_a_forecast_within_the_limits_gives_no_message():
    assert forecast_excess(OP, [OP], (100.0, 3999.0, 9000.0), at(1000), 1.0) is None
    assert forecast_excess(replace(OP, cap=None), [OP], (1e6, 2e6, 3e6), at(1000), 1.0) is None
    assert forecast_excess(replace(OP, rate=0), [OP], (1e6, 2e6, 3e6), at(1000), 1.0) is None


@pytest.mark.parametrize(("limits", "scale", "command"), [
    ({}, 1.0, "--spend-limit 8"),  # 1.00 spent, 6000 s of work and 300 s for a new pod at 3.60 USD/h
    ({"ttl_s": 3000.0}, 1.0, "--spend-limit 8 --ttl 105m"),
    ({"ttl_s": 3000.0, "cap": 50_000_000}, 1.0, "--ttl 105m"),
])  # fmt: skip
def test_a_forecast_above_a_limit_names_the_cost_and_the_command_that_raises_it(limits, scale, command):
    op = replace(OP, **limits)
    found = forecast_excess(op, [op], (3000.0, 5000.0, 6000.0), at(1000), scale)
    assert found and found.micro_usd == 6_000_000 and "costs 6.00 USD" in found.words
    assert found.words.endswith(f"inv down calm-1, then inv resume calm-1 {command}")
    notice = of_forecast(op, found)
    assert (notice.event, notice.subject, notice.note) == ("beyond limit", "calm-1", found.words)


def test_the_cost_includes_all_nodes_and_earlier_pods_by_the_vendors_clock():
    op = replace(OP, request=json.dumps({"run": "calm-1", "nodes": 2}))
    assert Request(**json.loads(op.request)).nodes == 2
    earlier = replace(OP, token="sw1-b", state="TERMINATED", lived_s=10.0)
    found = forecast_excess(op, [op, replace(op, token="sw1-c"), earlier], (50.0, 100.0, 120.0), at(10), 60.0)
    assert found and found.micro_usd == 3 * 600_000 + 2 * 6_000_000


@pytest.mark.parametrize(("steps", "enough"), [(None, False), (19, False), (20, True)])
def test_a_pace_is_known_from_the_twentieth_step_on(steps, enough):
    record = {"kind": "progress", "step": steps}
    assert is_comparable(OP, {"steps": [{"name": "text"}, {"name": "base", "record": record}]}) is enough
    assert not is_comparable(OP, {"steps": [{"name": "text", "record": {"kind": "note"}}]})
    assert not is_comparable(OP, {})


def training(name: str, end: str = "") -> Step:
    config = {"spec": {"steps": 1000, "schedule": {"end": end}}}
    return Step(name, ("-m", "trainer", name), config=config, together=("-m", "trainer.spread"))


@pytest.mark.parametrize(
    ("ends", "states", "is_compared"),
    [
        (("", ""), ("running", "waiting"), True),
        (("limit", ""), ("running", "waiting"), False),
        (("", "limit"), ("running", "waiting"), False),
        (("limit", ""), ("done", "running"), True),
    ],
)
def test_training_that_fits_itself_to_the_limit_is_not_beyond_the_limit(ends, states, is_compared):
    names = ("base", "sft")
    job = Job("calm-1", "sw1-a", tuple(training(name, end) for name, end in zip(names, ends, strict=True)))
    record = {"kind": "progress", "step": 50}
    steps = [{"name": name, "state": state, "record": record} for name, state in zip(names, states, strict=True)]
    assert is_comparable(replace(OP, job=job.to_json()), {"steps": steps}) is is_compared


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ({"record": {"step": 50, "done": 50 * 64, "total": 200 * 64}}, 10 + 200),
        ({"record": {"step": 50, "done": 50, "total": 1000}}, 1010),
        ({"record": {"step": 50, "done": 1e-320, "total": 1e9}}, 1010),
        ({"record": {"step": 50, "done": 50, "total": 200}, "result": {"steps": 100}}, 10 + 100),
        (
            {
                "record": {"done": 99, "unit": "held-out bytes"},
                "training": {"step": 200, "done": 200, "total": 200},
            },
            10 + 200,
        ),
        ({"result": {"steps": "100"}}, 1010),
        ({"result": {"steps": True}}, 1010),
        ({}, 1010),
    ],
)
def test_remaining_time_counts_the_steps_of_a_shortened_training(tmp_path, said, seconds):
    settings = Settings.load(ROOT, environ={"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path)})
    op = replace(OP, job=Job("calm-1", "sw1-a", (training("base"),)).to_json())
    work = StepWork(step="base", kind="base", machine="m", shape="")
    expected = Expected(step="base", seconds=1010.0, low=1010.0, high=1010.0, fixed_s=10.0, source="a guess")
    Timings.for_journal(settings.state_file).save(
        RunTimes(token="sw1-a", run="calm-1", vendor="lium", asked_at=0.0, works=(work,), expected=(expected,))
    )
    progress = {"updated_at": 1.0, "steps": [{"name": "base", "state": "waiting", **said}]}
    left_s, _ = estimate_time_left([op], progress, settings)
    assert left_s == pytest.approx((seconds,) * 3)
