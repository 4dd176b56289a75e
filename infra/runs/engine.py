"""Interface of an engine: a provider that takes over whole runs, like SkyPilot.

    Plan -> quote (offers) -> RunStart -> begin (the journal's row)

An engine chooses the machines, recovers runs by itself and ends the pods that it rented. An engine class extends
`RunEngine` and sets `Provider.is_run_engine` to True. The launch, `resume` and the supervisor call
`engine_of(provider)` and keep no run of an engine.
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
    from infra.runs.renting import Terms


@dataclass(frozen=True, kw_only=True)
class RunStart:
    """A run to begin: the plan, the offers to try, and the terms for machines."""

    plan: Plan
    offers: Sequence[Offer]
    journal: Journal
    root: Path
    """The checkout that provides the code of the run."""
    secrets: Mapping[str, str] = field(repr=False)
    say: Say
    terms: "Terms"


class RunEngine(Market, Protocol):
    """A provider that takes over whole runs."""

    @property
    def title(self) -> str:
        """Return the display name of the engine."""

    @property
    def gpu_kinds(self) -> tuple[str, ...]:
        """Return the GPU kinds that have the same name in the engine and in our table, the smallest first."""

    @property
    def services(self) -> str:
        """Return "module:class" of an `flows.services.engine_services.EngineServices`; "" if the engine serves none."""

    def job_keys(
        self, said: Mapping[str, Any], typed: Mapping[str, Any], request: Request, where: str
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the keys of a job file for the engine, and notes on keys without effect.

        `said` holds the keys of the file. `typed` holds the values of a `MachineSpec` by name, which override the file.
        `where` names the file in errors. Raises UsageError for a request that the engine cannot satisfy.
        """

    def quote(self, plan: Plan, tell: Say) -> list[Offer]:
        """Return the offers that the engine would currently choose for the plan. Raises NoOffer, UsageError."""

    def submit(self, start: RunStart) -> Op:
        """Submit the run, and return its journal row. Raises as `infra.runs.pods.rent`."""


def engine_of(provider: Provider) -> RunEngine | None:
    """Return the provider as an engine, or None if the provider is not an engine."""
    return cast(RunEngine, provider) if provider.is_run_engine else None
