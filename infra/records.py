"""The records that flow from a command to a pod and back: each stage takes one and returns the next.

    words -> Job + Request -> Offer -> Pod ~~~> progress.json -> PodView -> text

Frozen, plain, light to import. Money is integer micro-dollars; durations are seconds; times are
UTC epoch seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from infra.agent.job import Job


@dataclass(frozen=True, kw_only=True)
class Request:
    """The machine that is wanted, from any provider."""

    run: str
    provider: str = "local"
    gpu: str = ""  # a kind, or any of a set such as `A100:1,H100:1`; "" = no GPU is asked for
    num_gpus: int = 0
    nodes: int = 1
    spot: bool = False
    gpu_memory_bytes: int = 0  # least memory of each GPU; 0 = any
    pool: str = ""  # only machines of this pool; "" = any
    host: str = ""  # only this machine, as `pool.list` names it; "" = any
    devices: str = ""  # only these GPUs of a machine of one's own, such as `0,1`; "" = the whole machine
    without_gpu: bool = False  # only machines that have no GPU
    # Requirements on rented machines; 0 and "" = any. A figure that the vendor does not tell fails its minimum.
    cpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    work_disk_bytes: int = 0  # what the work needs, by its plan; 0 = not known: for vendors that rent out disks by size
    country: str = ""  # ISO 3166, two letters
    city: str = ""
    cloud: str = ""
    region: str = ""
    instance_type: str = ""
    upload_mbps: int = 0
    download_mbps: int = 0
    network: str = ""  # "best" = made for traffic between machines
    volume: str = ""  # id of a volume of the vendor's that the pod gets
    max_micro_usd_per_hour: int = 0  # price of the whole machine
    recovers: bool = False  # of a pod without work: another one takes its place when its provider takes it away
    sandbox: bool = False  # code that a model wrote runs there, which Landlock or bubblewrap must hold
    machine_filter: str = ""  # name of an extension whose code takes a machine or not; "" = none


@dataclass(frozen=True, kw_only=True)
class Account:
    """The account with a provider: who pays, and what is left."""

    provider: str
    owner: str  # "" = the vendor does not tell it now, and has not told it before
    balance_micro_usd: int | None = None  # None = nothing is paid here, or it is not known
    key: str = ""  # a fingerprint of the key, by which rows are marked while the owner is not known

    @property
    def whose(self) -> str:
        """Return the owner, else the fingerprint of the key."""
        return self.owner or self.key


@dataclass(frozen=True, kw_only=True)
class Offer:
    """One machine that can be had now, at one price."""

    provider: str
    offer_id: str
    region: str = ""
    gpu: str = ""
    num_gpus: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    micro_usd_per_hour: int = 0  # of all that bills, at the size that the request asks for
    disk_micro_usd_per_hour: int = 0  # the part of that which is for the disk, where a vendor bills it on top
    spot: bool = False
    place: str = ""  # the one machine that this is, which holds one pod at a time; "" = the vendor has many
    cloud: str = ""  # whose machine it is, or which tier, where a vendor has several
    instance_type: str = ""  # type as the vendor spells it
    country: str = ""  # ISO 3166, two letters; "" = not told, as below
    city: str = ""
    gpu_memory_bytes: int = 0  # memory of each GPU
    disk_bytes: int = 0
    upload_mbps: float | None = None
    download_mbps: float | None = None
    nvlink: bool | None = None
    is_own: bool = False  # True for a cluster of the user's own, which costs nothing
    interconnect: str = ""  # as the vendor spells it; where vendors tell it, that of the GPUs within: sxm5, pcie
    volume: str = ""  # id of the one that was asked for, when it can be had there
    volume_bytes: int = 0  # size of the volume; 0 = not told
    seen_at: float | None = None  # when the vendor said so
    raw: str = field(default="", compare=False, repr=False)  # JSON: a machine as its vendor describes it; "" = a kind


@dataclass(frozen=True, kw_only=True)
class Pod:
    """One machine that is ours until it is proven gone."""

    provider: str
    pod_id: str
    token: str
    run: str
    address: str  # a folder for `local`; an `Address` as text elsewhere; "" = none yet
    micro_usd_per_hour: int = 0
    created_at: int = 0  # UTC epoch seconds; 0 = its provider does not say
    billed_at: float | None = None  # likewise, where billing begins later than that
    # Facts that a vendor tells about it; "" and None = not told.
    state: str = ""  # booting, running, stopped, failed (the last two may bill too), ending
    note: str = ""
    name: str = ""
    odd: str = ""  # the part of its row that cannot be read or trusted, in words; it counts as not told
    is_legible: bool = True  # False = not even whether it bears our mark
    ends_at: float | None = None  # the vendor ends it then, by its own timer
    spend_limit_micro_usd: int | None = None  # the vendor ends it there
    spent_micro_usd: int | None = None


def bracketed(host: str) -> str:
    """Return a host as it stands in front of a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Address:
    """The SSH address of a pod, and its folder there. As text: ssh://user@host:port/folder?key=/path."""

    user: str
    host: str
    port: int
    key: str  # path of the private key on this machine
    folder: str  # absolute, on the pod

    def __post_init__(self) -> None:
        for name in ("user", "host"):  # both stand on the command line of the system's ssh
            value = getattr(self, name)
            if not value or value.startswith("-") or any(c.isspace() or not c.isprintable() for c in value):
                raise ValueError(f"{value!r} is not a valid {name} of an address")
        if not 0 < self.port < 65536:
            raise ValueError(f"{self.port} is not a port")
        if not self.folder.startswith("/"):
            raise ValueError(f"{self.folder!r} is not an absolute folder")

    def __str__(self) -> str:
        key = f"?key={quote(self.key)}" if self.key else ""
        return f"ssh://{quote(self.user)}@{bracketed(self.host)}:{self.port}{quote(self.folder)}{key}"

    @property
    def place(self) -> str:
        """Return user@host:port, for people."""
        return f"{self.user}@{bracketed(self.host)}:{self.port}"

    @staticmethod
    def parse(text: str) -> "Address":
        """Return the address in `text`. Raises ValueError when it is none."""
        parts = urlsplit(text)
        if parts.scheme != "ssh":
            raise ValueError(f"{text!r} is not an address; expected ssh://user@host:port/folder?key=/path")
        key = parse_qs(parts.query).get("key", [""])[0]
        user, host = unquote(parts.username or ""), parts.hostname or ""
        port = 22 if parts.port is None else parts.port
        return Address(user=user, host=host, port=port, key=key, folder=unquote(parts.path))


