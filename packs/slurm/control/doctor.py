"""Lines of `inv doctor` about Slurm: the clusters of the inventory, and the nodes reported by each cluster."""

from pathlib import Path

from flows.installation.doctor import DoctorLine, of_inventory
from infra.errors import SlipwayError
from infra.machines.host_memory import map_parallel
from infra.machines.survey import LOOK_S
from infra.settings import Settings
from infra.units import count
from packs.slurm.control import inventory
from packs.slurm.control.clusters import SlurmClusters
from packs.slurm.control.settings import SlurmSettings

NAME = SlurmClusters.name


def inventory_line(root: Path, settings: Settings) -> DoctorLine:
    """Report the number of clusters in the inventory, without asking the clusters."""
    path = settings.for_pack(SlurmSettings).clusters
    return of_inventory(NAME, NAME, lambda: count(len(inventory.load(path).usable), "cluster"))


def clusters(settings: Settings) -> list[DoctorLine]:
    """Ask all clusters of the inventory in parallel for the nodes of their partitions.

    Raises UsageError without an inventory.
    """
    slurm = SlurmClusters.from_settings(settings)
    found = [DoctorLine(f"slurm {one.place}", "bad", one.why) for one in slurm.unusable]
    for cluster, shown in zip(slurm.clusters, map_parallel(slurm.node_kinds, slurm.clusters, LOOK_S), strict=True):
        name = f"slurm {cluster.name}"
        if isinstance(shown, SlipwayError):
            found.append(DoctorLine(name, "bad", str(shown)))
            continue
        missing = [one for one in cluster.partitions if one not in {kind.partition for kind in shown}]
        lines = [DoctorLine(f"{name}/{one}", "bad", "the cluster does not show this partition") for one in missing]
        for kind in (kind for kind in shown if cluster.queue(kind.partition)):
            gpus = ", ".join(f"{gpu or 'GPU'}:{number}" for gpu, number in kind.gres) or "no GPU"
            has = f"{kind.up} of {count(kind.count, 'node')} can get work; each node has {kind.cpus} CPUs, {gpus}"
            lines.append(DoctorLine(f"{name}/{kind.partition}", "ok" if kind.up else "bad", has))
        found += lines or [DoctorLine(name, "bad", "the cluster shows no partition")]
    return found
