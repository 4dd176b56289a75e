"""Rent a local pod and stop before, during or after its creation."""

import sys
from pathlib import Path

from infra.agent.job import Job
from infra.ledger.journal import Journal
from infra.providers.local import Local
from infra.records import Request
from infra.runs import pods


class Stops(Local):
    def create(self, *words):
        if sys.argv[2] == "before":
            print("stopped", flush=True)
            sys.stdin.read()
        pod = super().create(*words)
        if sys.argv[2] == "within":
            print("stopped", flush=True)
            sys.stdin.read()
        return pod


local, request = Stops(Path(sys.argv[1])), Request(run="a-1")
pods.rent(
    local, request, local.offers(request)[0], Job("", "", ()), Journal.open(), pods.RowDraft(target="t", store="s")
)
print("stopped", flush=True)
sys.stdin.read()
