"""Evaluation on user-provided question files (`.jsonl`): multiple choice, or exact-match answers.

Each line has a `question` (or `query`, `prompt`, `input`) and an `answer` (or `gold`, `label`, `answerKey`). With
`choices` the question is multiple choice, and the answer is an index from 0, a label, a letter, or the text of a
choice. Without `choices`, the answer is a text or a list of accepted texts; only the word after `####` is compared if
present, as in GSM8K.

Multiple choice has three measures: lowest nats per character of the choice text after the question (`acc_norm` in
EleutherAI's harness), lowest total nats (`acc`), and the most likely letter after a lettered list of choices (nanochat,
MMLU). An exact-match answer is right when the greedy answer equals an accepted text, ignoring case, whitespace and a
final full stop. Questions are asked as conversations, or as `Question: ... Answer:` for base models. Few-shot examples
come from the same file, drawn as in nanochat.
"""

import contextlib
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from data.chat import conversations
from data.errors import InputError
from data.events import emit
from data.tokens.tokenizer import Tokenizer
from store import untrusted_input
from trainer.evaluation.evaluate import ROWS, nats_and_greedy
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.generate import generate

QUESTION = ("question", "query", "prompt", "input")
ANSWER = ("answer", "gold", "label", "answerKey")
SUFFIXES = (".jsonl", ".ndjson", ".json")
MAX_NEW = 256
BATCH_TOKENS = 8192
TASK_BYTES = 256 * untrusted_input.MIB
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LETTER, TEXT, EITHER = "letter", "text", "either"  # what the answer to a question with choices in a list is
SHOTS_SEED = 1234


@dataclass(frozen=True)
class Question:
    text: str
    choices: tuple[str, ...] = ()
    right: int = 0
    """Index of the right choice."""
    accepted: tuple[str, ...] = ()
    """Accepted answers, normalized; for a question without choices."""
    example: str = ""
    """An accepted answer in the original spelling, for a question without choices."""

    @property
    def answer(self) -> str:
        """Return the right answer as shown in few-shot examples."""
        return self.choices[self.right] if self.choices else self.example

    @property
    def letter(self) -> str:
        return LETTERS[self.right]


@dataclass(frozen=True)
class QuestionSet:
    name: str
    questions: tuple[Question, ...]

    @property
    def is_choice(self) -> bool:
        return bool(self.questions[0].choices)

    @property
    def chance(self) -> float:
        """Return the chance accuracy of random guessing."""
        return sum(1 / len(one.choices) for one in self.questions if one.choices) / len(self.questions)


