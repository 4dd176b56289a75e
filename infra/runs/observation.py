"""Observation of one pod at this moment, used by keepers, services, pod sets and `status`. Read-only.

`observe_pod` takes a journal row and a provider and returns an `Observation`. Up to three parties are asked, the most
expensive last, and only as far as the caller needs:

    PROVIDER   has it the pod, in which state?         gone    proven absent, or stopped according to the vendor
    FILES      the pod's progress and verdict          silent  no party with knowledge of the state answers
    AGENT      are guard and agent alive?              dead    the machine reports neither process alive

Silence is a separate result, never taken for absence. `follow` polls the files of a pod to the end of the run; an
interrupted caller stops no work.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, Flag, auto
from pathlib import Path
from typing import Any

from infra.agent.job import PodFolder
from infra.agent.limits import Clocks, read_clocks
from infra.agent.state import NODE_LOST
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import CREATING, PLANNED, UNKNOWN, Op
from infra.providers import LAG_S, Provider, clock_scale, find_pod, list_pods
from infra.records import Address, Pod
from infra.runs import pod_reports
from infra.settings import HELD
from infra.transport.host_keys import HostKeyMismatch
from infra.transport.protocol import ConnectionLost, TimedOut, Transport, Unreachable
from infra.units import duration

GONE = "it was gone"
STOPPED = ("stopped", "failed", "ending")  # Vendor states of a pod without running work; the pod may still bill.
SILENT = (ConnectionLost, TimedOut, Unreachable, HostKeyMismatch)  # StrangeHost: a different machine has the address.
PENDING = (PLANNED, CREATING, UNKNOWN)
ASK_S = 30.0
ASK_LATER = 75  # Exit code of an agent without an answer from the engine.

Seen = tuple[dict[str, Any], dict[str, Any]]  # Progress and verdict, each {} while missing.


SILENT_S = 60.0  # Pod clock: an older guard report does not prove the guard alive.
LEAST_SILENT_S = 15.0  # Local clock: a guard reports every 5 s, regardless of the clock speed of a rehearsal.
POLL_S = 0.25
RETRY_S = 2.0
DOUBT_AFTER_S = 5.0  # An active agent writes progress twice a second.


class AskedParties(Flag):
    """The parties to ask."""

    PROVIDER = auto()
    FILES = auto()
    AGENT = auto()  # The agent also reports the contents of the files.
    ALL = PROVIDER | FILES | AGENT


class ObservationKind(Enum):
    """The classes of observations."""

    GONE = "gone"
    SILENT = "silent"
    LOST = "lost"  # The verdict reports some other node as lost.
    OVER = "over"  # The work has a verdict.
    READY = "at work"
    DEAD = "dead"


@dataclass(frozen=True)
class Observation:
    """An observation of one pod."""

    exists: bool | None = None
    """True: the machine has the pod and answers. False: proven gone. None: unknown."""
    is_alive: bool | None = None
    """True if the guard or the agent lives. None: unknown, or not asked."""
    verdict: Mapping[str, Any] = field(default_factory=dict)
    """Verdict of the run; {} without a verdict."""
    why: str = ""
    """Reason for an unknown state, or the fate of the pod."""
    progress: Mapping[str, Any] = field(default_factory=dict)
    guard: Mapping[str, Any] = field(default_factory=dict)
    agent: Mapping[str, Any] = field(default_factory=dict)
    pod: Pod | None = None
    """The pod as listed by the provider."""
    clock_scale: float = 1.0
    """Speed of the provider's clock relative to the local clock."""

    @property
    def failure_text(self) -> str:
        """Return a display text for a pod without live processes, with the provider's note."""
        said = f" ({self.pod.note})" if self.pod and self.pod.note else ""
        return f"neither guard nor agent is running{said}"

    @property
    def kind(self) -> ObservationKind:
        if self.exists is False:
            return ObservationKind.GONE
        if self.verdict:
            return ObservationKind.LOST if self.verdict.get("state") == NODE_LOST else ObservationKind.OVER
        if self.exists is None or self.is_alive is None:
            return ObservationKind.SILENT
        return ObservationKind.READY if self.is_alive else ObservationKind.DEAD


def observe_pod(op: Op, provider: Provider, asks: AskedParties = AskedParties.ALL) -> Observation:
    """Look at the pod of a row. An error becomes a silent sight with the reason; no error is raised.

    An ended row has no pod: only the files of a local run are read.
    """
    seen = Observation(exists=None if op.is_live else False, clock_scale=clock_scale(provider))
    if op.is_live and AskedParties.PROVIDER in asks:
        seen = _as_provided(op, provider, seen)
    if seen.exists is False and provider.is_run_engine and op.is_live:
        asks = AskedParties.FILES
    elif seen.exists is False and not (provider.is_here and not op.is_live):
        return replace(seen, is_alive=False)
    if not op.address:  # The address is not known yet.
        return replace(seen, is_alive=False if seen.exists else None)
    try:
        return _as_told(op, provider.reach(pod_of(op)), asks if op.is_live else AskedParties.FILES, seen)
    except (*SILENT, UsageError) as error:  # No answer, or a machine missing in the inventory.
        return replace(seen, exists=None, why=str(error))
    except (SlipwayError, OSError, ValueError) as error:  # The machine answers, but the answer is unreadable.
        return replace(seen, exists=op.is_live, why="; ".join(dict.fromkeys(filter(None, (seen.why, str(error))))))


