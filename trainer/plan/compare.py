"""Comparison of the wanted artifacts with the contents of the store: the plan, and the job for the missing part.

The comparison takes `TrainingRequest`, an `Inventory` of the store and the checkout of the job's code, and returns a
`Plan`. The comparison never accesses the store.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from data.config import Input, StepContext, TextSpec
from infra.agent.job import Job, Limits, Step
from infra.errors import UsageError
from infra.records import HeldArtifact, Inventory, Plan, PlannedArtifact, Pointer, Request
from store import extensions
from store.manifest import kind_of
from trainer.config import CheckpointOptions, ImportSpec, PhaseConfig, Profile
from trainer.fingerprints import CheckoutCode, Choice, Node, choices, differences, digest, needed
from trainer.plan import estimates
from trainer.plan.estimates import STATE_BYTES, gpu_layouts, layouts_text
from trainer.plan.nodes import own_sources, recipe
from trainer.plan.phase_needs import needs_of
from trainer.plan.training_request import TrainingRequest, profile_before, profile_of
from trainer.records import phase_options
from trainer.records.fields import fingerprint_fields
from trainer.records.model_config import FEATURES, feature
from trainer.records.phase_registry import PHASES, PROMPTS, TALK, TEXT, listed, phases_reading

SILENT_S = 30 * 60.0
SHOWN = 3  # maximum number of differing settings to show
NO_LIMITS = Limits()


def resolve(
    wanted: TrainingRequest,
    inventory: Inventory,
    root: Path,
    *,
    run: str,
    request: Request,
    limits: Limits = NO_LIMITS,
    torch: str = "cpu",
    environments: str = "",
    pod_store: str = "",
) -> Plan:
    """Return the plan for the wanted artifacts; the job contains exactly the due steps.

    A step is due if the artifact of the step is wanted and is missing, damaged or has a different fingerprint. The
    inputs of an existing artifact are not wanted. `root` is the checkout with the job's code; `pod_store` is the
    store's address on the pod, if different from the address at home.
    """
    from_nothing = [name for name in wanted.phases if name in PHASES and not PHASES[name].follows]
    if wanted.init is not None and from_nothing:
        others = ", ".join(name for name, one in PHASES.items() if one.takes_init) + " or mid+sft"
        raise UsageError(
            f"{listed(from_nothing)} starts from random weights. To train a model of --init, use --phase {others}"
        )
    if wanted.mixture is not None and not {*wanted.phases} & {*phases_reading(TALK)}:
        of, rest = listed(phases_reading(TALK)), listed(phases_reading(TEXT))
        raise UsageError(f"--mixture sets conversations for {of}; {rest} reads text, which --source sets")
    if (wanted.tasks or wanted.rl or wanted.problems) and not {*wanted.phases} & {*phases_reading(PROMPTS)}:
        asked = "+".join((*wanted.phases, "rl"))
        raise UsageError(
            f"--task, --problems, --reward and --unsafe-rewards apply to the phase rl. Add the phase: --phase {asked}"
        )
    nodes = recipe(wanted)
    named = {phase_options.phase_of(path)[0] for path in wanted.options} - {phase_options.MODEL}
    if idle := sorted(named - nodes.keys()):
        raise UsageError(
            f"--set {idle[0]}: this plan does not train the phase {idle[0]}; phases of the plan: "
            f"{', '.join(name for name in nodes if name in PHASES)}"
        )
    held = {(kind_of(one.name), one.fingerprint): one.about for one in _held(inventory)}
    pointers = {name: one.fingerprint for name, one in inventory.artifacts.items() if not one.problem}
    remake = wanted.phases if wanted.made == "remake" else ()
    chosen = choices(nodes, held, pointers, CheckoutCode(root), wanted.given, remake)
    due = set(needed(nodes, wanted.phases, chosen))
    profile = profile_of(wanted)
    keeping = replace(profile.keeping, reserve_bytes=limits.reserve_bytes, **wanted.keeping)
    shown: dict[str, PlannedArtifact] = {}
    steps = []
    for name in (name for name in nodes if name in _closure(nodes, wanted.phases)):
        node, choice = nodes[name], chosen[name]
        if name in due or choice.is_here:
            is_asked = name in wanted.phases
            shown[name] = _planned(node, choice, inventory, name in due, is_asked)
        if name in due and name in wanted.given:
            seen = f"{shown[name].state} {shown[name].reason}".strip()
            raise UsageError(f"{node.artifact} must exist in {inventory.store}, but is {seen}")
        if name in due:
            steps.append(_step(node, nodes, chosen, pod_store or inventory.store, keeping, request.num_gpus))
    target = digest([[nodes[phase].artifact, chosen[phase].fingerprint] for phase in wanted.phases])
    here = {nodes[phase].artifact for phase in wanted.phases if phase not in due}
    artifacts = tuple(shown.values())
    lines = [one for one in artifacts if one.name in here]
    moved = tuple(Pointer(one.name, one.fingerprint) for one in lines if pointers.get(one.name) != one.fingerprint)
    doubtful = tuple(one for one in lines if one.differs and not wanted.made)
    untyped = tuple(name for name in nodes if name in due and name in PHASES and name not in wanted.phases)
    job = None
    if steps:
        specs = [nodes[name].spec for name in due if name in nodes]
        trained = [one for one in specs if isinstance(one, PhaseConfig)]
        for one in trained:
            needs_of(one).check(one, request)
        setup = tuple(dict.fromkeys(name for one in trained for name in needs_of(one).environments(one, torch)))
        job = Job(
            run,
            "",
            tuple(steps),
            limits,
            torch=torch,
            environments=environments,
            num_gpus=request.num_gpus,
            setup=setup,
        )
    phases = [node.spec for name, node in nodes.items() if name in due and isinstance(node.spec, PhaseConfig)]
    copies = wanted.keeping.get("keep", profile.keeping.keep) + 1
    kept = sum(copies * STATE_BYTES * phase.num_learning for phase in phases)
    spread = [gpu_layouts(phase, request) for phase in phases]
    notes = phase_options.differences(wanted.options, profile_before(wanted).phases)
    notes += rescaled(profile, phases) + _about_init(wanted.init if "init" in due else None)
    for name in FEATURES:
        if any(getattr(one.model, name) is not None or PHASES[one.phase].feature == name for one in phases):
            notes += feature(name).plan_notes(phases, wanted.init)
    notes += about_rates(profile, phases) if wanted.init is not None else ()
    notes += tuple(
        f"{phase.phase}: {said}"
        for phase in phases
        if (said := needs_of(phase).gpu_split_note(phase, request.num_gpus))
    )
    notes += tuple(
        f"{phase.phase}: {said}" for phase, found in zip(phases, spread, strict=True) if (said := layouts_text(found))
    )
    notes += tuple(
        f"the plan keeps {one.name}, although the code has changed: {', '.join(one.differs)}"
        for one in artifacts
        if one.differs and one not in doubtful
    )
    notes += _of_unknown_code([(one.name, chosen[name].made_by) for name, one in shown.items()])
    data = 0
    if job is not None:
        sizes = {(kind_of(one.name), one.fingerprint): one.num_bytes for one in _held(inventory)}
        read = {of for name in due for of in nodes[name].inputs.values() if of not in due}
        fetched = sum(sizes.get((kind_of(nodes[name].artifact), chosen[name].fingerprint), 0) for name in read)
        data = fetched + estimates.written_bytes([nodes[name].spec for name in due], fetched)
    return Plan(
        target,
        inventory.store,
        artifacts,
        job,
        request,
        notes,
        disk_bytes=kept,
        data_bytes=data,
        pointers=moved,
        doubtful=doubtful,
        untyped=untyped,
    )


def rescaled(profile: Profile, phases: Sequence[PhaseConfig]) -> tuple[str, ...]:
    """Return a note on the lengths and warm-ups of phases changed by `--steps`; () without changes."""
    changes = []
    for phase in phases:
        whole = profile.phases[phase.phase]
        if phase.steps != whole.steps:
            warmup = phase.schedule.warmup_steps
            warm = f", warm-up {warmup} of {whole.schedule.warmup_steps}" if warmup and not phase.adopted else ""
            changes.append(f"{phase.phase} {phase.steps} of {whole.steps} steps{warm}")
    return (f"the schedule is rescaled: {'; '.join(changes)}",) if changes else ()


def _about_init(init: ImportSpec | None) -> tuple[str, ...]:
    if init is None or init.has_tokenizer:
        return ()
    return (f"{init.source} has no tokenizer: the plan trains a new tokenizer on the text and retrains the embeddings",)


def about_rates(profile: Profile, phases: Sequence[PhaseConfig]) -> tuple[str, ...]:
    """Return notes on the phases of an imported model with a learning rate other than the profile's."""
    return tuple(
        f"{one.phase}: the learning rate is {one.optimizer.lr:g} for an imported model, instead of the "
        f"profile's {profile.phases[one.phase].optimizer.lr:g}. To change the rate: --set {one.phase}.optimizer.lr=RATE"
        for one in phases
        if one.optimizer.lr != profile.phases[one.phase].optimizer.lr
    )