@dataclass(frozen=True)
class HeldArtifact:
    """An artifact under one name in the store."""

    name: str
    fingerprint: str
    problem: str = ""  # "" = whole; else what is wrong, in words
    about: Mapping[str, Any] = field(default_factory=dict)  # metrics, sizes: whatever its maker wrote
    num_bytes: int = 0


@dataclass(frozen=True)
class Inventory:
    """The artifacts that exist already: the store, seen once, so that planning touches nothing."""

    store: str  # URI
    artifacts: Mapping[str, HeldArtifact] = field(default_factory=dict)
    """Artifacts by the names that point to them."""
    kept: tuple[HeldArtifact, ...] = ()
    """Artifacts by their own names, as `store.manifest.kept_name` makes them."""
    references: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Current readers of each fingerprint: runs and services, in words."""
    num_bytes: int = 0  # bytes of `kept`
    unread_bytes: int = 0  # bytes of artifacts that no name, run or service refers to
    odd: tuple[str, ...] = ()  # leases that cannot be read, in words


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The work of a step, as far as its time depends on it."""

    step: str
    kind: str
    """Program and version of the work: times of another kind do not apply to this step."""
    machine: str
    """The machine it runs on: kind and number of GPUs, or of CPUs."""
    shape: str
    """A digest of the settings that its pace depends on."""
    size: float = 0.0
    """Parameters of the model; 0 = there is none."""
    amount: float = 0.0
    """Operations (FLOP) of the whole step; 0 = its time is not known to grow with anything."""
    guess_s: float | None = None
    """Seconds without a measurement; None = they follow from the amount, or nobody knows."""
    fixed_s: float = 0.0
    """Seconds that do not grow with the amount."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The forecast of a step's time, in seconds."""

    step: str
    seconds: float
    low: float
    high: float
    fixed_s: float
    """The part of `seconds` that passes before and after the work itself."""
    source: str
    """Basis of the forecast: one of the words of `infra.market.expected`."""
    times: int = 0
    """Number of measurements that it is based on."""
    is_crowded: bool = False
    """True if the measurements come from a machine that was busy with other work."""

    @property
    def range_s(self) -> tuple[float, float, float]:
        """Return low, expected, high."""
        return self.low, self.seconds, self.high


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """A kind of machine, for which times are kept and estimated."""

    name: str
    """The same for machines that are equally fast: `4 x H100-SXM`, `2 x AMD EPYC 9B14`."""
    flops_per_s: float | None
    """Useful operations (FLOP) of training per second, of all its GPUs or CPUs, by a table; None = not in the table."""
    is_here: bool = False
    """True if it is this machine."""
    others: float = 0.0
    """Share of the CPUs of this machine that other processes use now, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class EstimateRequest:
    """The steps whose time is to be estimated, and the kind of machine that they run on."""

    machine: MachineKind
    steps: tuple[StepWork, ...]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated time of steps on a kind of machine."""

    machine: MachineKind
    steps: tuple[Expected, ...]
    """The estimate of each step; () = the time of one of them is not known."""

    @property
    def range_s(self) -> tuple[float, float, float]:
        """Return low, middle and high of all steps together, in seconds."""
        sums = [math.fsum(one.range_s[place] for one in self.steps) for place in range(3)]
        return sums[0], sums[1], sums[2]


@dataclass(frozen=True)
class PlannedArtifact:
    """One line of a plan."""

    name: str
    state: str  # "here", "missing", "stale", "damaged"
    step: str  # the step that makes it; "" when it is here
    reason: str = ""  # reason why it is stale or damaged, or what the name pointed to, in words
    estimate_s: float | None = None
    fingerprint: str = ""
    differs: tuple[str, ...] = ()  # files whose code is another one than that which made it