def read(path: Path) -> QuestionSet:
    """Return the questions of a file. Raises InputError with the number of the invalid line."""
    rows: list[tuple[int, ParsedRow]] = []
    if path.is_file() and path.suffix not in SUFFIXES:
        raise InputError(f"task {path}: questions are read from JSON lines ({', '.join(SUFFIXES)})")
    try:
        lines = untrusted_input.text_lines(path, TASK_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"task {path}: {getattr(error, 'strerror', None) or error}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            rows.append((number, _parsed(untrusted_input.parse(line))))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            words = error.args[0] if error.args else type(error).__name__
            raise InputError(f"task {path}:{number}: {words}") from None
    kinds = {one.kind for _, one in rows}
    questions = []
    for number, one in rows:
        if one.kind == EITHER and len(kinds & {LETTER, TEXT}) != 1:
            raise InputError(
                f"task {path}:{number}: the answer {one.question.choices[one.as_text]!r} is the letter of a choice and "
                f"the text of a different choice. Write the index of the right choice, counted from 0"
            )
        right = one.as_text if one.kind == EITHER and TEXT in kinds else one.question.right
        questions.append(replace(one.question, right=right))
    if not questions:
        raise InputError(f"task {path}: the file has no questions")
    if len({bool(one.choices) for one in questions}) > 1:
        raise InputError(f"task {path}: some questions have choices and some have none. Split the file in two")
    return QuestionSet(path.stem, tuple(questions))


@dataclass(frozen=True)
class ParsedRow:
    question: Question
    kind: str = ""
    """LETTER, TEXT or EITHER for an answer that no label and no index names; the other rows decide EITHER."""
    as_text: int = 0
    """Index of the choice with the answer as its text."""


def _parsed(row: Any) -> ParsedRow:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {type(row).__name__}")
    row = {name: one for name, one in row.items() if one is not None}
    keys = [next((key for key in known if key in row), "") for known in (QUESTION, ANSWER)]
    if not all(keys):
        raise ValueError(f"the question or the answer is missing or null; found keys: {', '.join(map(str, row))}")
    asked, answer, choices = row[keys[0]], row[keys[1]], row.get("choices")
    if isinstance(asked, dict) and "stem" in asked:  # rows of ARC's and OpenBookQA's own files
        asked, choices = asked["stem"], asked.get("choices", choices)
    text = _text(asked, "the question")
    if choices is None:
        wanted = [_text(one, "the answer") for one in (answer if isinstance(answer, list) else [answer])]
        if not wanted:
            raise ValueError("the list of answers is empty")
        return ParsedRow(Question(text, accepted=tuple(plain(counted(one)) for one in wanted), example=wanted[0]))
    labels: list[str] | None = None
    if isinstance(choices, str):  # a table of texts
        with contextlib.suppress(untrusted_input.UnusableDocument):
            choices = untrusted_input.parse(choices)
    if isinstance(choices, list) and choices and all(isinstance(one, dict) for one in choices):
        choices = {name: [one[name] for one in choices] for name in ("text", "label")}
    if isinstance(choices, dict):  # format of ARC
        choices, labels = choices["text"], [_text(one, "a label") for one in _listed(choices["label"], "the labels")]
    are_numbers = not all(isinstance(one, str) for one in _listed(choices, "the choices"))
    choices = [_text(one, "a choice") for one in choices]
    if len(choices) < 2 or not all(one.strip() for one in choices):
        raise ValueError("a question needs at least two choices, and no choice may be empty")
    if labels and (len(labels) != len(choices) or len({*labels}) < len(labels)):
        raise ValueError(f"{len(choices)} choices have the labels {', '.join(labels)}; each needs a label of its own")
    answer = int(answer) if isinstance(answer, float) and answer.is_integer() else answer
    said = _text(answer, "the answer")
    found = [names.index(said) if said in names else -1 for names in (labels or [*LETTERS], choices)]
    is_index = isinstance(answer, int) and not isinstance(answer, bool)
    # A label of the file comes before an index, and both before an equal text of a choice.
    if labels and (found[0] >= 0 or found[1] >= 0 and not is_index):
        return ParsedRow(Question(text, tuple(choices), found[0] if found[0] >= 0 else found[1]))
    if is_index:
        if not 0 <= answer < len(choices):
            raise ValueError(f"the answer is choice {answer}, but the question has {len(choices)} choices, from 0")
        if are_numbers and found[1] not in (-1, answer):
            raise ValueError(
                f"the answer {answer} is the index of a choice, and a different choice; write choices as texts"
            )
        return ParsedRow(Question(text, tuple(choices), answer))
    as_letter, as_text = found[0] if found[0] < len(choices) and not labels else -1, found[1]
    if max(as_letter, as_text) < 0:
        raise ValueError(f"the answer {answer!r} is not among the {len(choices)} choices")
    if as_letter >= 0 and as_text >= 0 and as_letter != as_text:
        return ParsedRow(Question(text, tuple(choices), as_letter), EITHER, as_text)
    kind = "" if as_letter == as_text else LETTER if as_text < 0 else TEXT
    return ParsedRow(Question(text, tuple(choices), max(as_letter, as_text)), kind, as_text)


def _listed(said: Any, what: str) -> list[Any]:
    """Return a list. Raises ValueError for another value: a text would count as a list of letters."""
    if not isinstance(said, list):
        raise ValueError(f"{what} are {untrusted_input.printable_line(said)}, expected a list")
    return said


def _text(said: Any, what: str) -> str:
    """Return a text, or a number as text: a column with a null has 3.0 for 3. Raises ValueError for other values."""
    if isinstance(said, float) and said.is_integer():
        return str(int(said))
    if not isinstance(said, (str, int, float)):
        raise ValueError(f"{what} is {untrusted_input.printable_line(said)}, expected text")
    return str(said)


def counted(answer: str) -> str:
    """Return the compared part of an answer: the word after `####` without commas, else the whole answer."""
    found = re.search(r"####\s*(\S+)", answer)
    return found[1].replace(",", "") if found else answer


def plain(answer: str) -> str:
    return " ".join(answer.split()).rstrip(".").casefold()


@dataclass(frozen=True)
class Cost:
    """The cost of scored ids under a model."""

    nats: float
    is_greedy: bool
    """True if every scored id is the most likely id at its position."""


class Asking:
    """A scorer of questions for a model, asking in conversation or plain-text format."""

    def __init__(self, model: Decoder, tokenizer: Tokenizer, as_text: bool, shots: int = 0) -> None:
        """Create a scorer.

        as_text: plain-text format for base models. shots: number of few-shot examples per question.
        """
        self.model, self.tokenizer, self.as_text, self.shots = model, tokenizer, as_text, shots

    def score(self, task: QuestionSet) -> dict[str, list[bool]]:
        """Return correctness per question, by measure.

        "" is the main measure: exact match, or `acc_norm` for multiple choice, which also has `acc` and `letter`.
        """
        if not task.is_choice:
            return {"": self._match(task)}
        found = self._choose(task)
        has_letters = all(len(one.choices) <= len(LETTERS) for one in task.questions)
        return {**found, "letter": self._score_letters(task)} if has_letters else found

    def few_shot_examples(self, task: QuestionSet, number: int) -> list[Question]:
        """Return the few-shot examples for question `number`: other questions of the file, with a fixed seed."""
        others = [one for at, one in enumerate(task.questions) if at != number]
        return random.Random(SHOTS_SEED + number).sample(others, min(self.shots, len(others)))

    def greedy_answers(self, task: QuestionSet) -> list[str]:
        """Return the greedy answers; in plain-text format only the first line of each."""
        asked = enumerate(task.questions)
        prompts = [
            self._prompt(one.text, self._example_turns(self.few_shot_examples(task, number))) for number, one in asked
        ]
        order = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))  # minimize padding
        stop, num_ids = set(self.tokenizer.stops), self.tokenizer.vocab_size
        found = [""] * len(prompts)
        for start in range(0, len(order), ROWS):
            rows = order[start : start + ROWS]
            said = generate(self.model, [prompts[row] for row in rows], stop, MAX_NEW, num_ids=num_ids)
            for row, ids in zip(rows, said, strict=True):
                text = self.tokenizer.decode(ids, goes_on=self.as_text)
                found[row] = text.strip().split("\n")[0] if self.as_text else text
            emit("progress", done=start + len(rows), total=len(order), unit="answers")
        return found

    def _match(self, task: QuestionSet) -> list[bool]:
        said = self.greedy_answers(task)
        return [plain(counted(one)) in asked.accepted for asked, one in zip(task.questions, said, strict=True)]

    def _choose(self, task: QuestionSet) -> dict[str, list[bool]]:
        """Return correctness by nats per character ("") and by total nats ("acc")."""
        prompts = [
            self._prompt(one.text, self._example_turns(self.few_shot_examples(task, number)))
            for number, one in enumerate(task.questions)
        ]
        costs = self._answer_nats(prompts, [one.choices for one in task.questions])
        both = list(zip(task.questions, costs, strict=True))
        return {
            "": [
                least([cost / len(text) for cost, text in zip(some, one.choices, strict=True)]) == one.right
                for one, some in both
            ],
            "acc": [least(some) == one.right for one, some in both],
        }

    def _score_letters(self, task: QuestionSet) -> list[bool]:
        """Return correctness of the most likely letter after a lettered list of choices."""
        prompts = []
        for number, one in enumerate(task.questions):
            shown = [(listed(other, self.as_text), other.letter) for other in self.few_shot_examples(task, number)]
            prompts.append(self._prompt(listed(one, self.as_text), shown))
        costs = self._answer_nats(prompts, [LETTERS[: len(one.choices)] for one in task.questions])
        return [least(some) == one.right for one, some in zip(task.questions, costs, strict=True)]

    def _answer_nats(self, prompts: Sequence[list[int]], answers: Sequence[Sequence[str]]) -> list[list[float]]:
        """Return the nats of each answer after each prompt."""
        rows, chat = [], self.tokenizer.chat
        for prompt, some in zip(prompts, answers, strict=True):
            goes_on = self.as_text or chat is not None and chat.answer_goes_on(prompt)
            for text in some:
                ids = self.tokenizer.encode(f" {text}" if self.as_text else text, goes_on)
                rows.append(([*prompt, *ids], len(ids)))
        costs = iter(self.costs(rows))
        return [[next(costs).nats for _ in some] for some in answers]

    def costs(self, rows: Sequence[tuple[list[int], int]], most: int = 0) -> list[Cost]:
        """Return the cost of the last `count` ids of each (ids, count) row, truncating long rows at the beginning.

        most: the most tokens of a row; 0 = the positions of the model.
        """
        most = most or self.model.config.max_position_embeddings
        rows = [(ids[-most - 1 :], min(count, most, len(ids) - 1)) for ids, count in rows]
        order = sorted(range(len(rows)), key=lambda row: len(rows[row][0]))
        found, start = [Cost(0.0, True)] * len(rows), 0
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
            costs, is_greedy = nats_and_greedy(self.model, ids.to(device), targets.to(device))
            greedy = (is_greedy | (targets == IGNORED).to(device)).all(dim=1)
            for row, cost, is_all in zip(order[start:end], costs.sum(dim=1).tolist(), greedy.tolist(), strict=True):
                found[row] = Cost(cost, is_all)
            start = end
            emit("progress", done=end, total=len(order), unit="choices")
        return found

    @staticmethod
    def _example_turns(shown: Sequence[Question]) -> list[tuple[str, str]]:
        return [(one.text, one.answer) for one in shown]

    def _prompt(self, question: str, shown: Sequence[tuple[str, str]] = ()) -> list[int]:
        """Return the prompt ids for a question after few-shot (question, answer) pairs."""
        if self.as_text:
            before = "".join(f"Question: {text}\nAnswer: {answer}\n\n" for text, answer in shown)
            return [*self.tokenizer.begin, *self.tokenizer.encode(f"{before}Question: {question}\nAnswer:")]
        turns: list[Mapping[str, str]] = []
        for text, answer in shown:
            turns += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]
        return conversations.prompt([*turns, {"role": "user", "content": question}], self.tokenizer)


def least(costs: Sequence[float]) -> int:
    """Return the index of the first minimum."""
    return min(range(len(costs)), key=lambda at: costs[at])


def listed(question: Question, as_text: bool) -> str:
    """Return a question with lettered choices, in MMLU format as text or in nanochat's conversation format.

    nanochat's format puts the letter after the choice, where it is the same token as in the answer.
    """
    pairs = list(zip(LETTERS, question.choices, strict=False))
    if as_text:
        return "\n".join([question.text, *(f"{letter}. {choice}" for letter, choice in pairs)])
    lines = "".join(f"- {choice}={letter}\n" for letter, choice in pairs)
    return f"Multiple Choice question: {question.text}\n{lines}\nRespond only with the letter of the correct answer."
