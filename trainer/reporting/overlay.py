"""Charts with several overlaid elements, as SVG: curves, parallel coordinates, differences. No torch here.

The functions take named lines, each in a group with a colour, and return `svg` elements for a page.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from data.report.html import Html, tag
from trainer.reporting.chart import (
    AXIS,
    BELOW,
    GAP,
    HEIGHT,
    LETTER,
    Point,
    labels,
    margin_of,
    number,
    running_mean,
    thin,
    ticks,
)

WIDE, TALL = 960, 320
LEFT, RIGHT, TOP = 64, 24, 14
ROW = 26  # height of a row in a chart of differences
COLOURS = ("#2f6fdb", "#d9480f", "#2b8a3e", "#9c36b5", "#e8a600", "#0c8599", "#c2255c", "#5f6b7a", "#74b816", "#7048e8")
STYLE = """
.tiles b { overflow-wrap: anywhere; }
.over polyline { fill: none; stroke-width: 1.8; stroke-linejoin: round; opacity: .9; }
.over polyline:hover { stroke-width: 4; opacity: 1; } .over .stopped { stroke-dasharray: 5 4; opacity: .55; }
.over .zero { stroke: var(--soft); } .legend { display: flex; flex-wrap: wrap; gap: 4px 18px; margin-top: 8px; }
.legend span { font-size: 13px; } .legend i { display: inline-block; width: 14px; height: 4px; margin-right: 6px;
  vertical-align: middle; border-radius: 2px; }