@dataclass(frozen=True)
class Pointer:
    """A name that is to refer to an artifact which is there."""

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A folder of this machine that goes along with the code, or one file of it."""

    name: str  # name of the folder beside the code, on the pod
    source: str  # absolute
    file: str = ""  # "" = the whole folder
    anyway: tuple[str, ...] = ()  # files in it that the user has named to be sent although they look like secrets


@dataclass(frozen=True, kw_only=True)
class PlannedMount:
    """A file or folder of this machine that a job would send, as a plan shows it."""

    source: str  # as people write it: ~ for the home
    at: str  # the path on the pod, "" = the folder in which the job runs
    files: int
    bytes: int
    refused: tuple[str, ...] = ()  # files that stay here, and why
    hidden: str = ""  # the hidden folder of the home that it lies in, such as ~/.aws; "" = none
    is_named: bool = False  # the user has named it to be sent

    @property
    def asks(self) -> bool:
        """Return whether somebody has to agree before it is sent."""
        return bool(self.hidden) and not self.is_named


@dataclass(frozen=True)
class Plan:
    """The plan of a launch, known before anything starts."""

    target: str  # fingerprint of what was asked for: two launches with the same one want the same thing
    store: str  # URI of the store that it goes to
    artifacts: tuple[PlannedArtifact, ...]
    job: Job | None  # None when everything is here
    request: Request  # with the disk that the work needs
    notes: tuple[str, ...] = ()
    disk_bytes: int = 0  # bytes of checkpoints that the work keeps on the pod's disk
    data_bytes: int = 0  # estimated bytes of the data that it fetches and makes there
    pointers: tuple[Pointer, ...] = ()  # names to be moved before work starts
    doubtful: tuple[PlannedArtifact, ...] = ()  # phases that were asked for, and that other code made: keep or remake?
    untyped: tuple[str, ...] = ()  # phases that nobody asked for, and that would be trained
    carried: tuple[Carried, ...] = ()  # files and folders that go along with the code
    mounts: tuple[PlannedMount, ...] = ()  # the same, one for each path that a task sees
    engine_keys: Mapping[str, Any] = field(default_factory=dict)  # keys of a job file for engines that read them
    works: tuple[StepWork, ...] = ()  # work of the steps, as far as their time depends on it
    estimate: Estimate | None = None  # of the steps, and of all the rest (AROUND), where the work is done
    imitated: Estimate | None = None  # in a rehearsal: of the steps on the rented machine that is imitated

    @property
    def forecast(self) -> tuple[Expected, ...]:
        """Return the estimate of each step where the work is done; () = it is not known."""
        return self.estimate.steps if self.estimate else ()

    @property
    def shown(self) -> Estimate | None:
        """Return the estimate of the machine that is asked for; a rehearsal shows that of a real one."""
        return self.imitated or self.estimate


@dataclass(frozen=True)
class PodView:
    """One row of `inv status`: what the journal, the vendor and the pod's own files say, and how old that is."""

    run: str
    provider: str
    state: str  # planned, idle, running, succeeded, failed, stopped, limit, lost
    step: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)  # progress.json as read
    age_s: float | None = None  # age of `progress`; None = never read
    micro_usd_per_hour: int = 0
    spent_micro_usd: int = 0
    told_micro_usd: int | None = None  # what its vendor says now that its newest pod has cost
    limit_micro_usd: int | None = None  # limit of this pod, plus the cost of those before it
    limit_in_s: float | None = None  # time until its time or money is used up, on its provider's clock
    over_limit_micro_usd: int = 0  # money that a live pod may have cost beyond its limit
    over_limit_s: float = 0.0  # time that a live pod may have lived beyond its limit, on its provider's clock
    heard_s: float | None = None  # age of its guard's last report, on its provider's clock; None = there is none
    ends: tuple[str, ...] = ()  # the ends that are armed, and when each was last heard, in words
    ssh: str = ""  # the command that reaches a rented pod
    started_at: float = 0.0
    note: str = ""
    in_store: Mapping[str, float] = field(default_factory=dict)  # newest checkpoints read back there, and when
    recoveries: int = 0  # times that its keeper has brought it back
    elapsed_s: float | None = None  # time of the whole run, over all of its pods, by its provider's clock
    ended_at: float | None = None  # when its work was over; None while it is not, or where nobody knows
    clock_scale: float = 1.0  # speed of its provider's clock relative to ours: 1 except in a rehearsal
    pending: tuple[str, ...] = ()  # files and checkpoints of the pod that its store does not have yet
    upload_problem: str = ""  # reason why the store cannot be written just now
    group: str = ""  # the group that it belongs to, such as a sweep
    left_s: tuple[float, float, float] | None = None  # time until it is over: low, expected, high; None = not known
    left_from: str = ""  # basis of that forecast, in words
    beyond_limit: str = ""  # why its limits end it before its work is done, by that forecast, and how to raise them
