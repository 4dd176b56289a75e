"""The seam of an engine, a provider that takes over whole runs: SkyPilot's kind.

    Plan -> quote (offers) -> RunStart -> begin (the journal's row)

An engine chooses the machines, recovers a run by itself and ends what it has rented. Its class extends `RunEngine`, and
`Provider.keeps_runs` is True; the launch, `resume` and the supervisor ask `engine_of(provider)` and keep no such run.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.providers import Market, Provider
from infra.records import Offer, Plan, Request
from infra.runs.timing import Say

if TYPE_CHECKING:
    from infra.runs.launch import Terms


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run about to begin: its plan, the offers to try, and the terms on which they are taken."""

    plan: Plan
    offers: Sequence[Offer]
    journal: Journal
    root: Path
    """The checkout whose code the run gets."""
    secrets: Mapping[str, str] = field(repr=False)
    say: Say
    terms: "Terms"


class RunEngine(Market, Protocol):
    """A provider that takes over whole runs."""

    @property
    def title(self) -> str:
        """Return the name of the engine for people."""

    @property
    def gpu_kinds(self) -> tuple[str, ...]:
        """Return the kinds of GPU that the engine and our table call by one name, the smallest first."""

    @property
    def service_hint(self) -> str:
        """Return how a service gets to the engine, in words; "" where it cannot."""

    def job_keys(
        self, said: Mapping[str, Any], typed: Mapping[str, Any], request: Request, where: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the keys of a job file that are the engine's business, and notes on keys without effect.

        said: the file's keys; typed: the values of a `MachineSpec` by name, which outweigh them; where: the file, for
        errors. Raises UsageError for what the engine can never do.
        """

    def quote(self, plan: Plan, tell: Say) -> list[Offer]:
        """Return the offer that the engine would choose for the plan now. Raises NoOffer, UsageError."""

    def begin(self, start: RunStart) -> Op:
        """Submit the run, and return its row in the journal. Raises as `infra.runs.pods.rent`."""


def engine_of(provider: Provider) -> RunEngine | None:
    """Return the provider itself when it is an engine."""
    return cast(RunEngine, provider) if provider.keeps_runs else None
