"""Line chart with a single layout, drawn as SVG for a page or as PNG for other uses. No torch here.

A `Chart` becomes an `svg` element, or the bytes of a PNG.
"""

import io
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from data.report.html import Html, tag

WIDTH, HEIGHT = 640, 240
RIGHT, TOP, BELOW = 24, 12, 36
LEAST_LEFT, LETTER, GAP = 58, 7, 6  # minimum left margin, pixels per letter, gap beside labels of the vertical axis
MOST_POINTS = 400  # maximum points of a line: more are not visible
AXIS = 4  # left edge of the horizontal axis title
BANDS = 80  # hover bands with a tooltip
STYLE = """
.chart rect { fill: transparent; } .chart rect:hover { fill: var(--bar); opacity: .12; }
.chart polyline { fill: none; stroke: var(--bar); stroke-width: 2; stroke-linejoin: round; }
.chart line.mark { stroke: #c2410c; stroke-width: 2; stroke-dasharray: 3 3; }
.chart polyline.faint { opacity: .3; stroke-width: 1; } .chart circle { fill: var(--bar); }
"""
Point = tuple[float, float]


@dataclass(frozen=True)
class Chart:
    """A metric drawn over the steps, or over the quantity in `along`; points are in the order of the steps."""

    title: str
    points: tuple[Point, ...]
    smooth: bool = False
    """Draw a running mean, with the raw points as a faint line."""
    from_zero: bool = False
    unit: str = ""
    along: str = "step"
    """Quantity of the horizontal axis."""
    run: str = ""
    """Name of the run, in the title of a standalone picture."""
    marks: tuple[tuple[float, str], ...] = ()
    """Events, each as a step and a label."""


@dataclass(frozen=True)
class ChartLayout:
    """Positions of a chart's elements in pixels of WIDTH x HEIGHT, from the top left corner."""

    lines: list[list[Point]] = field(default_factory=list)
    """The main line comes last; earlier lines are faint."""
    across: list[tuple[float, str]] = field(default_factory=list)
    """x position and label of each tick on the horizontal axis."""
    up: list[tuple[float, str]] = field(default_factory=list)
    bands: list[tuple[float, float, str]] = field(default_factory=list)
    """Left edge, width and tooltip of each hover band."""
    marks: list[tuple[float, str]] = field(default_factory=list)
    """x position and label of each event."""
    left: int = LEAST_LEFT
    """Left edge of the plot area, right of the labels of the vertical axis."""


