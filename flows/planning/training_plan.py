"""The planner: turns the flags of a launch and the current store into a plan."""

import difflib
import functools
import os
import shlex
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from data.config import text_unit
from flows.planning import estimates, extensions
from flows.planning.extensions import reward_text, use_phases, use_source
from flows.specs.work import WorkSpec, phase_changes, prepare_command, typed_sizes
from infra.agent.environments import environment
from infra.agent.job import Limits, Step
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.job_environment import plain, secrets, store_kinds
from infra.ledger import wait_queue
from infra.names import check_name
from infra.providers import Provider, is_examined
from infra.records import HeldArtifact, Inventory, Offer, Plan, Request
from infra.runs.run_rows import live_by_run
from infra.selection.machine_spec import disk_of_plan, expected_gpus
from infra.settings import Settings, pack_settings
from infra.units import count, size
from store import credentials, packs
from store.artifacts import references
from store.artifacts.artifacts import Store
from store.manifest import Artifact, kind_of
from trainer import plan as planning
from trainer.config import ImportSpec, PhaseConfig
from trainer.plan.phase_needs import needs_of
from trainer.recipes import PUBLISHED
from trainer.records import rl_config
from trainer.records.phase_registry import PHASES, checkpoint_folders, phases_sized


@dataclass(frozen=True, kw_only=True)
class PlannedWork:
    """The requested work, with the facts and decisions found for the plan."""

    spec: WorkSpec
    init: ImportSpec | None = None
    """Model named by `spec.init`."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Artifacts made elsewhere, by the name of the consumer."""
    remake_policy: str = ""
    """Choice for artifacts made by different code: "keep", "remake", or "" to ask the user."""
    name_prefix: str = ""
    """Prefix of the run name before a number; "" = random words."""
    names_tag: bool = False
    """True if the tag comes from a job file, which may name a new tag; an unknown typed tag may be a typo."""

    @staticmethod
    def from_spec(spec: WorkSpec, settings: Settings) -> "PlannedWork":
        """Return the work for the flags of a training. Raise UsageError for an impossible combination."""
        init = None
        if named := init_named(spec, settings):
            # Import lazily: the module reads models and tokenizers of other projects, which few trainings start from.
            from flows.models import init_model

            init = init_model.resolve_import(named, settings)
        return PlannedWork(spec=spec, init=init, remake_policy=made_policy(spec.remake, spec.keep_made))

    def draft_request(self, request: Request, settings: Settings) -> Request:
        """Return the request with the smallest possible number of GPUs for the work if the number is open.

        The draft already has the environments and disk of a GPU machine. Raise UsageError.
        """
        if request.num_gpus:
            return request
        wanted = self.training_request(settings)
        has_needs = any(PHASES[one].needs for one in wanted.phases)
        specs = [node.spec for node in planning.recipe(wanted).values()] if has_needs else []
        fewest = [needs_of(one).min_gpus(one) for one in specs if isinstance(one, PhaseConfig)]
        return replace(request, num_gpus=max(fewest, default=1))

    def plan(
        self, settings: Settings, request: Request, vendor: Provider, limits: Limits, offer: Offer | None = None
    ) -> Plan:
        """Return the result of `plan_for` for this work."""
        return plan_for(self, settings, request, vendor, limits, offer)

    def training_request(self, settings: Settings) -> planning.TrainingRequest:
        """Return the work in the format of the planner. Raise UsageError for invalid values."""
        spec = self.spec
        use_phases(spec.phase, settings)
        source = source_of(settings)
        use_source(source, settings)
        phases = planning.parse_phases(spec.phase)
        keeping = {"save_every": spec.save_every, "keep": spec.keep, "prefix": spec.ckpt_prefix or None}
        return planning.TrainingRequest(
            phases=phases,
            profile=settings.profile,
            tag=check_name(spec.tag) if spec.tag else "",
            data_tag=check_name(spec.data_tag) if spec.data_tag else "",
            source=source,
            packages=tuple(filter(None, spec.packages.split(","))),
            rows={name: getattr(spec, name) for name in planning.ROWS},
            persona=planning.load_persona(Path(spec.persona) if spec.persona else ROOT / "data" / "persona.yaml"),
            identity=identity_file(spec.identity),
            seed=spec.seed,
            steps=spec.steps,
            sizes=sizes_of(spec, phases, settings),
            options=spec.options,
            init=self.init,
            mixture=planning.parse_mixture(spec.mixture),
            tasks=rl_config.parse_tasks(spec.task),
            problems=spec.problems,
            rl=rl_config.parse_reward(
                reward_text(spec.reward, settings),
                spec.unsafe_rewards,
                spec.engine,
                spec.lag,
                of_machine(spec.engine_devices, "--engine-devices"),
                of_machine(spec.train_devices, "--train-devices"),
                spec.engine_tensor_parallel,
            ),
            given=self.given,
            made=self.remake_policy,
            keeping={name: value for name, value in keeping.items() if value is not None},
            changes=phase_changes(spec.added, settings, self.init),
        )


