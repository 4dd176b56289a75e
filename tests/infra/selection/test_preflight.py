"""Checks before spending: enough room for the work on an offer, and sufficient limits."""

from dataclasses import replace

import pytest

from flows.specs.launch import LaunchSpec
from flows.specs.work import prepare_command
from infra.agent.job import Job, Limits
from infra.errors import UsageError
from infra.records import Offer, Plan, PlannedArtifact, Request
from infra.selection.preflight import check_work, lasting, limits_for, roomy
from infra.settings import Settings
from tests.world import ROOT

GB, NONE = 10**9, Limits()


def plan(limits=NONE, **needs):
    return Plan("t", "", (), Job(run="", token="", steps=(), limits=limits), Request(run="new"), **needs)


def offer(**facts):
    return Offer(**{"provider": "runpod", "offer_id": "o", "num_gpus": 1, "micro_usd_per_hour": 36_000_000, **facts})


def test_a_volume_with_room_passes_and_a_too_small_volume_is_reported():
    told = []
    large, work = offer(volume="v", volume_bytes=1000 * GB, disk_bytes=9 * GB), plan(disk_bytes=150 * GB)
    untold = offer(volume="v", disk_bytes=9 * GB)
    assert roomy(work, [large, untold], told.append) == [large, untold] and not told
    small = offer(volume="v", volume_bytes=500 * GB)
    assert roomy(work, [small], told.append) == [small]
    assert "volume v has 500.0 GB" in (said := told.pop()) and "1 TB is recommended" in said
    assert roomy(plan(disk_bytes=2 * GB), [small], told.append) == [small] and not told
    with pytest.raises(UsageError, match="about 150 GB, and volume v has 100.0 GB; choose a larger volume"):
        roomy(work, [offer(volume="v", volume_bytes=100 * GB)], told.append)
    with pytest.raises(UsageError, match="add --disk-size 150"):
        roomy(work, [offer(disk_bytes=9 * GB)], told.append)


def test_limits_too_short_for_the_start_are_refused_with_sufficient_values():
    settings = Settings.load(ROOT, environ={})
    cheap, dear = offer(), offer(micro_usd_per_hour=360_000_000)
    for enough in (Limits(), Limits(time_s=120.0), Limits(spend_micro_usd=12_000_000)):
        assert lasting(plan(enough), [cheap, dear], settings) == [cheap, dear]
    assert lasting(plan(Limits(spend_micro_usd=1_200_000)), [dear, cheap], settings) == [cheap]
    with pytest.raises(UsageError, match="after 1 min 40 s at most, .* about 2 min 00 s, 1.20 USD; give larger limits"):
        lasting(plan(Limits(spend_micro_usd=1_000_000)), [dear, cheap], settings)


def test_a_machine_is_not_rented_without_a_key_to_its_google_bucket(monkeypatch):
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    job = Job(run="r", token="t", steps=(), limits=NONE)
    asked = Plan(target="", store="gs://bucket/runs", artifacts=(), job=job, request=Request(run="r"))
    with pytest.raises(UsageError, match="no key to gs://bucket/runs.*set GOOGLE_CREDENTIALS to the key file"):
        check_work(asked, Settings.load(ROOT, environ={}), False, "again", "prepare")
    check_work(
        replace(asked, job=replace(job, secrets=("GOOGLE_CREDENTIALS",))),
        Settings.load(ROOT, environ={}),
        False,
        "",
        "",
    )


def test_missing_inputs_are_refused_with_the_commands_that_make_the_inputs_here_and_there():
    artifacts = (PlannedArtifact("tokenizer", "missing", "tokenizer"), PlannedArtifact("text", "here", ""))
    asked = replace(plan(), store="s3://bucket/runs", artifacts=artifacts)
    spec = LaunchSpec(phase="all", gpu="H100", num_gpus=8, spend_limit="100", store="s3://bucket/runs")
    with pytest.raises(UsageError) as refused:
        check_work(asked, Settings.load(ROOT, environ={}), False, "inv launch --with-missing", prepare_command(spec))
    here = "make the inputs here first: inv train --prepare --phase all --store=s3://bucket/runs; or "
    assert f"{here}make the inputs on the rented machine: inv launch --with-missing" in str(refused.value)


@pytest.mark.parametrize(
    ("flags", "rehearsal"),
    [
        ({"spend_limit": "100", "gpu": "H100", "num_gpus": 8}, "--gpu H100 --num-gpus 8 --spend-limit 100"),
        ({"budget": "evals=40"}, "--budget evals=40"),
        ({"use_spot": True}, "--use-spot"),
        ({"max_price": "3"}, "--max-price 3"),
        ({"spend_limit": "$40"}, r"--spend-limit '\$40'"),
    ],
)
def test_a_money_flag_without_a_key_names_the_keys_and_the_rehearsal(flags, rehearsal):
    with pytest.raises(UsageError, match=f"RUNPOD_API_KEY.*: inv rehearse {rehearsal}$"):
        limits_for(Settings.load(ROOT, {}, environ={}), False, LaunchSpec(**flags))
    with pytest.raises(UsageError, match="this provider costs nothing$"):
        limits_for(Settings.load(ROOT, {"provider": "local"}, environ={}), False, LaunchSpec(**flags))
