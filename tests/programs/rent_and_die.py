"""Rent a pod and die, before or just after the answer."""

import os
import sys
from pathlib import Path
from typing import Any

from infra.agent.job import Job, Limits
from infra.ledger.journal import Journal
from infra.providers.by_name import open_market
from infra.records import Request
from infra.runs import pods
from infra.settings import Settings

settings = Settings.load(Path.cwd())
market = open_market("runpod", settings)
request = Request(run=sys.argv[1], gpu="L40S", num_gpus=1)


class Dying:
    def __getattr__(self, name: str) -> Any:
        return getattr(market, name)

    def create(self, *words):
        market.create(*words)
        os._exit(9)


LIMITS = Limits(time_s=86_400.0)
with Journal.open(settings.state_file) as journal:
    vendor: Any = Dying() if sys.argv[2] == "before its answer" else market
    pods.rent(vendor, request, market.offers(request)[0], Job(run="", token="", steps=(), limits=LIMITS), journal)
    os._exit(9)
