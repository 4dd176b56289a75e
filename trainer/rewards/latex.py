r"""The meaning of a LaTeX answer as text, without markup, spacing and units: equal answers are mostly equal texts.

Units and number bases of a different scale make two answers different; a missing unit does not.
"""

import re

LEAD = re.compile(r"^(?:(?:(?:so|thus|hence|therefore),? )?(?:the )?(?:final )?answer(?: is|:)?:?|=)\s*", re.IGNORECASE)
BRACED = r"\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"\\\(((?:(?!\\\)).)*)\\\)",
        r"\\\[((?:(?!\\\]).)*)\\\]",
        r"\*{1,3}([^*]+)\*{1,3}",
        r"__([^_]+)__",
        r"`([^`]+)`",
        rf"\\(?:boxed|fbox|mathbf|boldsymbol|bm)\s*{BRACED}",
        r"\\displaystyle\b\s*(.*)",
    )
)
REPEATING = re.compile(r"(?<![\d.])(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*\{(\d{1,20})\}")
KEPT = "\x01"
# A unit after a number: \text{...}, or a word of at least two letters.
WORDS = r"[A-Za-z][A-Za-z]+(?: [A-Za-z]+)*"
UNIT = re.compile(
    r"(?<=[\d}])(?:\\[,;: ]|\s|~)*"
    rf"(?:\\(?:text|mathrm|mbox)\{{\s*([A-Za-z][A-Za-z. ]*)\}}|\s({WORDS}))(\^\{{?[23]\}}?|[²³])?$"
)
SHORT_UNIT = re.compile(r".*\d(?: |~|\\[,;: ])([mh])", re.DOTALL)
BASE = re.compile(r"(?<=\d)_\{?(\d+)\}?$")
SHORT_UNITS = {
    "meter": "m", "centimeter": "cm", "millimeter": "mm", "kilometer": "km", "inche": "in", "inch": "in", "feet": "ft",
    "foot": "ft", "yard": "yd", "mile": "mi", "second": "sec", "minute": "min", "hour": "h", "hr": "h", "cent": "cent",
}  # fmt: skip
SCALES = ({"m", "cm", "mm", "km"}, {"in", "ft", "yd", "mi"}, {"sec", "min", "h", "day"}, {"cent", "dollar"})


def boxed(text: str) -> str:
    r"""Return the text inside the last \boxed{}, with balanced braces; "" without a complete box."""
    at = text.rfind("\\boxed{")
    if at < 0:
        return ""
    start = at + len("\\boxed{")
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[start:place]
    return ""


def plain(text: str) -> str:
    """Return LaTeX without meaningless parts: markup around the answer, spacing, bracket sizes, dollar signs."""
    text = unwrapped(text)
    text = text.replace("\\varnothing", "\\emptyset")
    text = re.sub(r"\\var(?=(epsilon|phi|theta|rho)(?![a-z]))", r"\\", text)
    text = REPEATING.sub(_fraction, text)
    text = re.sub(r"\\[dtc]frac", r"\\frac", text)
    text = re.sub(r"\\frac(\d)(\d)", r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\left\W?\s*\\begin\{matrix\}", r"\\begin{pmatrix}", text)
    text = re.sub(r"\\end\{matrix\}\s*\\right\W?", r"\\end{pmatrix}", text)
    text = re.sub(r"([bB]|(?<=\{))matrix\}", "pmatrix}", text)
    text = re.sub(r"\\(left|right)(?![a-z])|(?<!\\)\\!|\\?%|\\\$|\^\{?\\circ\}?|\\degree|°", "", text)
    text = re.sub(r"(?<!\\)\\[,;: ]", " ", text)
    text = re.sub(r"\\(?:text|mathrm|textbf|mathbf|mbox)\{([^{}]*)\}", r"\1", text)
    text = re.sub(r"(?<=\d)(?:,|\{,\}| )(?=\d{3}(?!\d))", "", text)
    # A space between two digits, and a space that ends the name of a command, have a meaning.
    text = re.sub(r"(\\[A-Za-z]+)\s+(?=[A-Za-z])|(?<=\d)\s+(?=\d)", rf"\1{KEPT}", text)
    text = re.sub(r"\s+", "", text).replace(KEPT, " ")
    return re.sub(r"^\(([A-Za-z])\)$", r"\1", text)


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


def differ_in_scale(gold: str, answer: str) -> bool:
    """Return True for numbers in units of different length or duration, such as 5 cm and 5 m, or in different bases."""
    units = {split_unit(one)[1] or SHORT_UNIT.sub(r"\1", one) for one in (gold, answer)}
    bases = [BASE.search(one) for one in (gold, answer)]
    is_other_base = all(bases) and len({found[1] for found in bases if found}) > 1
    return is_other_base or len(units) > 1 and any(units <= some for some in SCALES)


def split_unit(text: str) -> tuple[str, str]:
    """Return an answer without the unit after its number, and the unit; "" without a unit."""
    found = UNIT.search(text)
    if found is None:
        return text, ""
    words = (found[1] or found[2]).strip().lower().removesuffix("s").replace("metre", "meter")
    return text[: found.start()], f"{SHORT_UNITS.get(words, words)}{found[3] or ''}"
