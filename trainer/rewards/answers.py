"""Extract answers and numbers from model text, in the answer format for GSM8K and MATH.

A number is a decimal as a person writes the answer to a word problem: an optional sign, digits with or without
thousands commas, and decimals. Dollar signs, percent signs and a unit next to the number are ignored. A text with two
numbers, or with words only, has no number. Numbers are compared as `Decimal`: 18 equals 18.00, and 1,234 is never read
from the start of 1,234,567.
"""

import re
from decimal import Decimal

ANSWER = re.compile(r"<SOLUTION>(.*?)</SOLUTION>", re.DOTALL | re.IGNORECASE)
THINKING = re.compile(r"<start_working_out>.*?</end_working_out>", re.DOTALL | re.IGNORECASE)
NUMBER = re.compile(r"[-+]?[0-9]+(?:[,.][0-9]+)*\.?|[-+]?\.[0-9]+")
PLAIN = re.compile(r"[-+]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]*)?|[-+]?\.[0-9]+")
ONLY_NUMBER = re.compile(r"[-+]?[0-9.,]+")


def answer_of(text: str) -> str | None:
    """Return the text inside the first pair of answer tags, or None without tags or with empty tags."""
    found = ANSWER.search(text)
    return found[1].strip() or None if found else None


def trailing(text: str) -> int:
    """Return the number of characters after the first pair of answer tags, or the length of `text` without tags."""
    found = ANSWER.search(text)
    return len(text[found.end() :].strip()) if found else len(text)


def thinks(text: str) -> bool:
    """Return True if the text contains a pair of thinking tags."""
    return THINKING.search(text) is not None


def number(text: str) -> Decimal | None:
    """Return the only number in a text, or None for no number, several numbers or a malformed number."""
    plain = text.replace("\u2212", "-").replace("\\$", "").replace("$", "").replace("\\%", "").replace("%", "")
    if not plain.isascii() and any(one.isdigit() and not one.isascii() for one in plain):
        return None
    found = NUMBER.findall(plain)
    if len(found) != 1 or not PLAIN.fullmatch(found[0]):
        return None
    if re.search(rf"[A-Za-z_]{re.escape(found[0])}|{re.escape(found[0])}[eE][-+]?[0-9]|[0-9]\s*[-+*/^=]", plain):
        return None
    return Decimal(found[0].replace(",", "").rstrip("."))


def gold_number(solution: str) -> Decimal | None:
    """Return the number after the last `####` of a solution, or the number of the whole text without `####`."""
    return number(solution.rpartition("####")[2])
