"""The CORE benchmark of DataComp-LM and nanochat for base models: the mean of 22 tasks, centred by chance accuracy.

Tasks come from a folder in nanochat's layout (`core.yaml`, `eval_meta_data.csv`, `eval_data/`). Choice of few-shot
examples, prompt format, scored ids and correctness follow nanochat, so scores are comparable.
Sources: Li et al., DataComp-LM, arXiv 2406.11794; nanochat, `core_eval.py`.

`read` -> `questions` -> `score_questions` (correctness per question) -> `core`
"""

import csv
import io
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from data.errors import InputError
from data.tokens.tokenizer import Tokenizer
from store import untrusted_input
from trainer.evaluation.intervals import Interval, Z
from trainer.evaluation.question_files import TASK_BYTES, Asking, least
from trainer.model.decoder import Decoder

CONFIG, CHANCES, DATA, BUNDLE = "core.yaml", "eval_meta_data.csv", "eval_data", "eval_bundle"
CHOICE, SCHEMA, WORDS = "multiple_choice", "schema", "language_modeling"
FIELDS: dict[str, dict[str, type]] = {
    CHOICE: {"query": str, "choices": list, "gold": int},
    SCHEMA: {"context_options": list, "continuation": str, "gold": int},
    WORDS: {"context": str, "continuation": str},
}
OPTIONS = {CHOICE: "choices", SCHEMA: "context_options"}
ORDER_SEED, SHOTS_SEED = 1337, 1234


@dataclass(frozen=True)
class CoreTask:
    label: str
    kind: str
    file: Path
    shots: int
    between: str
    """Delimiter between question and answer."""
    chance: float
    """Chance accuracy, between 0 and 1."""


