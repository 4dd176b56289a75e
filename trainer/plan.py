"""Words -> Plan: what exists, what is missing, which steps make it, how long that takes.

In: what was asked for, a profile, and an `Inventory` of what the store holds. Out: a `Plan` with the `Job` that makes
the missing part. It works like Make, by fingerprints instead of times (`reuse.py`). Touches no store, imports no torch.
"""

import difflib
import hashlib
import json
import math
import platform
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from data.config import (
    DEMONSTRATED,
    LEAST_VOCAB,
    TASKS,
    IdentitySpec,
    Input,
    Making,
    Persona,
    ProblemsSpec,
    QuestionsSpec,
    TalkSpec,
    TextSpec,
    TokenizerSpec,
    TokensSpec,
    load,
    source_files,
    talk_spec,
)
from infra.agent.job import Job, Limits, Step
from infra.errors import UsageError
from infra.records import Artifact, Inventory, Plan, PlannedArtifact, Pointer, Request
from store.manifest import kind_of
from trainer import memory, recipes
from trainer.config import ImportSpec, Keeping, PhaseConfig, Profile
from trainer.fingerprints import FIRST_CODE, differences, digest
from trainer.records import phase_options
from trainer.records.fields import what_counts
from trainer.records.phase_registry import (
    INIT,
    KINDS,
    PHASES,
    PROMPTS,
    TALK,
    TEACHER,
    TEXT,
    Phase,
    all_phases,
    chain,
    listed,
    nearest,
    phase_names,
    phases_reading,
)
from trainer.reuse import Choice, Node, choices, needed

ORDER = ("text", "tokenizer", INIT, "tokens", "base", "identity", "questions")  # then other talk, and other phases
SILENT_S = 30 * 60.0
SHOWN = 3  # of the settings by which an artifact differs from the one that is wanted
NO_LIMITS = Limits()
NONE_GIVEN: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What the user asked for, as plain values."""

    phases: tuple[str, ...] = ("sft",)
    profile: str = "smoke"
    tag: str = ""
    """Of the checkpoints in the store; the profile's name unless given."""
    source: str = "pydocs"
    packages: tuple[str, ...] = ()
    persona: Persona
    identity: str = ""
    """A .jsonl of conversations that say who the model is, instead of those made of the persona."""
    seed: int | None = None
    """Of training; the data's split keeps its own."""
    steps: int | None = None
    """Optimizer steps of every phase, instead of the profile's; warm-ups are rescaled with them."""
    block_size: int = 0
    """Of dlm, instead of the profile's; 0 = that."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of single phases, instead of the profile's: the text of each by PHASE.FIELD."""
    init: ImportSpec | None = None
    """Somebody else's model, which the first phase goes on from."""
    mixture: Mapping[str, float] | None = None
    """Of every chat phase, instead of the profile's: kinds of ours, paths, hf:// addresses, and their weights."""
    tasks: Mapping[str, float] | None = None
    """Of rl, instead of the profile's: names and .jsonl files of problems, and their weights."""
    problems: str = ""
    """Folder with the files of the tasks, instead of the hub."""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """What flags say of how rl learns: fields of `RlConfig`."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Steps whose artifact is not for us to make: it is in the store, with this fingerprint."""
    made: str = ""
    """Of a phase in `phases` that other code made: `keep` or `remake`; "" leaves that open."""
    keeping: Mapping[str, Any] = field(default_factory=dict)
    """What is to be kept otherwise than the profile says: fields of `Keeping`."""


def parse_phases(words: str) -> tuple[str, ...]:
    """`sft`, `base+mid` or `all` as phases in the order in which they run. Raises UsageError."""
    if words == "all":
        return all_phases()
    aliases = {one.alias: name for name, one in PHASES.items() if one.alias}
    asked = [aliases.get(word, word) for word in words.split("+")]
    for word in asked:
        if word not in PHASES:
            near = difflib.get_close_matches(word, PHASES if "+" in words else (*PHASES, "all"), 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"unknown phase {word!r}; {hint}known: {phase_names()}, a sum such as mid+sft, or all")
    return tuple(phase for phase in PHASES if phase in asked)


