r"""Answers in many spellings, right and wrong, to gold answers of GSM8K, MATH and MBPP.

The verdict on each answer follows from its construction: a spelling of the gold value is right, the same spelling of a
different value is wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Variant:
    kind: str
    gold: str
    answer: str
    is_right: bool


NUMBERS = (18, 3, 70_000, 540, 20, 64, 260, 160, 45, 460, 366, 694, 13, 5, 1_234_567, -10, 2_125, 109, 57_500, 7)
NUMBER_FORMS = {
    "plain": "{n}",
    "commas": "{n:,}",
    "decimals": "{n}.00",
    "point": "{n}.",
    "bold": "**{n}**",
    "italic": "*{n}*",
    "underscores": "__{n}__",
    "bold dollars": "**${n:,}**",
    "dollars": "${n}",
    "escaped dollars": "\\${n:,}.00",
    "country dollars": "US${n}",
    "currency code": "{n} USD",
    "euros": "€{n}",
    "unit": "{n} clips",
    "area": "{n} m^2",
    "volume": "{n} cm³",
    "LaTeX unit": "{n}\\text{{ km}}",
    "per": "{n}/hour",
    "percent": "{n}%",
    "math": "${n}$",
    "equation": "x = {n}",
    "box": "\\boxed{{{n}}}",
    "fraction": "{n}/1",
    "line break": "{n}\n",
    "sentence": "It is {n}.",
    "code": "`{n}`",
    "no-break space": "{n}\u00a0apples",
    "brackets": "({n})",
    "title": "**Answer:** {n}",
    "arrow": "-> {n}",
    "words behind": "{n} dollars every day at the market.",
    "attached unit": "{n}cm",
}
LARGE_FORMS = {"spaces": "{spaced}", "no-break spaces": "{wide}", "braces": "{braced}", "thin": "{thin}"}
NOT_A_NUMBER = (
    "{n} or 1",
    "{n} + 1",
    "1 * {n}",
    "{n}, 1",
    "{n}x{n}",
    "x{n}",
    "{n}^2",
    "{n}e1",
    "words",
    "{n} 1/0",
    "{n}/0",
    "{n}½",
    "{n}x",
    "{n}i",
    "{n}\\pi",
    "\\sqrt{{{n}}}",
    "<{n}",
    "≥ {n}",
    "not {n}",
    "more than {n}",
    "{n} squared",
    "{n} and a half",
    "{n} dozen",
)


def gsm8k() -> Iterator[Variant]:
    for gold in NUMBERS:
        for is_right, n in ((True, gold), (False, gold + 1), (False, -gold)):
            for kind, form in NUMBER_FORMS.items():
                if not (n < 0 and "-" not in form.format(n=n)[:3] and "$" in form):  # "$-10" is no usual spelling
                    yield Variant(kind, f"so\n#### {gold:,}", form.format(n=n), is_right)
            if abs(n) >= 1000:
                text = f"{n:,}"
                ways = {"spaced": " ", "wide": "\u202f", "braced": "{,}", "thin": "\\,"}
                for kind, form in LARGE_FORMS.items():
                    spelt = form.format(**{name: text.replace(",", way) for name, way in ways.items()})
                    yield Variant(kind, f"so\n#### {gold:,}", spelt, is_right)
        for form in NOT_A_NUMBER:
            yield Variant("no number", f"so\n#### {gold:,}", form.format(n=gold), False)


# Gold answers with an answer that is wrong.
VALUES = {
    "5": "6",
    "-3": "3",
    "1,000": "1,001",
    "12345": "1234",
    r"\frac{1}{2}": r"\frac{1}{3}",
    r"-\frac{3}{4}": r"\frac{3}{4}",
    r"2\sqrt{3}": r"3\sqrt{2}",
    "x^2+1": "x^2-1",
    "(1,2)": "(2,1)",
    r"\text{(A)}": r"\text{(B)}",
    r"10\%": r"11\%",
    r"90^\circ": r"91^\circ",
    r"\begin{pmatrix}1\\2\end{pmatrix}": r"\begin{pmatrix}2\\1\end{pmatrix}",
    r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}": r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}",
    "[0,1)": "(0,1)",
    r"(-\infty,3]": r"(-\infty,3)",
    r"\{1,2,3\}": r"\{1,2,4\}",
    "3x-2": "3x+2",
    r"\pi": r"2\pi",
    r"\frac{\pi}{4}": r"\frac{\pi}{3}",
    r"5\text{ cm}": r"6\text{ cm}",
    r"\$18": r"\$19",
    r"\text{even}": r"\text{odd}",
    "0.25": "0.2",
    "3+4i": "3-4i",
    r"2.5\text{ hours}": r"3\text{ hours}",
    r"\sqrt{2}": r"\sqrt{3}",
    "2^{10}": "2^{11}",
    "A": "B",
    "(0,0,1)": "(0,1,0)",
    r"(-\infty,2)\cup(3,\infty)": r"(-\infty,3)\cup(3,\infty)",
    r"\frac{x+1}{2}": r"\frac{x-1}{2}",
    r"\sqrt[3]{2}": r"\sqrt[4]{2}",
    r"11\sqrt2": r"12\sqrt2",
    r"\text{Monday}": r"\text{Friday}",
    r"12\text{ square units}": r"13\text{ square units}",
    r"2\pi r": r"2\pi",
    "101_2": "101_3",
}
LATEX_FORMS = {
    "plain": "{a}",
    "dollars": "${a}$",
    "display dollars": "$${a}$$",
    "inline": r"\({a}\)",
    "display": r"\[{a}\]",
    "bold": "**{a}**",
    "bold dollars": "**${a}$**",
    "mathbf": r"\mathbf{{{a}}}",
    "line break": "{a}\n",
    "LaTeX line break": r"{a} \\",
    "full stop": "{a}.",
    "spaces": "  {a} ",
    "box": r"\boxed{{{a}}}",
    "box in dollars": r"$\boxed{{{a}}}$",
    "fbox": r"\fbox{{{a}}}",
    "displaystyle": r"\displaystyle {a}",
    "equals": "= {a}",
}


EQUAL = (
    ("-1", r"e^{i\pi}"),
    (r"e^{i\pi}", r"e^{\pi i}"),
    (r"\mathbb{R}", r"\mathbf{R}"),
    (r"(-\infty,\infty)", r"\mathbf{R}"),
    (r"\mathbb{R}", r"\text{all real numbers}"),
    ("C", r"\mathbf{C}"),
    ("1,2", r"\{2,1\}"),
    (r"\{1,2\}", "1 and 2"),
    (r"12\text{ dozen}", "12 dozen"),
    ("12,000", "12 thousand"),
    (r"1\frac{1}{2}", "1 1/2"),
    (r"1.2\times 10^5", "1.2e5"),
    (r"8.3 \times 10^{5}", "830000"),
    (r"12\%", "0.12"),
    (r"\frac{1}{2}", r"50\%"),
    ("(-\\infty,3]", r"x\leq 3"),
    (r"\text{even}", "Even"),
    (r"\sin 30^\circ", r"\frac12"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\[2pt]2\end{bmatrix}"),
    ("(x,y)=(1,2)", "(1,2)"),
    (r"5\text{ cm}^2", "5 square centimeters"),
)
DIFFERENT = (
    (r"5\text{ cm}", "5 m"),
    ("34", "3 4"),
    (r"6\text{ ft}", r"6\text{ inches}"),
    ("X", "x"),
    ("0.333", "1/3"),
    ("1", r"e^{i\pi}"),
    (r"\mathbb{R}", r"\mathbf{Q}"),
    ("(1,2)", "1,2"),
    ("1,2", "(1,2)"),
    ("(1,2)", r"\{1,2\}"),
    ("12", "12 dozen"),
    (r"12\text{ dozen}", "12"),
    (r"1\frac{1}{2}", "11/2"),
    (r"12\%", "0.012"),
    (r"5\text{ cm}^2", r"5\text{ cm}"),
    (r"\$18", "18 cents"),
    ("[0,1]", r"0 < x \le 1"),
)


def math() -> Iterator[Variant]:
    for gold, wrong in VALUES.items():
        for is_right, value in ((True, gold), (False, wrong)):
            for kind, form in LATEX_FORMS.items():
                yield Variant(kind, f"so $\\boxed{{{gold}}}$", form.format(a=value), is_right)
            for kind, spelt in _other_spellings(value):
                yield Variant(kind, f"so $\\boxed{{{gold}}}$", spelt, is_right)
    for is_right, pairs in ((True, EQUAL), (False, DIFFERENT)):
        for gold, answer in pairs:
            yield Variant("pair", f"so $\\boxed{{{gold}}}$", answer, is_right)


def _other_spellings(value: str) -> Iterator[tuple[str, str]]:
    if "frac" in value:
        yield from (("dfrac", value.replace(r"\frac", r"\dfrac")), ("tfrac", value.replace(r"\frac", r"\tfrac")))
    if "(" in value and not {"[", "]", "t"} & {*value.replace(r"\infty", "")}:
        yield "left", value.replace("(", r"\left(").replace(")", r"\right)")
    if "," in value and value[0] in "([\\":
        yield from (("space", value.replace(",", ", ")), ("thin", value.replace(",", r",\,")))
    if "matrix" in value:
        yield from (("bmatrix", value.replace("pmatrix", "bmatrix")), ("new lines", value.replace(r"\\", "\\\\\n")))
        yield "matrix", value.replace(r"\begin{p", r"\left(\begin{").replace(r"\end{pmatrix}", r"\end{matrix}\right)")
    if "circ" in value:
        yield from (("degrees", value.replace(r"^\circ", " degrees")), ("sign", value.replace(r"^\circ", "°")))
    if r"\text{ " in value:
        yield "no unit", value.partition(r"\text")[0]
        yield "words", value.replace(r"\text{", "").replace("}", "")
    if value.startswith("1,"):
        yield from ((name, value.replace(",", way)) for name, way in (("braces", "{,}"), ("thin", r"\,"), ("none", "")))
    if value.lstrip("-").replace(".", "").replace(",", "").isdigit():
        yield from (("x", f"x = {value}"), ("sentence", f"The answer is {value}."))


PROGRAM = "program"
# The assertion of a task, with answers in order: right answers, and after None wrong ones.
PROGRAMS = {
    "assert f('aba') == {'a': 2, 'b': 1}": (
        "from collections import Counter\ndef f(s): return Counter(s)",
        "import collections\ndef f(s):\n    d = collections.defaultdict(int)\n    for c in s: d[c] += 1\n    return d",
        "from collections import OrderedDict\ndef f(s): return OrderedDict((c, s.count(c)) for c in s)",
        "```python\ndef f(s): return {c: s.count(c) for c in s}\n```",
        "The counts:\n\n```py\ndef f(s): return {c: s.count(c) for c in s}\n```\nThis works.",
        None,
        "def f(s): return list(s)",
        "def f(s): return {c: 1 for c in s}",
    ),
    "assert f([3, 1, 2]) == (1, 3)": (
        "from collections import namedtuple\nE = namedtuple('E', 'lo hi')\ndef f(x): return E(min(x), max(x))",
        "def f(x): return min(x), max(x)",
        None,
        "def f(x): return [min(x), max(x)]",
        "def f(x): return max(x), min(x)",
    ),
    "assert f(8) == 4": (
        "from fractions import Fraction\ndef f(n): return Fraction(n, 2)",
        "from decimal import Decimal\ndef f(n): return Decimal(n) / 2",
        "def f(n): return n / 2",
        "def f(n): return complex(n / 2)",
        None,
        "def f(n): return str(n // 2)",
        "def f(n): return [n // 2]",
        "def f(n): print(4)",
    ),
    "assert f({1: 2, 3: 4}) == {1, 3}": (
        "def f(d): return d.keys()",
        "def f(d): return frozenset(d)",
        "def f(d): return {k for k in d}",
        None,
        "def f(d): return d.values()",
        "def f(d): return sorted(d)",
    ),
    "assert f(3) == True": (
        "def f(n): return n % 2",
        "def f(n): return n % 2 == 1",
        None,
        "def f(n): return n",
        "def f(n): return 'True'",
    ),
    "assert f(2) is None": ("def f(n): pass", None, "def f(n): return 0"),
    "assert f(3) is True": ("def f(n): return n == 3", None, "def f(n): return 1"),
    "assert not f(0)": ("def f(n): return n", "def f(n): return []", None, "def f(n): return 'no'"),
    "assert f(2) == [4, 9]": (
        "def f(n): return [n * n for n in (2, 3)]",
        None,
        "def f(n): return (n * n for n in (2, 3))",
        "def f(n): return map(lambda n: n * n, (2, 3))",
    ),
    "assert f(1) == 0.1 + 0.2": ("def f(n): return 0.1 + 0.2", None, "def f(n): return 0.3"),
}


def mbpp() -> Iterator[Variant]:
    for test, codes in PROGRAMS.items():
        for at, code in enumerate(codes):
            if code is not None:
                yield Variant(PROGRAM, test, code, at < codes.index(None))
