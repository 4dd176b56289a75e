"""Rent at RunPod and hand over as a launch does, killed at a labelled point."""

import sys
from dataclasses import replace
from pathlib import Path

from infra.agent.job import Limits
from infra.errors import SlipwayError
from infra.providers.by_name import open_market
from infra.records import Request
from infra.settings import Settings
from tests.faults.points import Points, WatchedJournal, die, watch_requests
from tests.faults.trial import COUNT, plan
from tests.street import launch_on

checkout, folder, run, limit_s, label = sys.argv[1:]


def passed(at: str, _: int) -> None:
    print(at, flush=True)
    if at == label:
        die()


points = Points(passed)
watch_requests(points)
settings = Settings.load(Path(folder))
vendor = open_market("runpod", settings)
with WatchedJournal.at(settings.state_file, {"XDG_CONFIG_HOME": folder}, points) as journal:
    wanted = plan(Path(folder, "artifacts"), COUNT, run=run, clock_scale=settings.clock_scale)
    assert wanted.job is not None
    job = replace(wanted.job, limits=Limits(time_s=float(limit_s)))
    wanted = replace(wanted, request=Request(run=run, provider="runpod", num_gpus=1), job=job)
    try:
        launch_on(vendor, wanted, journal, Path(checkout), say=lambda words: points.reach(f"said {words.split()[0]}"))
        points.reach("handed over")
    except SlipwayError as error:
        print(f"failed {error}", flush=True)
