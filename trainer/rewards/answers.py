"""Numbers out of what was said, and the form that GSM8K and MATH answers are asked for in.

A number is what a person would write as the answer to a word problem: digits with commas before every three of them, a
sign, decimals; dollar and percent signs and a unit beside it do not count. Two numbers are no answer, and neither is a
word. Compared are decimals, so that 18 is 18.00 and 1,234 is not a beginning of 1,234,567.
"""

import re
from decimal import Decimal

ANSWER = re.compile(r"<SOLUTION>(.*?)</SOLUTION>", re.DOTALL | re.IGNORECASE)
THINKING = re.compile(r"<start_working_out>.*?</end_working_out>", re.DOTALL | re.IGNORECASE)
NUMBER = re.compile(r"[-+]?[0-9]+(?:[,.][0-9]+)*\.?|[-+]?\.[0-9]+")
PLAIN = re.compile(r"[-+]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)(?:\.[0-9]*)?|[-+]?\.[0-9]+")
ONLY_NUMBER = re.compile(r"[-+]?[0-9.,]+")


def answer_of(text: str) -> str | None:
    """Return the text in the first pair of answer tags, None where there is none or nothing."""
    found = ANSWER.search(text)
    return found[1].strip() or None if found else None


def trailing(text: str) -> int:
    """Return the number of characters behind the first pair of answer tags; all, where there is none."""
    found = ANSWER.search(text)
    return len(text[found.end() :].strip()) if found else len(text)


def thinks(text: str) -> bool:
    """Return whether there is a pair of thinking tags."""
    return THINKING.search(text) is not None


def number(text: str) -> Decimal | None:
    """Return the one number in a text; None for none, for several, and for one that is not written as numbers are."""
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
    """Return the number behind the last `####`, or the whole text's."""
    return number(solution.rpartition("####")[2])