def _closure(nodes: Mapping[str, Node], names: tuple[str, ...]) -> set[str]:
    needed, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo.extend(nodes[name].inputs.values())
    return needed


def _held(inventory: Inventory) -> list[HeldArtifact]:
    """Return the undamaged artifacts, both named and kept by fingerprint."""
    return [one for one in (*inventory.artifacts.values(), *inventory.kept) if not one.problem]


def _planned(node: Node, choice: Choice, inventory: Inventory, is_due: bool, is_asked: bool) -> PlannedArtifact:
    """Return the line of a plan. is_asked: `--phase` names the artifact, so the artifact takes over the name."""
    pointed = inventory.artifacts.get(node.artifact)
    is_moved = pointed is not None and pointed.fingerprint != choice.fingerprint
    why = why_other(pointed, choice.fingerprint, node.spec) if pointed and is_moved else ""
    readers = inventory.references.get(pointed.fingerprint, ()) if pointed and is_moved else ()
    used = f"; {', '.join(readers)} keep{'' if readers[1:] else 's'} the earlier artifact" if readers else ""
    if not is_due:
        verb = "moves from" if is_asked else "now points to"
        other = f"the name {verb} a different artifact ({why}{used})" if is_moved else ""
        return PlannedArtifact(node.artifact, "here", "", other, None, choice.fingerprint, choice.differs)
    state, reason = "missing", ""
    if pointed is not None:
        state, reason = ("stale", why + used) if is_moved and not pointed.problem else ("damaged", pointed.problem)
    return PlannedArtifact(node.artifact, state, node.name, reason, None, choice.fingerprint)