def source_of(settings: Settings) -> str:
    """Return the source of the text: the named source, else the source of the profile, else the default."""
    if settings.sources["source"] != "default":
        return settings.source
    return planning.profile_named(settings.profile, ()).source or settings.source


def init_named(spec: WorkSpec, settings: Settings) -> str:
    """Return the model to start from: `hub` selects the published model of the profile; "" = none."""
    return PUBLISHED.get(settings.profile, "") if spec.init == "hub" else spec.init


def sizes_of(spec: WorkSpec, phases: Collection[str], settings: Settings) -> dict[str, int]:
    """Return the sizes of phases, from flags or else settings of packs.

    Raise UsageError for a flag without its phase.
    """
    typed, taken = typed_sizes(spec), phases_sized()
    if idle := {name: taken[name] for name in typed if taken[name] not in phases}:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        phase = next(iter(idle.values()))
        raise UsageError(f"{flags}: only for the phase {phase}; to add the phase: --phase {'+'.join((*phases, phase))}")
    own = {phase: pack_settings("phases", phase, settings) for phase in {*taken.values()}}
    return {name: typed.get(name, getattr(own[phase], name)) for name, phase in taken.items()}


def of_machine(devices: str, flag: str) -> str:
    """Return the GPU numbers in a devices flag, in order; "" for none. Raise UsageError."""
    return wait_queue.read_devices(devices, flag, "of the machine, counted from 0") if devices else ""


def plan_for(
    work: PlannedWork,
    settings: Settings,
    request: Request,
    vendor: Provider,
    limits: Limits,
    offer: Offer | None = None,
) -> Plan:
    """Return the plan: the artifacts, their inputs, and the job. `offer`: the rented machine, if known.

    Raise UsageError for invalid values.
    """
    torch, environments = environments_of(settings, request, vendor)
    wanted = work.training_request(settings)
    there = inventory(settings.store, settings.state_file)
    plan = planning.resolve(
        wanted,
        there,
        ROOT,
        run=request.run,
        request=request,
        limits=limits,
        pod_store=vendor.pod_store,
        torch=torch,
        environments=environments,
    )
    text = text_notes(plan, settings, there, work.spec.text_unit) + estimates.notes_of_text(wanted.source, plan)
    plan = estimates.of_plan(plan, settings, vendor, offer)
    plan = replace(plan, notes=(*plan.notes, *text, *store_notes(there)))
    if not (work.spec.with_missing or work.names_tag):
        refuse_unknown_tag(plan, work.spec.tag, wanted.phases, there)
    if not work.spec.move_tag:
        refuse_other_origin(plan, work.init, there, wanted.data_tag)
    plan = replace(plan, request=replace(plan.request, work_disk_bytes=disk_of_plan(plan)))
    if plan.job and is_examined(vendor) and (note := sandbox_note(estimates.phases_of(plan.job.steps))):
        plan = replace(plan, request=replace(plan.request, sandbox=True), notes=(*plan.notes, note))
    if plan.job and not vendor.is_here and not settings.rehearsal:
        refuse_local_inputs(plan.job.steps, prepare_command(work.spec))
    if plan.job:
        check_writable(settings.store)
    if plan.job and settings.rehearsal:  # a rehearsal has no real GPUs
        plan = replace(plan, job=replace(plan.job, num_gpus=0, clock_scale=settings.clock_scale))
    if plan.job:
        tracked = extensions.requested_trackers(work.spec.track, settings)
        environ = {
            **plan.job.environ,
            **store_endpoints(settings),
            **extensions.tracker_variables(settings),
            **plain(settings),
        }
        beside = extensions.tracker_steps(tracked, plan.job.steps)
        job = replace(plan.job, secrets=tuple(secrets(settings)), environ=environ, trackers=beside)
        lacking = extensions.tracker_notes(tracked, settings) if beside else ()
        shown = [f"{name}={value}" for name, value in plain(settings).items()]
        shown += [f"{name} (set; its value is kept secret)" for name in settings.given if name in job.secrets]
        env = (f"the job is given {', '.join(shown)}",) if shown else ()
        plan = replace(plan, job=job, notes=(*plan.notes, *lacking, *env))
        for where in packs.entries("plan_parts").values():
            plan = packs.load(where)(plan, work.spec, settings, there, offer)
    if vendor.pod_store:
        kept = "artifacts stay on the machine until launch, inv status or inv pull copies the artifacts to this machine"
        return replace(plan, notes=(*plan.notes, kept)) if plan.job else plan
    if plan.job and environments and not environment.find("train", ROOT, settings.environments, plan.job.torch):
        is_cached = environment.is_cached("train", ROOT, plan.job.torch)
        how = (
            "a few seconds, because the packages are cached"
            if is_cached
            else "about a minute, depending on the network"
        )
        built = f"the train environment is built first: {how}"
        return replace(plan, notes=(*plan.notes, built))
    return plan