def parse_mixture(words: str) -> dict[str, float] | None:
    """`identity=0.3,talk.jsonl=0.7`; None for nothing. Raises UsageError."""
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        source, equals, weight = word.rpartition("=")
        try:
            found[source] = float(weight)
        except ValueError:
            equals = ""
        if not equals or not source or not 0 < found[source] < math.inf:
            raise UsageError(f"--mixture {word}: expected SOURCE=WEIGHT, such as identity=0.3 or talk.jsonl=0.7")
    return found or None


def load_persona(path: Path) -> Persona:
    """Raises UsageError when the file is missing or is not a persona."""
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"persona {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"persona {path}: not YAML: {recipes.yaml_error(error)}") from None
    return load(Persona, raw, f"persona {path}")


def profile_named(name: str) -> Profile:
    """By its name or its file; `configs/NAME.yaml` that is no file is NAME.

    Raises UsageError with the nearest name, ConfigError for what is wrong in a file.
    """
    if recipes.is_file(name):
        path = Path(name).expanduser()
        if path.parent.name != "configs" or path.stem not in recipes.PROFILES or path.exists():
            return recipes.from_file(path)
        name = path.stem
    if name not in recipes.PROFILES:
        near = difflib.get_close_matches(name, recipes.PROFILES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown profile {name!r}; {hint}known: {', '.join(recipes.PROFILES)}, or a .yaml file")
    return recipes.PROFILES[name]()


def profile_of(wanted: Wanted) -> Profile:
    """Return the profile with the options of its phases. Raises UsageError, ConfigError."""
    whole = profile_named(wanted.profile)
    phase_options.refuse_unknown(wanted.options, whole.phases)
    phases = {name: phase_options.with_options(phase, wanted.options) for name, phase in whole.phases.items()}
    return replace(whole, phases=phases)


def recipe(wanted: Wanted) -> dict[str, Node]:
    """Every step of the profile by name, in an order in which they can run."""
    profile = profile_of(wanted)
    tag, slug = wanted.tag or default_tag(wanted, profile), source_slug(wanted.source)
    holds = "" if "text" in wanted.given else source_fingerprint(wanted.source)
    text = TextSpec(source=wanted.source, packages=wanted.packages, source_fingerprint=holds)
    data = f"datasets/{slug}"
    nodes = [
        Node("text", f"{data}/text", ("-m", "data", "text"), "data/shards/pipeline.py", text),
        Node(
            "tokenizer",
            "tokenizer",
            ("-m", "data", "tokenizer"),
            "data/tokens/bpe.py",
            TokenizerSpec(vocab_size=_vocab_size(profile, wanted.init)),
            {"text": "text"},
        ),
        Node(
            "tokens",
            f"{data}/tokens",
            ("-m", "data", "tokens"),
            "data/tokens/tokenize.py",
            TokensSpec(),
            {"text": "text", "tokenizer": "tokenizer"},
        ),
        Node(
            "identity",
            "identity_conversations",
            ("-m", "data", "identity"),
            "data/chat/persona.py",
            IdentitySpec(persona=wanted.persona, source=wanted.identity, source_fingerprint=_content(wanted.identity)),
        ),
        Node(
            "questions",
            f"{data}/questions",
            ("-m", "data", "questions"),
            "data/chat/questions.py",
            QuestionsSpec(),
            {"text": "text"},
        ),
    ]
    found = {node.name: node for node in nodes}
    mixtures = {
        name: dict(wanted.mixture if wanted.mixture and PHASES[name].reads == TALK else phase.mixture or {})
        for name, phase in profile.phases.items()
    }
    if wanted.tasks:
        mixtures |= {name: dict(wanted.tasks) for name in phases_reading(PROMPTS)}
    _demonstrate(profile, wanted, mixtures)
    talks = talk_nodes([source for name in phases_reading(TALK) for source in mixtures.get(name, ())])
    asked = [
        source for name in mixtures for source in mixtures[name] if source in TASKS or PHASES[name].reads == PROMPTS
    ]
    talks |= problem_nodes(asked, wanted.problems, {node.name for node in talks.values()})
    found |= {node.name: node for node in talks.values()}
    tokenizer = "tokenizer"
    if wanted.init is not None:
        own = {} if wanted.init.has_tokenizer else {"tokenizer": "tokenizer"}
        words = ("-m", "trainer", "import")
        artifact = f"imported/{init_slug(wanted.init)}"
        found[INIT] = Node(INIT, artifact, words, "trainer/import_model.py", wanted.init, own)
        tokenizer = INIT
        found["tokens"] = replace(found["tokens"], inputs={"text": "text", "tokenizer": tokenizer})
    befores = chain(profile.phases, wanted.phases, wanted.init is not None)
    if missing := [name for name in wanted.phases if name in PHASES and name not in befores]:
        known = ", ".join(one for one in PHASES if one in befores)
        raise UsageError(f"profile {profile.name} has no phase {listed(missing)} that could run; it has: {known}")
    for name, before in befores.items():
        kinds = {talks[kind].name if kind in talks else kind: weight for kind, weight in mixtures[name].items()}
        inputs = {"tokenizer": tokenizer, **_data(PHASES[name], kinds, tuple(found))}
        if before:
            inputs[before] = before
        if PHASES[name].teacher:
            inputs[TEACHER] = nearest(PHASES[name].teacher, befores, wanted.init is not None)
        found[name] = _phase(profile, name, tag, wanted, inputs, None if PHASES[name].reads == TEXT else kinds)
    order = (*ORDER, *(node.name for node in talks.values()), *befores)
    return {name: found[name] for name in dict.fromkeys(order) if name in found}


def _content(file: str) -> str:
    return source_fingerprint(file) if file else ""


def _data(phase: Phase, kinds: Collection[str], made: Sequence[str]) -> dict[str, str]:
    """What a phase reads beside models and the tokenizer: role -> node."""
    if phase.reads == TEXT:
        return {"text": "text", "tokens": "tokens"}
    roles = {KINDS.get(kind, kind) for kind in kinds}
    return {role: role for role in (*KINDS.values(), *made) if role in roles}


def _vocab_size(profile: Profile, init: ImportSpec | None) -> int:
    """Of the tokenizer that is trained: a model that comes without one has no rows for more than its own ids.

    Raises UsageError when those are too few for any.
    """
    if init is None or init.has_tokenizer:
        return profile.vocab_size
    if init.model.vocab_size < LEAST_VOCAB:
        raise UsageError(
            f"{init.source} has {init.model.vocab_size} ids and no tokenizer.json; the bytes and the chat tokens of a "
            f"new one alone are {LEAST_VOCAB}: put the model's own tokenizer.json into the folder"
        )
    return min(profile.vocab_size, init.model.vocab_size)


def talk_nodes(sources: Sequence[str]) -> dict[str, Node]:
    """By source, the steps that make conversations which are not ours. Raises ConfigError for one that is no source."""
    found: dict[str, Node] = {}
    taken = {*KINDS, *ORDER, *PHASES, TEACHER}
    for source in sources:
        if source in KINDS or source in found:
            continue
        near = difflib.get_close_matches(source, KINDS, 1)
        if "/" not in source and "." not in source:
            hint = f"did you mean {near[0]!r}?" if near else "a .jsonl, a .parquet or hf://user/name can be drawn, too"
            raise UsageError(f"mixture: unknown kind {source!r}; known: {', '.join(KINDS)}; {hint}")
        spec = talk_spec(source)
        if not spec.source.startswith("hf://"):
            path = str(Path(spec.source).expanduser().absolute())
            spec = replace(spec, source=path, source_fingerprint=source_fingerprint(path))
        slug = slug_of(spec.source)
        name = next(one for one in (slug, *(f"{slug}-{n}" for n in range(2, 1000))) if one not in taken)
        taken.add(name)
        found[source] = Node(name, f"conversations/{name}", ("-m", "data", "talk"), "data/chat/imported.py", spec)
    return found


def problem_nodes(sources: Sequence[str], folder: str, taken: Collection[str]) -> dict[str, Node]:
    """By source, the steps that make problems: of a task of ours, or of a file. Raises UsageError, ConfigError."""
    found: dict[str, Node] = {}
    for source in dict.fromkeys(sources):
        name = source
        if source not in TASKS:
            if "/" not in source and "." not in source:
                near = difflib.get_close_matches(source, TASKS, 1)
                hint = f"did you mean {near[0]!r}?" if near else "or a .jsonl with question and answer in each line"
                raise UsageError(f"unknown task {source!r}; known: {', '.join(TASKS)}; {hint}")
            path = str(Path(source).expanduser().absolute())
            spec = ProblemsSpec(task="file", source=path, source_fingerprint=source_fingerprint(path))
            name = slug_of(path)
            name = f"{name}-problems" if name in {*taken, *KINDS, *ORDER, *PHASES, TEACHER} else name
        elif folder and source != "sort":
            path = str(Path(folder).expanduser().absolute())
            spec = ProblemsSpec(task=source, source=path, source_fingerprint=source_fingerprint(path))
        else:
            spec = ProblemsSpec(task=source)
        found[source] = Node(name, f"problems/{name}", ("-m", "data", "problems"), "data/problems/make.py", spec)
    return found


def _demonstrate(profile: Profile, wanted: Wanted, mixtures: dict[str, dict[str, float]]) -> None:
    """Where rl is asked for, show sft how its tasks are answered: a model that is never right learns nothing."""
    rl = profile.phases["rl"].rl if "rl" in profile.phases else None
    tasks = [task for task in mixtures.get("rl", ()) if task in DEMONSTRATED]
    if rl is None or not rl.shown or not tasks or "rl" not in wanted.phases or wanted.mixture or "sft" not in mixtures:
        return
    rest = {kind: weight * (1 - rl.shown) for kind, weight in mixtures["sft"].items()}
    mixtures["sft"] = rest | {task: rl.shown / len(tasks) for task in tasks}


def slug_of(source: str) -> str:
    """What such conversations are called: the last part of a path without its suffixes, or a data set's own name."""
    stem = Path(source).name
    stem = stem if source.startswith("hf://") else stem.split(".")[0]
    plain = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in stem)
    return plain.strip(".-")[:60] or "talk"


