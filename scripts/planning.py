"""Flags and the store as they are now -> a plan. Shared by `launch` and `train`."""

import shlex
from dataclasses import replace
from pathlib import Path

from infra import machine
from infra.agent import environment
from infra.agent.job import Limits
from infra.names import check_name
from infra.records import Artifact, Inventory, Plan, Request
from infra.settings import Settings
from store import Store
from trainer import plan as planning

ROOT = Path(__file__).resolve().parents[1]


def plan_for(
    settings: Settings, request: Request, *, phase: str, packages: str = "", persona: str = "", seed: int | None = None,
    steps: int | None = None, tag: str = "", time_s: float | None = None, pod_store: str = "",
) -> Plan:  # fmt: skip
    """Raises UsageError for words that mean nothing."""
    wanted = planning.Wanted(
        phases=planning.parse_phases(phase),
        profile=settings.profile,
        tag=check_name(tag) if tag else "",
        source=settings.source,
        packages=tuple(filter(None, packages.split(","))),
        persona=planning.load_persona(Path(persona) if persona else ROOT / "data" / "persona.yaml"),
        seed=seed,
        steps=steps,
    )
    plan = planning.resolve(
        wanted, inventory(settings.store), ROOT, run=request.run, request=request,
        limits=Limits(time_s=time_s, reserve_bytes=settings.reserve_bytes),
        flops_per_s=machine.flops_per_s(), pod_store=pod_store,
        torch=("cuda" if request.num_gpus else "cpu") if pod_store else environment.torch_build(),
        environments="" if pod_store else str(settings.environments),
    )  # fmt: skip
    if plan.job:
        Store(settings.store).check_writable()  # what is made must go somewhere: known now, not after the training
    if pod_store:
        kept = "artifacts stay on the machine until somebody who follows (or inv status, or inv pull) brings them home"
        return replace(plan, notes=(kept,) if plan.job else ())
    if plan.job and not environment.find("train", ROOT, settings.environments, plan.job.torch):
        return replace(plan, notes=("the train environment is built first: a minute or so, depending on the network",))
    return plan


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
    """What the store holds now, every file verified."""
    found = Store(uri).artifacts()
    records = (Artifact(one.name, one.fingerprint, one.problem, one.about) for one in found)
    return Inventory(uri, {one.name: one for one in records})
