"""Leases of a run on artifacts and artifact names in the store, which protect the inputs of the run from removal."""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator
from typing import Any

from infra.errors import UsageError
from infra.ledger.op import Op
from infra.records import Plan
from infra.runs.timing import Say
from store.artifacts import references
from store.artifacts.artifacts import Store
from store.manifest import StoreError, kind_of


def move_names(plan: Plan) -> None:
    """Point the requested names to the existing artifacts. Raises StoreError."""
    for one in plan.pointers:
        Store(plan.store).point_name(one.name, one.fingerprint)


def plan_artifacts(plan: Plan) -> set[references.What]:
    """Return the kind and fingerprint of all artifacts read or made by the plan's job."""
    makings = [step.config["making"] for step in plan.job.steps if "making" in step.config] if plan.job else []
    return {what for making in makings for what in references.of_making(making)}


def acquire(plan: Plan, run: str, installation: str) -> None:
    """Write the lease on the artifacts read and made by a run. Raises StoreError.

    Raises UsageError if an input was removed from the store during planning.
    """
    assert plan.job is not None
    if not plan_artifacts(plan):
        return
    references.hold(plan.store, reference_of(run, installation), f"run {run}", plan_artifacts(plan), time.time())
    made = {step.config["making"]["fingerprint"] for step in plan.job.steps if "making" in step.config}
    named, kept = Store(plan.store).list_all()
    there = {(kind_of(one.name), one.fingerprint) for one in (*named, *kept)}
    lost = sorted(kind for kind, fingerprint in plan_artifacts(plan) - there if fingerprint not in made)
    if lost:
        raise UsageError(f"{', '.join(lost)} were removed from {plan.store} during the planning; launch again")


def renew(op: Op, installation: str, tell: Say) -> None:
    """Renew the lease of a followed run; report a store error through `tell`."""
    makings = _makings(op)
    reads = {what for making in makings for what in references.of_making(making)}
    try:
        if reads:
            references.hold(op.store, reference_of(op.run, installation), f"run {op.run}", reads, time.time())
    except StoreError as error:
        tell(f"{op.run}: the lease was not renewed: {error}")


def _makings(op: Op) -> list[dict[str, Any]]:
    steps = op.read_job().steps if op.job else ()
    return [step.config["making"] for step in steps if "making" in step.config]


def release(store: str, run: str, installation: str, tell: Say) -> None:
    """Release the lease of an ended run; report a store error through `tell`, as the lease expires anyway."""
    try:
        references.release(store, reference_of(run, installation))
    except StoreError as error:
        tell(f"{run}: the lease was not ended: {error}")


def reference_of(run: str, installation: str) -> str:
    return f"{installation}-{run}"[:128]


@contextlib.contextmanager
def hold_inputs(plan: Plan, tell: Say) -> Iterator[None]:
    """Hold the inputs of steps in this terminal inside the block. Raises StoreError, UsageError."""
    name, here = f"{os.getpid()}-{secrets.token_hex(4)}", "foreground"
    if plan.job is None:
        yield
        return
    acquire(plan, name, here)
    try:
        yield
    finally:
        release(plan.store, name, here, tell)
