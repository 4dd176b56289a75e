"""Records on the way from a command to a pod and back; each stage takes a record and returns the next.

    words -> Job + Request -> Offer -> Pod ~~~> progress.json -> PodView -> text

All records are frozen, plain and light to import. Money is in integer micro-USD, durations are in seconds, and times
are UTC epoch seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit

from infra.agent.job import Job


@dataclass(frozen=True, kw_only=True)
class Request:
    """The requested machine, for any provider."""

    run: str
    provider: str = "local"
    gpu: str = ""  # a GPU kind, or alternatives such as `A100:1,H100:1`; "" = no GPU requested
    num_gpus: int = 0
    nodes: int = 1
    spot: bool = False
    gpu_memory_bytes: int = 0  # minimum memory of each GPU; 0 = any
    pool: str = ""  # only machines of this pool; "" = any
    host: str = ""  # only this machine, as `pool.list` names machines; "" = any
    devices: str = ""  # only these GPUs of an own machine, such as `0,1`; "" = the whole machine
    without_gpu: bool = False  # only machines without a GPU
    # Requirements on rented machines; 0 and "" = any. An unpublished value fails a minimum.
    cpus: int = 0
    memory_bytes: int = 0
    disk_bytes: int = 0
    work_disk_bytes: int = 0  # disk for the planned work, for vendors with disks by size; 0 = unknown
    country: str = ""  # ISO 3166, two letters
    city: str = ""
    cloud: str = ""
    region: str = ""
    instance_type: str = ""
    upload_mbps: int = 0
    download_mbps: int = 0
    network: str = ""  # "best" = an interconnect for traffic between machines
    volume: str = ""  # id of a vendor's volume to attach to the pod
    image: str = ""  # container image to boot, such as `ubuntu:22.04`; "" = the image of Slipway or of the vendor
    max_micro_usd_per_hour: int = 0  # price of the whole machine
    recovers: bool = False  # for a pod without work: replace the pod after a preemption
    sandbox: bool = False  # code written by a model runs there, confined by Landlock or bubblewrap
    machine_filter: str = ""  # name of an extension with a machine filter; "" = none


@dataclass(frozen=True, kw_only=True)
class Account:
    """The account with a provider: owner and balance."""

    provider: str
    owner: str  # "" = unknown: the vendor does not name the owner now and has not before
    balance_micro_usd: int | None = None  # None = unknown, or a provider without payment
    key: str = ""  # fingerprint of the key, which marks rows while the owner is unknown

    @property
    def display_owner(self) -> str:
        """Return the owner, or the key's fingerprint if the owner is unknown."""
        return self.owner or self.key


@dataclass(frozen=True, kw_only=True)
class Offer:
    """An available machine at a fixed price."""

    provider: str
    offer_id: str
    region: str = ""
    gpu: str = ""
    num_gpus: int = 0
    cpus: int = 0
    memory_bytes: int = 0
    micro_usd_per_hour: int = 0  # total price at the requested size
    disk_micro_usd_per_hour: int = 0  # the disk's part of the total, for vendors with separate disk prices
    spot: bool = False
    place: str = ""  # the single machine of this offer, for one pod at a time; "" = the vendor has many
    cloud: str = ""  # cloud or tier, for vendors with several
    instance_type: str = ""  # type as the vendor spells it
    country: str = ""  # ISO 3166, two letters; "" = unknown, also for the fields below
    city: str = ""
    gpu_memory_bytes: int = 0  # memory of each GPU
    disk_bytes: int = 0
    upload_mbps: float | None = None
    download_mbps: float | None = None
    nvlink: bool | None = None
    is_own: bool = False  # True for a user's own cluster without costs
    interconnect: str = ""  # in the vendor's spelling, of the GPUs within a machine: sxm5, pcie
    volume: str = ""  # id of the requested volume, if available with this offer
    volume_bytes: int = 0  # size of the volume; 0 = unknown
    seen_at: float | None = None  # time of the vendor's answer
    raw: str = field(default="", compare=False, repr=False)  # JSON of the vendor about the machine; "" = a kind


