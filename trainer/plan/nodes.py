"""Steps of a profile: the program, code and inputs for each artifact, in a runnable order.

`recipe` turns `TrainingRequest` into a `Node` per step, by name. A source is given as typed: `pydocs`, `fineweb`, a
path, a data set, or several of these with weights; its content has a fingerprint. The module reads sources, but never
the store.
"""

import difflib
import hashlib
import platform
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data import references
from data.config import (
    DEMONSTRATED,
    LEAST_VOCAB,
    TASKS,
    IdentitySpec,
    ProblemsSpec,
    QuestionsSpec,
    TextSpec,
    TokenizerSpec,
    TokensSpec,
    conversation_spec,
    filled_files,
    text_unit,
)
from data.references import HUB
from infra.errors import UsageError
from store import extensions
from trainer.config import ImportSpec, PhaseConfig, Profile
from trainer.fingerprints import Node, digest
from trainer.plan.training_request import TrainingRequest, default_tag, imported_name, profile_of, tagged, with_change
from trainer.profiles import derived_phases
from trainer.records import phase_options
from trainer.records.extension_phase import WORD
from trainer.records.phase_registry import (
    CHANGE,
    INIT,
    KINDS,
    PHASES,
    PROMPTS,
    TALK,
    TEACHER,
    TEXT,
    Phase,
    chain,
    listed,
    nearest,
    phases_reading,
)

Mixture = dict[str, float] | None
ORDER = ("text", "tokenizer", INIT, "tokens", "base", "identity", "questions")  # then other talk and other phases

# Folders and files with the code for a kind of artifact: a plan names the files changed since the artifact was made.
MAKE_TEXT = ("data/text", "data/shards", "data/filters.py")
MAKE_TOKENS = ("data/tokens",)
MAKE_TALK = ("data/chat",)
IMPORT = ("trainer/import_model.py", "trainer/model")
TRAIN = (
    *("trainer/model", "trainer/objectives", "trainer/parallel"),
    *("trainer/loop.py", "trainer/optim.py", "trainer/run.py"),
)
READ = {
    TEXT: ("data/tokens",),
    TALK: ("trainer/phases/conversations.py", "data/chat"),
    PROMPTS: ("trainer/rollouts", "trainer/rewards", "data/chat"),
}


