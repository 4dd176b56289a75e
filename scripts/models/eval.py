"""The command `inv eval`: measure models, store the results, and compare models.

The input is models, held-out data of the store and question files. The output is tables or JSON, and for each model an
artifact `evals/<its name>` with `eval.json`: every measure with a confidence interval, the measured data and every row,
so that two models are compared question by question if both answered the same questions.
"""

import hashlib
import json as json_format
import math
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.config import TASKS
from flows.models.find_model import find_model
from flows.reading.measures import FILE, results_name
from flows.reading.measures import load_results as kept_of
from infra.errors import UsageError
from infra.flags import flag, nondefault_flags
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.local_step import run as run_step
from scripts.cli.render import print_json
from scripts.models import lm_eval, scores_text
from serve.engines import LLAMA
from store.artifacts.artifacts import Store
from store.manifest import Artifact
from trainer.config import phases_for
from trainer.evaluation import intervals
from trainer.evaluation.intervals import Interval
from trainer.plan import load_persona, source_slug
from trainer.records.phase_registry import PHASES, TALK, TEXT, phase_names

HARNESS = ("lm-eval", "endpoint", "served-name")
MEASURING = ("source", "persona", "task", "shots", "core", "core-most")  # flags of measurements in this process
READERS = {one.folder for one in PHASES.values() if one.reads == TEXT}


@dataclass(frozen=True)
class Subject:
    """A model to measure."""

    name: str
    fingerprint: str
    folder: Path

    @property
    def results_name(self) -> str:
        """Return the name of the model's results in the store."""
        return results_name(self.name)

    @property
    def is_base_model(self) -> bool:
        """Return whether the model only continues texts, as a base model, and does not chat."""
        return self.name.split("/")[0] in READERS


@dataclass(frozen=True, kw_only=True)
class EvalFlags(Output):
    models: tuple[str, ...] = flag(
        (),
        f"{phase_names()}, names or tags of artifacts, or Hugging Face folders (default: base on text, and "
        "the last trained phase on questions)",
        word=True,
    )
    tag: str = flag("", "name of the checkpoints in the store")
    source: str = flag("", "source of the held-out text and of the questions (default: pydocs)")
    persona: str = flag(
        "", "YAML file with the name that the model should say (default: the persona of the training)", unit="FILE"
    )
    task: tuple[str, ...] = flag(
        (),
        ".jsonl file of questions, multiple choice or with exact answers; or a task of rl: sort, gsm8k, "
        "math, mbpp; repeatable",
    )
    as_text: bool = flag(False, "ask the questions of tasks as text to continue; base models are always asked this way")
    shots: int = flag(0, "number of answered example questions before each question of a task file")
    core: str = flag(
        "", "folder of the CORE tasks from nanochat (eval_bundle): measure CORE and each task", unit="FOLDER"
    )
    core_most: int = flag(0, "--core: maximum number of questions per task; 0: all questions")
    compare: bool = flag(False, "compare two models by stored measurements: differences with confidence intervals")
    lm_eval: str = flag(
        "", "tasks of EleutherAI's lm-evaluation-harness, comma-separated, run against a server of the model"
    )
    endpoint: str = flag("", "--lm-eval: address of the server, such as http://127.0.0.1:8000")
    served_name: str = flag("", "--lm-eval: name of the model on the server (default: the name in the store)")


@command(record=EvalFlags, env=True, example="inv eval base sft")
def eval(spec: EvalFlags) -> None:
    """Measure models; each result has a confidence interval.

    The measures are bits per byte, compared with gzip and xz, held-out questions and your own tasks.

    Results are stored under evals/ in the store. Without MODELS: base on text, the last phase on questions.
    """
    check_flags(spec)
    settings = context.settings(source=spec.source)
    models = spec.models
    if spec.compare:
        show_comparison(models, spec.tag, settings, spec.json)
        return
    if spec.lm_eval or spec.endpoint or spec.served_name:
        one = subject(settings, models[0] if models else "", spec.tag)
        measures = lm_eval.measure(
            one.folder,
            one.name,
            lm_eval=spec.lm_eval,
            endpoint=spec.endpoint,
            served_name=spec.served_name,
            as_text=spec.as_text or one.is_base_model,
        )
        tell([one.name], [store_results(settings, one, {"measures": measures})], spec.json)
        return
    learnt = [one for one in spec.task if one in TASKS]
    tasks = [str(Path(one).expanduser().absolute()) for one in spec.task if one not in learnt]
    core = str(Path(spec.core).expanduser().absolute()) if spec.core else ""
    material = held_out(
        settings, spec.persona, is_needed=not (spec.task or core), of=models[0] if models else "", tag=spec.tag
    )
    names, found = [], []
    subjects = chosen(settings, models, spec.tag, material)
    for one, part in subjects:
        is_asked = bool(models) or one is subjects[-1][0]
        measured = {
            "model": str(one.folder),
            **part,
            "tasks": tasks if is_asked else [],
            "as_text": spec.as_text or one.is_base_model,
            "shots": spec.shots,
        }
        if core and is_asked:
            measured |= {"core": core, "core_most": spec.core_most}
        if learnt and is_asked:
            measured["problems"] = {name: problems_of(settings, one, name) for name in learnt}
        said = run_step("eval", ("-m", "trainer", "eval"), {"spec": measured}, settings, spec.json)
        names.append(one.name)
        found.append(said | store_results(settings, one, said))
    tell(names, found, spec.json)


