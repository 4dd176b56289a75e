"""Inventory of Slurm clusters: login node, partitions, and the sbatch options for each partition.

    fx:
      host: login.example.org           # an address, or an alias of ~/.ssh/config
      user: ada
      identity_file: ~/.ssh/id_ed25519
      account: physics                  # default for every partition; likewise qos, time, usd_per_hour and sbatch
      partitions:                       # without `partitions`: all partitions of the cluster
        gpu:
          qos: normal
          time: 24h                     # of a job without a limit of its own; also as for sbatch: 1-00:00:00
          sbatch: [--constraint=a100]

`load` parses the file into one cluster per login node. An unknown or unclear entry makes only this entry unusable; the
error names file and cluster.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.machines import inventory, tolerant_yaml
from infra.machines.inventory import InvalidEntry, check_keys, price_of, refuse_unusable, text_of
from infra.names import check_name
from infra.records import Address
from infra.transport import ssh_include
from infra.units import seconds

QUEUE_KEYS = ("account", "qos", "time", "usd_per_hour", "sbatch")
CLUSTER_KEYS = ("host", "user", "identity_file", "port", "python", "partitions", *QUEUE_KEYS)
OURS = (
    "job-name",
    "nodes",
    "ntasks",
    "output",
    "error",
    "requeue",
    "no-requeue",
    "chdir",
    "array",
    "signal",
    "parsable",
    "time",  # the key `time`, and the limits of a run
)
WORDS = ("account", "qos", "time", "user")  # text, even if YAML reads 1:30:00 or 0042 as a number
# The formats of sbatch's --time; without a unit a number means minutes.
_TIME = re.compile(
    r"((?P<days>[0-9]{1,4})-(?P<hours>[0-9]{1,5})(:(?P<minutes>[0-9]{1,5})(:(?P<seconds>[0-9]{1,5}))?)?)"
    r"|((?P<h>[0-9]{1,5}):)?(?P<m>[0-9]{1,7})(:(?P<s>[0-9]{1,5}))?"
)
UNLIMITED = ("UNLIMITED", "INFINITE", "-1")
# Sites name accounts after projects and hardware, such as `abc@v100`.
_ACCOUNT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+:/-]{0,63}")
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OPTION = re.compile(r"--([a-z][a-z-]*)(=[\x20-\x7e]*)?")


@dataclass(frozen=True, kw_only=True)
class Queue:
    """Options for submitting jobs to a partition; "" and None mean the cluster's default."""

    account: str = ""
    qos: str = ""
    time_s: float | None = None  # infinite: without a limit
    micro_usd_per_hour: int = 0  # price of a node
    options: tuple[str, ...] = ()  # further sbatch options, passed through


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """Slurm cluster. `partitions`: by name; {} means all partitions of the cluster, with the options of `common`."""

    name: str
    address: Address
    python: str = "python3"
    common: Queue = Queue()
    partitions: Mapping[str, Queue]

    def queue(self, partition: str) -> Queue | None:
        """Return the options for jobs in the partition; None for a partition outside the inventory."""
        return self.partitions.get(partition) if self.partitions else self.common


@dataclass(frozen=True)
class Clusters:
    """Usable clusters of a file, in file order, and the unusable entries."""

    usable: tuple[SlurmCluster, ...] = ()
    unusable: tuple[InvalidEntry, ...] = ()

    def find(self, name: str) -> SlurmCluster:
        """Return the cluster with this name. Raises UsageError."""
        found = next((one for one in self.usable if one.name == name), None)
        if found is None:
            refuse_unusable(self.unusable, name)
            available = ", ".join(one.name for one in self.usable) or "none"
            raise UsageError(f"no cluster has the name {name!r}; available: {available}")
        return found

    def select(self, word: str) -> list[tuple[SlurmCluster, str]]:
        """Return the clusters for `CLUSTER`, `CLUSTER/PARTITION` or `PARTITION`, each with a partition ("" for any).

        An empty `word` selects all clusters. Raises UsageError for an unknown name or a partition outside the
        inventory.
        """
        name, _, partition = word.partition("/")
        if not word:
            return [(one, "") for one in self.usable]
        refuse_unusable(self.unusable, name)
        if partition or any(one.name == name for one in self.usable):
            cluster = self.find(name)
            if partition and cluster.queue(partition) is None:
                listed = ", ".join(cluster.partitions)
                raise UsageError(f"partition {partition!r} is not in the inventory of {name}; available: {listed}")
            return [(cluster, partition)]
        found = [(one, word) for one in self.usable if one.queue(word) is not None]
        if not found:
            parts = [f"{one.name}/{part}" for one in self.usable for part in one.partitions]
            places = ", ".join(parts or [one.name for one in self.usable]) or "none"
            raise UsageError(f"no cluster or partition has the name {word!r}; available: {places}")
        return found


