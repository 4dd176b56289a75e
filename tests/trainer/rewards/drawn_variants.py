r"""Answers drawn at random: a gold answer, one of its spellings or a different value, and markup around the answer.

As in `variants`, the verdict follows from the construction.
"""

import random
from collections.abc import Callable, Iterator
from fractions import Fraction

from tests.trainer.rewards.variants import Variant

Drawn = tuple[str, list[str], list[str]]
"""A gold answer, its other spellings, and answers with a different value."""
AROUND = (
    *("{}", "{}", "{}", "${}$", "$${}$$", r"\({}\)", r"\[{}\]", "**{}**", "**${}$**", r"\boxed{{{}}}"),
    *(r"$\boxed{{{}}}$", r"\boxed{{\boxed{{{}}}}}", r"$$\boxed{{\mathbf{{{}}}}}$$", "{}.", r"{} \\", "= {}", " {}\n"),
    *("The answer is {}.", "**Answer:** {}", "the final answer is ${}$.", r"\displaystyle {}", r"\fbox{{{}}}", "`{}`"),
    *(r"\boldsymbol{{{}}}", r"\(\boxed{{{}}}\).", "__{}__"),
)


def integer(of: random.Random) -> Drawn:
    n = of.choice((of.randint(2, 99), of.randint(1000, 9_999_999)))
    same = [str(n), f"{n:,}", f"{n:,}".replace(",", "{,}"), f"{n:,}".replace(",", r"\,"), f"{n}.0", f"x = {n}"]
    return (
        str(n),
        same,
        [f"{n + 1}", f"-{n}", f"{n}0", f"{n}, {n + 1}", f"{n} dozen", f"{n} million", f"{n}^2", f"{n}i"],
    )


def decimal(of: random.Random) -> Drawn:
    n = Fraction(of.randint(101, 999), 100)
    over, under = n.numerator, n.denominator
    if under == 1:
        return integer(of)
    whole, rest = divmod(over, under)
    same = [f"{float(n)}", f"{float(n):.4f}", rf"\frac{{{over}}}{{{under}}}", f"{over}/{under}"]
    same += [rf"{whole}\frac{{{rest}}}{{{under}}}", f"{whole} {rest}/{under}", rf"{float(n) * 100:.0f}\%"]
    wrong = [f"{float(n):.0f}.", f"{float(n) + 0.01:.2f}", rf"\frac{{{under}}}{{{over}}}", f"-{float(n)}"]
    return f"{float(n)}", same, [*wrong, f"{float(n) * 10:.1f}", rf"{rest}\frac{{{whole}}}{{{under}}}"]


def fraction(of: random.Random) -> Drawn:
    n = Fraction(of.randint(1, 40), of.randint(2, 40))
    if n.denominator == 1 or n == 1:
        return decimal(of)
    a, b, sign = n.numerator, n.denominator, of.choice(("", "-"))
    gold = rf"{sign}\frac{{{a}}}{{{b}}}"
    same = [
        gold,
        rf"{sign}\dfrac{{{a}}}{{{b}}}",
        f"{sign}{a}/{b}",
        rf"\frac{{{sign}{a}}}{{{b}}}",
        rf"{sign}\tfrac{{{3 * a}}}{{{3 * b}}}",
    ]
    other = "" if sign else "-"
    wrong = [rf"{sign}\frac{{{b}}}{{{a}}}", rf"{sign}\frac{{{a + 1}}}{{{b}}}", rf"{other}\frac{{{a}}}{{{b}}}"]
    return gold, same, [*wrong, f"{sign}{a}{b}", f"{sign}{float(n):.3f}" if b % 2 and b % 5 else f"{sign}{a}/{b + 1}"]


def scientific(of: random.Random) -> Drawn:
    m, k = of.randint(11, 98) / 10, of.choice((-4, -3, -2, 2, 3, 5, 6, 8))
    value = f"{m * 10**k:.0f}" if k > 0 else f"{m * 10**k:.{1 - k}f}"
    gold = rf"{m} \times 10^{{{k}}}"
    same = [
        gold,
        rf"{m}\cdot 10^{{{k}}}",
        f"{m}e{k}",
        f"{m} * 10^{{{k}}}",
        value,
        rf"{m}\times10^{{{k}}}",
        f"{m}E{k:+d}",
    ]
    return (
        gold,
        same,
        [rf"{m} \times 10^{{{k + 1}}}", rf"{m}\times 10^{{{-k}}}", f"{m}", f"{m + 1}e{k}", f"{m}e{k - 1}"],
    )


