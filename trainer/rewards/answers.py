"""Extract answers and numbers from model text, in the answer format for GSM8K and MATH.

A number is the only number in a text, as a person writes the answer to a word problem: an optional sign, digits with or
without thousands separators, decimals or a fraction. Emphasis, currency, percent signs and a unit next to the number
are ignored; $2M is 2,000,000. A text with two numbers, or with words only, has no number. Numbers are compared exactly:
18 equals 18.00, and 1,234 is never read from the start of 1,234,567.
"""

import re
from fractions import Fraction

ANSWER = re.compile(r"<SOLUTION>(.*?)</SOLUTION>", re.DOTALL | re.IGNORECASE)
ONLY_NUMBER = re.compile(r"[-+]?[0-9.,]+")
THINKING = re.compile(r"<start_working_out>\s*(?!</end_working_out>)\S.*?</end_working_out>", re.DOTALL | re.IGNORECASE)

LONGEST = 1000  # characters of an answer: the patterns take time, and Python converts at most 4,300 digits
MARK = "\x01"  # stands for removed markup, so that digits on both sides never become one number
MONEY = "\x02"  # stands for a removed currency sign
MARKS = f"[ {MARK}{MONEY}]"
SPACES = str.maketrans(dict.fromkeys("\u00a0\u2009\u202f~", " ") | {"\u2212": "-", MARK: None, MONEY: None})
CODES = r"(?:USD?|CAD?|AUD?|NZ|HK|EUR|GBP|Rs\.?)"
UNITS = "[kcmd]?m|ft|feet|foot|in|inch(?:es)?|yd|yards?|mi|miles?|(?:centi|kilo|milli)?met(?:er|re)s?|units?"
CLEANING = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r"\{,\}", ","),
        (r"\\!", ""),
        (r"\\[,;: ]", " "),
        (r"\\(?:text|textbf|mathrm|mathbf|mbox|boxed)\{([^{}]*)\}", r"\1"),
        (r"\\[dtc]?frac\{(\d+)\}\{(\d+)\}", r" \1/\2"),
        (r"\\?%|\^\{?\\circ\}?|\\degree|°", ""),
        (rf"(?:\b{CODES} ?(?=[-$\d]))?(?:\\?\$|[€£¥₹])|\b(?:USD|EUR|GBP|Rs\.?) ?(?=\d)", MONEY),
        # A pair of emphasis marks stands between words: 2*3*4 is a product.
        (r"(?<![\w*])(\*{1,3}|_{1,3})(?=\S)([^*]+?)(?<=\S)\1(?![\w*])", rf"{MARK}\2{MARK}"),
        # A long dash inside a text is a mark of punctuation.
        (rf"(?:^|(?<=^{MARK}))\u2014(?=[\d.{MONEY}])", "-"),
        (rf"(?:^|(?<=[\s=:({MARK}]))\u2013(?=[\d.{MONEY}])|\b[Nn]egative (?=[\d.{MONEY}])", "-"),
        (rf"(?:^|(?<=\bis ))[Mm]inus (?=[\d.{MONEY}])", "-"),
        (rf"\bminus (?=[\d.{MONEY}])", "- "),  # a difference
        (rf"(?<=\d)(\s?(?:{UNITS}))(?:\^\{{?[23]\}}?|[²³])", r"\1"),
    )
)
WHOLE = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?![0-9])"
FRACTION = r"(?:(?P<plus>[0-9]+) )?(?P<over>[0-9]+) ?/ ?(?P<under>0*[1-9][0-9]*)"
QUANTITY = re.compile(rf"(?P<sign>[-+]{MARKS}*)?(?:{FRACTION}|(?P<decimal>{WHOLE}(?:\.[0-9]*)?|\.[0-9]+))")
COUNTS = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
POWERS = {"k": 10**3, **COUNTS}
POWER = re.compile(rf"{MARKS}?({'|'.join(POWERS)})\b", re.IGNORECASE)
LETTER = re.compile(rf"{MARKS}?([MmBb])n?(?![A-Za-z&'’])")
OF_MONEY = {"m": 10**6, "b": 10**9}
PART_OF_A_WORD = re.compile(
    r"[A-Za-z_.,]$|[*/^] *$|(?:[<\u2264\u2265\u2260\u221a]|(?<![-=])>|\\[gl]eq?) *$"
    r"|(?<![A-Za-z])(?:sqrt|root|root of|log|ln|exp|sin|cos|tan) *[({]? *$"
    r"|\b(?:not|(?:less|fewer|more|greater) than) *$",
    re.IGNORECASE,
)
# A variable, a power or a part of one next to the number belongs to the value. Units such as 18 m do not.
GOES_ON = re.compile(
    r" *[*^=+]| */ *(?![A-Za-z ])| *-(?![A-Za-z])|[eijnqruvwxyz](?![A-Za-z])| *(?:\\pi|\u03c0)"
    r"| (?:squared|cubed)\b| and (?:a|one|two|three) (?:half|third|quarter|fourth|fifth)"
)


def answer_of(text: str) -> str | None:
    """Return the text inside the first pair of answer tags, or None without tags or with empty tags."""
    found = ANSWER.search(text)
    return found[1].strip() or None if found else None


def trailing(text: str) -> int:
    """Return the number of characters after the first pair of answer tags, or the length of `text` without tags."""
    found = ANSWER.search(text)
    return len(text[found.end() :].strip()) if found else len(text)


def thinks(text: str) -> bool:
    """Return True if the text contains a pair of thinking tags with text inside."""
    return THINKING.search(text) is not None


def number(text: str) -> Fraction | None:
    """Return the only number in a text, or None for no number, several numbers or a malformed number."""
    if len(text) > LONGEST:
        return None
    text = text.translate(SPACES).strip()
    for pattern, replacement in CLEANING:
        text = pattern.sub(replacement, text)
    found = QUANTITY.search(text)
    if found is None:
        return None
    before, after = text[: found.start()], text[found.end() :]
    if any(one.isnumeric() for one in before + after) or PART_OF_A_WORD.search(before) or GOES_ON.match(after):
        return None
    sign = found["sign"] or ""
    if len(sign) > 1 and re.search(r"[\w)] *$", before):  # a difference or a sum with a word
        return None
    if found["decimal"]:
        value = Fraction(found["decimal"].replace(",", "").replace(" ", "").rstrip("."))
    else:
        value = int(found["plus"] or 0) + Fraction(int(found["over"]), int(found["under"]))
    factor = POWERS[power[1].lower()] if (power := POWER.match(after)) else 1
    if letter := LETTER.match(after):
        if MONEY in sign or before.rstrip(f" {MARK}").endswith(MONEY):
            factor = OF_MONEY[letter[1].lower()]
        elif letter[1].isupper():  # millions or a name; a small m is the unit metre
            return None
    return (-value if sign.startswith("-") else value) * factor


def gold_number(solution: str) -> Fraction | None:
    """Return the number after the last `####` of a solution, or the number of the whole text without `####`."""
    return number(solution.rpartition("####")[2])