def thin(points: Sequence[Point], most: int = MOST_POINTS) -> list[Point]:
    """Return at most `most` points: the mean of each stretch of equal length, at the stretch's last x."""
    each = -(-len(points) // most) if points else 1
    stretches = [points[at : at + each] for at in range(0, len(points), each)]
    return [(one[-1][0], sum(y for _, y in one) / len(one)) for one in stretches]


def running_mean(points: Sequence[Point], share: float = 0.03) -> list[Point]:
    """Return the centred running mean of the points over a window of about `share` of all points."""
    reach = round(len(points) * share / 2)
    sums = [0.0]
    for _, y in points:
        sums.append(sums[-1] + y)
    found = []
    for at, (x, _) in enumerate(points):
        near = min(reach, at, len(points) - 1 - at)  # a symmetric window avoids bending the ends
        found.append((x, (sums[at + near + 1] - sums[at - near]) / (2 * near + 1)))
    return found


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round numbers from `low` to `high`, at most `most` + 1 numbers."""
    raw = (high - low) / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * one for one in (1, 2, 2.5, 5, 10) if power * one >= raw * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def margin_of(low: float, high: float, share: float) -> float:
    """Return the margin of an axis beyond the values: a share of the spread of the values.

    Values with only rounding differences, such as the mean of a constant, count as equal: the axis labels between such
    values would all show the same number.
    """
    spread = high - low if high - low > 1e-9 * max(abs(low), abs(high)) else 0.0
    return share * spread or 0.05 * abs(high) or 1.0


def layout(chart: Chart) -> ChartLayout:
    """Return the layout of a chart, without non-finite points; an empty layout if no point remains."""
    points = [one for one in chart.points if math.isfinite(one[1])]
    if not points:
        return ChartLayout()
    lines = [thin(points)]
    if chart.smooth and len(points) > 20:
        lines.append(thin(running_mean(points)))
    shown = [y for line in lines for _, y in line]
    low, high = min(shown), max(shown)
    if chart.smooth and len(shown) > 100:  # keep a few outliers from flattening the line
        cut = sorted(shown)[int(len(shown) * 0.995)]
        high = cut + 0.1 * (cut - low)
    low = min(0.0, low) if chart.from_zero else low
    margin = margin_of(low, high, 0.05)
    low, high = (low if chart.from_zero else low - margin), high + margin
    first, last = points[0][0], max(points[-1][0], points[0][0] + 1)
    heights, steps = ticks(low, high, 4), [one for one in ticks(first, last) if one == int(one)]
    up = labels(heights, chart.unit)
    left = max(LEAST_LEFT, LETTER * max(map(len, up), default=0) + 2 * GAP)

    def x_of(step: float) -> float:
        return left + (step - first) / (last - first) * (WIDTH - left - RIGHT)

    def y_of(value: float) -> float:
        return TOP + (1 - (min(value, high) - low) / (high - low)) * (HEIGHT - TOP - BELOW)

    groups = thin(points, BANDS)
    edges = [first, *(x for x, _ in groups)]
    bands = [
        (x_of(before), max(1.0, x_of(x) - x_of(before)), f"to {chart.along} {x:,.0f}: {number(y)}{chart.unit}")
        for before, (x, y) in zip(edges, groups, strict=False)
    ]
    return ChartLayout(
        [[(x_of(x), y_of(y)) for x, y in line] for line in lines],
        list(zip(map(x_of, steps), labels(steps), strict=True)),
        list(zip(map(y_of, heights), up, strict=True)),
        bands,
        [(x_of(x), words) for x, words in chart.marks if first <= x <= last],
        left,
    )


def labels(values: Sequence[float], unit: str = "") -> list[str]:
    """Return the labels of the ticks of an axis, with enough digits for distinct labels."""
    words = [number(one) for one in values]
    if len(set(words)) < len(words):
        digits = max(0, -math.floor(math.log10(min(b - a for a, b in itertools.pairwise(values))) + 1e-9))
        words = [f"{one:,.{digits}f}" for one in values]
    return [f"{one}{unit}" for one in words]


def number(value: float) -> str:
    """Return a number as `1.2M`, `34k`, `250`, `0.031` or `2.0e-05`, with at most four digits."""
    size = abs(value)
    for letter, much in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if size >= 10 * much or size >= much > 1e3:
            return f"{value / much:.3g}{letter}"
    if size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 0.0001 or not value else f"{value:.1e}"


def svg(chart: Chart) -> Html:
    """Return the chart as an SVG element for a page."""
    drawn, found = [], layout(chart)
    for y, words in found.up:
        drawn.append(tag("line", x1=found.left, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        drawn.append(tag("text", words, x=found.left - GAP, y=f"{y + 4:.1f}", text_anchor="end"))
    for x, words in found.across:
        drawn.append(tag("text", words, x=f"{x:.1f}", y=HEIGHT - 8, text_anchor="middle"))
    drawn.append(tag("text", chart.along, x=AXIS, y=HEIGHT - 8))
    for x, words in found.marks:
        about = tag("title", words)
        drawn.append(tag("line", about, x1=f"{x:.1f}", x2=f"{x:.1f}", y1=TOP, y2=HEIGHT - BELOW, class_="mark"))
    for line in found.lines:
        kind = {} if line is found.lines[-1] else {"class_": "faint"}
        drawn.append(tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in line), **kind))
        if len(line) == 1:
            drawn.append(tag("circle", cx=f"{line[0][0]:.1f}", cy=f"{line[0][1]:.1f}", r=3))
    for x, wide, words in found.bands:
        drawn.append(tag("rect", tag("title", words), x=f"{x:.1f}", y=TOP, width=f"{wide:.1f}", height=HEIGHT - TOP))
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=chart.title, class_="chart")


INK, SOFT, RULE, BAR, FAINT, MARK = "#1b2733", "#64748b", "#e2e8f0", "#2f6fdb", "#bcd1f4", "#c2410c"
SCALE = 4  # drawing scale; downsampling smooths the lines
KEPT = 2  # PNG pixels per layout pixel
HEAD = 26  # height of the title


def png(chart: Chart) -> bytes:
    """Return the chart as PNG bytes: white background, title above, twice the size of the layout."""
    from PIL import Image, ImageDraw, ImageFont

    found = layout(chart)
    image = Image.new("RGB", (WIDTH * SCALE, (HEIGHT + HEAD) * SCALE), "white")
    draw: Any = ImageDraw.Draw(image)
    small, large = (ImageFont.load_default(size * SCALE) for size in (11, 14))

    def place(x: float, y: float) -> Point:
        return x * SCALE, (y + HEAD) * SCALE

    title = f"{chart.run}, {chart.title}" if chart.run else chart.title
    draw.text((found.left * SCALE, 6 * SCALE), title, fill=INK, font=large)
    draw.text(place(AXIS, HEIGHT - 14), chart.along, fill=SOFT, font=small, anchor="lm")
    for y, words in found.up:
        draw.line([place(found.left, y), place(WIDTH - RIGHT, y)], fill=RULE, width=SCALE)
        draw.text(place(found.left - GAP, y), words, fill=SOFT, font=small, anchor="rm")
    for x, words in found.across:
        draw.text(place(x, HEIGHT - 14), words, fill=SOFT, font=small, anchor="mm")
    for x, _ in found.marks:
        for y in range(TOP, HEIGHT - BELOW, 6):
            draw.line([place(x, y), place(x, y + 3)], fill=MARK, width=SCALE)
    for line in found.lines:
        is_last = line is found.lines[-1]
        color, width = (BAR, 2 * SCALE) if is_last else (FAINT, SCALE)
        points = [place(x, y) for x, y in line]
        if len(points) > 1:
            draw.line(points, fill=color, width=width, joint="curve")
        else:
            draw.ellipse([points[0][0] - 12, points[0][1] - 12, points[0][0] + 12, points[0][1] + 12], fill=color)
    size = (WIDTH * KEPT, (HEIGHT + HEAD) * KEPT)
    out = io.BytesIO()
    image.resize(size, Image.Resampling.LANCZOS).save(out, "PNG", optimize=True)
    return out.getvalue()
