"""A launch on one provider, as commands do it."""

from collections.abc import Mapping
from pathlib import Path

from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.providers import Provider
from infra.records import Plan
from infra.runs import launch
from infra.runs.renting import PLAIN, Terms
from infra.runs.timing import Say
from infra.selection.choose import of_machines


def launch_on(
    provider: Provider,
    plan: Plan,
    journal: Journal,
    root: Path,
    say: Say = lambda _: None,
    secrets: Mapping[str, str] | None = None,
    terms: Terms = PLAIN,
) -> Op:
    """Launch on the cheapest suitable machine of the provider."""
    offers = of_machines(provider, plan.request)
    return launch.start(plan, offers, lambda _: provider, journal, root, secrets or {}, say, terms)