def load(path: Path, home: Path | None = None) -> Clusters:
    """Parse the inventory; return the clusters in file order.

    `home` is the parent of `.ssh`, by default the user's home. Raises UsageError when the file is missing or is not an
    inventory.
    """
    try:
        document = tolerant_yaml.read(path, WORDS)
    except FileNotFoundError:
        raise UsageError(
            f"the inventory {path} does not exist; copy slurm_clusters.yaml.example to this path, and edit the copy"
        ) from None
    if not isinstance(document, dict) or not document:
        raise UsageError(f"{path}: expected `CLUSTER:` and below it `host:`")
    ssh = (home or Path.home()) / ".ssh"
    usable, unusable = [], []
    for name, body in document.items():
        try:
            usable.append(_cluster(path, name, body, ssh))
        except UsageError as error:
            unusable.append(InvalidEntry(str(name), "", str(error)))
    return Clusters(tuple(usable), tuple(unusable))


def _cluster(path: Path, name: Any, body: Any, ssh: Path) -> SlurmCluster:
    where = f"{path}: cluster {name}"
    if not isinstance(name, str):
        raise UsageError(f"{where}: the name must be text; put the name in quotes")
    check_keys(where, body, CLUSTER_KEYS)
    try:
        check_name(name)
        parts = inventory.parts_of(body.get("host"), "host")
        if not isinstance(body.get("host"), str) or not inventory.HOST.fullmatch(body["host"]) or parts:
            advice = f"; write: {parts}" if parts else ""
            raise UsageError(
                f"`host` must be the address of the login node, or an alias of the ssh config, as text{advice}"
            )
        known = set(ssh_include.aliases(ssh / "config"))
        address = inventory.address_of({**body, "ip": body["host"]}, ssh, known)
        common, python = _queue(body), text_of(body, "python") or "python3"
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return SlurmCluster(name=name, address=address, python=python, common=common, partitions=_partitions(where, body))


def _partitions(where: str, body: Mapping[str, Any]) -> Mapping[str, Queue]:
    said = body.get("partitions")
    if said is None:
        return {}
    if not isinstance(said, dict) or not said:
        raise UsageError(
            f"{where}: `partitions` must have at least one entry `NAME:` with the keys of the partition below"
        )
    found = {}
    for name, own in said.items():
        place = f"{where}, partition {name}"
        if not isinstance(name, str):
            raise UsageError(f"{place}: the name must be text; put the name in quotes")
        if not _WORD.fullmatch(name):
            raise UsageError(f"{place}: the name of a partition consists of letters, digits and ._-")
        check_keys(place, own or {}, QUEUE_KEYS)
        try:
            found[name] = _queue({**{key: body[key] for key in QUEUE_KEYS if key in body}, **(own or {})})
        except UsageError as error:
            raise UsageError(f"{place}: {error}") from None
    return found


def _queue(said: Mapping[str, Any]) -> Queue:
    for key in ("account", "qos"):
        if said.get(key) is not None and not _ACCOUNT.fullmatch(text_of(said, key)):
            raise UsageError(f"{key} is {said[key]!r}; expected a name")
    return Queue(
        account=text_of(said, "account"),
        qos=text_of(said, "qos"),
        time_s=_time_s(text_of(said, "time")),
        micro_usd_per_hour=price_of(said.get("usd_per_hour")),
        options=_options(said.get("sbatch")),
    )


def _time_s(text: str) -> float | None:
    """Return the seconds of a duration, ours (24h) or Slurm's; None for an empty text. Raises UsageError."""
    text = text.strip()
    if text.upper() in UNLIMITED:
        return math.inf
    found = _TIME.fullmatch(text)
    if found is None:
        try:
            if text[-1:].isdigit():  # without a unit, a number is of Slurm, which knows no fractions
                raise UsageError(f"{text!r} is not a duration; write 90s, 30m, 2h or 1d")
            return seconds(text)
        except UsageError as error:
            raise UsageError(f"time: {error}, or as for sbatch --time: 1-12:00:00 or 12:00:00") from None
    parts = {name: int(part) for name, part in found.groupdict().items() if part is not None}
    if "h" in parts and "s" not in parts:  # minutes:seconds
        parts = {"m": parts["h"], "s": parts["m"]}
    hours = parts.get("days", 0) * 24 + parts.get("hours", parts.get("h", 0))
    minutes = hours * 60 + parts.get("minutes", parts.get("m", 0))
    return float(minutes * 60 + parts.get("seconds", parts.get("s", 0))) or math.inf  # for sbatch, zero is no limit


def _options(said: Any) -> tuple[str, ...]:
    """Validate sbatch options and return them unchanged. Raises UsageError for options set by Slipway itself."""
    if said is None:
        return ()
    if not isinstance(said, list):
        raise UsageError("sbatch must be a list of options, such as [--constraint=a100]")
    for one in said:
        found = _OPTION.fullmatch(one) if isinstance(one, str) else None
        if not found:
            raise UsageError(f"sbatch: {one!r}; write each option as --name or --name=value")
        if found[1] in OURS:
            raise UsageError(f"sbatch: Slipway sets --{found[1]}; leave the option out")
    return tuple(said)