@dataclass(frozen=True, kw_only=True)
class Pod:
    """A machine in use by this installation until proven gone."""

    provider: str
    pod_id: str
    token: str
    run: str
    address: str  # a folder for `local`, else an `Address` as text; "" = none yet
    micro_usd_per_hour: int = 0
    disk_micro_usd_per_hour: int = 0  # price of the disk; whether the rate above includes the price is unknown
    created_at: int = 0  # UTC epoch seconds; 0 = unknown
    billed_at: float | None = None  # start of billing, if later than creation; None = unknown
    # Facts from the vendor; "" and None = unknown.
    state: str = ""  # booting, running, stopped, failed (the last two may bill too), ending
    note: str = ""
    name: str = ""
    odd: str = ""  # description of unreadable or untrusted fields, which count as unknown
    is_legible: bool = True  # False = unknown whether the pod has Slipway's mark
    ends_at: float | None = None  # time at which the vendor's own timer ends the pod
    spend_limit_micro_usd: int | None = None  # cost at which the vendor ends the pod
    spent_micro_usd: int | None = None

    def rate(self, agreed: int = 0) -> int:
        """Return the rate to count, in micro-USD per hour: `agreed`, or the highest rate that the report can mean.

        A report other than `agreed`, with or without the disk, counts without: the count is never below the bill.
        """
        reported, disk, rounding = self.micro_usd_per_hour, self.disk_micro_usd_per_hour, agreed // 1000
        if not reported or reported <= agreed - disk + rounding or abs(reported - agreed) <= rounding:
            return agreed
        return max(agreed, reported + disk)


def bracketed(host: str) -> str:
    """Return a host for use before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


@dataclass(frozen=True)
class Address:
    """SSH address of a pod, with a folder. As text: ssh://user@host:port/folder?key=/path&proxy=command and so on."""

    user: str
    host: str
    port: int
    key: str  # path of the private key on this machine
    folder: str  # absolute, on the pod
    proxy: str = ""  # shell command with the connection as stdin and stdout, like ProxyCommand; "" = direct
    certificates: tuple[str, ...] = ()  # paths of certificates, in addition to the certificate beside a key
    agent: str = ""  # path of the socket of an ssh-agent; "" = SSH_AUTH_SOCK
    more_keys: tuple[str, ...] = ()  # paths of further keys, offered in this order if the machine refuses `key`

    def __post_init__(self) -> None:
        for name in ("user", "host"):  # both appear on the command line of the system's ssh
            value = getattr(self, name)
            if not value or value.startswith("-") or any(c.isspace() or not c.isprintable() for c in value):
                raise ValueError(f"{value!r} is not a valid {name} of an address")
        if not 0 < self.port < 65536:
            raise ValueError(f"{self.port} is not a port")
        if not self.folder.startswith("/"):
            raise ValueError(f"{self.folder!r} is not an absolute path of a folder")

    def __str__(self) -> str:
        said = [("key", one) for one in (self.key, *self.more_keys)] + [("proxy", self.proxy), ("agent", self.agent)]
        given = [pair for pair in [*said, *(("certificate", one) for one in self.certificates)] if pair[1]]
        query = f"?{urlencode(given, safe='/', errors='surrogateescape', quote_via=quote)}" if given else ""
        return f"ssh://{quote(self.user, safe='')}@{bracketed(self.host)}:{self.port}{quote(self.folder)}{query}"

    @property
    def place(self) -> str:
        """Return user@host:port, for display."""
        return f"{self.user}@{bracketed(self.host)}:{self.port}"

    @staticmethod
    def parse(text: str) -> "Address":
        """Parse an address. Raises ValueError for an invalid text."""
        parts = urlsplit(text)
        if parts.scheme != "ssh":
            raise ValueError(f"{text!r} is not an address; expected ssh://user@host:port/folder?key=/path")
        said = parse_qs(parts.query, errors="surrogateescape")
        (key, *more), [proxy], [agent] = (said.get(name, [""]) for name in ("key", "proxy", "agent"))
        user, host, folder = unquote(parts.username or ""), parts.hostname or "", unquote(parts.path)
        port, certificates = 22 if parts.port is None else parts.port, tuple(said.get("certificate", ()))
        return Address(user, host, port, key, folder, proxy, certificates, agent, more_keys=tuple(more))


@dataclass(frozen=True)
class HeldArtifact:
    """An artifact under a name in the store."""

    name: str
    fingerprint: str
    problem: str = ""  # "" = intact; else a description of the damage
    about: Mapping[str, Any] = field(default_factory=dict)  # metadata from the producing step: metrics, sizes
    num_bytes: int = 0


