"""Estimated times of the example job files: equal in a plan, in `inv cost`, in `inv fit` and on the pack's page."""

import re
from dataclasses import replace

import pytest

from flows.reading import quotes
from infra.errors import UsageError
from infra.flags import Typed
from infra.market import catalogue
from packs.jobs.commands import example_jobs
from packs.jobs.control.flags import JobCostFlags
from scripts.models import fit
from scripts.models.fit import FitFlags
from tests.flows.test_estimates import planned, rehearsed
from tests.flows.test_estimates import settings as settings
from trainer.plan import profile_named
from trainer.recipes import PROFILES


def typed_flags(**flags) -> Typed:
    return Typed(added=(JobCostFlags(**flags),))


@pytest.mark.pack("blocks")
@pytest.mark.pack("bits")
def test_every_stage_and_job_of_the_examples_has_an_estimate_without_an_account(settings):
    given = replace(settings, given={"INIT": ""})
    for stage in ("1", "1.9", "2", "3", "1.9+2"):
        for profile in (name for name in PROFILES if "bits2" in profile_named(name).phases):
            own = replace(given, given={"STAGE": stage, "MODEL": profile})
            named = quotes.work_named("", typed_flags(stage=stage), own)
            assert profile in named.words and [one.bits or one.steps for one in named.phases]
            assert quotes.quote(named.phases, "H100", 4, [], settings).seconds[1] > 0
    for job in ("dlm", "train", "ablation_haar", "ablation_saliency"):
        assert quotes.work_named("", typed_flags(job=job), settings).phases
    of_phase, of_job = "give only one of --phase, --stage and --job", "--phase, --stage and --job exclude each other"
    for phase, flags, words in (("base", {"job": "dlm"}, of_phase), ("", {"job": "dlm", "stage": "2"}, of_job)):
        with pytest.raises(UsageError, match=words):
            quotes.work_named(phase, typed_flags(**flags), settings)
    with pytest.raises(
        UsageError, match="the duration of the job's own command is unknown before the first run; give --hours"
    ):
        quotes.work_named("", typed_flags(job="bert_ddp"), settings)


@pytest.mark.pack("bits")
@pytest.mark.pack("blocks")
def test_one_job_has_the_same_estimate_in_plan_cost_fit_and_page(settings, capsys):
    offers = [one.offer for one in catalogue.read(catalogue.BUNDLED)]
    own = replace(settings, given={"STAGE": "2"})
    told = quotes.work_named("", typed_flags(stage="2"), own)
    cost = quotes.quote(
        told.phases, told.machine.gpu, told.machine.num_gpus, offers, settings, text_bytes=told.text_bytes
    )
    page = example_jobs.estimate("train.yaml", ("STAGE=2",))
    assert page.hours == pytest.approx(cost.seconds[1] / 3600) and page.usd == pytest.approx(cost.micro_usd[1] / 1e6)
    plan = planned(rehearsed(settings), cost.offer, profile="qwen3_4b", phase="bits2")
    (step,) = (one for one in plan.displayed_estimate.steps if one.step == "bits2")
    assert (step.low, step.seconds, step.high) == pytest.approx(cost.seconds)
    row = next(one for one in example_jobs.lines() if "-e STAGE=2` " in one)
    assert f"| {page.hours:.2g} | {float(f'{page.usd:.2g}'):g} |" in row
    fit.fit.work(FitFlags(profile="qwen3_4b", phase="bits2", gpu="H100-PCIe", num_gpus=4))
    said = re.search(r"the phase takes about (\d+) h", capsys.readouterr().err)
    assert said and int(said[1]) == int(page.hours)
