"""The number of steps follows the pace and the limit of the guard, and a shortened run equals a run of that length."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from infra.agent.limits import leads_s, read_clocks
from packs.deadline.records.job_variables import LIMIT, VARIABLE
from packs.deadline.trainer import limit_end
from packs.deadline.trainer.limit_end import REPORT, LimitEnd, TimeLeft
from tests.trainer.conftest import tiny
from tests.trainer.parallel import test_fsdp as fsdp
from tests.trainer.parallel.together import together
from tests.trainer.test_phases import run
from tests.trainer.test_rl import hashes
from trainer import loop
from trainer.checkpoints.checkpoint import open_final
from trainer.config import ConfigError, PhaseConfig, ScheduleConfig
from trainer.optim import learning_rate_scale
from trainer.schedule_end import end_of


def config_of(steps: int = 1000, **schedule: object) -> PhaseConfig:
    return tiny(steps=steps, schedule=ScheduleConfig(warmup_steps=2, end=LIMIT, **schedule))


def report_of(folder: Path, left_s: float, scale: float = 1.0) -> Path:
    """Write the report of a guard that stops the work in `left_s` seconds of the boot clock, at boot time 0."""
    said = {"stop_at_s": 500.0 + scale * left_s, "elapsed_s": 500.0, "clock_scale": scale, "clocks": {"boot_s": 0.0}}
    path = folder / "guard.json"
    path.write_text(json.dumps(said))
    return path


def ending(monkeypatch, folder: Path, left_s: float, rest=(0.0, 0.0, 0), config: PhaseConfig | None = None, scale=1.0):
    """Return the end of a phase with `left_s` seconds left; rest: values of VARIABLE, the last ones 0."""
    monkeypatch.setenv(REPORT, str(report_of(folder, left_s, scale)))
    monkeypatch.setenv(VARIABLE, json.dumps({"base": (*rest, 0.0, 0.0)[:5]}))
    monkeypatch.setattr(limit_end, "boot_clock_s", lambda: 0.0)
    return LimitEnd(config or config_of())


def ran(end: LimitEnd, pace_s, steps: int = 1000) -> tuple[int, float, list[tuple[int, int]]]:
    """Run the steps of a training; return the number of steps, the seconds, and (step, number) of each change."""
    now, step, changes = 0.0, 0, []
    while step < steps:
        now += pace_s(step)
        step += 1
        new = end.at(step, steps, now)
        assert step <= new <= end.config.steps
        if new != steps:
            changes.append((step, new))
            steps = new
    return steps, now, changes


def test_schedule_stays_as_planned_if_the_time_suffices(monkeypatch, tmp_path):
    assert ran(ending(monkeypatch, tmp_path, 1200.0), lambda step: 1.0) == (1000, 1000.0, [])


@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_steps_fit_the_time_left_with_a_margin_for_the_publication(monkeypatch, tmp_path, scale):
    steps, took_s, changes = ran(ending(monkeypatch, tmp_path, 600.0, scale=scale), lambda step: 1.0)
    assert len(changes) == 1 and changes[0][0] == limit_end.ENOUGH + 1  # at the first decision
    assert 540 <= steps < 576 and took_s + limit_end.TAIL * 1000 < 600


def test_later_phases_get_their_share_of_the_time(monkeypatch, tmp_path):
    # The later phases have as much work as this phase: 600 s of 1,200 s are left for this phase.
    steps, _, _ = ran(ending(monkeypatch, tmp_path, 1200.0, (1.0, 0.0, 0)), lambda step: 1.0)
    alone, _, _ = ran(ending(monkeypatch, tmp_path, 600.0), lambda step: 1.0)
    assert abs(steps - alone) <= 10
    # A later phase of 300 steps that cannot shrink keeps its time.
    beside, _, _ = ran(ending(monkeypatch, tmp_path, 900.0, (0.0, 0.3, 0)), lambda step: 1.0)
    assert abs(beside - alone) <= 10
    # Two later phases start as slowly as this phase.
    slow = ran(ending(monkeypatch, tmp_path, 800.0, (0.0, 0.0, 2)), lambda step: 100.0 if step == 0 else 1.0)
    assert 800 - slow[1] > 2 * 100


def test_slower_steps_shorten_the_schedule_again_and_faster_steps_lengthen_only_before_the_decay(monkeypatch, tmp_path):
    slower = ran(ending(monkeypatch, tmp_path, 700.0), lambda step: 1.0 if step < 200 else 1.5)
    assert slower[1] < 700.0 and slower[0] < 560 and len(slower[2]) > 1
    faster = ran(ending(monkeypatch, tmp_path, 700.0), lambda step: 2.0 if step < 60 else 0.7)
    assert faster[0] > 800 and faster[1] < 700.0
    config = config_of(decay=1.0)  # decays from the end of the warmup
    decaying = ran(ending(monkeypatch, tmp_path, 700.0, config=config), lambda step: 2.0 if step < 60 else 0.7)
    numbers = [new for _, new in decaying[2]]
    assert decaying[0] < 350 and numbers == sorted(numbers, reverse=True)


@pytest.mark.parametrize(("left_s", "least"), [(2000.0, 1700), (600.0, 500), (60.0, 45)])
def test_limit_far_below_the_planned_time_leaves_most_of_the_time_to_steps(monkeypatch, tmp_path, left_s, least):
    end = ending(monkeypatch, tmp_path, left_s, config=config_of(100_000))
    records = tmp_path / "records.jsonl"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(records))
    steps, took_s, _ = ran(end, lambda step: 1.0, 100_000)
    assert steps > least and took_s + limit_end.TAIL_S < left_s
    (alarm,) = map(json.loads, records.read_text().splitlines())
    assert alarm["alarm"] and "of 100,000 steps, so the model will be poor" in alarm["text"]


def test_publication_of_a_large_model_has_time(monkeypatch, tmp_path):
    config = config_of()
    large = replace(
        config, model=replace(config.model, num_hidden_layers=100, hidden_size=1024, intermediate_size=4096)
    )
    ends = [ran(ending(monkeypatch, tmp_path, 600.0, config=one), lambda step: 1.0)[1] for one in (config, large)]
    assert large.model.num_params > 1e9 and ends[0] - ends[1] > 30


@pytest.mark.parametrize(
    ("left_s", "rest", "free_s"),
    [
        (900.0, (0.0, 0.0, 0, 314.0, 0.0), 314),
        (400.0, (0.0, 0.0, 0, 314.0, 0.0), 314),  # more than a tenth of the time
        (900.0, (0.0, 0.0, 0, 5.0, 0.0), 20),  # less than the usual share
        (900.0, (0.0, 0.0, 1, 0.0, 55.0), 20 + 55),
        (1800.0, (1.0, 0.0, 1, 300.0, 55.0), 300 + 55 + 700),  # later steps have as much time as own steps
    ],
)
def test_the_expected_evaluation_and_saves_have_time(monkeypatch, tmp_path, left_s, rest, free_s):
    _, took_s, _ = ran(ending(monkeypatch, tmp_path, left_s, rest), lambda step: 1.0)
    assert free_s < left_s - took_s < free_s + 0.05 * left_s


@pytest.mark.parametrize(("steps", "left_s"), [(40, 30.0), (30, 20.0), (12, 10.0)])
def test_short_phase_fits_its_limit_too(monkeypatch, tmp_path, steps, left_s):
    config = config_of(steps)
    made, took_s, changes = ran(ending(monkeypatch, tmp_path, left_s, config=config), lambda step: 1.0, steps)
    assert changes[0][0] <= 11 and 0.3 * steps <= made < steps and took_s + limit_end.TAIL_S < left_s


@pytest.mark.parametrize("planned", [*range(1, 9), 1000])
@pytest.mark.parametrize("left_steps", [1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("left_s", [0.5, 100.0])
def test_training_ends_also_if_the_first_decision_is_at_the_last_step(
    monkeypatch, tmp_path, planned, left_steps, left_s
):
    """A short phase, or a run that continues shortly before the end."""
    end, begin = ending(monkeypatch, tmp_path, left_s, config=config_of(planned)), max(0, planned - left_steps)
    steps, step = planned, begin
    while step < steps:
        step += 1
        steps = end.at(step, steps, float(step - begin))
    assert begin < steps <= planned and (left_s < 100 or steps == planned)


def test_slow_steps_near_the_end_shorten_the_schedule(monkeypatch, tmp_path):
    steps, took_s, _ = ran(ending(monkeypatch, tmp_path, 160.0), lambda step: 1.0 if step < 85 else 5.0, 100)
    assert steps < 100 and took_s < 160.0


def test_hopeless_limit_ends_after_the_next_step(monkeypatch, tmp_path):
    steps, _, _ = ran(ending(monkeypatch, tmp_path, 10.0), lambda step: 1.0)
    assert steps == limit_end.ENOUGH + 2


def test_no_limit_and_no_guard_change_nothing(monkeypatch, tmp_path):
    end = ending(monkeypatch, tmp_path, 10.0)
    end.time_left.report.write_text(json.dumps({"stop_at_s": None, "clocks": {}}))
    assert ran(end, lambda step: 1.0)[0] == 1000
    monkeypatch.delenv(REPORT)
    assert ran(LimitEnd(config_of()), lambda step: 1.0)[0] == 1000


def test_a_torn_report_keeps_the_earlier_reading(tmp_path):
    left = TimeLeft(report_of(tmp_path, 100.0))
    assert left.at(0.0) == 100.0
    left.report.write_text('{"stop_at_s": ')
    assert left.at(5.0) == 95.0


def test_report_of_the_guard_has_the_fields(monkeypatch, tmp_path):
    from infra.agent.job import Job, Limits, PodFolder
    from infra.agent.lifecycle.guard import Guard

    pod = PodFolder(tmp_path)
    pod.state.mkdir(parents=True)
    Guard(pod, Job("run", "token", (), Limits(time_s=1000.0), clock_scale=2.0))
    left_s = TimeLeft(pod.state / "guard.json").at(read_clocks().boot_s)
    assert left_s == pytest.approx((1000.0 - leads_s(1000.0)[0]) / 2, abs=30)


def test_missing_pack_is_named(monkeypatch):
    from store import packs

    monkeypatch.setattr(packs, "installed", lambda: {})
    with pytest.raises(ConfigError, match="limit belongs to the pack deadline"):
        ScheduleConfig(end="limit")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="no pack has the end of a schedule 'never'"):
        ScheduleConfig(end="never")
    assert isinstance(end_of(config_of()), LimitEnd) and not isinstance(end_of(tiny()), LimitEnd)


@pytest.mark.slow
def test_run_shortened_before_its_decay_equals_a_run_of_that_length(world, monkeypatch):
    """Also when the shortened run is interrupted in between; the artifact names both numbers of steps."""
    planned = replace(config_of(steps=30), dtype="float32")
    monkeypatch.setattr(LimitEnd, "num_steps", lambda self, step, steps: 20 if step == 6 else steps)
    assert run(world, monkeypatch, "base", planned) == 0
    shortened = open_final(world.store / "base_checkpoints/tiny")
    lines = [json.loads(line) for line in (shortened.folder.parent / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, 21))
    rates = [learning_rate_scale(planned.schedule, step, 20) for step in range(20)]
    assert [one["lr"] / lines[5]["lr"] for one in lines] == pytest.approx(rates)
    about = json.loads((shortened.folder.parent / "ARTIFACT.json").read_text())["about"]
    tokens = 20 * planned.rows * planned.sequence_len
    assert (about["steps"], about["planned_steps"], about["tokens"]) == (20, 30, tokens)

    # Stop after step 10 and start again: the checkpoint has the number of steps.
    stops = iter([False] * 9 + [True] + [False] * 100)
    parted = replace(world.making("base"), name="base_checkpoints/parted", fingerprint="p" * 64)
    with monkeypatch.context() as hasty:
        hasty.setattr(loop, "defer_stop_signals", lambda: nullcontext(lambda: next(stops)))
        assert run(world, monkeypatch, "base", planned, parted) == 75
    monkeypatch.setattr(LimitEnd, "num_steps", lambda self, step, steps: steps)
    assert run(world, monkeypatch, "base", planned, parted) == 0
    assert hashes(open_final(world.store / "base_checkpoints/parted")) == hashes(shortened)

    short = replace(config_of(steps=20), dtype="float32")
    making = replace(world.making("base"), name="base_checkpoints/short", fingerprint="s" * 64)
    assert run(world, monkeypatch, "base", short, making) == 0
    other = open_final(world.store / "base_checkpoints/short")
    assert hashes(shortened)["model-rank00000.safetensors"] == hashes(other)["model-rank00000.safetensors"]


@pytest.mark.process
def test_all_processes_take_the_number_of_the_first_process(tmp_path, monkeypatch):
    monkeypatch.setattr(LimitEnd, "num_steps", lambda self, step, steps: 7 if step == 4 else steps)

    def work(ranks, tell):
        made = fsdp.training(tmp_path, fsdp.config(steps=20, schedule=ScheduleConfig(end=LIMIT)), ranks, "ddp")
        made.run()
        tell("steps", f"{made.step} of {made.steps}")

    assert [told["steps"] for told in together(2, work)] == ["7 of 7"] * 2


@pytest.mark.slow
def test_warm_up_of_a_shortened_run_shrinks_with_the_run(world, monkeypatch):
    planned = replace(tiny(steps=1000, schedule=ScheduleConfig(warmup_steps=100, end=LIMIT)), dtype="float32")
    monkeypatch.setattr(LimitEnd, "num_steps", lambda self, step, steps: 10 if step == 5 else steps)
    assert run(world, monkeypatch, "base", planned) == 0
    folder = open_final(world.store / "base_checkpoints/tiny").folder.parent
    rates = [
        json.loads(line)["lr"] / planned.optimizer.lr for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert rates == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05, 1.0, 0.8, 0.6, 0.4, 0.2])