@dataclass(frozen=True)
class Inventory:
    """Existing artifacts: a snapshot of the store for planning without store access."""

    store: str  # URI
    artifacts: Mapping[str, HeldArtifact] = field(default_factory=dict)
    """Artifacts by the names pointing to them."""
    kept: tuple[HeldArtifact, ...] = ()
    """Artifacts by their own names, as `store.manifest.kept_name` makes them."""
    references: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Current readers of each fingerprint: runs and services, as text."""
    num_bytes: int = 0  # bytes of `kept`
    unread_bytes: int = 0  # bytes of artifacts that store.gc would remove
    odd: tuple[str, ...] = ()  # unreadable leases, as text


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """The properties of a step's work relevant for the duration."""

    step: str
    kind: str
    """Program and version of the work; measured times of other kinds do not apply to this step."""
    machine: str
    """Machine of the step: kind and number of GPUs, or of CPUs."""
    shape: str
    """Digest of the settings relevant for the pace."""
    size: float = 0.0
    """Parameters of the model; 0 = no model."""
    amount: float = 0.0
    """Operations (FLOP) of the whole step; 0 = the duration is not known to scale with an amount."""
    guess_s: float | None = None
    """Seconds without a measurement; None = derived from `amount`, or unknown."""
    fixed_s: float = 0.0
    """Constant seconds, independent of the amount."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Forecast of a step's duration, in seconds."""

    step: str
    seconds: float
    low: float
    high: float
    fixed_s: float
    """Part of `seconds` before and after the work itself."""
    source: str
    """Basis of the forecast: a source constant of `infra.market.step_times`."""
    times: int = 0
    """Number of measurements behind the forecast."""
    is_crowded: bool = False
    """True if other work kept the measured machine busy."""

    @property
    def range_s(self) -> tuple[float, float, float]:
        """Return the low, expected and high seconds."""
        return self.low, self.seconds, self.high


@dataclass(frozen=True, kw_only=True)
class MachineKind:
    """A kind of machine, for which times are stored and estimated."""

    name: str
    """Equal for machines of equal speed: `4 x H100-SXM`, `2 x AMD EPYC 9B14`."""
    flops_per_s: float | None
    """Useful training FLOP/s of all GPUs or CPUs, from a table; None = not in the table."""
    is_here: bool = False
    """True for this process's machine."""
    others: float = 0.0
    """Share of this machine's CPUs in use by other processes now, 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class EstimateRequest:
    """Steps to estimate, and the kind of machine for them."""

    machine: MachineKind
    steps: tuple[StepWork, ...]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Estimated durations of steps on a kind of machine."""

    machine: MachineKind
    steps: tuple[Expected, ...]
    """Estimate of each step; () = the duration of a step is unknown."""

    @property
    def range_s(self) -> tuple[float, float, float]:
        """Return the low, expected and high seconds of all steps together."""
        sums = [math.fsum(one.range_s[place] for one in self.steps) for place in range(3)]
        return sums[0], sums[1], sums[2]


@dataclass(frozen=True)
class PlannedArtifact:
    """A line of a plan."""

    name: str
    state: str  # "here", "missing", "stale", "damaged"
    step: str  # the step to make the artifact; "" = already here
    reason: str = ""  # why the artifact is stale or damaged, or the previous target of the name, as text
    estimate_s: float | None = None
    fingerprint: str = ""
    differs: tuple[str, ...] = ()  # code files changed since the artifact was made


@dataclass(frozen=True)
class Pointer:
    """A name to point at an existing artifact."""

    name: str
    fingerprint: str


@dataclass(frozen=True, kw_only=True)
class Carried:
    """A local folder, or a single file of a folder, sent along with the code."""

    name: str  # name of the folder beside the code, on the pod
    source: str  # absolute
    file: str = ""  # "" = the whole folder
    anyway: tuple[str, ...] = ()  # apparent secrets to send on the user's request