def check_flags(spec: EvalFlags) -> None:
    """Raise UsageError for flags that have no effect beside the other flags."""
    given = nondefault_flags(spec)
    for mode, unread in (("compare", (*MEASURING, *HARNESS, "as-text")), ("lm-eval", MEASURING)):
        if mode in given and (idle := next((one for one in unread if one in given), "")):
            raise UsageError(f"--{idle} has no effect with --{mode}. Run two commands, each with one of the flags")
    if spec.lm_eval and len(spec.models) > 1:
        raise UsageError(f"--lm-eval takes one model, not {len(spec.models)}, since a server has one model")
    if spec.core_most and not spec.core:
        raise UsageError("--core-most has no effect without --core FOLDER")
    reads_files = spec.lm_eval or any(one not in TASKS for one in spec.task)
    if not reads_files and (idle := next((one for one in ("shots", "as-text") if one in given), "")):
        raise UsageError(f"--{idle} has no effect without --task FILE, a .jsonl file of questions")


def chosen(
    settings: Settings, models: Sequence[str], tag: str, material: Mapping[str, str]
) -> list[tuple[Subject, dict[str, str]]]:
    """Return the models, each with the data to measure on.

    Without names: base on text, the last phase on questions, and for both the latest 1.58-bit counterpart, if
    available.
    """
    if models:
        return [(subject(settings, model, tag), dict(material)) for model in models]
    text = {key: value for key, value in material.items() if key == "text"}
    answers = {key: value for key, value in material.items() if key != "text"}
    found = [(subject(settings, "base", tag), text)] if text else []
    last = [(subject(settings, "", tag), answers)] if answers or not text else []
    of = (last or found)[0][0].name.partition("/")[2]
    for kind, part in ((TEXT, text), (TALK, answers)):
        if part and (one := ternary(settings, kind, of)):
            found.append((one, part))
    return [*found, *last]


def ternary(settings: Settings, kind: str, tag: str) -> Subject | None:
    """Return the 1.58-bit model with this tag and a phase that reads `kind`, or None without such a model."""
    store = Store(settings.store)
    for phase in phases_for(LLAMA):
        if PHASES[phase].reads == kind and not (one := store.check(f"{PHASES[phase].folder}/{tag}")).problem:
            return as_subject(one, store.path(one.name, one.fingerprint))
    return None


def subject(settings: Settings, model: str, tag: str) -> Subject:
    """Return the model selected by `model` and `tag`. Raises UsageError with the available models."""
    artifact, folder = find_model(settings, model, tag, render.say)
    return as_subject(artifact, folder)