def _as_provided(op: Op, provider: Provider, seen: Observation) -> Observation:
    """Return the sight with the state reported by the provider."""
    try:
        pod = find_pod(provider, name_of(op), op.is_spot)
        if pod is None and op.state in PENDING:
            return seen  # The pod may still appear.
        if pod is None:
            gone = f"{provider.name} no longer lists the pod" if provider.is_rented else GONE
            return replace(seen, exists=False, why=gone) if is_absent(provider, op) else seen
    except SlipwayError as error:
        return replace(seen, why=str(error))
    if pod.state in STOPPED:
        why = f"{provider.name} says that the pod is {pod.state}{f' ({pod.note})' if pod.note else ''}"
        return replace(seen, exists=False, pod=pod, why=why)
    return replace(seen, exists=True, pod=pod)


def _as_told(op: Op, transport: Transport, asks: AskedParties, seen: Observation) -> Observation:
    """Return the sight with the pod's own reports."""
    if AskedParties.AGENT in asks:
        said = query_agent(op, transport)
        return replace(
            seen,
            exists=True,
            is_alive=_lives(said),
            guard=said["guard"],
            agent=said["agent"],
            progress=said["progress"],
            verdict=said["verdict"],
        )
    if AskedParties.FILES in asks:
        progress, verdict = read_progress_and_verdict(op, transport)
        guard = {} if op.is_live else _read(transport, folder_of(op).state / "guard.json", op.token, "the guard")
        is_alive = None if op.is_live else False
        return replace(seen, exists=op.is_live, is_alive=is_alive, progress=progress, verdict=verdict, guard=guard)
    return seen


def query_agent(op: Op, transport: Transport) -> dict[str, dict[str, Any]]:
    """Return the answer of `infra.agent status` on the pod: guard, agent, progress and verdict.

    Reports of a different pod become {}. Raises Unreachable, SlipwayError.
    """
    if not op.address:
        return own_reports(op, {})
    pod = folder_of(op)
    code = f"{pod.code}{os.pathsep}{ROOT}" if op.vendor == "local" else str(pod.code)
    words = [transport.python, "-m", transport.agent, "status", str(pod.root)]
    done = transport.run(words, timeout_s=ASK_S, env={"PYTHONPATH": code})
    if done.exited == ASK_LATER:
        raise Unreachable(f"{op.run}: {done.stderr.strip()}")
    if done.exited != 0:
        raise SlipwayError(f"{op.run}: status of the agent: exit code {done.exited}: {done.stderr.strip()}")
    return own_reports(op, pod_reports.parse(done.stdout, f"the status of {op.run}"))


def is_alive(op: Op, transport: Transport) -> bool:
    """Return True if the guard or the agent of this pod lives. Raises SlipwayError if the state is unknown."""
    return _lives(query_agent(op, transport))


def read_progress_and_verdict(op: Op, transport: Transport) -> Seen:
    """Return the current progress and verdict of this pod. Raises SlipwayError, OSError."""
    pod = folder_of(op)
    return _read(transport, pod.progress, op.token, "progress"), _read(transport, pod.verdict, op.token, "verdict")


def verdict_of(op: Op, transport: Transport) -> dict[str, Any]:
    """Return the verdict of this pod's work, or {} without a verdict. Raises SlipwayError, OSError."""
    return _read(transport, folder_of(op).verdict, op.token, f"the verdict of {op.run}") if op.address else {}


