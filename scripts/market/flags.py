"""The flags of the commands of this room, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from infra.selection.machine_spec import MACHINE, MachineSpec
from scripts.cli.flags import Output, Questions


@dataclass(frozen=True, kw_only=True)
class OffersFlags(Output, MachineSpec):
    provider: str = flag("", "only runpod, lium, shadeform, ssh (own machines), slurm, or an extension", group=MACHINE)
    save: bool = flag(
        False, "keep today's prices of all vendors that can be asked, instead of the catalogue that is shown without a "
        "key",
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class AuditFlags(Output):
    provider: str = flag("", "only runpod, lium, shadeform, slurm, or an extension")
    kill: str | bool | None = flag(
        None,
        "end our orphans, and wait until the vendor has let go of them; with a NAME or id: only that machine, "
        "which may be of another installation of yours",
        bare=True,
    )


@dataclass(frozen=True, kw_only=True)
class ReapFlags(Output):
    provider: str = flag("", "only runpod, lium, shadeform, slurm, or an extension")


@dataclass(frozen=True, kw_only=True)
class DrillFlags(Questions, Output):
    provider: str = flag("", "which vendor: runpod, lium or shadeform")
    spend_limit: str = flag("3", "US dollars that all machines of the drill may cost together", unit="USD")
    gpu: str = flag("", "kind of GPU, or any of a set (default: the cheapest machine with one GPU)")
    store: str = flag(
        "", "where the log and the checkpoint of its work go: hf://, s3:// or gs:// (default: what .env says)"
    )
    dry_run: bool = flag(False, "show what would be rented, at what price, and stop")
    plant: str = flag(
        "", "with --rehearse: the vendor differs from its documents in this one thing, and the drill has to find it; "
        "`all` plants ten, one after the other", unit="NAME",
    )  # fmt: skip
    replay: str = flag(
        "", "give the answers of an earlier drill's recording to today's client and clauses; asks nobody", unit="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class EstimateFlags:
    """What an estimate is of."""

    phase: str = flag("", "estimate: mid, sft, rl, a sum of them, or all", group="Estimates")
    stage: str = flag("", "estimate: 2 or 3, of the 1.58-bit training", group="Estimates")
    job: str = flag("", "estimate: dlm, the diffusion model", group="Estimates")
    tokens: float | None = flag(None, "estimate: how many are trained on", group="Estimates")
    e: tuple[str, ...] = flag((), "estimate: TOKENS=N, as SkyPilot spells it", group="Estimates")
    gpu: str = flag("", "estimate: kind of GPU, or several to compare: H100,B200", group="Estimates")
    num_gpus: int = flag(0, "estimate: GPUs in the one pod", group="Estimates")
    hours: float | None = flag(None, "estimate: how long it takes, when you know", group="Estimates", unit="HOURS")
    price: str = flag(
        "", "estimate: US dollars per GPU-hour instead of what is offered now", group="Estimates", unit="USD"
    )
    use_spot: bool = flag(False, "estimate: at the price of machines that may be taken away", group="Estimates")
    provider: str = flag("", "estimate: only at runpod, lium or shadeform", group="Estimates")


@dataclass(frozen=True, kw_only=True)
class CostFlags(Output, EstimateFlags):
    run: str = flag("", "only this run: its name, or the beginning of it", word=True)
    month: str = flag("", "only what was spent in it: 2026-11")
    offline: bool = flag(False, "do not ask the vendors for their bills")
    estimate: bool = flag(False, "what work would cost, instead of what was spent")
    accuracy: bool = flag(False, "how far forecasts of runs were off, instead of what was spent")


@dataclass(frozen=True, kw_only=True)
class ApplyFlags(Questions, Output):
    file: str = flag("", "YAML: `pods:` and below it `- name: a`; inv config --schema pod names all keys", word=True)
    provider: str = flag("", "of pods whose lines name none")
    spend_limit: str = flag("", "rented: US dollars for all pods of the set together", unit="USD")
    dry_run: bool = flag(False, "show what would be made, kept and ended, and stop")
