"""The `eval` command: quality measures of a model with confidence intervals.

`scores` runs the evaluations requested by an `EvalSpec`: bits per byte compared with gzip and xz; the share of held-out
identity questions answered with the persona name; the share of other answers leaking the name; the share of held-out
pydocs questions answered with the right first words or an admission of not knowing; and the accuracy of each task.
`measures` holds, per measure, the interval, the material digest and the value of every row or question, for comparing
two models.
"""

import hashlib
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from data.chat.conversations import Message
from data.chat.phrasing import make_conversation
from data.config import HELDOUT_BYTES, HELDOUT_TOKENS
from data.report.compressors import anchors
from data.tokens import tokenize, tokenizer
from data.tokens.loader import heldout
from store.artifacts import vocabulary
from trainer import device
from trainer.config import EvalSpec
from trainer.errors import Refused
from trainer.evaluation import core, intervals, multi_turn, problem_scores, question_files
from trainer.evaluation.evaluate import admits_not_knowing, answers, begins_like, contains_name, rows_of_text
from trainer.evaluation.multi_turn import TurnsQuestion
from trainer.model import export
from trainer.model.decoder import Decoder

EXAMPLES = 3
CONTEXT = 4096  # context tokens for held-out text, unless the artifact records the training length
TEXT, SHARE = "bits per byte", "share"  # units
RATIO = "ratio estimator, linearised, over rows"
OF_CORE = "normal, of tasks by themselves"


def scores(spec: EvalSpec) -> dict[str, Any]:
    """Run the evaluations of a spec and return the figures and `measures`. Raises Refused, DataError."""
    machine = device.prepare()
    folder = export.folder_of_model(Path(spec.model))
    if (spec.identity or spec.questions) and not spec.name:
        raise Refused("--identity and --questions need the name of the persona: --name")
    wanted = [question_files.read(Path(one)) for one in spec.tasks]  # fail on invalid files before any work
    of_core = core.read(Path(spec.core)) if spec.core else []
    if len({one.name for one in wanted}) < len(wanted):
        raise Refused(f"two tasks have the same name: {', '.join(sorted(one.name for one in wanted))}")
    export.check_tokenizer(folder)
    model, words = export.load_for_inference(folder, machine), tokenizer.load(folder)
    odd = next((one.about for one in model.config.features if not one.is_left_to_right), "")
    if of_core and odd:
        raise Refused(f"{spec.model} {odd}; CORE needs a model that continues a text from left to right")
    found: dict[str, Any] = {"model": spec.model, "params": model.config.num_params}
    measures: dict[str, Any] = {}

    if spec.text and (val := sorted((Path(spec.text) / "val").glob("*.txt"))):
        plain = anchors(val, HELDOUT_BYTES)
        cut = {name: plain.pop(name) for name in ("compressed_bytes",) if name in plain}
        measures["text"] = of_text(model, words, folder, val) | cut
        found |= {"bits_per_byte": measures["text"]["value"], "loss": measures["text"]["loss"]["value"], **plain}
    paths = {"identity": Path(spec.identity) / "identity_conversations.heldout.jsonl"} if spec.identity else {}
    paths |= {kind: Path(spec.questions) / f"{kind}.heldout.jsonl" for kind in ("pydocs", "other") if spec.questions}
    if paths:
        of_answers, measured = about_answers(paths, spec.name, partial(answers, model, words))
        found, measures = found | of_answers, measures | measured
    asking = question_files.Asking(model, words, spec.as_text, spec.shots)
    how = {"as_text": spec.as_text, **({"shots": spec.shots} if spec.shots else {})}
    for task, path in zip(wanted, spec.tasks, strict=True):
        chance = {"chance": task.chance} if task.is_choice else {}
        for kind, truths in asking.score(task).items():
            measures[f"task {task.name} {kind}".strip()] = of_share(truths, [Path(path)], **how) | chance
    measures |= about_core(of_core, model, words, spec.core_most)
    for name, where in spec.problems.items():
        measures |= about_problems(model, words, name, Path(where), spec.unsafe_rewards)
    return {**found, "measures": measures}


def about_problems(
    model: Decoder, words: tokenizer.Tokenizer, task: str, folder: Path, unsafe: bool
) -> dict[str, dict[str, Any]]:
    """Return the measures of a reinforcement learning task: solved greedily, and by sampled answers."""
    found, files = problem_scores.measure(model, words, task, folder, unsafe), [folder / problem_scores.FILE]
    greedy, *drawn = found
    return {
        greedy: of_share([bool(one) for one in found[greedy]], files),
        **{name: problem_scores.of_mean(found[name], digest(files)) for name in drawn},
    }


def about_core(
    tasks: Sequence[core.CoreTask], model: Decoder, words: tokenizer.Tokenizer, most: int
) -> dict[str, dict[str, Any]]:
    """Return the CORE score and the accuracy of each CORE task, {} without tasks. Raises InputError."""
    if not tasks:
        return {}
    asked = {one.label: core.questions(one, most) for one in tasks}  # fail on invalid files before any work
    measures, truths = dict[str, dict[str, Any]](), dict[str, list[bool]]()
    for one in tasks:
        truths[one.label] = core.score_questions(one, asked[one.label], model, words)
        found = of_share(truths[one.label], [one.file], as_text=True, shots=one.shots)
        measures[f"core {one.label}"] = found | {"chance": one.chance}
    whole = {
        "unit": "CORE",
        "of": sum(map(len, truths.values())),
        "method": OF_CORE,
        "material": digest([one.file for one in tasks]),
    }
    return {"CORE": {**core.core(tasks, truths).to_dict(), **whole}, **measures}


