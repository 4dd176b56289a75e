"""Rent as a launch does, hand over, report, and wait to be killed."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

from infra.agent.job import Limits
from infra.ledger.journal import Journal
from infra.providers.by_name import open_market
from infra.records import Request
from infra.runs import observation
from infra.settings import Settings
from tests.faults.trial import COUNT, plan
from tests.street import launch_on

folder, name, number, limit_s, *endings = sys.argv[1:]
settings = Settings.load(Path(folder))
vendor = open_market(name, settings)
with Journal.open(Path(folder, name, "journal.db"), {"XDG_CONFIG_HOME": str(Path(folder, name))}) as journal:
    for ending in endings:
        run = f"{name}-{ending}-{number}"
        step = replace(COUNT, words=("-m", "fails")) if ending == "fails" else COUNT
        wanted = plan(Path(folder, "artifacts"), step, run=run, clock_scale=settings.clock_scale)
        request = Request(run=run, provider=name, gpu="H100", num_gpus=1)
        assert wanted.job is not None
        job = replace(wanted.job, limits=Limits(time_s=float(limit_s)), self_end="SELF_END" in os.environ)
        op = launch_on(vendor, replace(wanted, request=request, job=job), journal, Path(folder, "checkout"))
        print(json.dumps({"run": run, "id": op.remote_id, "folder": str(observation.folder_of(op).root)}), flush=True)
sys.stdin.read()