def sandbox_note(phases: Iterable[PhaseConfig]) -> str:
    """Return the note on a rented machine with an unknown kernel, or "" if no phase needs a sandbox."""
    names = [one.phase for one in phases if needs_of(one).sandbox(one)]
    if not names:
        return ""
    return (
        f"{names[0]} runs code that the model writes. A machine with neither Landlock (Linux 5.13) nor bubblewrap is "
        "given back after the boot, before any work"
    )


def store_endpoints(settings: Settings) -> dict[str, str]:
    """Return the environment variables with the endpoints of the stores that a job uses."""
    names = [name for kind in store_kinds(settings) for name in credentials.PLACES.get(kind, ())]
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def made_policy(remake: bool, keep_made: bool) -> str:
    """Return the choice of `--remake` and `--keep-made` for `Work.made`. Raise UsageError for both flags."""
    if remake and keep_made:
        raise UsageError("--remake and --keep-made contradict each other; give only one of the flags")
    return "remake" if remake else "keep" if keep_made else ""


@functools.cache
def check_writable(store: str) -> None:
    """Raise StoreError before the work, not after, if the store is not writable. Cached per store."""
    Store(store).check_writable()


def identity_file(said: str) -> str:
    """Return the absolute path of the `--identity` file, or "". Raise UsageError."""
    if not said:
        return ""
    path = Path(said).expanduser().absolute()
    if path.suffix != ".jsonl" or not path.is_file():
        raise UsageError(
            f"--identity {said}: expected a .jsonl file of conversations, such as nanochat's "
            "identity_conversations.jsonl"
        )
    return str(path)


def refuse_local_inputs(steps: tuple[Step, ...], prepare: str) -> None:
    """Raise UsageError for steps that read local files but would run elsewhere; `prepare` runs these steps here."""
    for step in steps:
        source = step.config["spec"].get("source", "")
        if step.words[-1] in ("talk", "import", "problems", "identity") and source and "://" not in source:
            raise UsageError(
                f"{source} is on this machine, but the work runs on a different machine. To put the data into the "
                f"store first: {prepare}"
            )


def text_steps(settings: Settings) -> tuple[str, tuple[Step, ...]]:
    """Return the name of the text artifact in the store, and the steps to make a missing text artifact."""
    persona = planning.load_persona(ROOT / "data" / "persona.yaml")
    source = source_of(settings)
    use_source(source, settings)
    wanted = planning.TrainingRequest(phases=("text",), profile=settings.profile, source=source, persona=persona)
    name = planning.recipe(wanted)["text"].artifact
    found = Store(settings.store).check(name)
    if not found.problem:
        return name, ()
    there = Inventory(settings.store, {})
    plan = planning.resolve(wanted, there, ROOT, run="foreground", request=Request(run="foreground"))
    return name, plan.job.steps if plan.job else ()


def environments_of(settings: Settings, request: Request, vendor: Provider) -> tuple[str, str]:
    """Return the torch build for the machine and the folder of environments; "" = the default of the machine."""
    if vendor.is_here or settings.rehearsal:  # a rehearsal's pods are processes of this machine
        return environment.torch_build(), str(settings.environments)
    return "cuda" if expected_gpus(request) else "cpu", ""


def node_commands(plan: Plan) -> list[str]:
    """Return the commands of each node for distributed steps; [] for a single node."""
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