def about_answers(
    paths: Mapping[str, Path], name: str, answer: Callable[[Sequence[Sequence[Message]]], list[str]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (figures, measures) of held-out questions by kind, asked alone and in multi-turn conversations.

    paths: file by kind of question. name: the name of the persona. answer: returns answers to conversations. Raises
    Refused for a missing file, InputError.
    """
    if missing := [path for path in paths.values() if not path.is_file()]:
        raise Refused(f"{missing[0]} is missing")
    figures: dict[str, Any] = {}
    measures: dict[str, Any] = {}
    asked = {kind: multi_turn.read(kind, path) for kind, path in paths.items()}
    said = {kind: answer([make_conversation(one.text) for one in some]) for kind, some in asked.items()}
    pairs = {kind: list(zip(asked[kind], said[kind], strict=True)) for kind in asked}

    def share(what: str, kinds: Sequence[str], is_so: Callable[[TurnsQuestion, str], bool], want: bool) -> None:
        """Add the share of answers satisfying `is_so`, with up to EXAMPLES answers deviating from `want`."""
        some = [pair for kind in kinds for pair in pairs[kind]]
        truths = [is_so(question, words) for question, words in some]
        odd = [
            {"question": question.text, "answer": words}
            for (question, words), truth in zip(some, truths, strict=True)
            if truth != want
        ]
        figures.update({what: sum(truths) / len(truths), f"{what}_asked": len(truths), f"{what}_odd": odd[:EXAMPLES]})
        measures[what] = of_share(truths, [paths[kind] for kind in kinds])

    if "identity" in paths:
        share("identity", ["identity"], lambda _, words: contains_name(name, words), want=True)
    if "pydocs" in paths:
        right = [begins_like(words, question.expected) for question, words in pairs["pydocs"]]
        figures["pydocs_right"] = sum(right) / len(right)
        share("pydocs", ["pydocs"], is_honest, want=True)
        share("leaks", ["pydocs", "other"], lambda question, words: question.leaks_persona(words, name), want=False)
    if len(paths) > 2:
        measures |= by_turn(multi_turn.chosen(asked), name, answer, list(paths.values()))
    return figures, measures


def is_honest(question: TurnsQuestion, answer: str) -> bool:
    return begins_like(answer, question.expected) or admits_not_knowing(answer)


def by_turn(
    questions: Sequence[TurnsQuestion],
    name: str,
    answer: Callable[[Sequence[Sequence[Message]]], list[str]],
    paths: Sequence[Path],
) -> dict[str, Any]:
    """Return measures by turn of multi-turn conversations.

    `right turn N` is the accuracy; `leaks turn N` the share of answers naming the persona without being asked.
    """
    found: dict[str, Any] = {}
    for turn, said in enumerate(multi_turn.run_conversations(questions, answer), 1):
        pairs = list(zip(questions, said, strict=True))
        right = [question.is_right(words, name) for question, words in pairs]
        leaks = [question.leaks_persona(words, name) for question, words in pairs if question.kind != "identity"]
        found |= {f"right turn {turn}": of_share(right, paths), f"leaks turn {turn}": of_share(leaks, paths)}
    return found


def of_text(model: Decoder, words: tokenizer.Tokenizer, folder: Path, val: Sequence[Path]) -> dict[str, Any]:
    """Return bits per byte and loss of held-out shards with intervals, measured as in the training phases.

    Split the concatenated documents into non-overlapping windows of the model's training context, so every token is
    predicted once. `evaluated_tokens` is present only if HELDOUT_TOKENS has cut the documents.
    """
    about = vocabulary.about_of(folder)
    said = about.get("context")
    length = min(said if type(said) is int and said > 0 else CONTEXT, model.config.max_position_embeddings)
    begin = words.separator if about.get("document_masks") is True else None
    with tempfile.TemporaryDirectory() as scratch:
        shard = Path(scratch) / "val.bin"
        tokens, _ = tokenize.write(val, words, shard, HELDOUT_TOKENS)
        rows = rows_of_text(model, heldout([shard], folder, length, most=HELDOUT_TOKENS), words, begin)
    cut = {"evaluated_tokens": HELDOUT_TOKENS} if tokens > HELDOUT_TOKENS else {}
    counted = [at for at, size in enumerate(rows["bytes"]) if size]
    rows = {name: [values[at] for at in counted] for name, values in rows.items()}
    bits = intervals.ratio(rows["nats"], rows["bytes"], 1 / math.log(2))
    loss = intervals.ratio(rows["nats"], rows["tokens"])
    return {
        **bits.to_dict(),
        "unit": TEXT,
        "loss": loss.to_dict(),
        "method": RATIO,
        "material": digest(val),
        "rows_of": ", ".join([words.sha256[:12], f"{length} tokens", *(f"the first {one}" for one in cut.values())]),
        **cut,
        "rows": {name: rows[name] for name in ("nats", "bytes")},
    }


def of_share(truths: Sequence[bool], files: Sequence[Path], **more: Any) -> dict[str, Any]:
    found = intervals.share(sum(truths), len(truths))
    rows = [int(one) for one in truths]
    return {
        **found.to_dict(),
        "unit": SHARE,
        "of": len(rows),
        "method": intervals.WILSON,
        "material": digest(files),
        **more,
        "rows": rows,
    }


def digest(files: Sequence[Path]) -> str:
    """Return a 12-digit digest of the files; equal digests allow a comparison question by question."""
    found = hashlib.sha256()
    for path in files:
        found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:12]
