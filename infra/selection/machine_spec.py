"""Flags for the machine and the limits of a run; the only declaration of these flags."""

from dataclasses import dataclass

from infra.flags import flag
from store import packs

MACHINE, KIND = "Machine", "Choice of machine"
RENTED, OWN = "Rented machines", "Own machines"
LIMITS = "What ends it"


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """The requested machine, as flags; "" and 0 mean no preference."""

    gpu: str = flag(
        "",
        "kind of GPU, or any of a set: A100:1,A100-80GB:1,H100:1; none: machines without a GPU",
        group=MACHINE,
        also=("accelerators",),
    )
    num_gpus: int = flag(0, "GPUs of each pod", group=MACHINE, least=1)
    all_configs: bool = flag(False, "any number of GPUs, ignoring --num-gpus and the numbers in the set", group=KIND)
    cpus: str = flag("", "at least this many CPUs: 16 or 16+", group=KIND, unit="N")
    memory: str = flag("", "at least this much memory: 128, 128+ or 64Gi", group=KIND, unit="GB")
    disk_size: str = flag("", "at least this much disk space: 100, 100+ or 1Ti", group=KIND, unit="GB")
    country: str = flag("", "country of the machine, two letters: NL", group=KIND)
    city: str = flag("", "city of the machine", group=KIND)
    cloud: str = flag("", "cloud or tier within the vendor: hyperstack, SECURE", group=KIND)
    region: str = flag("", "region, as the vendor spells it: canada-1", group=KIND)
    instance_type: str = flag("", "instance type, as the vendor spells it: B200x8", group=KIND)
    min_upload_mbps: int = flag(
        0,
        "minimum measured upload speed, megabits per second; an unknown speed does not count",
        group=KIND,
        unit="MBPS",
    )
    min_download_mbps: int = flag(
        0,
        "minimum measured download speed, megabits per second; an unknown speed does not count",
        group=KIND,
        unit="MBPS",
    )
    use_spot: bool = flag(False, "cheaper machines that can be preempted", group=MACHINE)
    max_price: str = flag("", "maximum US dollars per hour for the whole machine", group=MACHINE, unit="USD")
    network: str = ""
    """`best` for `network_tier: best` of a job file, as in SkyPilot.

    Not a flag: no vendor publishes the interconnect between its machines, so no offer of the vendors here matches.
    """
    machine_filter: str = flag(
        "", "only machines accepted by the filter of this extension (docs/extend.md)", group=KIND, unit="NAME"
    )
    volume: str = flag("", "id of a vendor's volume to attach; only machines that can attach it match", group=KIND)


def _of_packs(flag_name: str) -> list[str]:
    """Return the meaning of a flag for each provider of a pack, as text."""
    return [f"{name}: {one[flag_name]}" for name, one in packs.provider_traits().items() if one[flag_name]]


@dataclass(frozen=True, kw_only=True)
class PlaceSpec:
    """The provider of a machine, and the choice among own machines."""

    provider: str = flag(
        "",
        f"where: local, ssh, runpod, lium, shadeform, {', '.join(packs.words('providers'))}, market for all "
        "vendors, or the name of an extension (default: from .env)",
        group=MACHINE,
    )
    pool: str = flag("", "; ".join(("ssh: only machines of this pool", *_of_packs("pool"))), group=OWN)
    host: str = flag("", "; ".join(("ssh: only this machine", *_of_packs("host"))), group=OWN)


@dataclass(frozen=True, kw_only=True)
class LimitSpec:
    """The limits of a pod, enforced regardless of the work."""

    ttl: str = flag("", "end the pod after this time: 90s, 30m, 2h", group=LIMITS, unit="DURATION")
    spend_limit: str = flag(
        "",
        "rented: end the pod before the cost exceeds this many US dollars (without --spend-limit and --ttl: a "
        "multiple of the estimate, at most 150)",
        group=LIMITS,
        unit="USD",
    )
    budget: str = flag(
        "",
        "reserve the spend limit from this budget, shared with other runs and pods; NAME=USD sets the "
        "size of the budget (with --wait: wait in line until enough is free)",
        group=RENTED,
        unit="NAME[=USD]",
    )
    idle_stop: str = flag(
        "",
        "end the pod when no GPU has worked for this time, setup included: 15m",
        group=LIMITS,
        unit="DURATION",
    )