def inventory(uri: str, journal: Path) -> Inventory:
    """Return the verified inventory of the store, with the owners of leases; runs that the journal ended are no owners.

    The lease of an ended run stays, so that the run can be resumed.
    """
    named, kept = Store(uri).list_all()
    odd: list[str] = []
    held = references.readers(references.live_leases(uri, time.time(), odd))
    ended = {f"run {run}" for run, is_live in live_by_run(journal).items() if not is_live}
    readers: dict[str, tuple[str, ...]] = {}
    for (_, fingerprint), owners in held.items():
        readers[fingerprint] = (*readers.get(fingerprint, ()), *(one for one in owners if one not in ended))
    unread = references.unread(named, kept, held, time.time() - references.KEPT_S)
    return Inventory(
        uri,
        {one.name: _record(one) for one in named},
        tuple(_record(one) for one in kept),
        readers,
        sum(one.num_bytes for one in kept),
        sum(one.num_bytes for one in unread),
        tuple(odd),
    )


def _record(one: Artifact) -> HeldArtifact:
    return HeldArtifact(one.name, one.fingerprint, one.problem, one.about, one.num_bytes)


def store_notes(there: Inventory) -> tuple[str, ...]:
    """Return notes on the size of the store and on unreadable leases."""
    notes = tuple(f"a lease cannot be read: {one}" for one in there.odd)
    if not there.kept:
        return notes
    unread = f", of which {size(there.unread_bytes)} are unused (inv store.gc)" if there.unread_bytes else ""
    return (*notes, f"the store holds {count(len(there.kept), 'artifact')}, {size(there.num_bytes)}{unread}")


def text_notes(plan: Plan, settings: Settings, there: Inventory, unit: str) -> tuple[str, ...]:
    """Return notes on the text of a plan: the documents of .txt files to read, and the default source; () without text.

    unit: the typed `--text-unit`.
    """
    source = source_of(settings)
    text = next((one for one in plan.artifacts if kind_of(one.name) == "text"), None)
    if text is None:
        return ()
    if settings.sources["source"] != "default":
        said = text_unit(settings.source, unit)[1] if text.step else ""
        return (f"text: {said}",) if said else ()
    if source != settings.source:
        return (f"no source was named, so the text is {source}, as in the recipe {settings.profile}",)
    where = " (text already in the store)" if "datasets/fineweb/text" in there.artifacts else ""
    return (
        f"no source was named, so the text is {settings.source}: Python's own documentation. For FineWeb{where}: "
        "--source fineweb",
    )


def refuse_unknown_tag(plan: Plan, tag: str, phases: Sequence[str], there: Inventory) -> None:
    """Raise UsageError for a typed tag without a checkpoint in the store, unless the named phases create the tag."""
    of_phases = [name.split("/", 1) for name in there.artifacts if name.split("/")[0] in checkpoint_folders()]
    known = sorted({name for _, name in of_phases})
    if not tag or tag in known or not (plan.untyped or (plan.job is None and "base" not in phases)):
        return
    near = difflib.get_close_matches(tag, known, 3) or known[:10]
    listed = f"available: {', '.join(near)}" if near else "the store holds no checkpoint yet"
    due = [one for one in PHASES if one in (*plan.untyped, *phases)]
    make = (
        f"--phase {'+'.join(due)} --tag {tag}"
        if plan.untyped
        else "leave out --tag, because the store already holds the model"
    )
    then = f"to train a model with this tag: {make}" if plan.untyped else make
    raise UsageError(f"no checkpoint has the tag {tag!r} in {there.store}; {listed}; {then}")


def untagged(name: str, tag: str, there: Inventory) -> str:
    """Return the name of an imported model without a data tag: by the record of the import, else without `tag`."""
    source = there.artifacts[name].about.get("source") if name in there.artifacts else None
    if isinstance(source, str):
        return planning.imported_name(source)
    return name.replace(f"{planning.IMPORTED}{tag}.", planning.IMPORTED, 1) if tag else name


def refuse_other_origin(plan: Plan, init: ImportSpec | None, there: Inventory, tag: str = "") -> None:
    """Raise UsageError if the name of a model would move to a model that starts from a different model of `--init`."""
    mine = planning.imported_name(init.source) if init else ""
    moves = {*(one.name for one in plan.pointers), *(one.name for one in plan.artifacts if one.step)}
    for name in (name for name in moves if name.partition("/")[0] in checkpoint_folders() and name in there.artifacts):
        theirs = planning.origin_of(there.artifacts[name].about)
        if bool(theirs) != bool(mine) or theirs.startswith(planning.IMPORTED) and untagged(theirs, tag, there) != mine:
            again = (
                f"to start from the same model again: --init {theirs}; " if theirs.startswith(planning.IMPORTED) else ""
            )
            raise UsageError(
                f"{name} is a model that starts from {theirs or 'random weights'}, and this plan starts from "
                f"{mine or 'random weights'}. To keep the model, give the new model a different name: --tag NAME; "
                f"{again}to give the name to the new model: --move-tag"
            )