def as_subject(artifact: Artifact | None, folder: Path) -> Subject:
    if artifact:
        return Subject(artifact.name, artifact.fingerprint, folder)
    name = "".join(one if one.isascii() and one.isalnum() or one in "._-" else "-" for one in folder.name).strip(".-")
    files = sorted(one for one in folder.rglob("*.safetensors"))
    stats = repr([(one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in files])
    return Subject(f"folders/{name or 'model'}", hashlib.sha256(stats.encode()).hexdigest()[:12], folder)


def held_out(settings: Settings, persona: str, is_needed: bool, of: str, tag: str) -> dict[str, str]:
    """Return the held-out data as fields of `EvalSpec`: the data of the model `of`, else the data of the store.

    Raises UsageError if no data exists and `is_needed` is set.
    """
    store, data = Store(settings.store), f"datasets/{source_slug(settings.source)}"
    names = {"text": f"{data}/text", "identity": "identity_conversations", "questions": f"{data}/questions"}
    found = {key: one for key, name in names.items() if not (one := store.check(name)).problem}
    with suppress(UsageError):  # an external model or none: the measurement reports the problem later
        artifact, _ = find_model(settings, of, tag, render.say)
        came_from = origins(store, artifact) if artifact else {}
        found |= {key: one for key, one in came_from.items() if key in names}
    if not found and is_needed:
        raise UsageError(f"{settings.store} has no held-out text or questions. Make them: ./inv launch --phase base")
    spec = {key: str(store.path(one.name, one.fingerprint)) for key, one in found.items()}
    if "identity" in found:
        spec["name"] = load_persona(Path(persona)).name if persona else found["identity"].about["persona"]
    elif "questions" in found:
        del spec["questions"]
    return spec


def problems_of(settings: Settings, one: Subject, task: str) -> str:
    """Return the folder of a task's problems: the problems of the model's training, else the problems in the store.

    Raises UsageError without problems.
    """
    store = Store(settings.store)
    found = store.check(f"problems/{task}")
    artifact = store.find(one.name, one.fingerprint)
    if not artifact.problem and task in (came_from := origins(store, artifact)):
        found = came_from[task]
    if found.problem:
        raise UsageError(
            f"{settings.store} has no problems of the task {task}. Make the problems: ./inv train --phase "
            f"sft+rl --task {task} --prepare"
        )
    return str(store.path(found.name, found.fingerprint))


def origins(store: Store, artifact: Artifact) -> dict[str, Artifact]:
    """Return the available artifacts in the lineage of a model, by role; the artifact nearest to the model wins."""
    found: dict[str, Artifact] = {}
    todo = [artifact]
    while todo:
        for role, (name, fingerprint) in todo.pop().inputs.items():
            if role not in found and not (there := store.find(name, fingerprint)).problem:
                found[role] = there
                todo.append(there)
    return found


def store_results(settings: Settings, one: Subject, found: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the results with earlier results of the same model, store them, and return the merged document."""
    before = stored_results(settings, one)
    measures = {**before.get("measures", {}), **found["measures"]}
    beside = {name: found[name] for name in ("params", "gzip", "xz") if name in found}
    about_it = {"model": one.name, "fingerprint": one.fingerprint, "measures": measures}
    whole: dict[str, Any] = {**before, **beside, **about_it}
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        Path(folder, FILE).write_text(json_format.dumps(whole), encoding="utf-8")
        about = {name: measure["value"] for name, measure in measures.items()}
        Store(settings.store).write_note(folder, one.results_name, one.fingerprint, about)
    return whole


def stored_results(settings: Settings, one: Subject) -> dict[str, Any]:
    """Return the stored results of the model with this fingerprint, or {} without results."""
    return kept_of(settings, one.name, one.fingerprint)


def tell(names: Sequence[str], found: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        merged: dict[str, Any] = {}
        for one in found:
            merged = {**merged, **one, "measures": {**merged.get("measures", {}), **without_rows(one["measures"])}}
        print_json({**merged, "models": list(names)})
        return
    for name, one in zip(names, found, strict=True):
        scores_text.show_scores(name, one)


def without_rows(measures: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the measures without rows, for JSON output; the rows stay in the store."""
    return {name: {key: one[key] for key in one if key != "rows"} for name, one in measures.items()}


def show_comparison(models: Sequence[str], tag: str, settings: Settings, as_json: bool) -> None:
    """Print two models side by side. Raises UsageError for a model without measurements."""
    if len(models) != 2:
        raise UsageError(f"--compare takes two models, not {len(models)}: inv eval --compare A B")
    both = [subject(settings, model, tag) for model in models]
    found = [stored_results(settings, one) for one in both]
    for model, one in zip(models, found, strict=True):
        if not one:
            raise UsageError(f"{model} has no measurements of the present version. Measure the model: inv eval {model}")
    rows = compare(*(one["measures"] for one in found))
    if not rows:
        lists = (", ".join(one["measures"]) or "nothing" for one in found)
        raise UsageError(f"the two models have no measure in common: {'; '.join(lists)}. Measure both: inv eval")
    names = [one.name for one in both]
    if as_json:
        print_json({"models": names, "measures": rows})
    else:
        scores_text.show_comparison(names, rows)


def compare(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return both values of each shared measure, their difference (second minus first), and the interval's method."""
    found = {}
    for name, ours in first.items():
        theirs = second.get(name)
        if theirs is None or ours["unit"] != theirs["unit"]:
            continue
        difference, method, more = differ(ours, theirs)
        found[name] = {
            "unit": ours["unit"],
            "values": [{key: one[key] for key in ("value", "low", "high")} for one in (ours, theirs)],
            "difference": difference.to_dict(),
            "method": method,
            "is_same_material": ours["material"] == theirs["material"],
            **more,
        }
    return found


def differ(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> tuple[Interval, str, dict[str, Any]]:
    same = ours["material"] == theirs["material"]
    if ours["unit"] == "share" and "rows" in ours and "rows" in theirs:
        if same and ours.get("as_text") == theirs.get("as_text"):
            difference, p = intervals.paired_share(ours["rows"], theirs["rows"])
            return difference, "Agresti-Min of the same questions, p by McNemar's exact test", {"p": p}
        return intervals.unpaired_difference(interval(ours), interval(theirs)), "Newcombe, of different questions", {}
    if same and "rows_of" in ours and ours["rows_of"] == theirs.get("rows_of"):
        mine, other = ours["rows"], theirs["rows"]
        found = intervals.paired_ratio(mine["nats"], other["nats"], mine["bytes"], 1 / math.log(2))
        return found, "ratio estimator of each row's difference", {}
    return intervals.unpaired_difference(interval(ours), interval(theirs)), "both intervals together", {}


def interval(measure: Mapping[str, Any]) -> Interval:
    value, low, high = (measure[key] for key in ("value", "low", "high"))
    return Interval(value, math.nan if low is None else low, math.nan if high is None else high)