def percent(of: random.Random) -> Drawn:
    p = of.randint(2, 99)
    same = [rf"{p}\%", f"{p}%", f"{p} percent", rf"{p}\text{{ percent}}", f"{p / 100}", str(p), rf"\frac{{{p}}}{{100}}"]
    return rf"{p}\%", same, [rf"{p + 1}\%", f"{p / 1000:.4f}", f"{p}0%", rf"-{p}\%"]


def money(of: random.Random) -> Drawn:
    n = of.randint(1, 99_999)
    same = [rf"\${n}", f"${n:,}", f"{n} dollars", rf"\${n}.00", rf"{n}\text{{ dollars}}", str(n), f"{n:,}"]
    return rf"\${n}", same, [rf"\${n + 1}", f"{n} cents", f"${n}.50", f"{n} thousand dollars"]


def length(of: random.Random) -> Drawn:
    n, unit, name, other = of.choice(
        (
            (5, "cm", "centimeters", "m"),
            (7, "m", "meters", "km"),
            (9, "ft", "feet", "in"),
            (11, "mm", "millimeters", "cm"),
        )
    )
    n += of.randint(1, 300)
    same = [
        rf"{n}\text{{ {unit}}}",
        f"{n} {unit}",
        rf"{n}\ \mathrm{{{unit}}}",
        f"{n} {name}",
        str(n),
        rf"{n}\,\text{{{unit}}}",
    ]
    wrong = [rf"{n}\text{{ {other}}}", f"{n} {other}", rf"{n}\text{{ {unit}}}^2", f"{n + 1} {unit}"]
    return rf"{n}\text{{ {unit}}}", same, wrong


def area(of: random.Random) -> Drawn:
    n = of.randint(2, 400)
    same = [
        rf"{n}\text{{ cm}}^2",
        f"{n} cm^2",
        f"{n} cm²",
        f"{n} square centimeters",
        str(n),
        rf"{n}\text{{ square cm}}",
    ]
    return rf"{n}\text{{ cm}}^2", same, [f"{n} cm", rf"{n}\text{{ m}}^2", f"{n + 1} cm^2", rf"{n}\text{{ cm}}^3"]


def point(of: random.Random) -> Drawn:
    a, b = of.sample(range(-9, 30), 2)
    same = [
        f"({a},{b})",
        f"({a}, {b})",
        rf"\left({a},{b}\right)",
        f"( {a} , {b} )",
        f"({a}.0,{b})",
        rf"\left( {a},\,{b} \right)",
    ]
    return (
        f"({a},{b})",
        same,
        [f"({b},{a})", f"{a},{b}", rf"\{{{a},{b}\}}", f"({a},{b + 1})", f"[{a},{b}]", f"({a},{b},0)"],
    )


def solutions(of: random.Random) -> Drawn:
    a, b, c = sorted(of.sample(range(-9, 40), 3))
    same = [
        f"{a},{b},{c}",
        f"{b}, {a}, {c}",
        rf"\{{{c},{a},{b}\}}",
        f"{a}, {b}, and {c}",
        rf"{a}, {b} \text{{ and }} {c}",
    ]
    return (
        f"{a},{b},{c}",
        same,
        [f"({a},{b},{c})", f"{a},{b}", f"{a},{b},{c + 1}", f"{a}{b}{c}", f"{a},{b},{c},{c + 1}"],
    )


def finite_set(of: random.Random) -> Drawn:
    a, b, c = sorted(of.sample(range(-9, 40), 3))
    gold = rf"\{{{a},{b},{c}\}}"
    same = [gold, rf"\left\{{{a},{b},{c}\right\}}", rf"\{{{c}, {b}, {a}\}}", f"{a}, {b}, {c}"]
    return gold, same, [rf"\{{{a},{b}\}}", rf"\{{{a},{b},{c + 1}\}}", f"({a},{b},{c})", f"[{a},{b},{c}]"]


