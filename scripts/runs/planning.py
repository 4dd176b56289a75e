"""Flags and the store as they are now -> a plan. Shared by `launch` and `train`."""

import contextlib
import difflib
import functools
import math
import os
import secrets as secrets_module
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.agent import environment
from infra.agent.job import Job, Limits, Step
from infra.errors import UsageError
from infra.job_environment import asked_at, secrets, tracking
from infra.ledger.journal import Op
from infra.names import check_name
from infra.providers import Provider
from infra.records import Artifact, Inventory, Plan, Request
from infra.runs import doctor
from infra.settings import Settings
from scripts.cli.context import ROOT
from scripts.cli.render import count, size
from store import Artifact as StoredArtifact
from store import Store, StoreError, credentials
from store.artifacts import references
from store.manifest import kind_of
from trainer import plan as planning
from trainer.config import ImportSpec


def plan_for(
    settings: Settings, request: Request, vendor: Provider, limits: Limits, *, phase: str, packages: str = "",
    persona: str = "", seed: int | None = None, steps: int | None = None, tag: str = "",
    save_every: int | None = None, keep: int | None = None, ckpt_prefix: str = "",
    flops_per_s: float | None = None, init: ImportSpec | None = None, mixture: str = "",
    given: Mapping[str, str] | None = None, made: str = "",
    with_missing: bool = False,
) -> Plan:  # fmt: skip
    """`flops_per_s`: of the machine that will do the work, else this one's; with_missing: whatever `--phase` does not
    name may be made, under a new tag too. Raises UsageError for senseless words.
    """
    torch, environments = environments_of(settings, request, vendor)
    keeping = {"save_every": save_every, "keep": keep, "prefix": ckpt_prefix or None}
    wanted = planning.Wanted(
        phases=planning.parse_phases(phase),
        profile=settings.profile,
        tag=check_name(tag) if tag else "",
        source=settings.source,
        packages=tuple(filter(None, packages.split(","))),
        persona=planning.load_persona(Path(persona) if persona else ROOT / "data" / "persona.yaml"),
        seed=seed,
        steps=steps,
        init=init,
        mixture=planning.parse_mixture(mixture),
        given=given or {},
        made=made,
        keeping={name: value for name, value in keeping.items() if value is not None},
    )
    there = inventory(settings.store)
    plan = planning.resolve(
        wanted, there, ROOT, run=request.run, request=request,
        limits=limits, flops_per_s=flops_per_s or doctor.flops_per_s(), pod_store=vendor.pod_store,
        torch=torch, environments=environments,
    )  # fmt: skip
    plan = replace(plan, notes=(*plan.notes, *store_notes(there)))
    if not with_missing:
        refuse_unknown_tag(plan, tag, wanted.phases, there)
    if plan.job and not vendor.is_here and not settings.rehearsal:
        refuse_what_is_only_here(plan.job.steps)
    if plan.job:
        _check_writable(settings.store)
    if plan.job and settings.rehearsal:  # its GPUs are make-believe
        plan = replace(plan, job=replace(plan.job, num_gpus=0, clock_scale=settings.clock_scale))
    if plan.job:
        places = {name: os.environ[name] for kind in asked_at(settings) for name in credentials.PLACES.get(kind, ())
                  if os.environ.get(name)}  # fmt: skip
        environ = {**plan.job.environ, **places, **tracking(settings)}
        job = replace(plan.job, secrets=tuple(secrets(settings)), environ=environ)
        lacking = tuple(f"W&B: {one.detail}" for one in doctor.tracking(ROOT, settings) if one.state != "ok")
        plan = replace(plan, job=job, notes=(*plan.notes, *lacking))
    if vendor.pod_store:
        kept = "artifacts stay on the machine until somebody who follows (or inv status, or inv pull) brings them home"
        return replace(plan, notes=(*plan.notes, kept)) if plan.job else plan
    if plan.job and environments and not environment.find("train", ROOT, settings.environments, plan.job.torch):
        built = "the train environment is built first: a minute or so, depending on the network"
        return replace(plan, notes=(*plan.notes, built))
    return plan


def made_by_words(remake: bool, keep_made: bool) -> str:
    """Return what `--remake` and `--keep-made` say, as `plan_for` takes it. Raises UsageError."""
    if remake and keep_made:
        raise UsageError("--remake and --keep-made contradict each other; give one of them")
    return "remake" if remake else "keep" if keep_made else ""


