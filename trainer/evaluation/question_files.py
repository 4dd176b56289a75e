"""Questions from a file of the user's: multiple choice, or an answer that must match.

In: a `.jsonl`. Each line has a `question` (or `query`, `prompt`, `input`) and an `answer` (or `gold`, `label`,
`answerKey`); with `choices` it is multiple choice, and the answer is the number of one from 0, its label, its letter,
or its very text. Without, the answer is a text, or a list of texts any of which will do; after `####` stands the word
that counts, as in GSM8K. Out: per question, whether the model is right.

The model's choice is the one whose text, after the question, costs it the fewest nats per byte (`acc_norm` elsewhere);
an answer is right when what the model says greedily is the wanted text but for case, spaces and a full stop.
Questions are put as talk, or, to a model that has only read, as `Question: ... Answer:`. None is shown beforehand.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from data.chat import conversations
from data.errors import InputError
from data.events import emit
from data.tokens.tokenizer import BOS, END, Tokenizer
from store import outside
from trainer.evaluation.evaluate import ROWS, nats
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.generate import generate

QUESTION = ("question", "query", "prompt", "input")
ANSWER = ("answer", "gold", "label", "answerKey")
MAX_NEW = 256
BATCH_TOKENS = 8192
TASK_BYTES = 256 * outside.MIB


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[str, ...] = ()
    right: int = 0
    """Of `choices`."""
    accepted: tuple[str, ...] = ()
    """Where there are no choices."""


@dataclass(frozen=True)
class QuestionSet:
    name: str
    questions: tuple[Question, ...]

    @property
    def is_choice(self) -> bool:
        return bool(self.questions[0].choices)

    @property
    def chance(self) -> float:
        """Return the share that blind guessing gets right."""
        return sum(1 / len(one.choices) for one in self.questions if one.choices) / len(self.questions)


def read(path: Path) -> QuestionSet:
    """Return the questions of a file. Raises InputError with the line that is none."""
    questions = []
    try:
        lines = outside.content(path, TASK_BYTES).decode().splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"task {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            questions.append(_question(outside.parse(line)))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            words = error.args[0] if error.args else type(error).__name__
            raise InputError(f"task {path}:{number}: {words}") from None
    if not questions:
        raise InputError(f"task {path}: no questions in it")
    if len({bool(one.choices) for one in questions}) > 1:
        raise InputError(f"task {path}: some questions have choices and some have none; make it two files")
    return QuestionSet(path.stem, tuple(questions))


def _question(row: Any) -> Question:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {type(row).__name__}")
    keys = [next((key for key in known if key in row), "") for known in (QUESTION, ANSWER)]
    if not all(keys):
        raise ValueError(f"no question or no answer; available: {', '.join(map(str, row))}")
    text, answer, choices = str(row[keys[0]]), row[keys[1]], row.get("choices")
    if choices is None:
        wanted = answer if isinstance(answer, list) else [answer]
        return Question(text, accepted=tuple(plain(counted(str(one))) for one in wanted))
    labels = [chr(ord("A") + number) for number in range(26)]
    if isinstance(choices, dict):  # as ARC has them
        choices, labels = choices["text"], [str(one) for one in choices["label"]]
    choices = [str(one) for one in choices]
    if len(choices) < 2 or not all(one.strip() for one in choices):
        raise ValueError("fewer than two choices, or an empty one")
    if isinstance(answer, int) and not isinstance(answer, bool):
        right = answer
    elif str(answer) in choices:
        right = choices.index(str(answer))
    elif str(answer) in labels[: len(choices)]:
        right = labels.index(str(answer))
    else:
        raise ValueError(f"the answer {answer!r} is none of the {len(choices)} choices")
    if not 0 <= right < len(choices):
        raise ValueError(f"the answer is choice {right} of {len(choices)}, counted from 0")
    return Question(text, tuple(choices), right)


def counted(answer: str) -> str:
    """Return the part that counts: the word after `####` where that is there."""
    found = re.search(r"####\s*(\S+)", answer)
    return found[1].replace(",", "") if found else answer


def plain(answer: str) -> str:
    return " ".join(answer.split()).rstrip(".").casefold()


class Asking:
    """A model that is asked, as talk or as text."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, as_text: bool) -> None:
        self.model, self.tokenizer, self.as_text = model, tokenizer, as_text

    def right(self, task: QuestionSet) -> list[bool]:
        """Tell of each question whether it is answered as wanted."""
        return self._choose(task) if task.is_choice else self._match(task)

    def said(self, questions: Sequence[Question]) -> list[str]:
        """Return the answers, greedy; as text, the rest of the line."""
        prompts = [self._prompt(one.text) for one in questions]
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))  # little padding
        stop = {self.tokenizer.special(END), self.tokenizer.special(BOS)}
        found = [""] * len(prompts)
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            said = generate(self.model, [prompts[row] for row in rows], stop, MAX_NEW)
            for row, ids in zip(rows, said, strict=True):
                text = self.tokenizer.decode(ids)
                found[row] = text.strip().split("\n")[0] if self.as_text else text
            emit("progress", done=start + len(rows), total=len(order), unit="answers")
        return found

    def _match(self, task: QuestionSet) -> list[bool]:
        said = self.said(task.questions)
        return [plain(counted(one)) in asked.accepted for asked, one in zip(task.questions, said, strict=True)]

    def _choose(self, task: QuestionSet) -> list[bool]:
        rows: list[tuple[int, int, list[int], int]] = []  # question, choice, ids, how many of them are the choice's
        for number, question in enumerate(task.questions):
            prompt = self._prompt(question.text)
            for choice, text in enumerate(question.choices):
                ids = self.tokenizer.encode(f" {text}" if self.as_text else text)
                rows.append((number, choice, [*prompt, *ids], len(ids)))
        costs = self._costs([(ids, count) for _, _, ids, count in rows])
        best: dict[int, tuple[float, int]] = {}
        for (number, choice, _, _), cost in zip(rows, costs, strict=True):
            each = cost / max(1, len(task.questions[number].choices[choice].encode()))
            best[number] = min(best.get(number, (float("inf"), 0)), (each, choice))
        return [best[number][1] == one.right for number, one in enumerate(task.questions)]

    def _costs(self, rows: Sequence[tuple[list[int], int]]) -> list[float]:
        """Return summed nats of the last ids of each row, as many as it says. What is too long loses its beginning."""
        most = self.model.config.max_position_embeddings
        rows = [(ids[-most - 1 :], min(count, most)) for ids, count in rows]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row][0]))
        found, start = [0.0] * len(rows), 0
        device = self.model.head.device
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(rows[order[end]][0]) <= BATCH_TOKENS:
                end += 1
            some = [rows[row] for row in order[start:end]]
            width = max(len(ids) for ids, _ in some) - 1
            ids = torch.zeros((len(some), width), dtype=torch.int64)
            targets = torch.full((len(some), width), IGNORED)
            for at, (one, count) in enumerate(some):
                ids[at, : len(one) - 1] = torch.tensor(one[:-1])
                targets[at, len(one) - 1 - count : len(one) - 1] = torch.tensor(one[len(one) - count :])
            costs = nats(self.model, ids.to(device), targets.to(device)).sum(dim=1).tolist()
            for row, cost in zip(order[start:end], costs, strict=True):
                found[row] = cost
            start = end
            emit("progress", done=end, total=len(order), unit="choices")
        return found

    def _prompt(self, question: str) -> list[int]:
        if self.as_text:
            return [self.tokenizer.special(BOS), *self.tokenizer.encode(f"Question: {question}\nAnswer:")]
        message: Mapping[str, str] = {"role": "user", "content": question}
        return conversations.prompt([message], self.tokenizer)