def read(folder: Path) -> list[CoreTask]:
    """Return the tasks of `folder` or of `folder/eval_bundle`. Raises InputError."""
    if not (folder / CONFIG).is_file() and (folder / BUNDLE / CONFIG).is_file():
        folder = folder / BUNDLE
    try:
        config = yaml.safe_load(untrusted_input.content(folder / CONFIG))
        rows = csv.DictReader(io.StringIO(untrusted_input.content(folder / CHANCES).decode()))
        chances = {row["Eval Task"]: float(row["Random baseline"]) / 100 for row in rows}
        tasks = [_task(one, folder / DATA, chances) for one in config["icl_tasks"]]
    except OSError as error:
        raise InputError(f"CORE {folder}: {error.strerror or error}: {error.filename or CONFIG}") from None
    except (yaml.YAMLError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        words = f"no {error}" if isinstance(error, KeyError) else str(error).partition("\n")[0]
        raise InputError(f"CORE {folder}: {words}; expected {CONFIG} and {CHANCES} in nanochat's format") from None
    if not tasks or len({one.label for one in tasks}) < len(tasks):
        raise InputError(f"CORE {folder}: {'two tasks have the same name' if tasks else 'the folder has no tasks'}")
    return tasks


def _task(one: Mapping[str, Any], folder: Path, chances: Mapping[str, float]) -> CoreTask:
    label, kind, file = str(one["label"]), one["icl_task_type"], folder / str(one["dataset_uri"])
    if kind not in FIELDS:
        raise ValueError(f"{label}: unknown kind of task {kind!r}; known: {', '.join(FIELDS)}")
    if not file.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{label}: {one['dataset_uri']} is outside of the folder")
    if label not in chances or not 0 <= chances[label] < 1:
        raise ValueError(f"{label}: {CHANCES} has no valid random baseline for this task")
    return CoreTask(
        label, kind, file, int(one["num_fewshot"][0]), str(one.get("continuation_delimiter", " ")), chances[label]
    )


def questions(task: CoreTask, most: int = 0) -> list[dict[str, Any]]:
    """Return the first `most` questions of a task in nanochat's shuffled order; 0 = all. Raises InputError."""
    found = []
    try:
        lines = untrusted_input.text_lines(task.file, TASK_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"CORE {task.label}: {task.file}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            one = untrusted_input.parse(line)
            if odd := [name for name, kind in FIELDS[task.kind].items() if not isinstance(one.get(name), kind)]:
                raise ValueError(f"missing or of the wrong type: {', '.join(odd)}")
            if task.kind != WORDS and not 0 <= one["gold"] < len(one[OPTIONS[task.kind]]):
                raise ValueError(f"gold is {one['gold']}, which is not the index of a choice")
        except (ValueError, AttributeError) as error:
            raise InputError(f"CORE {task.label}: {task.file}:{number}: {error}") from None
        found.append(one)
    random.Random(ORDER_SEED).shuffle(found)
    if len(found[: most or None]) <= task.shots:
        raise InputError(
            f"CORE {task.label}: {task.shots} few-shot examples need more questions; the task has {len(found)}"
        )
    return found[: most or None]


def prompts(task: CoreTask, some: Sequence[Mapping[str, Any]], number: int) -> list[str]:
    """Return the texts to score for question `number`, with few-shot examples from `some`.

    One text per choice; for language modeling the prompt without and with the continuation.
    """
    one, shown = some[number], []
    if task.shots:
        others = [at for at in range(len(some)) if at != number]
        shown = [some[at] for at in random.Random(SHOTS_SEED + number).sample(others, task.shots)]
    if task.kind == CHOICE:
        before = "".join(f"{each['query']}{task.between}{each['choices'][each['gold']]}\n\n" for each in shown)
        return [f"{before}{one['query']}{task.between}{choice}" for choice in one["choices"]]
    if task.kind == SCHEMA:
        before = "".join(
            f"{each['context_options'][each['gold']]}{task.between}{each['continuation']}\n\n" for each in shown
        )
        return [f"{before}{context}{task.between}{one['continuation']}" for context in one["context_options"]]
    before = "".join(f"{each['context'].strip()}{task.between}{each['continuation']}\n\n" for each in shown)
    without = f"{before}{one['context'].strip()}{task.between}"
    return [without.strip(), f"{without}{one['continuation']}"]


def scored_rows(kind: str, rows: Sequence[Sequence[int]]) -> list[tuple[list[int], int]]:
    """Return the id rows to score, each with the number of scored ids at the end."""
    if kind == WORDS:
        without, whole = rows
        if list(whole[: len(without)]) != list(without):  # the continuation's first id includes context
            without = without[: common(rows)]
        return [(list(whole), len(whole) - len(without))]
    if kind == SCHEMA:
        same = common([row[::-1] for row in rows])
        return [(list(row), same) for row in rows]
    same = common(rows)
    return [(list(row), len(row) - same) for row in rows]


def common(rows: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix of all rows."""
    pairs = zip(*rows, strict=False)
    return next((at for at, ids in enumerate(pairs) if len(set(ids)) > 1), min(map(len, rows)))


def score_questions(task: CoreTask, some: Sequence[Mapping[str, Any]], model: Decoder, words: Tokenizer) -> list[bool]:
    """Return, per question, whether the model is right.

    The model chooses the text with the lowest mean nats per scored token. A language modeling answer is right when
    every id of the continuation is the most likely id.
    """
    of_each = []
    for number in range(len(some)):
        texts = prompts(task, some, number)
        of_each.append(scored_rows(task.kind, [[*words.begin, *words.encode(text)] for text in texts]))
    asked = [row for rows in of_each for row in rows]
    found = iter(Asking(model, words, as_text=True).costs(asked, model.config.longest_row))
    truths = []
    for one, rows in zip(some, of_each, strict=True):
        each = [next(found) for _ in rows]
        if task.kind == WORDS:
            truths.append(each[0].is_greedy)
        else:
            # A choice that is a prefix of all choices has no scored ids. As in nanochat, the mean is nan, so `min`
            # chooses such a choice if the choice is the first, and never otherwise.
            means = [cost.nats / count if count else math.nan for cost, (_, count) in zip(each, rows, strict=True)]
            truths.append(least(means) == one["gold"])
    return truths


def centred(share: float, chance: float) -> float:
    """Return accuracy rescaled so that chance is 0 and a perfect score is 1."""
    return (share - chance) / (1 - chance)


def core(tasks: Sequence[CoreTask], truths: Mapping[str, Sequence[bool]]) -> Interval:
    """Return the mean centred accuracy over tasks, with a normal interval for random questions and fixed tasks."""
    value, square = 0.0, 0.0
    for one in tasks:
        some = truths[one.label]
        share = sum(some) / len(some)
        value += centred(share, one.chance) / len(tasks)
        square += share * (1 - share) / len(some) / (1 - one.chance) ** 2 / len(tasks) ** 2
    reach = Z * math.sqrt(square)
    return Interval(value, value - reach, value + reach)