def interval(of: random.Random) -> Drawn:
    a, b = sorted(of.sample(range(-9, 30), 2))
    left, right = of.choice("(["), of.choice(")]")
    less, most = r"\le" if left == "[" else "<", r"\leq" if right == "]" else "<"
    gold = f"{left}{a},{b}{right}"
    same = [
        gold,
        f"{left} {a}, {b} {right}",
        rf"\left{left}{a},{b}\right{right}",
        rf"x \in {gold}",
        rf"{a} {less} x {most} {b}",
    ]
    other = {"(": "[", "[": "("}[left]
    return (
        gold,
        same,
        [f"{other}{a},{b}{right}", f"{left}{a},{b + 1}{right}", f"{left}{-b - 50},{-a - 50}{right}", f"{a},{b}"],
    )


def half_line(of: random.Random) -> Drawn:
    a = of.randint(-9, 30)
    gold = rf"(-\infty,{a}]"
    same = [gold, rf"\left(-\infty, {a}\right]", rf"x \le {a}", rf"x\leq {a}", rf"{a} \ge x"]
    return gold, same, [rf"(-\infty,{a})", f"x < {a}", rf"[{a},\infty)", rf"x \ge {a}", rf"(-\infty,{a + 1}]"]


def union(of: random.Random) -> Drawn:
    a, b = sorted(of.sample(range(-9, 30), 2))
    gold = rf"(-\infty,{a})\cup({b},\infty)"
    same = [gold, rf"(-\infty, {a}) \cup ({b}, \infty)", rf"\left(-\infty,{a}\right)\cup\left({b},+\infty\right)"]
    wrong = [rf"(-\infty,{a}]\cup[{b},\infty)", rf"(-\infty,{a})\cap({b},\infty)", rf"({a},{b})", rf"(-\infty,{a})"]
    return gold, same, wrong


def matrix(of: random.Random) -> Drawn:
    a, b, c, d = of.sample(range(-9, 30), 4)

    def written(name: str, end: str = r" \\ ", *entries: int) -> str:
        a, b, c, d = entries
        return rf"\begin{{{name}}} {a} & {b}{end}{c} & {d} \end{{{name}}}"

    gold = written("pmatrix", r" \\ ", a, b, c, d)
    same = [gold, written("bmatrix", r"\\", a, b, c, d), gold.replace(" ", "").replace(r"\\", "\\\\\n")]
    same += [rf"\left[\begin{{array}}{{cc}} {a} & {b} \\ {c} & {d} \end{{array}}\right]"]
    wrong = [written("pmatrix", r"\\", a, c, b, d), written("bmatrix", r"\\", a, b, c, d + 1), f"({a},{b},{c},{d})"]
    return gold, same, wrong


def vector(of: random.Random) -> Drawn:
    a, b, c = of.sample(range(-9, 30), 3)
    gold = rf"\begin{{pmatrix}} {a} \\ {b} \\ {c} \end{{pmatrix}}"
    same = [gold, gold.replace("pm", "bm"), gold.replace(" ", ""), gold.replace(r"\\", r"\\[2pt]")]
    wrong = [
        rf"\begin{{pmatrix}} {a} & {b} & {c} \end{{pmatrix}}",
        rf"\begin{{pmatrix}} {b} \\ {a} \\ {c} \end{{pmatrix}}",
    ]
    return gold, same, [*wrong, rf"\begin{{pmatrix}} {a} \\ {b} \end{{pmatrix}}"]


def root(of: random.Random) -> Drawn:
    a, b = of.randint(2, 12), of.choice((2, 3, 5, 6, 7, 10, 11))
    gold = rf"{a}\sqrt{{{b}}}"
    same = [
        gold,
        rf"\sqrt{{{a * a * b}}}",
        rf"{a} \cdot \sqrt{{{b}}}",
        rf"\sqrt{{{b}}} \cdot {a}",
        rf"{a}\sqrt {b}" if b < 10 else gold,
    ]
    return (
        gold,
        same,
        [
            rf"{a}\sqrt{{{b + 1}}}",
            rf"{b}\sqrt{{{a}}}" if a * a * b != b * b * a else "0",
            rf"-{gold}",
            rf"{a}\sqrt[3]{{{b}}}",
            f"{a * b**0.5:.4f}",
        ],
    )


