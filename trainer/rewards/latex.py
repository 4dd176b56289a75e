r"""The meaning of a LaTeX answer as text, without markup, spacing and units: equal answers are mostly equal texts.

Units and number bases of a different scale make two answers different; a missing unit does not. A word such as dozen,
pi or squared is a factor, no unit.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction

from trainer.rewards.answers import COUNTS, UNITS

LEAD = re.compile(
    r"^(?:(\*\*|__)?(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final )?answer(?: is|:)?:?(?(1)\1:?)|=|≈"
    r"|\\approx(?![a-z]))\s*",
    re.IGNORECASE,
)
BRACED = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\\\(((?:(?!\\\)).)*)\\\)",
        r"\\\[((?:(?!\\\]).)*)\\\]",
        r"\*{1,3}([^*]+)\*{1,3}",
        r"\*\*((?:(?!\*\*).)+)\*\*",
        r"__([^_]+)__",
        r"`([^`]+)`",
        rf"\\(?:boxed|fbox|mathbf|boldsymbol|bm)\s*{BRACED}",
        r"\\displaystyle\b\s*(.*)",
    )
)
REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{(\d{1,20})\}")
FACTORIAL = re.compile(r"^[^,=]*\d!\s+=\s*")  # math-verify reads 5! = 120 as an inequality
KEPT = "\x01"
# A unit after a number: \text{...}, a word of at least two letters, or a known unit without a space. A single letter
# without \text may be a variable. After pi, words may be variables too (2\pi rh): only a known unit is a unit.
WORDS = r"(?!pi\b)[A-Za-z][A-Za-z]+(?: [A-Za-z]+)*"
SPACES = r"(?:\\[,;: ]|\s|~)*"
TEXT = r"\\(?:text|mathrm|mbox)\{"
ATTACHED = r"[ckm]m|kg|mg|m[lL]|lbs?|oz|ft|in|yd|hrs?|min|sec|mph|[AaPp]\.?[Mm]\.?"
UNIT_AFTER_PI = rf"(?:{TEXT}|(?:(?:square|sq|cubic) )?(?:{UNITS})(?![A-Za-z]))"
UNIT = re.compile(
    rf"(?:(?<=[\d}}])|(?:(?<=[^A-Za-z]pi)|(?<=π))(?={SPACES}{UNIT_AFTER_PI})|(?<=\\circ)(?={SPACES}{TEXT}\s*[CF]\b))"
    rf"{SPACES}(?:{TEXT}\s*([A-Za-z][A-Za-z. ]*)\}}|\s({WORDS})|({ATTACHED}))(\^\{{?[23]\}}?|[²³])?$"
)
LETTER_UNIT = re.compile(rf"(.*(?:[\d}}]|[^A-Za-z]pi|π)){SPACES}([mhgsLl])", re.DOTALL)
PARTS = "half third quarter fourth fifth sixth seventh eighth ninth tenth hundredth thousandth".split()
NO_UNITS = {
    *"pi squared cubed factorial and or plus minus times over mod modulo base choose to sqrt root repeating".split(),
    *("recurring", "point", "infinity", "halves", *COUNTS, *PARTS, *(f"{one}s" for one in PARTS)),
    *"iejxyznk",  # variables and numbers
}
SEPARATED = re.compile(r"([^,]*(?:=|\\approx)\s*)?[-+]?[1-9]\d{0,2}(?:,\d{3})+(?![\d,])[^,]*")  # one number
ONE_VALUE = re.compile(rf"\\(?:frac\s*{BRACED}\s*|sqrt\s*){BRACED}")
GROUPED = re.compile(r"(?<![\d,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
OPENING, CLOSING = re.compile(r"[(\[{]"), re.compile(r"[)\]}]")
GROUPS = re.compile(r"(?<![\d,])\d{1,3}(?:,\d{3})*,0\d\d(?:,\d{3})*(?![\d,])")  # no list has the value 050
AND = re.compile(r"\s*,?\s*(?:\\text\{\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z]))\s*")
EACH = re.compile(r"([A-Za-z])=[^,=]+(?:,\1=[^,=]+)+")
UNBRACED = re.compile(r"\$|\n|\\f?box")
JOINS = re.compile(r"[\s$]*(?:,|;|,?\s*(?:and|or|\\text\{\s*(?:and|or)\s*\}))[\s$]*")
BRACE = re.compile(r"[{}]")
BOX = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])\s*")
COUNTED = re.compile(
    rf"(?<![\d.,])([\d,]*\.?\d+)(?:\\[,;: ]|\s|~)*(\\(?:text|mathrm|mbox)\{{)?\s*({'|'.join(COUNTS)})(?![A-Za-z])"
)
DEGREES = re.compile(r"(\\(?:sin|cos|tan|cot|sec|csc)\s*[({]?\s*)(\d+)\s*\^\{?\\circ\}?")
NUMBERS = re.compile(r"\\math(?:bf|rm)\s*\{?\s*([RZQNC])\s*\}?")
SCIENTIFIC = re.compile(r"([-+]?\d{1,50}(?:\.\d{1,50})?)(?:\\times|\\cdot|\*)10\^\{?([-+]?\d{1,2})\}?")
PERCENT = re.compile(r"(?:\\?%|(?:\\text\{\s*|\s)percent\}?)[$.]*$")
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?")
DEGREE = re.compile(r"[-+]?[\d.,]+\s*(?:\^\{?\\circ\}?|\\degree|°)")
BASE = re.compile(r"(?<=\d)_\{?(\d+)\}?$")
SHORT_UNITS = {
    "meter": "m", "centimeter": "cm", "millimeter": "mm", "kilometer": "km", "inche": "in", "inch": "in", "feet": "ft",
    "foot": "ft", "yard": "yd", "mile": "mi", "second": "sec", "s": "sec", "minute": "min", "hour": "h", "hr": "h",
    "yr": "year", "gram": "g", "kilogram": "kg", "milligram": "mg", "pound": "lb", "ounce": "oz", "liter": "l",
    "milliliter": "ml", "gallon": "gal", "cent": "cent", "am": "am", "a.m": "am", "pm": "pm", "p.m": "pm",
    "degrees celsiu": "c", "celsiu": "c", "degrees fahrenheit": "f", "fahrenheit": "f",
}  # fmt: skip
POWERS_OF_UNITS = {"square": "2", "sq": "2", "sq.": "2", "cubic": "3"}
SCALES = (
    {"m", "cm", "mm", "km", "in", "ft", "yd", "mi"},
    {"sec", "min", "h", "day", "week", "month", "year"},
    {"g", "kg", "mg", "lb", "oz", "ton"},
    {"l", "ml", "gal", "quart", "pint", "cup"},
    {"cent", "dollar"},
    {"am", "pm"},
    {"degree", "radian"},
    {"c", "f"},
)


def boxed(text: str) -> str:
    r"""Return the different texts inside \boxed and \fbox, joined with commas; "" without a box."""
    return ",".join(dict.fromkeys(content for _, _, content in _boxes(text)))


def gold_of(solution: str) -> str:
    """Return the answer of a solution: the last box, with boxes joined to the last one; else the whole solution."""
    boxes = list(_boxes(solution))
    if not boxes:
        return solution
    start = len(boxes) - 1
    while start and JOINS.fullmatch(solution[boxes[start - 1][1] : boxes[start][0]]):
        start -= 1
    return ",".join(content for _, _, content in boxes[start:])


def _boxes(text: str) -> Iterator[tuple[int, int, str]]:
    r"""Yield start, end and content of each outermost box; without braces, a box has the text up to a dollar sign.

    The content of a box around boxes is the content of the innermost boxes.
    """
    spans = list(_spans(text))
    at = 0
    while at < len(spans):
        start, end, first, last = spans[at]
        inner = at
        contents: dict[str, None] = {}
        while inner < len(spans) and spans[inner][0] < end:
            _, end_of_inner, *content = spans[inner]
            inner += 1
            if inner == len(spans) or spans[inner][0] >= end_of_inner:
                contents[text[slice(*content)]] = None
        yield start, end, ",".join(contents) or text[first:last]
        at = inner


def _spans(text: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield start and end of every box, and start and end of the content, in one pass: a model may nest thousands."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for found in BRACE.finditer(text):
        if found[0] == "{":
            opened.append(found.start())
        elif opened:
            closing[opened.pop()] = found.start()
    limits = [len(text)]
    for found in BOX.finditer(text):
        at = found.end()
        while limits[-1] < at and len(limits) > 1:
            limits.pop()
        if text[at : at + 1] == "{":
            limits.append(closing.get(at, len(text)))
            yield found.start(), min(limits[-1] + 1, len(text)), at + 1, limits[-1]
        else:
            following = UNBRACED.search(text, at, limits[-1])
            end = following.start() if following else limits[-1]
            content = text[at:end]
            yield found.start(), end, at + len(content) - len(content.lstrip()), at + len(content.rstrip().rstrip(".,"))


def plain(text: str) -> str:
    """Return LaTeX without meaningless parts: markup around the answer, spacing, bracket sizes, dollar signs."""
    text = re.sub(r"(?<=\d),\\!\s*(?=\d{3}(?!\d))", "", FACTORIAL.sub("", unwrapped(text)))
    text = re.sub(r"^(?:\\text\{)?(?:the set of )?(?:all )?real numbers\}?$|^all reals$", r"\\mathbb{R}", text)
    text = re.sub(r"(?<![\d.,])(\d+) +(\d+)/(\d+)", r"\1\\frac{\2}{\3}", text)
    text = re.sub(r"^([-+]?\d+(?:\.\d+)?)[eE]([-+]?\d{1,2})$", r"\1\\times10^{\2}", text)
    text = re.sub(r"\\mathbb\s*([A-Z])", r"\\mathbb{\1}", text)
    text = re.sub(r"\\\\\[[\d.]+[a-z]{2}\]", r"\\\\", text)
    text = DEGREES.sub(r"\1\\frac{\2\\pi}{180}", text)
    text = text.replace("\\varnothing", "\\emptyset")
    text = re.sub(r"\\var(?=(epsilon|phi|theta|rho)(?![a-z]))", r"\\", text)
    text = REPEATING.sub(_fraction, text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = ONE_VALUE.sub(_of_one_value, text)
    text = re.sub(r"\\left\W?\s*\\begin\{matrix\}", r"\\begin{pmatrix}", text)
    text = re.sub(r"\\end\{matrix\}\s*\\right\W?", r"\\end{pmatrix}", text)
    text = re.sub(r"([bB]|(?<=\{))matrix\}", "pmatrix}", text)
    text = re.sub(r"\\(left|right)(?![a-z])|(?<!\\)\\!|\\?%|\\\$|\^\{?\\circ\}?|\\degree|°", "", text)
    text = re.sub(r"(?<!\\)\\[,;: ]", " ", text)
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}", r"\1", text)
    text = AND.sub(", ", re.sub(r"(?<=\d)(?:\{,\}| )(?=\d{3}(?!\d))", "", text))
    text = ",".join(map(_ungrouped, re.split(r",\s+", text)))
    text = re.sub(r"(?<![\\A-Za-z])pi(?![A-Za-z])", r"\\pi", text)
    # A space between two digits, and a space that ends the name of a command, have a meaning.
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])|(?<=\d)\s+(?=\d)", rf"\1{KEPT}", text)
    text = re.sub(r"\s+", "", text).replace(KEPT, " ")
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", text)
    text = re.sub(r"\^\{(\w)\}", r"^\1", text)
    text = text.replace(f"{found[1]}=", "") if (found := EACH.fullmatch(text)) else text
    if found := SCIENTIFIC.fullmatch(text):  # exactly: a product of floating-point numbers is not
        return f"{Decimal(found[1]).scaleb(int(found[2])).normalize():f}"
    return text


def _ungrouped(text: str) -> str:
    """Return a text without thousands separators; in a point or a list, a comma before digits separates two values."""
    found = SEPARATED.fullmatch(text)
    before = found[1] or "" if found else ""
    if found and len(OPENING.findall(before)) == len(CLOSING.findall(before)):
        return text.replace(",", "")
    return GROUPS.sub(_joined, text)


def _joined(found: re.Match[str]) -> str:
    """Return a match without commas."""
    return found[0].replace(",", "")


def _of_one_value(found: re.Match[str]) -> str:
    """Return a fraction or a root without thousands separators; a point in brackets keeps the commas."""
    return found[0] if re.search(r"[(\[]", found[0]) else GROUPED.sub(_joined, found[0])


def _fraction(found: re.Match[str]) -> str:
    """Return a repeating decimal number as a fraction."""
    start, repeated = found[1] + found[2], found[3]
    over, under = int(start + repeated) - int(start or 0), 10 ** len(found[2]) * (10 ** len(repeated) - 1)
    return rf"\frac{{{over}}}{{{under}}}"


def unwrapped(text: str) -> str:
    """Return an answer without the markup around all of it, and without the words before it."""
    before = ""
    while text != before:
        before = text
        text = LEAD.sub("", text.strip().strip("$").removesuffix("\\\\").strip().removesuffix("."))
        for pattern in WRAPPERS:
            if found := pattern.fullmatch(text):
                text = found[1]
    return text


def counted(text: str) -> str:
    """Return an answer with a number in place of a number and a word such as dozen or million."""

    def product(found: re.Match[str]) -> str:
        value = Fraction(found[1].replace(",", "")) * COUNTS[found[3]]
        is_whole = value.denominator == 1
        return f"{value if is_whole else float(value)} {found[2] or ''}"

    return COUNTED.sub(product, text)


def with_blackboard(gold: str, answer: str) -> tuple[str, str]:
    r"""Return both answers with \mathbb{R} for \mathbf{R}, where the other answer is a set of numbers."""
    is_set = "\\mathbb" in gold + answer or "\\infty" in gold + answer
    return (NUMBERS.sub(r"\\mathbb{\1}", gold), NUMBERS.sub(r"\\mathbb{\1}", answer)) if is_set else (gold, answer)


def enclosure(text: str) -> str | None:
    r"""Return the brackets around entries of a plain answer, such as `()`; "" for a list, None for one value."""
    text = re.sub(r"^[(]?[A-Za-z](?:,[A-Za-z])*[)]?(?:=|\\in)", "", text).replace("\\{", "{").replace("\\}", "}")
    depths, depth = [], 0
    for letter in text:
        depth -= letter in ")]}"
        depths.append(depth)
        depth += letter in "([{"
    levels = {depth for depth, letter in zip(depths, text, strict=True) if letter == ","}
    if 0 in levels:
        return ""
    is_whole = text[:1] in ("(", "[", "{") and text[-1] in ")]}" and 0 not in depths[1:-1]
    return text[0] + text[-1] if 1 in levels and is_whole else None


def differ_in_brackets(gold: str, answer: str) -> bool:
    """Return True for lists in brackets of different kinds, such as (1,2) and [1,2], and for a list beside a number."""
    kinds = {enclosure(gold), enclosure(answer)}
    if None in kinds and len(kinds) > 1 and any(NUMBER.fullmatch(one) for one in (gold, answer)):
        return True
    kinds -= {None}
    return len(kinds) > 1 and kinds != {"", "{}"}


def differ_in_scale(gold: str, answer: str) -> bool:
    """Return True for numbers in units of different scales, such as 5 cm and 5 m, or in different bases."""
    units = {split_unit(one)[1] or _letter_unit(one)[1] for one in (gold, answer)}
    names = {one.rstrip("23") for one in units}
    bases = [BASE.search(one) for one in (gold, answer)]
    is_other_base = all(bases) and len({found[1] for found in bases if found}) > 1
    return is_other_base or len(units) > 1 and any(names <= some for some in SCALES)


def without_units(gold: str, answer: str) -> tuple[str, str]:
    """Return both answers without units; a single letter is a unit only if the other answer spells the unit."""
    (gold, unit), (answer, other) = split_unit(gold), split_unit(answer)
    letters = [_letter_unit(one) for one in (gold, answer)]
    return (
        letters[0][0] if other and letters[0][1] == other else gold,
        letters[1][0] if unit and letters[1][1] == unit else answer,
    )


def _letter_unit(text: str) -> tuple[str, str]:
    """Return an answer without a final letter such as m, and the unit; "" without a letter."""
    found = LETTER_UNIT.fullmatch(text)
    return (found[1], SHORT_UNITS.get(found[2], found[2].lower())) if found else (text, "")


def split_unit(text: str) -> tuple[str, str]:
    r"""Return an answer without the unit after its number, and the unit; "" without a unit. \$ is the unit dollar."""
    found = UNIT.search(text)
    if found is None:
        return text, "dollar" if text.startswith(r"\$") else "degree" if DEGREE.fullmatch(text) else ""
    words = (found[1] or found[2] or found[3]).strip().lower()
    if words.split()[0] in NO_UNITS:
        return text, ""
    words = (words.removesuffix("s") if len(words) > 1 else words).removesuffix(".")
    words = words.replace("metre", "meter").replace("litre", "liter")
    kind, _, rest = words.partition(" ")
    power = POWERS_OF_UNITS.get(kind, "")
    power, words = ("", words) if not power else (power, rest)
    power = power or (found[4] or "").strip("^{}").translate(str.maketrans("²³", "23"))
    return text[: found.start()], f"{SHORT_UNITS.get(words, words)}{power}"
