"""The only estimator: every recipe has a time without an account, and all commands give a job the same estimate."""

import math
from dataclasses import replace

import pytest

from flows.planning import estimates
from flows.planning.estimates import of_phases, this_machine
from flows.planning.training_plan import PlannedWork, plan_for
from flows.reading import quotes
from flows.specs.work import WorkSpec
from infra.agent.execution import utilization
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.flags import Typed
from infra.market import gpus
from infra.market.step_times import evidence
from infra.records import Estimate, Offer, Request
from infra.selection import registry
from infra.selection.preflight import billed, forecast_of, machine_with, shown_forecast
from infra.settings import Settings
from scripts.cli.plan_text import plan_json, time_lines
from tests.world import ROOT
from trainer.plan import profile_named
from trainer.plan.estimates import PHASE_START_S, constant_s
from trainer.recipes import PROFILES
from trainer.records.phase_registry import PHASES

TEN_YEARS_S = 10 * 365 * 86400.0


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Return an installation without an account, on a machine with unknown CPU load."""
    monkeypatch.setattr(utilization, "STAT", tmp_path / "none")
    estimates._others.cache_clear()
    mine = {"SLIPWAY_STATE_FILE": "state/journal.db", "SLIPWAY_PODS": "pods", "SLIPWAY_STORE": "store"}
    environ = {name: str(tmp_path / path) for name, path in mine.items()}
    yield Settings.load(ROOT, {}, environ={**environ, "HOME": str(tmp_path)})
    estimates._others.cache_clear()


def rehearsed(settings: Settings) -> Settings:
    return replace(settings, rehearsal="somewhere", clock_scale=60.0, provider="runpod", runpod_api_key="k" * 20)


def planned(settings: Settings, offer: Offer | None, **flags):
    own = replace(settings, profile=flags.pop("profile"))
    work = PlannedWork.from_spec(WorkSpec(**flags), own)
    vendor = registry.provider(own, "runpod")
    request = Request(run="new", provider="runpod", gpu="H100", num_gpus=offer.num_gpus if offer else 1)
    return plan_for(work, own, request, vendor, Limits(spend_micro_usd=50_000_000), offer)


@pytest.mark.parametrize("profile", PROFILES)
def test_every_phase_of_every_profile_has_an_estimate_on_every_kind_of_gpu_without_an_account(settings, profile):
    recipe = profile_named(profile)
    assert recipe.phases.keys() <= PHASES.keys()
    for phase in recipe.phases.values():
        slow: dict[str, float] = {}
        for kind in gpus.TFLOPS:
            found = of_phases([phase], machine_with(kind, 4), settings)
            low, middle, high = found.range_s
            assert 0 < low <= middle <= high < math.inf and evidence(found) == "from a table", (phase.phase, kind)
            slow[kind] = middle
        assert slow["H100"] <= slow["A100"] <= slow["L4"]


def test_a_rehearsal_shows_the_real_time_and_the_simulated_time_separately(settings):
    offer = Offer(provider="runpod", offer_id="o", gpu="H100-SXM", num_gpus=4, micro_usd_per_hour=10_000_000)
    own = rehearsed(settings)
    plan = planned(own, offer, profile="qwen3_4b", phase="base")
    real, simulated, *more = time_lines(plan)
    assert "4 steps, about 14 d" in real and "on 4 x H100-SXM" in real and "from a table" in real
    assert simulated.startswith("simulation: this machine does the work of the rented machine, in more than 10 years (")
    assert "years" not in real and "about more" not in simulated and "--profile tiny" in more[0]
    document = plan_json(plan)
    assert document["machine"] == "4 x H100-SXM" and 1e6 < document["estimate_s"] < 2e6
    assert document["simulation_s"] is None or document["simulation_s"] < TEN_YEARS_S
    assert billed(plan) is plan.imitated  # no limit on the simulation: the limit follows the real machine
    assert forecast_of(plan, offer, own) == shown_forecast(plan, offer)
    small = planned(own, offer, profile="tiny", phase="base")
    assert billed(small) is small.estimate and small.estimate.machine.is_here
    assert small.imitated.range_s[1] < small.estimate.range_s[1] < 3600
    assert [one.estimate_s for one in small.artifacts] == [one.seconds for one in small.imitated.steps]


def test_a_plan_with_a_gpu_outside_the_tables_has_no_estimate(settings):
    offer = Offer(provider="runpod", offer_id="o", gpu="TPU-9", num_gpus=1, micro_usd_per_hour=1)
    plan = planned(rehearsed(settings), offer, profile="tiny", phase="base")
    assert plan.displayed_estimate.steps == () and plan_json(plan)["estimate_s"] is None
    with pytest.raises(
        UsageError, match="the speed of TPU-9 is not known; give --hours; GPUs with a known speed: A100"
    ):
        quotes.quote([profile_named("tiny").phases["base"]], "TPU-9", 1, [], settings)


class Stat:
    """Fake /proc/stat of a machine with CPUs that do only work of other processes for `share` of the time."""

    def __init__(self, share: float) -> None:
        self.share, self.looks = share, 0

    def read_text(self, encoding: str) -> str:
        self.looks += 1
        busy = 0 if self.looks == 1 else round(1e6 * self.share)
        return "".join(f"cpu{number} {busy} 0 0 0 0 0 0 0\n" for number in range(4096))


@pytest.mark.slow
def test_an_estimate_for_this_machine_counts_other_processes(settings, monkeypatch):
    calm = this_machine()
    assert calm.is_here and calm.others == 0.0
    phase = profile_named("tiny").phases["base"]
    before = of_phases([phase], calm, settings)
    monkeypatch.setattr(utilization, "STAT", Stat(1.0))
    estimates._others.cache_clear()
    busy = this_machine()
    assert busy.others == 1.0 and busy.name == calm.name
    found = of_phases([phase], busy, settings)
    assert found.range_s == pytest.approx((before.range_s[0], 2 * before.range_s[1], 2 * before.range_s[2]))
    assert evidence(found) == "from a table; other processes use 100% of the CPUs now"
    assert "CPUs" not in evidence(before)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"phase": "base", "steps": 50}, "base 50 steps"),
        ({"phase": "base", "tokens": 5e6}, "base 1,221 steps"),
        ({"phase": "mid+sft"}, "mid 160 steps, sft 200 steps"),
        pytest.param({"phase": "dlm", "tokens": 2e6}, "dlm ", marks=pytest.mark.pack("blocks")),
    ],
)
def test_the_length_of_work_is_given_in_steps_or_tokens(settings, words, said):
    found = quotes.work_named(words["phase"], Typed(), settings, words.get("steps"), words.get("tokens", 0.0))
    assert said in found.words and "smoke" in found.words


def test_foreign_conversations_count_as_full_rows(settings):
    sft = profile_named("d20").phases["sft"]
    machine = machine_with("H100", 8)
    beside_s = PHASE_START_S + sum(estimates.seconds_beside_steps(sft, machine.name, 0).values())
    ours, theirs = (
        of_phases([replace(sft, mixture=one)], machine, settings).range_s[1] - beside_s
        for one in (sft.mixture, {"hf://user/talk": 1.0})
    )
    assert theirs > 5 * ours > 0


@pytest.mark.parametrize(
    ("profile", "phase", "machine", "expected"),
    [
        pytest.param(
            *("speedrun", "base", "8 x H100-SXM", {"compile": 60, "saves": 55, "evaluation": 225 + 34}),
            marks=pytest.mark.pack("speedrun"),
        ),
        ("d20", "base", "2 nodes of 8 x H100", {"compile": 60, "saves": 22, "evaluation": 164 + 34}),
        ("d20", "base", "1 x L4", {"compile": 60, "saves": 22, "evaluation": 1341 + 34}),
        ("d20", "sft", "8 x H100", {"compile": 0, "saves": 22, "evaluation": 0}),
        ("tiny", "base", "8 x H100", {"compile": 0, "saves": 0, "evaluation": 0}),
        *(
            pytest.param(
                *("qwen3_4b", phase, "1 x H100-SXM", {"compile": compile_s, "saves": saves_s, "evaluation": 1213}),
                marks=pytest.mark.pack("bits"),
            )
            for phase, compile_s, saves_s in (("bits1", 0, 0), ("bits2", 60, 161))
        ),
        ("d20", "base", "2 x AMD EPYC 9B14", {}),
        ("d20", "base", "8 x TPU-9", {}),
    ],
)
def test_a_training_on_gpus_takes_time_beside_the_steps(profile, phase, machine, expected):
    config = profile_named(profile).phases[phase]
    found = estimates.seconds_beside_steps(config, machine, 0)
    assert found == pytest.approx(expected, abs=1)
    work = estimates.work_of_phase(config, phase, machine)
    assert work.fixed_s == pytest.approx(PHASE_START_S + sum(found.values()))
    if not config.steps:
        guess_s = constant_s((phase,), config.model.num_params) + sum(found.values())
        assert work.guess_s == pytest.approx(guess_s) and guess_s > 1213


@pytest.mark.parametrize(
    ("source", "profile", "phase", "seconds"),
    [
        pytest.param("", "speedrun", "base", 225 + 34, marks=pytest.mark.pack("speedrun")),
        ("", "d20", "base", 10 + 5),
        ("hf://somebody/data:train[:12000000]", "d20", "base", 164 + 34),
    ],
)
def test_the_evaluation_is_as_long_as_the_held_out_text(settings, source, profile, phase, seconds):
    own = with_source(rehearsed(settings), source)
    offer = Offer(provider="runpod", offer_id="o", gpu="H100-SXM", num_gpus=8, micro_usd_per_hour=1)
    for steps in (100, 10_000):
        plan = planned(own, offer, profile=profile, phase=phase, steps=steps)
        machine, text_bytes = plan.imitated.machine.name, estimates.text_bytes_of(plan.job.steps)
        config = next(one for one in estimates.phases_of(plan.job.steps) if one.phase == phase)
        found = estimates.seconds_beside_steps(config, machine, text_bytes)
        assert found["evaluation"] == pytest.approx(seconds, abs=2)
        work = next(one for one in estimates.works_of(plan.job, "", machine) if one.step == phase)
        assert work.fixed_s == pytest.approx(PHASE_START_S + sum(found.values()))
        named = quotes.work_named(phase, Typed(), replace(own, profile=profile), steps)
        assert named.text_bytes == text_bytes
        assert of_phases(named.phases, plan.imitated.machine, own, text_bytes).steps[0] in plan.imitated.steps


def test_an_estimate_covers_all_steps_or_no_step():
    assert Estimate(machine=machine_with("H100", 1), steps=()).range_s == (0.0, 0.0, 0.0)
    assert machine_with("H100", 8, 2).name == "2 nodes of 8 x H100"
    assert machine_with("H100", 8, 2).flops_per_s == 16 * machine_with("H100", 1).flops_per_s
    assert machine_with("", 1).flops_per_s is None


def with_source(settings: Settings, source: str) -> Settings:
    typed = {**settings.sources, "source": "--source"}
    return replace(settings, source=source, sources=typed) if source else settings


@pytest.mark.parametrize(
    ("source", "seconds"),
    [
        ("", {"text": 3, "tokenizer": 2, "tokens": 3}),
        ("hf://somebody/data", {"text": 3, "tokenizer": 2, "tokens": 3}),
        ("hf://somebody/data:train[:4000000]", {"text": 3 + 198, "tokenizer": 2 + 225, "tokens": 3 + 330}),
    ],
)
def test_a_plan_counts_the_time_of_a_text_of_known_size(settings, source, seconds):
    plan = planned(with_source(rehearsed(settings), source), None, profile="tiny", phase="base")
    found = {one.step: one.guess_s for one in plan.works if one.step in seconds}
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("profile", "source", "passes"),
    [
        ("d20", "", "base reads the text about 120 times"),
        ("d20", "fineweb", ""),
        ("m3_medium", "", ""),
        ("tiny", "", ""),
    ],
)
def test_a_plan_warns_of_a_long_training_on_little_text(settings, profile, source, passes):
    plan = planned(with_source(rehearsed(settings), source), None, profile=profile, phase="base")
    found = [one for one in plan.notes if " reads the text about " in one]
    assert [one.partition(";")[0] for one in found] == [passes] * bool(passes)


@pytest.mark.parametrize(
    ("profile", "source", "steps", "said"),
    [
        pytest.param(
            *(
                "speedrun",
                "",
                100,
                "0.7% are read; for less: --source 'hf://karpathy/climbmix-400b-shuffle:train[:221000]'",
            ),
            marks=pytest.mark.pack("speedrun"),
        ),
        *(pytest.param(one, "", 0, "", marks=pytest.mark.pack("speedrun")) for one in ("speedrun", "speedrun_d12")),
        (
            "tiny",
            "fineweb",
            0,
            "0.0% are read; for less: --source 'hf://HuggingFaceFW/fineweb/sample-10BT:train[:1000]'",
        ),
        ("d20", "fineweb", 0, ""),
        ("tiny", "hf://a/b:some[:4000000]?text=words", 0, "for less: --source 'hf://a/b:some[:1000]?text=words'"),
        ("tiny", "hf://a/b:train[:400000]", 0, ""),
        ("tiny", "hf://a/b", 0, ""),
    ],
)
def test_a_plan_names_a_smaller_part_of_a_large_text_that_is_hardly_read(settings, profile, source, steps, said):
    more = {"steps": steps} if steps else {}
    plan = planned(with_source(rehearsed(settings), source), None, profile=profile, phase="base", **more)
    found = [one for one in plan.notes if " of text are made" in one]
    assert len(found) == bool(said) and all(one.endswith(said) for one in found)


@pytest.mark.parametrize(
    ("phase", "made", "looks"), [("base+sft", True, 1), ("base+sft", False, 1), ("sft", False, 0), ("all", True, 1)]
)
def test_the_notes_size_the_text_once_and_only_for_a_phase_that_reads_text(settings, monkeypatch, phase, made, looks):
    plan = planned(rehearsed(settings), None, profile="tiny", phase="all")
    named = {*PHASES} if phase == "all" else {*phase.split("+")}
    steps = [one for one in plan.job.steps if one.name in named or made and one.name == "text"]
    found = []
    monkeypatch.setattr(estimates.amounts, "known_text_bytes", lambda spec: found.append(spec.source) or 5)
    notes = estimates.notes_of_text("pydocs", replace(plan, job=replace(plan.job, steps=tuple(steps))))
    assert len(found) == looks and len(steps) > made and notes == ()


@pytest.mark.parametrize(("source", "ending"), [("", ". To name more text: --source fineweb"), ("fineweb", "")])
def test_a_warning_of_little_text_does_not_name_the_same_source(settings, source, ending):
    plan = planned(with_source(rehearsed(settings), source), None, profile="d20", phase="base", steps=1_000_000)
    (found,) = [one for one in plan.notes if " reads the text about " in one]
    assert found.partition("a model learns little from the same text")[2] == ending