def turn(of: random.Random) -> Drawn:
    a, b = of.choice((3, 5, 7, 11)), of.choice((2, 4, 6, 8))
    if a % b == 0 or b % a == 0 or b == 6 and a == 3:
        return root(of)
    gold = rf"\frac{{{a}\pi}}{{{b}}}"
    same = [gold, rf"\frac{{{a}}}{{{b}}}\pi", rf"{a}\pi/{b}", rf"\dfrac{{{a} \pi}}{{{b}}}"]
    return gold, same, [rf"\frac{{{a}}}{{{b}}}", rf"\frac{{{b}\pi}}{{{a}}}", rf"-{gold}", f"{a * 3.14159 / b:.3f}"]


def complex_number(of: random.Random) -> Drawn:
    a, b = of.randint(1, 20), of.randint(2, 20)
    same = [f"{a}+{b}i", f"{a} + {b}i", f"{b}i + {a}", f"z = {a} + {b}i"]
    return f"{a}+{b}i", same, [f"{a}-{b}i", f"{b}+{a + 1}i", f"{a + b}", f"-{a}+{b}i"]


def polynomial(of: random.Random) -> Drawn:
    a, b = of.sample(range(1, 12), 2)
    gold = f"x^2+{a + b}x+{a * b}"
    same = [gold, f"{a * b} + {a + b}x + x^2", f"(x+{a})(x+{b})", f"x^{{2}} + {a + b} x + {a * b}", f"f(x) = {gold}"]
    return (
        gold,
        same,
        [f"x^2-{a + b}x+{a * b}", f"x^2+{a + b}x-{a * b}", f"(x-{a})(x-{b})", f"x^2+{a + b + 1}x+{a * b}"],
    )


def line(of: random.Random) -> Drawn:
    a, b = of.randint(2, 12), of.randint(1, 30)
    same = [f"y={a}x+{b}", f"y = {a}x + {b}", f"{a}x+{b}", f"y={b}+{a}x"]
    return f"y={a}x+{b}", same, [f"y={a}x-{b}", f"y={b}x+{a + 50}", f"y=-{a}x+{b}"]


def word(of: random.Random) -> Drawn:
    one, other = of.sample(("Yes", "Monday", "even", "increasing", "Alice", "ellipse", "no"), 2)
    same = [one, rf"\text{{{one}}}", one.lower(), one.capitalize(), rf"\textbf{{{one}}}"]
    return rf"\text{{{one}}}", same, [other, rf"\text{{{other}}}", f"not {one}"]


def choice(of: random.Random) -> Drawn:
    one, other = of.sample("ABCDE", 2)
    same = [one, f"({one})", rf"\text{{{one}}}", rf"\text{{({one})}}", rf"\textbf{{({one})}}"]
    return rf"\text{{({one})}}", same, [other, f"({other})", rf"\text{{{other}}}", f"{one}{other}"]


def circle(of: random.Random) -> Drawn:
    gold, wrong = of.choice((("-1", "1"), ("1", "-1")))
    same = {
        "-1": [r"e^{i\pi}", r"e^{\pi i}", r"e^{-i \pi}", r"e^{3i\pi}"],
        "1": [r"e^{2\pi i}", r"e^{4i\pi}", r"e^{0}"],
    }
    return gold, same[gold], [*same[wrong], r"e^{i\pi/2}", r"e^{\pi}"]


def numbers(of: random.Random) -> Drawn:
    letter, other = of.sample("RZQ", 2)
    gold = rf"\mathbb{{{letter}}}"
    return (
        gold,
        [gold, rf"\mathbf{{{letter}}}", rf"\mathbb {letter}"],
        [rf"\mathbb{{{other}}}", rf"\mathbf{{{other}}}", r"\emptyset"],
    )


