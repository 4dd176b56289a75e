"""The flags that say which machine is wanted and what ends it: each is declared here, and nowhere else."""

from dataclasses import dataclass

from infra.flags import flag

MACHINE = "Machine"
LIMITS = "What ends it"


@dataclass(frozen=True, kw_only=True)
class MachineSpec:
    """The machine that is wanted, as flags; "" and 0 mean no preference."""

    gpu: str = flag(
        "", "kind of GPU, or any of a set: A100:1,A100-80GB:1,H100:1", group=MACHINE, also=("accelerators",)
    )
    num_gpus: int = flag(0, "GPUs of each pod", group=MACHINE)
    all_configs: bool = flag(False, "any number of GPUs, whatever --num-gpus and the set say", group=MACHINE)
    cpus: str = flag("", "at least so many: 16 or 16+", group=MACHINE, unit="N")
    memory: str = flag("", "at least so many GB: 128 or 128+", group=MACHINE, unit="GB")
    disk_size: str = flag("", "at least so many GB: 100 or 100+", group=MACHINE, unit="GB")
    country: str = flag("", "two letters: NL", group=MACHINE)
    city: str = flag("", "where the machine stands", group=MACHINE)
    cloud: str = flag("", "whose machine, or which tier: hyperstack, SECURE", group=MACHINE)
    region: str = flag("", "as the vendor spells it: canada-1", group=MACHINE)
    instance_type: str = flag("", "as the vendor spells it: B200x8", group=MACHINE)
    min_upload_mbps: int = flag(0, "measured upload, megabits per second", group=MACHINE, unit="MBPS")
    min_download_mbps: int = flag(0, "measured download, megabits per second", group=MACHINE, unit="MBPS")
    use_spot: bool = flag(False, "machines that may be taken away, which cost less", group=MACHINE)
    max_price: str = flag("", "US dollars per hour of the whole machine", group=MACHINE, unit="USD")
    network: str = flag(
        "",
        "best: require a high-speed interconnect (such as InfiniBand); no vendor tells that of its offers "
        "today, so that none matches",
        group=MACHINE,
    )
    volume: str = flag("", "id of a vendor's volume, which the pod gets: only machines that can have it", group=MACHINE)


@dataclass(frozen=True, kw_only=True)
class PlaceSpec:
    """The provider of a machine, and the choice among one's own machines."""

    provider: str = flag(
        "", "where: local, ssh, slurm, runpod, lium, shadeform, skypilot, market for all vendors, or the name of an "
        "extension (default: what .env says)",
        group=MACHINE,
    )  # fmt: skip
    pool: str = flag(
        "", "ssh: only machines of this pool; slurm: only this CLUSTER, or CLUSTER/PARTITION", group=MACHINE
    )
    host: str = flag("", "ssh: only this machine; slurm: only this partition", group=MACHINE)


@dataclass(frozen=True, kw_only=True)
class LimitSpec:
    """The limits that end a pod, whatever it does."""

    ttl: str = flag("", "end it after this long: 90s, 30m, 2h", group=LIMITS, unit="DURATION")
    spend_limit: str = flag(
        "", "rented: end it at so many US dollars (150 when neither this nor --ttl is given)", group=LIMITS, unit="USD"
    )
    budget: str = flag(
        "", "rented: reserve that from this budget, which other runs and pods share; NAME=USD says what all may cost "
        "(with --wait: stand in line until it is free)",
        group=LIMITS, unit="NAME[=USD]",
    )  # fmt: skip
    idle_stop: str = flag(
        "", "end it when no GPU has worked for this long, which counts while it is set up, too: 15m", group=LIMITS,
        unit="DURATION",
    )  # fmt: skip
