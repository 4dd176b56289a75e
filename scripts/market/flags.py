"""The flags of the commands about offers and costs, each declared once."""

from dataclasses import dataclass

from infra.flags import Typed, flag
from infra.selection.machine_spec import MACHINE, MachineSpec
from scripts.cli.flags import Output, Questions
from store import packs
from trainer.records.phase_registry import phase_names

# Providers of packs that list machines, each after a comma.
LISTED = "".join(f", {name}" for name, traits in packs.provider_traits().items() if traits["inventory"])


@dataclass(frozen=True, kw_only=True)
class OffersFlags(Output, MachineSpec):
    provider: str = flag(
        "", f"only runpod, lium, shadeform, ssh (own machines){LISTED}, or an extension", group=MACHINE
    )
    save: bool = flag(
        False, "save today's prices of all vendors with a key, as the catalogue that is shown without "
        "keys",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AuditFlags(Output):
    provider: str = flag("", f"only runpod, lium, shadeform{LISTED}, or an extension")
    kill: str | bool | None = flag(
        None,
        "end our orphans, and wait until the vendor confirms it; with a NAME or id: only that machine, "
        "which may belong to another installation of yours",
        bare=True,
    )


@dataclass(frozen=True, kw_only=True)
class ReapFlags(Output):
    provider: str = flag("", f"only runpod, lium, shadeform{LISTED}, or an extension")


@dataclass(frozen=True, kw_only=True)
class EstimateFlags(Typed):
    """The work whose cost is estimated."""

    phase: str = flag("", f"estimate: {phase_names()}, a sum of them, or all", group="Estimates")
    profile: str = flag("", "estimate: the recipe (default: that of the job, else SLIPWAY_PROFILE)", group="Estimates")
    steps: int | None = flag(None, "estimate: optimizer steps of each phase", group="Estimates", least=1)
    tokens: float | None = flag(None, "estimate: number of training tokens", group="Estimates")
    e: tuple[str, ...] = flag(
        (), "estimate: variables of the job, as SkyPilot spells them: TOKENS=N, MODEL=NAME", group="Estimates"
    )
    gpu: str = flag(
        "", "estimate: kind of GPU, or several to compare: H100,B200 (default: that of the job)", group="Estimates"
    )
    num_gpus: int = flag(0, "estimate: GPUs in the one pod", group="Estimates", least=1)
    hours: float | None = flag(None, "estimate: how long the work takes, if known", group="Estimates", unit="HOURS")
    price: str = flag("", "estimate: US dollars per GPU-hour instead of current offers", group="Estimates", unit="USD")
    use_spot: bool = flag(False, "estimate: at the price of machines that can be preempted", group="Estimates")
    provider: str = flag("", "estimate: only at runpod, lium or shadeform", group="Estimates")


@dataclass(frozen=True, kw_only=True)
class CostFlags(Output, EstimateFlags):
    run: str = flag("", "only this run: its name, or the beginning of it", word=True)
    month: str = flag("", "only what was spent in this month: 2026-11")
    offline: bool = flag(False, "do not ask the vendors for their bills")
    estimate: bool = flag(False, "estimate what work would cost, instead of what was spent")
    accuracy: bool = flag(False, "show how far forecasts were off, instead of what was spent")


@dataclass(frozen=True, kw_only=True)
class ApplyFlags(Questions, Output):
    file: str = flag("", "YAML: `pods:` and below it `- name: a`; inv config --schema pod names all keys", word=True)
    provider: str = flag("", "provider of pods whose entries name none")
    spend_limit: str = flag("", "rented: US dollars for all pods of the set together", unit="USD")
    dry_run: bool = flag(False, "show what would be made, kept and ended, and stop")