"""


@dataclass(frozen=True, kw_only=True)
class CurveLine:
    """A curve of a chart."""

    name: str
    group: str
    points: tuple[Point, ...]
    is_stopped: bool = False


def colours(groups: Sequence[str]) -> dict[str, str]:
    """Return a colour for each group; after ten groups, the colours repeat."""
    return {one: COLOURS[number % len(COLOURS)] for number, one in enumerate(dict.fromkeys(groups))}


def legend(by_group: Mapping[str, str]) -> Html:
    """Return the legend of groups and colours."""
    return tag(
        "div",
        *(tag("span", tag("i", style=f"background:{colour}"), one) for one, colour in by_group.items()),
        class_="legend",
    )


def curves(title: str, lines: Sequence[CurveLine], by_group: Mapping[str, str]) -> Html:
    """Return smoothed curves over the steps, scaled so that outliers at the start do not flatten the rest."""
    drawn_lines = [
        (one, thin(running_mean([point for point in one.points if math.isfinite(point[1])]))) for one in lines
    ]
    drawn_lines = [(one, points) for one, points in drawn_lines if points]
    if not drawn_lines:
        return tag("p", "Nothing was told yet.", class_="soft")
    last = max(max(points[-1][0] for _, points in drawn_lines), 2.0)
    shown = sorted(y for _, points in drawn_lines for x, y in points if x > 0.1 * last) or [
        y for _, points in drawn_lines for _, y in points
    ]
    low, high = shown[0], shown[min(len(shown) - 1, int(len(shown) * 0.98))]
    margin = margin_of(low, high, 0.06)
    low, high = low - margin, high + margin
    heights, steps = ticks(low, high, 5), [one for one in ticks(0.0, last) if one == int(one)]
    up = labels(heights)
    left = max(LEFT, LETTER * max(map(len, up), default=0) + 2 * GAP)

    def x_of(step: float) -> float:
        return left + step / last * (WIDE - left - RIGHT)

    def y_of(value: float) -> float:
        return TOP + (1 - (min(max(value, low), high) - low) / (high - low)) * (TALL - TOP - BELOW)

    drawn = []
    for y, words in zip(heights, up, strict=True):
        drawn.append(tag("line", x1=left, x2=WIDE - RIGHT, y1=f"{y_of(y):.1f}", y2=f"{y_of(y):.1f}"))
        drawn.append(tag("text", words, x=left - GAP, y=f"{y_of(y) + 4:.1f}", text_anchor="end"))
    for x, words in zip(steps, labels(steps), strict=True):
        drawn.append(tag("text", words, x=f"{x_of(x):.1f}", y=TALL - 8, text_anchor="middle"))
    drawn.append(tag("text", "step", x=AXIS, y=TALL - 8))
    for one, points in drawn_lines:
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        kind = {"class_": "stopped"} if one.is_stopped else {}
        about = tag("title", f"{one.name}: {number(points[-1][1])} at step {points[-1][0]:,.0f}")
        drawn.append(tag("polyline", about, points=path, style=f"stroke:{by_group[one.group]}", **kind))
        if one.is_stopped:
            x, y = x_of(points[-1][0]), y_of(points[-1][1])
            drawn.append(tag("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=4, style=f"fill:{by_group[one.group]}"))
    return tag("svg", *drawn, viewBox=f"0 0 {WIDE} {TALL}", role="img", aria_label=title, class_="over")


def parallel(
    title: str, axes: Sequence[str], rows: Sequence[tuple[str, Sequence[str]]], by_group: Mapping[str, str]
) -> Html:
    """Return a parallel coordinates chart. `rows`: groups with a value per axis; numbers by size, words in order.

    A value of "" leaves the axis out of the row's line.
    """
    places = [_places([values[at] for _, values in rows]) for at in range(len(axes))]
    across = [LEFT + 30 + at * (WIDE - 2 * LEFT - 90) / max(1, len(axes) - 1) for at in range(len(axes))]

    def y_of(share: float) -> float:
        return TOP + 22 + (1 - share) * (HEIGHT - TOP - 50)

    drawn = []
    for x, name, place in zip(across, axes, places, strict=True):
        drawn.append(tag("line", x1=f"{x:.1f}", x2=f"{x:.1f}", y1=y_of(1), y2=y_of(0)))
        drawn.append(tag("text", name, x=f"{x:.1f}", y=TOP + 4, text_anchor="middle"))
        beside = {"x": f"{x - 8:.1f}", "text_anchor": "end"} if x == across[0] else {"x": f"{x + 8:.1f}"}
        for words, share in place.items():
            drawn.append(tag("text", words, y=f"{y_of(share) + 4:.1f}", **beside))
    for group, values in rows:
        points = [
            f"{x:.1f},{y_of(place[value]):.1f}" for x, place, value in zip(across, places, values, strict=True) if value
        ]
        about = tag(
            "title", f"{group}: " + ", ".join(f"{name} {value}" for name, value in zip(axes, values, strict=True))
        )
        drawn.append(tag("polyline", about, points=" ".join(points), style=f"stroke:{by_group[group]}"))
    return tag("svg", *drawn, viewBox=f"0 0 {WIDE} {HEIGHT}", role="img", aria_label=title, class_="over")


def _places(values: Sequence[str]) -> dict[str, float]:
    """Return the position of each value on an axis, from 0 to 1.

    Positive numbers with a ratio of 8 or more are placed on a logarithmic scale.
    """
    different = list(dict.fromkeys(one for one in values if one))
    try:
        numbers = {one: float(one) for one in different}
    except ValueError:
        numbers = {one: float(at) for at, one in enumerate(different)}
    low, high = min(numbers.values(), default=0.0), max(numbers.values(), default=1.0)
    if high == low:
        return dict.fromkeys(numbers, 0.5)
    if low > 0 and high / low >= 8:
        return {one: math.log(value / low) / math.log(high / low) for one, value in numbers.items()}
    return {one: (value - low) / (high - low) for one, value in numbers.items()}


def differences(title: str, rows: Sequence[tuple[str, float, float]], by_group: Mapping[str, str]) -> Html:
    """Return a chart with a dot and an interval per difference, and a line at zero.

    A difference without a finite mean is left out; an interval without a finite width is not drawn.
    """
    rows = [(name, middle, half if math.isfinite(half) else math.nan) for name, middle, half in rows]
    rows = [one for one in rows if math.isfinite(one[1])]
    if not rows:
        return tag("p", "No other run to compare with.", class_="soft")
    left = 220
    ends = [abs(middle) + (0.0 if math.isnan(half) else half) for _, middle, half in rows]
    reach = max(ends) * 1.1 or 1.0
    height = ROW * len(rows) + 40

    def x_of(value: float) -> float:
        return left + (value + reach) / (2 * reach) * (WIDE - left - RIGHT)

    drawn = [tag("line", x1=x_of(0), x2=x_of(0), y1=6, y2=height - 30, class_="zero")]
    marks = [one for one in ticks(-reach, reach, 6)]
    for value, words in zip(marks, labels(marks), strict=True):
        drawn.append(tag("text", words, x=f"{x_of(value):.1f}", y=height - 8, text_anchor="middle"))
    for at, (name, middle, half) in enumerate(rows):
        y, colour = 18 + ROW * at, by_group[name]
        drawn.append(tag("text", name, x=left - 12, y=y + 4, text_anchor="end"))
        if not math.isnan(half):
            drawn.append(
                tag(
                    "line",
                    x1=f"{x_of(middle - half):.1f}",
                    x2=f"{x_of(middle + half):.1f}",
                    y1=y,
                    y2=y,
                    style=f"stroke:{colour};stroke-width:2",
                )
            )
        about = tag("title", f"{name}: {middle:+.4g}" + ("" if math.isnan(half) else f" ± {half:.2g}"))
        drawn.append(tag("circle", about, cx=f"{x_of(middle):.1f}", cy=y, r=5, style=f"fill:{colour}"))
    return tag("svg", *drawn, viewBox=f"0 0 {WIDE} {height}", role="img", aria_label=title, class_="over")
