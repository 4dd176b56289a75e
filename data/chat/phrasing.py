"""Paraphrase questions in the ways people type them."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

OPENINGS = ("Hi! ", "Hello, ", "Hey, ", "hi ", "hey ", "hello. ", "Excuse me, ", "Quick question: ", "So, ", "Sorry, ",
            "Ok, ", "Just wondering: ", "Good morning. ", "Well, ", "And ", "Now ")  # fmt: skip
POLITE = ("Please {}.", "Can you {}?", "Could you please {}?", "{}, please.", "Could you {}?", "I want you to {}.")
SHORT = (("are you", "r u"), (r"\byou\b", "u"), ("what is", "what's"), ("what is", "whats"), ("who is", "who's"),
         ("please", "pls"), (r"\byour\b", "ur"))  # fmt: skip


def vary(template: str, chance: Random) -> str:
    """Return a random variation of `template`: a different opening, case or end mark, or a short form.

    A template ends in its natural mark: "?" for a question, "." for a request, "!" for a statement without a request.
    `{slots}` are preserved.
    """
    words, mark = template[:-1], template[-1]
    if mark == "." and chance.random() < 0.4:
        polite = chance.choice(POLITE).format(_small(words))
        words, mark = polite[:-1], polite[-1]
    if chance.random() < 0.15:
        pattern, short = chance.choice(SHORT)
        words = re.sub(pattern, short, words, flags=re.IGNORECASE)
    if chance.random() < 0.3:
        words = chance.choice(OPENINGS) + _small(words)
    case = chance.random()
    if case < 0.4:
        words = words.lower()
    elif case < 0.43 and "{" not in words:
        words = words.upper()
    else:
        words = words[:1].upper() + words[1:]
    marks = ("?", "?", "?", "?", "", "", "??", " ?") if mark == "?" else (".", ".", "", "!")
    return words + chance.choice(marks)


def variants(template: str, count: int, chance: Random) -> list[str]:
    """Return up to `count` different variations of `template`, with the original first."""
    found = {template: None}
    for _ in range(3 * count):
        if len(found) >= count:
            break
        found[vary(template, chance)] = None
    return list(found)[:count]


def normal(words: str) -> str:
    """Return a question in lower case, without punctuation and extra blanks."""
    return re.sub(r"[^\w.]+", " ", words.lower()).strip(" .")


def make_conversation(*turns: str) -> list[dict[str, str]]:
    """Return a conversation in which user and assistant alternate."""
    return [{"role": ("user", "assistant")[number % 2], "content": words} for number, words in enumerate(turns)]


def fill(template: str, slots: Mapping[str, Sequence[str]], chance: Random) -> str:
    """Return `template` with a random word for each of its `{slots}`."""
    return re.sub(r"\{(\w+)\}", lambda slot: chance.choice(slots[slot[1]]), template)


def write_lines(path: Path, rows: Iterable[Any]) -> int:
    """Write one JSON value per line, with a question mark for half a surrogate pair; return the number of lines."""
    count = 0
    with open(path, "w", encoding="utf-8", errors="replace") as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def _small(words: str) -> str:
    """Return `words` with a lower-case first letter, except "I", to continue a sentence."""
    return words if words.startswith(("I ", "I'")) else words[:1].lower() + words[1:]