def ask_about_made(plan: Plan, yes: bool) -> str:
    """Return whether phases that other code made are to be kept or made again; "" when there are none.

    Raises UsageError when nobody can be asked.
    """
    if not plan.doubtful:
        return ""
    named = "; ".join(
        f"{one.name} was made by other code than today's: {', '.join(one.differs)}" for one in plan.doubtful
    )
    if yes or not sys.stdin.isatty():
        raise UsageError(
            f"{named}; add --keep-made to take it as it is (its version says that the result is the same), "
            "or --remake to make it again"
        )
    print(f"{named}.\nKeep it, or make it again? [K/r] ", end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    said = line.strip().lower()
    if not line or said not in ("", "k", "keep", "r", "remake"):
        raise UsageError("nothing was changed; answer k or r, or give --keep-made or --remake")
    return "remake" if said in ("r", "remake") else "keep"


@functools.cache
def _check_writable(store: str) -> None:
    """What is made must go somewhere: known now, and not after the training. Asked once; raises StoreError."""
    Store(store).check_writable()


def refuse_what_is_only_here(steps: tuple[Step, ...]) -> None:
    """Steps that read files of this machine run where those are. Raises UsageError."""
    for step in steps:
        source = step.config["spec"].get("source", "")
        if step.words[-1] in ("talk", "import") and not source.startswith("hf://"):
            raise UsageError(
                f"{source} is on this machine, and the work would be done elsewhere; "
                "put it into the store first: the same flags with inv train --prepare"
            )


def text_steps(settings: Settings) -> tuple[str, tuple[Step, ...]]:
    """The store's text of the source, and the steps that make it: none when it is there, of whatever settings."""
    persona = planning.load_persona(ROOT / "data" / "persona.yaml")
    wanted = planning.Wanted(phases=("text",), profile=settings.profile, source=settings.source, persona=persona)
    name = planning.recipe(wanted)["text"].artifact
    found = Store(settings.store).check(name)
    if not found.problem:
        return name, ()
    there = Inventory(settings.store, {})
    plan = planning.resolve(wanted, there, ROOT, run="foreground", request=Request(run="foreground"), flops_per_s=1.0)
    return name, plan.job.steps if plan.job else ()


def environments_of(settings: Settings, request: Request, vendor: Provider) -> tuple[str, str]:
    """Which build of torch such a machine gets, and the folder of its environments, "" for its own default."""
    if vendor.is_here or settings.rehearsal:  # a rehearsal's pods are processes of this machine
        return environment.torch_build(), str(settings.environments)
    return "cuda" if request.num_gpus else "cpu", ""


def node_commands(plan: Plan) -> list[str]:
    """What each node of a plan for several will run for the steps that they run together; [] for one node."""
    nodes, job = plan.request.nodes, plan.job
    if nodes == 1 or job is None:
        return []
    return [
        f"node {rank}: MASTER_ADDR=<node 0> SLIPWAY_NODE_RANK={rank} SLIPWAY_NUM_NODES={nodes} "
        + shlex.join(["python", *step.together, *step.words, "--config", f"state/config/{step.name}.json"])
        for step in job.steps
        if step.together
        for rank in range(nodes)
    ]


def inventory(uri: str) -> Inventory:
    """What the store holds now, every file verified, and who reads it."""
    named, kept = Store(uri).everything()
    odd: list[str] = []
    held = references.readers(references.living(uri, time.time(), odd))
    readers: dict[str, tuple[str, ...]] = {}
    for (_, fingerprint), owners in held.items():
        readers[fingerprint] = (*readers.get(fingerprint, ()), *owners)
    unread = references.unread(named, kept, held, math.inf)
    return Inventory(
        uri,
        {one.name: _record(one) for one in named},
        tuple(_record(one) for one in kept),
        readers,
        sum(one.num_bytes for one in kept),
        sum(one.num_bytes for one in unread),
        tuple(odd),
    )


def _record(one: StoredArtifact) -> Artifact:
    return Artifact(one.name, one.fingerprint, one.problem, one.about)


def store_notes(there: Inventory) -> tuple[str, ...]:
    """What the store takes, and whose lease in it cannot be read, in words."""
    notes = tuple(f"a lease cannot be read: {one}" for one in there.odd)
    if not there.kept:
        return notes
    unread = f", {size(there.unread_bytes)} of it read by nothing (inv store.gc)" if there.unread_bytes else ""
    return (*notes, f"the store holds {count(len(there.kept), 'artifact')}, {size(there.num_bytes)}{unread}")


def refuse_unknown_tag(plan: Plan, tag: str, phases: Sequence[str], there: Inventory) -> None:
    """A tag that was typed stands for what is there, or for what `--phase` names. Raises UsageError."""
    of_phases = [name.split("/", 1) for name in there.artifacts if name.split("/")[0] in planning.CHECKPOINTS.values()]
    known = sorted({name for _, name in of_phases})
    if not tag or tag in known or not (plan.untyped or (plan.job is None and "base" not in phases)):
        return
    near = difflib.get_close_matches(tag, known, 3) or known[:10]
    listed = f"there is: {', '.join(near)}" if near else "there is no checkpoint yet"
    due = (
        planning.PHASES
        if "base" in plan.untyped
        else [one for one in planning.PHASES if one in (*plan.untyped, *phases)]
    )
    make = (
        f"--phase {'+'.join(due)} --tag {tag}" if plan.untyped else "leave --tag out, since that model is there already"
    )
    then = f"to train it under that name: {make}" if plan.untyped else make
    raise UsageError(f"no checkpoint is called {tag!r} in {there.store}; {listed}; {then}")


def move_names(plan: Plan) -> None:
    """Have the names that were asked for stand for what is there already. Raises StoreError."""
    for one in plan.pointers:
        Store(plan.store).point(one.name, one.fingerprint)


def read_by(plan: Plan) -> set[references.What]:
    """Kind and fingerprint of what the plan's job reads and makes."""
    makings = [step.config["making"] for step in plan.job.steps if "making" in step.config] if plan.job else []
    return {what for making in makings for what in references.of_making(making)}


def refuse_beside_older(plan: Plan, at_work: Sequence[Op]) -> None:
    """Runs of Slipway before versions of semantics read by name: none of theirs may come to stand for something else.

    Raises UsageError.
    """
    moved = {one.name: one.fingerprint for one in plan.pointers}
    for step in plan.job.steps if plan.job else ():
        making = step.config.get("making", {})
        moved |= {making["name"]: making["fingerprint"]} if making else {}
    for op in at_work:
        makings = _makings(op)
        if op.store == plan.store and makings and not any("code" in making for making in makings):
            read = {
                one["name"]: one["fingerprint"] for making in makings for one in (making, *making["inputs"].values())
            }
            clash = sorted(name for name, fingerprint in read.items() if moved.get(name, fingerprint) != fingerprint)
            if clash:
                raise UsageError(
                    f"{op.run}, begun by an older Slipway, reads {', '.join(clash)} by name, and this would put other "
                    "artifacts under it; wait until it has ended (inv status), or give another store: --store"
                )


def hold_for(plan: Plan, run: str, installation: str) -> None:
    """Write down that a run reads what it begins with, so that nobody removes it. Raises StoreError, UsageError."""
    assert plan.job is not None
    references.hold(plan.store, reference_of(run, installation), f"run {run}", read_by(plan), time.time())
    made = {step.config["making"]["fingerprint"] for step in plan.job.steps if "making" in step.config}
    named, kept = Store(plan.store).everything()
    there = {(kind_of(one.name), one.fingerprint) for one in (*named, *kept)}
    lost = sorted(kind for kind, fingerprint in read_by(plan) - there if fingerprint not in made)
    if lost:
        raise UsageError(f"{', '.join(lost)} went out of {plan.store} while this was planned; launch again")


def renew(op: Op, installation: str) -> None:
    """Write the lease of a run that is followed once more; what the store has against it is told."""
    makings = _makings(op)
    reads = {what for making in makings for what in references.of_making(making)}
    try:
        if reads:
            references.hold(op.store, reference_of(op.run, installation), f"run {op.run}", reads, time.time())
    except StoreError as error:
        print(f"{op.run}: its lease was not renewed: {error}", file=sys.stderr, flush=True)


def _makings(op: Op) -> list[dict[str, Any]]:
    steps = Job.from_json(op.job).steps if op.job else ()
    return [step.config["making"] for step in steps if "making" in step.config]


def release(store: str, run: str, installation: str) -> None:
    """End the lease of a run that is over; what the store has against it is told, and the lease ends by itself."""
    try:
        references.release(store, reference_of(run, installation))
    except StoreError as error:
        print(f"{run}: its lease was not ended: {error}", file=sys.stderr, flush=True)


def reference_of(run: str, installation: str) -> str:
    return f"{installation}-{run}"[:128]


@contextlib.contextmanager
def foreground(plan: Plan) -> Iterator[None]:
    """Hold what steps in this terminal read, for as long as they take. Raises StoreError, UsageError."""
    name, here = f"{os.getpid()}-{secrets_module.token_hex(4)}", "foreground"
    if plan.job is None:
        yield
        return
    hold_for(plan, name, here)
    try:
        yield
    finally:
        release(plan.store, name, here)