def default_tag(wanted: Wanted, profile: Profile) -> str:
    """Under which name the checkpoints are kept when none was given."""
    return profile.name if wanted.init is None else init_slug(wanted.init)


def init_slug(init: ImportSpec) -> str:
    """The name of somebody else's model: the last part of where it is."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(init.source).name).strip(".-")[:100] or "model"


def _phase(
    profile: Profile, phase: str, tag: str, wanted: Wanted, inputs: dict[str, str],
    mixture: dict[str, float] | None = None,
) -> Node:  # fmt: skip
    config = replace(profile.phases[phase], mixture=mixture)
    if wanted.init is not None:
        tuned = recipes.fine_tuned if config.rl is None else recipes.learning_on_policy
        config = tuned(config, wanted.init.model)
    if wanted.seed is not None:
        config = replace(config, seed=wanted.seed)
    if wanted.steps is not None and f"{phase}.steps" not in wanted.options:
        config = config.in_steps(wanted.steps)
    if config.blocks is not None and wanted.block_size and f"{phase}.blocks.block_size" not in wanted.options:
        pieces = math.gcd(wanted.block_size, config.blocks.sub_block_size)
        blocks = replace(config.blocks, block_size=wanted.block_size, sub_block_size=pieces)
        config = replace(config, blocks=blocks)
    if wanted.init is not None:
        config = phase_options.with_options(config, wanted.options)  # which outweigh what somebody else's model needs
    if config.rl is not None and wanted.rl:
        config = replace(config, rl=replace(config.rl, **wanted.rl))
    entry = f"{PHASES[phase].module.replace('.', '/')}.py"
    return Node(phase, f"{PHASES[phase].folder}/{tag}", ("-m", "trainer", phase), entry, config, inputs)


def resolve(
    wanted: Wanted,
    inventory: Inventory,
    root: Path,
    *,
    run: str,
    request: Request,
    flops_per_s: float,
    limits: Limits = NO_LIMITS,
    torch: str = "cpu",
    environments: str = "",
    pod_store: str = "",
) -> Plan:
    """Compare what is wanted with what is there; the job holds exactly the steps that are due.

    A step is due when its artifact is missing, damaged or of another fingerprint, or when a step that makes one of
    its inputs is due. `root` is the checkout whose code will run, `flops_per_s` what the machine does of useful work,
    `pod_store` the store as the pod names it, where that is not the one at home.
    """
    from_nothing = [name for name in wanted.phases if name in PHASES and not PHASES[name].follows]
    if wanted.init is not None and from_nothing:
        others = ", ".join(name for name, one in PHASES.items() if one.takes_init) + " or mid+sft"
        raise UsageError(
            f"{listed(from_nothing)} begins from nothing; a model that is there already goes on with --phase {others}"
        )
    if wanted.mixture is not None and not {*wanted.phases} & {*phases_reading(TALK)}:
        of, rest = listed(phases_reading(TALK)), listed(phases_reading(TEXT))
        raise UsageError(f"--mixture is of conversations, for {of}; {rest} reads text: --source")
    if (wanted.tasks or wanted.rl or wanted.problems) and not {*wanted.phases} & {*phases_reading(PROMPTS)}:
        asked = "+".join((*wanted.phases, "rl"))
        raise UsageError(
            f"--task, --problems, --reward and --unsafe-rewards are for the phase rl, as in --phase {asked}"
        )
    nodes = recipe(wanted)
    if idle := sorted({path.partition(".")[0] for path in wanted.options} - nodes.keys()):
        raise UsageError(f"--set {idle[0]}: nothing is trained in phase {idle[0]} here; the phases are "
                         f"{', '.join(name for name in nodes if name in PHASES)}")  # fmt: skip
    held = {(kind_of(one.name), one.fingerprint): one.about for one in _held(inventory)}
    pointers = {name: one.fingerprint for name, one in inventory.artifacts.items() if not one.problem}
    remake = wanted.phases if wanted.made == "remake" else ()
    chosen = choices(nodes, held, pointers, root, wanted.given, remake)
    due = set(needed(nodes, wanted.phases, chosen))
    profile = profile_of(wanted)
    keeping = replace(profile.keeping, reserve_bytes=limits.reserve_bytes, **wanted.keeping)
    artifacts, steps = [], []
    for name in (name for name in nodes if name in _closure(nodes, wanted.phases)):
        node, choice = nodes[name], chosen[name]
        if name in due or choice.is_here:
            is_asked = name in wanted.phases
            artifacts.append(_planned(node, choice, inventory, name in due, is_asked, flops_per_s))
        if name in due and name in wanted.given:
            seen = f"{artifacts[-1].state} {artifacts[-1].reason}".strip()
            raise UsageError(f"{node.artifact} in {inventory.store} was to be there, and is {seen}")
        if name in due:
            steps.append(_step(node, nodes, chosen, pod_store or inventory.store, keeping))
    target = digest([[nodes[phase].artifact, chosen[phase].fingerprint] for phase in wanted.phases])
    here = {nodes[phase].artifact for phase in wanted.phases if phase not in due}
    lines = [one for one in artifacts if one.name in here]
    moved = tuple(Pointer(one.name, one.fingerprint) for one in lines if pointers.get(one.name) != one.fingerprint)
    doubtful = tuple(one for one in lines if one.differs and not wanted.made)
    untyped = tuple(name for name in nodes if name in due and name in PHASES and name not in wanted.phases)
    job = None
    if steps:
        job = Job(run, "", tuple(steps), limits, torch=torch, environments=environments, num_gpus=request.num_gpus)
    phases = [node.spec for name, node in nodes.items() if name in due and isinstance(node.spec, PhaseConfig)]
    copies = wanted.keeping.get("keep", profile.keeping.keep) + 1
    kept = sum(copies * STATE_BYTES * phase.model.num_params for phase in phases)
    spread = [ways_of(phase, request) for phase in phases]
    most = max((min(found.values()) for found in spread), default=0)
    notes = phase_options.differences(wanted.options, profile_named(wanted.profile).phases)
    notes += rescaled(profile, phases) + _about_init(wanted.init if "init" in due else None) + about_bits(phases)
    notes += tuple(
        f"{phase.phase}: {said}" for phase, found in zip(phases, spread, strict=True) if (said := told(found))
    )
    notes += tuple(
        f"{one.name} is kept, though its code is another one today: {', '.join(one.differs)}"
        for one in artifacts
        if one.differs and one not in doubtful
    )
    return Plan(
        target, inventory.store, tuple(artifacts), job, request, notes, disk_bytes=kept, gpu_memory_bytes=most,
        pointers=moved, doubtful=doubtful, untyped=untyped,
    )  # fmt: skip


def ways_of(phase: PhaseConfig, request: Request) -> dict[str, int]:
    """How a model may be spread over the GPUs that are asked for -> bytes that it takes of each, an estimate."""
    found = memory.ways(phase, max(1, request.num_gpus), request.nodes)
    return {way: memory.estimate(phase, parts=parts).total for way, parts in found.items()}


def told(found: Mapping[str, int]) -> str:
    """The same in words; "" where there is nothing to choose."""
    if list(found) == ["ddp"]:
        return ""
    sizes = [f"{way} with {size / 1e9:.0f} GB on each GPU" for way, size in found.items()]
    return f"several GPUs: {', else '.join(sizes)} (parallel in a profile's file chooses)"


def rescaled(profile: Profile, phases: Sequence[PhaseConfig]) -> tuple[str, ...]:
    """What `--steps` has made of the schedules, in words."""
    changes = []
    for phase in phases:
        whole = profile.phases[phase.phase]
        if phase.steps != whole.steps:
            warmup = phase.schedule.warmup_steps
            warm = f", warm-up {warmup} of {whole.schedule.warmup_steps}" if warmup and not phase.adopted else ""
            changes.append(f"{phase.phase} {phase.steps} of {whole.steps} steps{warm}")
    return (f"the schedule is rescaled: {'; '.join(changes)}",) if changes else ()


def about_bits(phases: Sequence[PhaseConfig]) -> tuple[str, ...]:
    """What a ternary model of that shape cannot become, before anything is trained."""
    found = dict.fromkeys(phase.model for phase in phases if phase.model.ternary)
    said = [problem for model in found if (problem := model.gguf_problem())]
    return tuple(
        f"a GGUF file cannot be made of this model ({one}); it runs in our own engine: inv chat" for one in said
    )


def _about_init(init: ImportSpec | None) -> tuple[str, ...]:
    if init is None or init.has_tokenizer:
        return ()
    return (f"{init.source} has no tokenizer.json, so its ids mean nothing: a new tokenizer is trained on the text",)


def _closure(nodes: Mapping[str, Node], names: tuple[str, ...]) -> set[str]:
    needed, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        if name not in needed:
            needed.add(name)
            todo.extend(nodes[name].inputs.values())
    return needed


def _held(inventory: Inventory) -> list[Artifact]:
    """Return what is whole: under what it is, or, as 8284afb wrote it, under a name alone."""
    return [one for one in (*inventory.artifacts.values(), *inventory.kept) if not one.problem]


def _planned(
    node: Node, choice: Choice, inventory: Inventory, is_due: bool, is_asked: bool, flops_per_s: float
) -> PlannedArtifact:
    """is_asked: `--phase` names it, so that its name will stand for it."""
    pointed = inventory.artifacts.get(node.artifact)
    is_moved = pointed is not None and pointed.fingerprint != choice.fingerprint
    why = why_other(pointed, choice.fingerprint, node.spec) if pointed and is_moved else ""
    readers = inventory.references.get(pointed.fingerprint, ()) if pointed and is_moved else ()
    used = f"; {', '.join(readers)} goes on with the earlier one" if readers else ""
    if not is_due:
        other = f"its name {'moves from' if is_asked else 'stands for'} another one ({why}{used})" if is_moved else ""
        return PlannedArtifact(node.artifact, "here", "", other, None, choice.fingerprint, choice.differs)
    state, reason = "missing", ""
    if pointed is not None:
        state, reason = ("stale", why + used) if is_moved and not pointed.problem else ("damaged", pointed.problem)
    return PlannedArtifact(
        node.artifact, state, node.name, reason, estimate_s(node, flops_per_s), choice.fingerprint
    )  # fmt: skip


def why_other(before: Artifact, fingerprint: str, spec: Any) -> str:
    """Return what is different about an artifact from the one that `spec` and its inputs make, in words.

    Its settings are named where it was made since they are written down beside it.
    """
    both = [["v1" if part in FIRST_CODE.values() else part for part in one.split("-")]
            for one in (before.fingerprint, fingerprint)]  # fmt: skip
    parts = zip(("settings", "version", "inputs"), *both, strict=False)
    changed = [name for name, a, b in parts if a != b] or ["fingerprint"]
    settings = differences(before.about.get("spec"), plain(spec)) if "settings" in changed else []
    if not settings:
        return f"{' and '.join(changed)} changed"
    others = [name for name in changed if name != "settings"]
    more = f", and {len(settings) - SHOWN} more" if len(settings) > SHOWN else ""
    rest = f"; {' and '.join(others)} changed" if others else ""
    return f"{', '.join(settings[:SHOWN])}{more}{rest}"


def plain(spec: Any) -> dict[str, Any]:
    """Return what of a spec counts, as JSON has it."""
    return dict(json.loads(json.dumps(what_counts(spec))))


def _step(node: Node, nodes: Mapping[str, Node], chosen: Mapping[str, Choice], store: str, keeping: Keeping) -> Step:
    inputs = {
        role: Input(name=nodes[name].artifact, fingerprint=chosen[name].fingerprint)
        for role, name in node.inputs.items()
    }
    choice = chosen[node.name]
    making = Making(store=store, name=node.artifact, fingerprint=choice.fingerprint, inputs=inputs, code=choice.code,
                    spec=plain(node.spec))  # fmt: skip
    config: dict[str, Any] = {"making": asdict(making), "spec": asdict(node.spec)}
    is_phase = isinstance(node.spec, PhaseConfig)
    if is_phase:
        config["keeping"] = asdict(keeping)
    together = ("-m", "trainer.spread") if is_phase else ()
    config = json.loads(json.dumps(config))
    return Step(node.name, node.words, "train", config, silent_s=SILENT_S, together=together)


def source_slug(source: str) -> str:
    """The name under `datasets/` for a source: `pydocs`, or what a path ends in before its wildcards."""
    if source in ("pydocs", "fineweb"):
        return source
    plain = [part for part in Path(source).parts if not any(letter in part for letter in "*?[")] or ["local"]
    stem = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in Path(plain[-1]).stem)
    return stem.strip(".-")[:100] or "local"


def source_fingerprint(source: str) -> str:
    """What the source holds now: for pydocs the Python that is read, for files their content.

    A file over 64 MiB counts by size and modification time, since hashing it would hold up every plan.
    Raises ConfigError when there is no file to read.
    """
    if source == "fineweb":
        return ""
    if source == "pydocs":
        return f"python {platform.python_version()}"
    parts = []
    for file in source_files(source):
        stat = file.stat()
        large = stat.st_size > 64 << 20
        content = [stat.st_size, stat.st_mtime_ns] if large else hashlib.sha256(file.read_bytes()).hexdigest()
        parts.append([file.name, content])
    return digest(parts)


STATE_BYTES = 12  # of a parameter in a checkpoint: itself and AdamW's two moments, float32


DATA_STEP_S = {"text": 3.0, "tokenizer": 2.0, "tokens": 3.0, "identity": 1.0, "questions": 1.0, "problems": 1.0}
TALK_STEP_S = 5.0  # without the network
IMPORT_STEP_S, IMPORT_PARAMS_PER_S = 4.0, 1e8  # torch; reading and writing them, not the network
PHASE_START_S = 4.0  # torch, the inputs, the first compiled step
CHAT_TOKENS, TURN_TOKENS = 64, 34  # of a usual conversation, padding included; of one that shares its row with others


def estimate_s(node: Node, flops_per_s: float) -> float:
    """Seconds that a step takes on a machine that does so much useful work: an estimate, and shown as one."""
    if not isinstance(node.spec, PhaseConfig):
        if isinstance(node.spec, TalkSpec):
            return TALK_STEP_S
        return DATA_STEP_S.get(node.words[-1]) or IMPORT_STEP_S + node.spec.model.num_params / IMPORT_PARAMS_PER_S
    config = node.spec
    row = config.sequence_len
    if not config.reads_text:
        row = min(row, CHAT_TOKENS if config.turns == 1 else TURN_TOKENS)
    passes = 1 + config.num_frozen / 3
    return PHASE_START_S + passes * 6.0 * config.model.num_params * config.steps * config.rows * row / flops_per_s