def own_reports(op: Op, told: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return only the reports of this pod; the folder may still hold reports of an earlier pod of the run."""
    parts = {key: told.get(key) for key in ("guard", "agent", "progress", "verdict")}
    known = {key: pod_reports.known(part) if isinstance(part, dict) else {} for key, part in parts.items()}
    return {key: value if value.get("token") == op.token else {} for key, value in known.items()}


def report_age_s(guard: Mapping[str, Any], now: Clocks) -> float | None:
    """Return the age of a guard's report in seconds of the local clock; None without a report.

    An answering pod reports the age by the pod's clock; the age of a copy is measured by the local clock.
    """
    if guard.get("age_s") is not None:
        return float(guard["age_s"])
    clocks = guard.get("clocks")
    return max(0.0, now.wall_s - clocks["wall_s"]) if clocks else None


def is_fresh(age_s: float | None, scale: float) -> bool:
    """Return True if a guard's report is recent enough to call the guard alive; `scale` is the pod's clock speed."""
    return age_s is not None and age_s < max(LEAST_SILENT_S, SILENT_S / scale)


def is_absent(provider: Provider, op: Op) -> bool:
    """Return True if the pod is proven gone.

    Raises SlipwayError if the provider gives no answer, or if the key belongs to a different account.
    """
    if unproven_s(provider, op) > 0 or find_pod(provider, name_of(op), op.is_spot) is not None:
        return False
    from infra.ledger import accounts  # most observations find a machine or a proof of the end

    if accounts.is_another(provider, op, read_clocks()):
        raise SlipwayError(accounts.account_advice(op))
    if op.place:  # The pod can run only on this machine; other machines may be switched off.
        return True
    pods = list_pods(provider, op.is_spot)
    may_be_there = not op.remote_id and not all(pod.is_legible for pod in pods)
    return not may_be_there and all(pod.token != op.token for pod in pods)


def name_of(op: Op) -> str:
    """Return the name by which the provider finds the pod, with the machine if the row names a machine."""
    at_its_place = f"{op.token}@{op.place}" if op.place and op.vendor in ("ssh", HELD) else op.token
    return op.remote_id or at_its_place


def unproven_s(provider: Provider, op: Op) -> float:
    """Return the seconds until the pod's absence is proof; a vendor may list a new pod late."""
    if op.sent_at is None or (op.remote_id and op.last_seen_at):
        return 0.0
    lag_s = min(LAG_S, provider.settle_s) if op.remote_id else provider.settle_s
    return max(0.0, lag_s - op.boot_clock_age_s(read_clocks()))


def pod_of(op: Op) -> Pod:
    """Return the `Pod` record of a row."""
    return Pod(
        provider=op.vendor,
        pod_id=op.remote_id or "",
        token=op.token,
        run=op.run,
        address=op.address or "",
        micro_usd_per_hour=op.rate,
    )


def folder_of(op: Op) -> PodFolder:
    """Return the folder of a row's pod on the pod's machine. Raises UsageError for an unreadable address."""
    address = op.address or "/nonexistent"
    try:
        return PodFolder(Path(Address.parse(address).folder if address.startswith("ssh://") else address))
    except ValueError as error:
        raise UsageError(
            f"{op.run}: the address in the journal cannot be read: {error}; end the run: ./inv down {op.run}"
        ) from None


def _lives(said: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(said[role].get("alive", False) for role in ("guard", "agent"))


def _read(transport: Transport, path: Path, token: str, what: str) -> dict[str, Any]:
    try:
        found = pod_reports.parse(transport.get(path, pod_reports.SAID_BYTES), what)
    except FileNotFoundError:
        return {}
    return found if found.get("token") == token else {}


def follow(
    op: Op, journal: Journal, transport: Transport, elsewhere: Callable[[], dict[str, Any]] = dict
) -> Iterator[Seen]:
    """Yield (progress, verdict) about four times a second until the run has a verdict.

    While a silent pod has a live row, keep polling: the run may continue on the pod. The `unreachable` entry of the
    progress then says for how long, and `elsewhere` may return the verdict of other nodes. Raises SlipwayError if
    neither guard nor agent is running, or if the pod was ended meanwhile.
    """
    doubted_at = heard_at = time.monotonic()
    progress: dict[str, Any] = {}
    is_doubted = False
    while True:
        try:
            is_working = not is_doubted or is_alive(op, transport)
            progress, verdict = read_progress_and_verdict(op, transport)
            heard_at = time.monotonic()
        except (ConnectionLost, TimedOut, Unreachable) as error:
            silent_s = time.monotonic() - heard_at
            verdict = elsewhere()
            yield {**progress, "unreachable": f"no answer for {duration(silent_s)}: {error}"}, verdict
            if verdict:
                return
            row = journal.op(op.token)
            if not row.is_live or row.detached:  # A detached row belongs to a replaced pod.
                raise SlipwayError(f"{op.run} was ended in the meantime; run: inv status") from None
            time.sleep(RETRY_S)
            continue
        if not is_working and not verdict:
            raise SlipwayError(f"{op.run}: neither guard nor agent is running; resume the run: inv resume {op.run}")
        yield progress, verdict
        if verdict:
            return
        is_recent = time.time() - progress.get("updated_at", 0.0) < DOUBT_AFTER_S
        if is_recent or is_doubted:
            doubted_at = time.monotonic()
        is_doubted = not is_recent and time.monotonic() - doubted_at > DOUBT_AFTER_S
        if is_doubted and not journal.op(op.token).is_live:
            raise SlipwayError(f"{op.run} was ended in the meantime; run: inv status")
        time.sleep(POLL_S)
