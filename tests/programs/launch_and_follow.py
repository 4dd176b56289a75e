"""Launch a short job as `inv launch` does: plan, accept, push, hand over, follow, bring home."""

import sys
from pathlib import Path

from infra import job_environment
from infra.ledger.journal import Journal
from infra.providers.ssh import SshPools
from infra.runs import observation, pods
from infra.runs.acceptance import terms_for
from infra.runs.journal_upkeep import download_results
from infra.runs.observation import follow
from infra.settings import Settings
from scripts.cli import render
from tests.faults.trial import COUNT, plan
from tests.street import launch_on

root, store = Path(sys.argv[1]), Path(sys.argv[2])
settings = Settings.load(root)
vendor = SshPools.from_settings(settings)
with Journal.open(settings.state_file) as journal:
    wanted = plan(store, COUNT, secrets=("HF_TOKEN", "HUGGINGFACEHUB_API_TOKEN"))
    secrets = job_environment.secrets(settings)
    op = launch_on(vendor, wanted, journal, root, render.say, secrets, terms_for(settings, vendor))
    _, verdict = list(follow(op, journal, vendor.reach(observation.pod_of(op))))[-1]
    download_results(op, vendor, settings)
    print(verdict["state"], op.token)
    pods.end(vendor, op, journal)