@dataclass(frozen=True, kw_only=True)
class PlannedMount:
    """A local file or folder to be sent by a job, as shown in a plan."""

    source: str  # for display: ~ for the home folder
    at: str  # path on the pod; "" = the working folder of the job
    files: int
    bytes: int
    refused: tuple[str, ...] = ()  # files left out, with reasons
    pointers: tuple[str, ...] = ()  # pointers of Git LFS, which are sent in place of the content of the files
    hidden: str = ""  # hidden folder of the home with the source, such as ~/.aws; "" = none
    is_named: bool = False  # True if the user named the source explicitly

    @property
    def needs_confirmation(self) -> bool:
        """Return whether a user must confirm before the source is sent."""
        return bool(self.hidden) and not self.is_named


@dataclass(frozen=True)
class Plan:
    """The plan of a launch, complete before any work starts."""

    target: str  # fingerprint of the requested result; equal for equal requests
    store: str  # URI of the target store
    artifacts: tuple[PlannedArtifact, ...]
    job: Job | None  # None when all artifacts exist
    request: Request  # includes the disk for the work
    notes: tuple[str, ...] = ()
    disk_bytes: int = 0  # bytes of checkpoints kept on the pod's disk
    data_bytes: int = 0  # estimated bytes of downloaded and created data
    pointers: tuple[Pointer, ...] = ()  # names to move before work starts
    doubtful: tuple[PlannedArtifact, ...] = ()  # requested phases with results of changed code: keep or remake?
    untyped: tuple[str, ...] = ()  # phases to train without a request
    carried: tuple[Carried, ...] = ()  # files and folders sent along with the code
    mounts: tuple[PlannedMount, ...] = ()  # the same, by each path inside the task
    engine_keys: Mapping[str, Any] = field(default_factory=dict)  # engine-specific keys of a job file
    works: tuple[StepWork, ...] = ()  # work of the steps, for estimates
    estimate: Estimate | None = None  # steps, and the time around them (AROUND), on the executing machine
    imitated: Estimate | None = None  # in a rehearsal: the steps on the imitated rented machine

    @property
    def forecast(self) -> tuple[Expected, ...]:
        """Return the estimate of each step on the executing machine; () = unknown."""
        return self.estimate.steps if self.estimate else ()

    @property
    def displayed_estimate(self) -> Estimate | None:
        """Return the estimate for the requested machine; in a rehearsal, for the imitated machine."""
        return self.imitated or self.estimate


@dataclass(frozen=True)
class PodView:
    """A row of `inv status`, combined from the journal, the vendor and the pod's own files."""

    run: str
    provider: str
    state: str  # planned, idle, running, succeeded, failed, stopped, limit, lost
    step: str = ""
    progress: Mapping[str, Any] = field(default_factory=dict)  # progress.json as read
    age_s: float | None = None  # age of `progress`; None = never read
    micro_usd_per_hour: int = 0
    spent_micro_usd: int = 0
    told_micro_usd: int | None = None  # cost of the newest pod by the vendor's latest report
    limit_micro_usd: int | None = None  # limit of this pod, plus the cost of the run's earlier pods
    run_limit_micro_usd: int | None = None  # the same for all nodes of the run; None also for a row of another node
    limit_in_s: float | None = None  # time until the time limit or the money is used up, by the provider's clock
    over_limit_micro_usd: int = 0  # possible cost of a live pod beyond the limit
    over_limit_s: float = 0.0  # possible lifetime of a live pod beyond the limit, by the provider's clock
    heard_s: float | None = None  # age of the guard's last report, by the provider's clock; None = no report
    ends: tuple[str, ...] = ()  # armed mechanisms to end the pod, each with the age of the last report, as text
    ssh: str = ""  # command to reach a rented pod
    started_at: float = 0.0
    note: str = ""
    in_store: Mapping[str, float] = field(default_factory=dict)  # newest verified checkpoints, with times
    recoveries: int = 0  # number of recoveries by the keeper
    elapsed_s: float | None = None  # duration of the whole run over all pods, by the provider's clock
    ended_at: float | None = None  # end of the work; None while running or unknown
    clock_scale: float = 1.0  # speed of the provider's clock relative to this machine's: 1 except in a rehearsal
    pending: tuple[str, ...] = ()  # files and checkpoints of the pod still missing in the store
    upload_problem: str = ""  # reason why the store cannot be written now
    group: str = ""  # group of the run, such as a sweep
    left_s: tuple[float, float, float] | None = None  # remaining time: low, expected, high; None = unknown
    left_from: str = ""  # basis of the forecast in left_s, as text
    beyond_limit: str = ""  # why the limits will probably end the run too early, and how to raise them