def letters(of: random.Random) -> Drawn:
    n, (a, b) = of.randint(2, 40), of.sample("abcgst", 2)
    same = [f"{n}{a}{b}", f"{n} {a} {b}", rf"{n} \cdot {b}{a}", f"{b}{a} * {n}", f"{n}{b}{a}"]
    return f"{n}{a}{b}", same, [f"{n}", f"{n}{a}", f"{n}{b}", f"{n + 1}{a}{b}", f"{n}{a}^2", f"{a}{b}"]


def hundreds(of: random.Random) -> Drawn:
    a, b, (left, right) = of.randint(1, 99), of.randint(100, 999), of.choice(("()", "[]", "[)"))
    same = [f"{left}{a},{b}{right}", f"{left}{a}, {b}{right}", rf"\left{left} {a},\,{b} \right{right}"]
    wrong = [f"{a}{b}", f"{a},{b}", f"{left}{a}{b}{right}", f"{left}{b},{a}{right}", f"{left}{a},{b + 1}{right}"]
    return same[0], same, wrong


def amount(of: random.Random) -> Drawn:
    n, (unit, name, other) = (
        of.randint(2, 300),
        of.choice((("kg", "kilograms", "grams"), ("weeks", "weeks", "years"), ("mL", "milliliters", "liters"))),
    )
    same = [rf"{n}\text{{ {unit}}}", f"{n} {unit}", f"{n} {name}", rf"{n}\,\mathrm{{{unit}}}", f"{n}"]
    wrong = [f"{n} {other}", rf"{n}\text{{ {other}}}", f"{n + 1} {unit}", f"{n} thirds", f"{n} and a half {name}"]
    return same[0], same, wrong


def counted_things(of: random.Random) -> Drawn:
    n = of.randint(2, 90)
    same = [f"{n} apples", f"{n} units", rf"{n}\text{{ students}}", f"{n}.", f"{n} of them", f"{n} more"]
    wrong = [f"{n} pi", f"{n} squared", f"{n} and a half", f"{n} tenths", rf"{n}\text{{ or more}}", f"{n}–{n + 2}"]
    return str(n), same, [*wrong, rf"{n}\sqrt{{2", f"{n} or {n + 1}", f"{n + 1} because x={n}", f"{n} times"]


def roots(of: random.Random) -> Drawn:
    a, b = sorted(of.sample(range(-9, 99), 2))
    same = [f"x={a} or x={b}", f"{a} and {b}", f"x = {a}, x = {b}", f"{b}, {a}", rf"{a}\text{{ or }}{b}"]
    return f"{a},{b}", same, [f"x={a}", f"x={b}", f"{a} or {b + 1}", f"({a},{b})", f"x={a}{b}"]


def powers(of: random.Random) -> Drawn:
    a, b = of.sample(range(2, 9), 2)
    gold = f"x^4+{a}x^3+x^2+{b}"
    same = [f"x^{{4}}+{a}x^{{3}}+x^{{2}}+{b}", f"{b} + x^2 + {a}x^3 + x^4", gold]
    return gold, same, [f"x^4+{a}x^3+x^2-{b}", f"x^4+{b}x^3+x^2+{a}", f"x^{{4}}+{a}x^{{2}}+x^{{3}}+{b}"]


KINDS: tuple[Callable[[random.Random], Drawn], ...] = (
    *(integer, decimal, fraction, scientific, percent, money, length, area, point, solutions, finite_set, interval),
    *(half_line, union, matrix, vector, root, turn, complex_number, polynomial, line, word, choice, circle, numbers),
    *(letters, hundreds, amount, counted_things, roots, powers),
)


def drawn(seed: int, count: int) -> Iterator[Variant]:
    """Yield variants of math, half of them right."""
    of = random.Random(seed)
    for number in range(count):
        kind = KINDS[number % len(KINDS)]
        gold, same, wrong = kind(of)
        is_right = of.random() < 0.5
        answer = of.choice(same if is_right else wrong)
        forms = [one for one in AROUND if "bf{" not in one and "bold" not in one] if kind is numbers else AROUND
        text = of.choice(forms)
        text = "{}" if "$" in answer and "$" in text else text
        yield Variant(kind.__name__, f"so $\\boxed{{{gold}}}$", text.format(answer), is_right)