def why_other(before: HeldArtifact, fingerprint: str, spec: Any) -> str:
    """Return the differences between an artifact and the artifact made from `spec` and the inputs, in words.

    The changed settings are listed only if the artifact's own record contains the settings.
    """
    parts = zip(("settings", "version", "inputs"), before.fingerprint.split("-"), fingerprint.split("-"), strict=False)
    changed = [name for name, a, b in parts if a != b] or ["fingerprint"]
    settings = differences(before.about.get("spec"), plain(spec)) if "settings" in changed else []
    if not settings:
        return f"{' and '.join(changed)} changed"
    others = [name for name in changed if name != "settings"]
    more = f", and {len(settings) - SHOWN} more" if len(settings) > SHOWN else ""
    rest = f"; {' and '.join(others)} changed" if others else ""
    return f"{', '.join(settings[:SHOWN])}{more}{rest}"


def plain(spec: Any) -> dict[str, Any]:
    """Return the fields of a spec that count for the fingerprint, as JSON values."""
    return dict(json.loads(json.dumps(fingerprint_fields(spec))))


def _of_unknown_code(makers: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return notes on artifacts made by commits unknown to this checkout."""
    by: dict[str, list[str]] = {}
    for name, commit in makers:
        if commit:
            by.setdefault(commit, []).append(name)
    return tuple(
        f"{listed(names)}: made by commit {commit[:10]}, which this checkout does not have, so the plan cannot compare "
        "the code. To get the commit, try: git fetch"
        for commit, names in by.items()
    )


def own_code(node: Node) -> dict[str, str]:
    """Return the texts of the extensions used by a step, by name; the step carries the texts along."""
    words = [node.spec.phase] if isinstance(node.spec, PhaseConfig) and node.spec.extension else []
    words += own_sources(node.spec.source) if isinstance(node.spec, TextSpec) else []
    return {name: one.text for name in words if (one := extensions.used(name))}


def _step(
    node: Node,
    nodes: Mapping[str, Node],
    chosen: Mapping[str, Choice],
    store: str,
    keeping: CheckpointOptions,
    num_gpus: int,
) -> Step:
    inputs = {
        role: Input(name=nodes[name].artifact, fingerprint=chosen[name].fingerprint)
        for role, name in node.inputs.items()
    }
    choice = chosen[node.name]
    making = StepContext(
        store=store,
        name=node.artifact,
        fingerprint=choice.fingerprint,
        inputs=inputs,
        code=choice.code,
        spec=plain(node.spec),
    )
    config: dict[str, Any] = {"making": asdict(making), "spec": asdict(node.spec)}
    together: tuple[str, ...] = ()
    if isinstance(node.spec, PhaseConfig):
        config["keeping"] = asdict(keeping)
        together = ("-m", "trainer.spread", *needs_of(node.spec).spread_words(node.spec, num_gpus))
    if own := own_code(node):
        config["extensions"] = own
    config = json.loads(json.dumps(config))
    return Step(node.name, node.words, "train", config, silent_s=SILENT_S, together=together)
