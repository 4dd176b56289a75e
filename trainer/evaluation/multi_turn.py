"""Multi-turn evaluation: held-out questions asked at every turn of a conversation.

`run_conversations` runs many conversations side by side and returns the answers by turn, with the same questions at
every turn, so that turns are comparable question by question.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from data.chat import smalltalk
from data.chat.conversations import Message, read_rows
from data.chat.phrasing import make_conversation
from trainer.evaluation.evaluate import admits_not_knowing, begins_like, contains_name

TURNS = 8
EACH = 40  # questions per kind
SEED = 1337


@dataclass(frozen=True)
class TurnsQuestion:
    kind: str
    """`identity`, `pydocs` or `other`."""
    text: str
    expected: str
    """Reference answer."""
    is_taught: bool = False
    """True if the training data contains the answer, so that "I do not know" is wrong."""

    def is_right(self, answer: str, name: str) -> bool:
        """Return whether an answer is right; `name` is the name of the persona."""
        if self.kind == "identity":
            return contains_name(name, answer)
        if self.kind == "pydocs":
            return begins_like(answer, self.expected) or not self.is_taught and admits_not_knowing(answer)
        both_admit = admits_not_knowing(answer) and admits_not_knowing(self.expected)
        return both_admit or smalltalk.are_alike(answer, self.expected)

    def leaks_persona(self, answer: str, name: str) -> bool:
        """Return whether the answer names the persona without being asked."""
        return self.kind != "identity" and contains_name(name, answer) and not contains_name(name, self.expected)


def read(kind: str, path: Path) -> list[TurnsQuestion]:
    """Return the questions of a file. Raises InputError."""
    return [
        TurnsQuestion(kind, row["messages"][-2]["content"], row["messages"][-1]["content"], row.get("taught", False))
        for row in read_rows(path)
    ]


def chosen(material: Mapping[str, Sequence[TurnsQuestion]]) -> list[TurnsQuestion]:
    """Return a fixed random sample with equally many questions of each kind, at most EACH."""
    chance, each = Random(SEED), min([EACH, *map(len, material.values())])
    found = [one for kind in sorted(material) for one in chance.sample(list(material[kind]), each)]
    chance.shuffle(found)
    return found


def run_conversations(
    questions: Sequence[TurnsQuestion], answer: Callable[[Sequence[Sequence[Message]]], list[str]], turns: int = TURNS
) -> list[list[str]]:
    """Return the answers as a list of turns, each with one answer per question.

    Run as many conversations as questions side by side, so that every turn covers all questions and no conversation
    repeats a question. Earlier answers in a conversation are the model's own. answer: returns the answers to
    conversations ending in a question.
    """
    count = len(questions)
    talks: list[list[Message]] = [[] for _ in questions]
    found = []
    for place in Random(SEED).sample(range(count), min(turns, count)):
        asked = [questions[(number + place) % count].text for number in range(count)]
        said = answer([[*before, *make_conversation(words)] for before, words in zip(talks, asked, strict=True)])
        talks = [[*before, *make_conversation(*pair)] for before, *pair in zip(talks, asked, said, strict=True)]
        found.append([said[(number - place) % count] for number in range(count)])
    return found