def recipe(wanted: TrainingRequest) -> dict[str, Node]:
    """Return every step of the profile by name, in a runnable order."""
    profile = profile_of(wanted)
    tag, slug = wanted.tag or default_tag(wanted, profile), source_slug(wanted.source)
    holds = "" if "text" in wanted.given else source_fingerprint(wanted.source)
    unit = wanted.rows.get("text_unit", "")
    rows = {**wanted.rows, "text_unit": unit or "line" if "text" in wanted.given else text_unit(wanted.source, unit)[0]}
    text = replace(
        TextSpec(source=wanted.source, packages=wanted.packages, source_fingerprint=holds), **dict[str, Any](rows)
    )
    data, vocab = f"datasets/{slug}", TokenizerSpec(vocab_size=_vocab_size(profile, wanted.init))
    holds = source_fingerprint(wanted.identity) if wanted.identity else ""
    identity = IdentitySpec(persona=wanted.persona, source=wanted.identity, source_fingerprint=holds)
    of_words = {"text": "text", "tokenizer": "tokenizer"}
    nodes = [
        Node("text", f"{data}/text", ("-m", "data", "text"), MAKE_TEXT, text),
        Node("tokenizer", "tokenizer", ("-m", "data", "tokenizer"), MAKE_TOKENS, vocab, {"text": "text"}),
        Node("tokens", f"{data}/tokens", ("-m", "data", "tokens"), MAKE_TOKENS, TokensSpec(), of_words),
        Node("identity", "identity_conversations", ("-m", "data", "identity"), MAKE_TALK, identity),
        Node(
            "questions", f"{data}/questions", ("-m", "data", "questions"), MAKE_TALK, QuestionsSpec(), {"text": "text"}
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
    talks = talk_nodes([source for name in mixtures if PHASES[name].reads != PROMPTS for source in mixtures[name]])
    asked = [
        source for name in mixtures for source in mixtures[name] if source in TASKS or PHASES[name].reads == PROMPTS
    ]
    talks |= problem_nodes(asked, wanted.problems, {node.name for node in talks.values()})
    found |= {node.name: node for node in talks.values()}
    tokenizer = "tokenizer"
    if wanted.init is not None:
        from trainer.records import model_formats  # few trainings start from an imported model

        own = {} if wanted.init.has_tokenizer else {"tokenizer": "tokenizer"}
        words = ("-m", "trainer", "import")
        artifact = imported_name(wanted.init.source)
        code = (*IMPORT, *model_formats.code_of(wanted.init.format))
        found[INIT] = Node(INIT, artifact, words, code, wanted.init, own)
        tokenizer = INIT
        found["tokens"] = replace(found["tokens"], inputs={"text": "text", "tokenizer": tokenizer})
    befores = chain(profile.phases, wanted.phases, wanted.init is not None)
    if missing := [name for name in wanted.phases if name in PHASES and name not in befores]:
        known = ", ".join(one for one in PHASES if one in befores)
        raise UsageError(f"profile {profile.name} has no phase {listed(missing)}; phases of the profile: {known}")
    for name, before in befores.items():
        kinds = {talks[kind].name if kind in talks else kind: weight for kind, weight in mixtures[name].items()}
        inputs = {"tokenizer": tokenizer, **_data(PHASES[name], kinds, tuple(found))}
        while before:
            inputs[before] = before
            before = befores.get(before, "") if before in found and _is_change(found[before]) else ""
        if PHASES[name].teacher:
            inputs[TEACHER] = nearest(PHASES[name].teacher, befores, wanted.init is not None)
        node = _phase(profile, name, tag, wanted, inputs, None if PHASES[name].reads == TEXT else kinds)
        start = found.get(befores[name])
        if start and _is_change(start):
            node = replace(node, spec=node.spec.continuing(start.spec, wanted.options))
        elif start and node.spec.imported_change:
            found[CHANGE], node = with_change(node, befores[name], (*IMPORT, *code_of(node.spec.change)))
        found[name] = node
    phases = (one for name in befores for one in (CHANGE, name) if one == name or CHANGE in found[name].inputs)
    order = (*ORDER, *(node.name for node in talks.values()), *phases)
    found = {name: found[name] for name in dict.fromkeys(order) if name in found}
    rest = {name: node for name, node in found.items() if name not in PHASES}
    return found | {name: replace(node, artifact=tagged(node.artifact, wanted.data_tag)) for name, node in rest.items()}


def _is_change(node: Node) -> bool:
    """Return whether the artifact of a step changes the model from which the step starts, and holds no whole model."""
    return isinstance(node.spec, PhaseConfig) and bool(node.spec.change)


def _data(phase: Phase, kinds: Collection[str], made: Sequence[str]) -> dict[str, str]:
    """Return the data inputs of a phase, without models and the tokenizer: role -> node."""
    if phase.reads == TEXT:
        return {"text": "text", "tokens": "tokens"}
    roles = {KINDS.get(kind, kind) for kind in kinds}
    return {role: role for role in (*KINDS.values(), *made) if role in roles}


def _vocab_size(profile: Profile, init: ImportSpec | None) -> int:
    """Return the vocabulary size of the tokenizer to train.

    An imported model without a tokenizer limits the size to the rows of the model's embedding. Raises UsageError if the
    rows do not suffice for any tokenizer.
    """
    if init is None or init.has_tokenizer:
        return profile.vocab_size
    if init.model.vocab_size < LEAST_VOCAB:
        raise UsageError(
            f"{init.source} has {init.model.vocab_size} ids and no tokenizer; a new tokenizer needs "
            f"{LEAST_VOCAB} ids for bytes and chat tokens alone. Add the model's tokenizer.json or tokenizer.model to "
            "the folder"
        )
    return min(profile.vocab_size, init.model.vocab_size)


def talk_nodes(sources: Sequence[str]) -> dict[str, Node]:
    """Return the steps for foreign conversations, by source.

    Raises UsageError for an unknown kind, ConfigError for an invalid source.
    """
    found: dict[str, Node] = {}
    taken = {*KINDS, *ORDER, *PHASES, TEACHER}
    for source in sources:
        if source in KINDS or source in found:
            continue
        near = difflib.get_close_matches(source, KINDS, 1)
        if "/" not in source and "." not in source:
            hint = f"did you mean {near[0]!r}?" if near else "or a .jsonl, a .parquet or hf://user/name"
            raise UsageError(f"mixture: unknown kind {source!r}; known: {', '.join(KINDS)}; {hint}")
        spec = conversation_spec(source)
        if not spec.source.startswith(HUB):
            path = absolute_source(spec.source)
            spec = replace(spec, source=path, source_fingerprint=source_fingerprint(path))
        slug = f"{slug_of(spec.source)}-{spec.reader}".rstrip("-")
        name = next(one for one in (slug, *(f"{slug}-{n}" for n in range(2, 1000))) if one not in taken)
        taken.add(name)
        found[source] = Node(name, f"conversations/{name}", ("-m", "data", "talk"), MAKE_TALK, spec)
    return found


def problem_nodes(sources: Sequence[str], folder: str, taken: Collection[str]) -> dict[str, Node]:
    """Return the steps for problems, by source: a built-in task or a file.

    Raises UsageError, ConfigError.
    """
    found: dict[str, Node] = {}
    for source in dict.fromkeys(sources):
        name = source
        if source not in TASKS:
            if "/" not in source and "." not in source:
                near = difflib.get_close_matches(source, TASKS, 1)
                hint = f"did you mean {near[0]!r}?" if near else "or a .jsonl with a question and an answer per line"
                raise UsageError(f"unknown task {source!r}; known: {', '.join(TASKS)}; {hint}")
            path = absolute_source(source)
            spec = ProblemsSpec(task="file", source=path, source_fingerprint=source_fingerprint(path))
            name = slug_of(path)
            name = f"{name}-problems" if name in {*taken, *KINDS, *ORDER, *PHASES, TEACHER} else name
        elif folder and source != "sort":
            path = absolute_source(folder)
            spec = ProblemsSpec(task=source, source=path, source_fingerprint=source_fingerprint(path))
        else:
            spec = ProblemsSpec(task=source)
        found[source] = Node(name, f"problems/{name}", ("-m", "data", "problems"), ("data/problems",), spec)
    return found


def _demonstrate(profile: Profile, wanted: TrainingRequest, mixtures: dict[str, dict[str, float]]) -> None:
    """Add demonstrations of the rl tasks to sft's mixture if rl is requested.

    A model without any right answer cannot learn from rewards.
    """
    rl = profile.phases["rl"].rl if "rl" in profile.phases else None
    tasks = [task for task in mixtures.get("rl", ()) if task in DEMONSTRATED]
    if rl is None or not rl.shown or not tasks or "rl" not in wanted.phases or wanted.mixture or "sft" not in mixtures:
        return
    rest = {kind: weight * (1 - rl.shown) for kind, weight in mixtures["sft"].items()}
    mixtures["sft"] = rest | {task: rl.shown / len(tasks) for task in tasks}


def code_of(where: str) -> tuple[str, ...]:
    """Return the file of a module, or the pack's folder for a pack's module. where: "module" or "module:attribute"."""
    parts = where.partition(":")[0].split(".")
    return ("/".join(parts[:2]),) if parts[0] == "packs" else (f"{'/'.join(parts)}.py",)


def _phase(
    profile: Profile, phase: str, tag: str, wanted: TrainingRequest, inputs: dict[str, str], mixture: Mixture
) -> Node:
    config = replace(profile.phases[phase], mixture=mixture)
    if wanted.init is not None:
        tuned = derived_phases.imported_chat_phase if config.rl is None else derived_phases.learning_on_policy
        config = wanted.with_changes(tuned(config, wanted.init.model).as_written({}))
    if wanted.seed is not None:
        config = replace(config, seed=wanted.seed)
    if wanted.steps is not None and f"{phase}.steps" not in wanted.options:
        warm_ups = tuple(f"{phase}.{name}." for name in config.WARM_UPS)  # keep the user's settings
        given = {path: text for path, text in wanted.options.items() if path.startswith(warm_ups)}
        config = phase_options.with_options(config.with_steps(wanted.steps), given)
    if PHASES[phase].sizes and any(wanted.sizes.values()):
        if odd := [name for name, size in wanted.sizes.items() if size < 0]:
            raise UsageError(f"{odd[0].upper()} is {wanted.sizes[odd[0]]}; it must be a whole number from 0")
        config = phase_options.with_options(config.with_sizes(wanted.sizes), wanted.options)
    if wanted.init is not None:
        config = phase_options.with_options(config, wanted.options)  # user options override import defaults
    if config.rl is not None and wanted.rl:
        config = replace(config, rl=replace(config.rl, **wanted.rl))
    modules = filter(None, (PHASES[phase].module, config.change))
    code = (*TRAIN, *(one for module in modules for one in code_of(module)), *READ.get(PHASES[phase].reads, ()))
    code = tuple(dict.fromkeys((*code, *(one for each in config.model.features for one in code_of(each.hooks)))))
    words = ("-m", "trainer", WORD if PHASES[phase].extension else phase)
    return Node(phase, f"{PHASES[phase].folder}/{tag}", words, code, config, inputs)


def absolute_source(source: str) -> str:
    """Return a path as an absolute path on this machine; a data set of the hub unchanged."""
    return source if source.startswith(HUB) else str(Path(source).expanduser().absolute())


def slug_of(source: str) -> str:
    """Return the name of a source of conversations or problems in the store.

    The name is the last part of a path without suffixes, or the name of a data set.
    """
    stem = Path(references.parse(source).place).name
    stem = stem if source.startswith(HUB) else stem.split(".")[0]
    plain = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in stem)
    return plain.strip(".-")[:60] or "talk"


def own_sources(source: str) -> list[str]:
    """Return the parts of a source that name extensions known to this process."""
    parts = [one for one, _ in references.parse_mixture(source)] or [source]
    return [one for one in parts if extensions.used(one)]


def source_slug(source: str) -> str:
    """Return the name of a source under `datasets/`: `pydocs`, or the last part of a path before any wildcard."""
    if source in ("pydocs", "fineweb") or extensions.used(source):
        return source
    if mixture := references.parse_mixture(source):
        return "-".join(source_slug(one) for one, _ in mixture)[:100]
    reference = references.parse(source)
    if reference.is_hub:
        return reference.place.replace("/", "-").encode("ascii", "ignore").decode()[:100].strip(".-") or "hub"
    plain = [part for part in Path(reference.place).parts if not any(letter in part for letter in "*?[")] or ["local"]
    stem = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in Path(plain[-1]).stem)
    return stem.strip(".-")[:100] or "local"


def source_fingerprint(source: str) -> str:
    """Return the current fingerprint of a source: the Python version for pydocs, the content for files.

    The fingerprint is "" for fineweb and for data sets of the hub. A file over 64 MiB counts by size and modification
    time, because hashing the file would delay every plan. Raises ConfigError if no file exists or a file is empty.
    """
    if source == "fineweb":
        return ""
    if source == "pydocs":
        return f"python {platform.python_version()}"
    if own := extensions.used(source):
        return own.label
    if mixture := references.parse_mixture(source):
        return digest([source_fingerprint(one) for one, _ in mixture])
    reference = references.parse(source)
    if reference.is_hub:
        return ""
    parts = []
    for file in filled_files(reference.place):
        stat = file.stat()
        large = stat.st_size > 64 << 20
        content = [stat.st_size, stat.st_mtime_ns] if large else hashlib.sha256(file.read_bytes()).hexdigest()
        parts.append([file.name, content])
    return digest(parts)
