"""Implementations for every rig to reject: common ways to write renting that lose money or work."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infra import names
from infra.agent.limits import Clocks, read_clocks
from infra.errors import Ambiguous, SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.leases import Lease, LeaseHeld
from infra.ledger.op import TERMINATING, UNKNOWN, AlreadyLive, Op, after
from infra.ledger.reconcile import Clock, Listing, ReconcileResult, decide, reconcile
from infra.providers import Market
from infra.records import Pod
from infra.runs import pods
from tests.faults.crash import Renting
from tests.faults.points import Points


class JsonJournal:
    """Stores all rows in a JSON file; each change reads and rewrites the file. An unreadable file counts as empty."""

    problem, is_replacement = "", False

    def __init__(self, path: Path, points: Points) -> None:
        self.path, self.points, self.leases = path, points, NoLeases()
        self._known: dict[str, Op] = {}  # rows as this process wrote the rows
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = path.with_name("installation")
        if not kept.exists():
            kept.write_text(names.random_word(8))
        self.installation = kept.read_text()

    @staticmethod
    def at(path: Path, environ: Mapping[str, str], points: Points) -> "JsonJournal":
        return JsonJournal(path, points)

    def __enter__(self) -> "JsonJournal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        return None

    def plan(self, *, token: str, run: str, vendor: str, admit: object = None, **facts: Any) -> Op:
        op = Op(token=token, run=run, vendor=vendor, intent_at=int(time.time()), **facts)
        with self._changing("plan") as rows:
            taken = [one for one in rows.values() if one.is_live and (one.run, one.rank) == (op.run, op.rank)]
            if taken:
                raise AlreadyLive(taken[0])
            rows[token] = op
        return op

    def claim(self, pod: Pod, reason: str, state: str = TERMINATING) -> Op:
        op = Op(
            token=pod.token,
            run=f"orphan-{pod.token[-8:]}",
            vendor=pod.provider,
            state=state,
            reason=reason,
            remote_id=pod.pod_id,
            rate=pod.micro_usd_per_hour,
            last_seen_at=int(time.time()),
        )
        with self._changing("claim") as rows:
            rows[op.token] = op
        return op

    def advance(self, op: Op, event: str, **facts: Any) -> Op:
        state = after(op.state, event)
        if event == "sending":
            facts.setdefault("sent_at", int(time.time()))
        if event == "found":
            facts.setdefault("last_seen_at", int(time.time()))
        with self._changing(event) as rows:
            rows[op.token] = replace(op, state=state, epoch=op.epoch + 1, **facts)
        return rows[op.token]

    def note(self, op: Op, **facts: Any) -> Op:
        with self._changing("note") as rows:
            rows[op.token] = replace(op, epoch=op.epoch + 1, **facts)
        return rows[op.token]

    def op(self, token: str) -> Op:
        return self._read().get(token) or self._known[token]

    def ops(self, live: bool | None = None, run: str | None = None) -> list[Op]:
        rows = self._read().values()
        return [one for one in rows if (live is None or one.is_live is live) and run in (None, one.run)]

    def replaced_ago_s(self, now: Clocks) -> None:
        return None

    def _read(self) -> dict[str, Op]:
        try:
            return {token: Op(**row) for token, row in json.loads(self.path.read_text()).items()}
        except (FileNotFoundError, ValueError):
            return {}

    @contextlib.contextmanager
    def _changing(self, event: str) -> Iterator[dict[str, Op]]:
        with self.points.around(event):
            rows = self._read()
            yield rows
            self._known.update(rows)
            with open(self.path, "w") as file:  # empty from here on
                self.points.reach(f"commit {event}")
                json.dump({token: asdict(op) for token, op in rows.items()}, file)


class NoLeases:
    """Grants every lease to every process."""

    def acquire(self, name: str, code: str = "") -> Lease:
        return Lease(name, 1)

    def check_held(self) -> None:
        return None

    def held_names(self) -> set[str]:
        return set()

    def holder(self, name: str) -> None:
        return None

    def release(self, lease: Lease) -> None:
        return None


@dataclass(frozen=True)
class Wrapped:
    """A vendor's client with a replaced create."""

    vendor: Market

    def __getattr__(self, name: str) -> Any:
        return getattr(self.vendor, name)


class AsksAgain(Wrapped):
    """Sends a second request after a lost answer to a create."""

    def create(self, *words: Any) -> Pod:
        try:
            return self.vendor.create(*words)
        except Ambiguous:
            return self.vendor.create(*words)


class TakesSilenceForNo(Wrapped):
    """Takes an unanswered create request for a refused request."""

    def create(self, *words: Any) -> Pod:
        try:
            return self.vendor.create(*words)
        except Ambiguous as error:
            raise SlipwayError(str(error)) from error


def rent_again(vendor: Market, *words: Any, **named: Any) -> Op:
    return pods.rent(AsksAgain(vendor), *words, **named)  # type: ignore[arg-type]


def rent_and_forget(vendor: Market, *words: Any, **named: Any) -> Op:
    return pods.rent(TakesSilenceForNo(vendor), *words, **named)  # type: ignore[arg-type]


PATIENCE_S = 900


def give_up_deleting(vendor: Market, journal: Journal, clock: Clock = read_clocks) -> ReconcileResult:
    """Count a pod as gone if a quarter of an hour of deletes failed."""
    done = reconcile(vendor, journal, clock)
    for op in journal.ops(live=True):
        if op.state == TERMINATING and clock().wall_s - (op.del_requested_at or 0) > PATIENCE_S:
            journal.advance(op, "gone")
    return done


def believe_silence(vendor: Market, journal: Journal, clock: Clock = read_clocks) -> ReconcileResult:
    """Count a pod as gone as soon as a listing lacks the pod."""
    with contextlib.suppress(SlipwayError):
        listed = {pod.token for pod in vendor.list()}
        for op in journal.ops(live=True):
            if op.token not in listed:
                journal.advance(op, "absent" if op.state == UNKNOWN else "gone")
    return reconcile(vendor, journal, clock)


def read_rows_first(vendor: Market, journal: Journal, clock: Clock = read_clocks) -> ReconcileResult:
    """Read the rows, then the listing, and delete pods without a row."""
    with contextlib.suppress(LeaseHeld):
        rows = [op for op in journal.ops() if op.vendor == vendor.name]
        listing = Listing(began=clock(), pods=tuple(vendor.list()))
        known = {op.token for op in rows}
        prefix = f"sw1-{journal.installation}-"
        for pod in listing.pods:
            if pod.token.startswith(prefix) and pod.token not in known:
                with contextlib.suppress(SlipwayError):
                    vendor.delete(pod.pod_id)
        return ReconcileResult(tuple(decide(rows, listing, prefix=prefix, settle_s=vendor.settle_s)), ())
    return ReconcileResult((), ())


def forget_that_rows_were_lost(vendor: Market, journal: Journal, clock: Clock = read_clocks) -> ReconcileResult:
    """Take pods without a row for orphans, and end them."""
    journal.replaced = None
    return reconcile(vendor, journal, clock)


@dataclass(frozen=True)
class InJson(Renting):
    watched: Callable[..., Any] = JsonJournal.at


@dataclass(frozen=True)
class Resending(Renting):
    rent: Callable[..., Op] = rent_again


@dataclass(frozen=True)
class Forgetting(Renting):
    rent: Callable[..., Op] = rent_and_forget


@dataclass(frozen=True)
class RowsFirst(Renting):
    reconcile: Callable[..., ReconcileResult] = read_rows_first
