"""HTML page comparing two runs: overlaid curves, recipe differences, final metrics.

`page` takes two stories and returns the text of the page. No torch here.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from data.report.html import Html, document, tag
from trainer.reporting import chart as charting
from trainer.reporting.chart import (
    GAP,
    HEIGHT,
    LEAST_LEFT,
    LETTER,
    RIGHT,
    STYLE,
    TOP,
    WIDTH,
    Chart,
    Point,
    margin_of,
    number,
)
from trainer.reporting.config_differences import differences
from trainer.reporting.run_report import PhaseStory, Story, charts, progress

MORE = """
.chart polyline.b { stroke: #c2410c; stroke-dasharray: 6 3; } .chart circle.b { fill: #c2410c; }
.key i { display: inline-block; width: 22px; border-top: 3px solid var(--bar); vertical-align: 4px; }
.key i.b { border-top: 3px dashed #c2410c; }
"""


def page(first: Story, second: Story) -> str:
    """Return the whole document."""
    runs = (first.run, second.run)
    phases = [one.name for one in first.phases if one.name in {other.name for other in second.phases}]
    lonely = [one.name for story in (first, second) for one in story.phases if one.name not in phases]
    key = tag("p", tag("i"), f" {runs[0]}   ", tag("i", class_="b"), f" {runs[1]}", class_="key")
    return document(
        f"{runs[0]} and {runs[1]}",
        tag("style", Html(STYLE + MORE)),
        tag("h1", f"{runs[0]} and {runs[1]}"),
        tag("p", f"written {first.written}", class_="soft"),
        key,
        _facts(first, second),
        *(part for name in phases for part in _phase(name, first, second)),
        *([tag("p", f"phases of only one run: {', '.join(dict.fromkeys(lonely))}", class_="soft")] if lonely else []),
    )


def all_differences(first: Story, second: Story) -> dict[str, list[dict[str, Any]]]:
    """Return the differences between the recipes, by phase, for phases present in both runs."""
    theirs = {one.name: one for one in second.phases}
    return {
        one.name: differences({first.run: one.config, second.run: theirs[one.name].config})
        for one in first.phases
        if one.name in theirs
    }


def overlays(first: PhaseStory, second: PhaseStory) -> Iterator[tuple[str, str, Chart, Chart]]:
    """Yield the metrics present in both phases: a short name, a title, and the two charts."""
    others = dict(charts(second))
    for name, chart in charts(first):
        if name in others:
            yield name, chart.title.partition(": ")[2], chart, others[name]


def svg(title: str, first: Chart, second: Chart) -> Html:
    """Return two charts as an SVG over the same axes, each with a running mean for smoothed metrics."""
    lines = [_line(first), _line(second)]
    points = [one for line in lines for one in line]
    low, high = min(y for _, y in points), max(y for _, y in points)
    low = min(0.0, low) if first.from_zero else low
    margin = margin_of(low, high, 0.05)
    low, high = (low if first.from_zero else low - margin), high + margin
    begin, end = min(x for x, _ in points), max(x for x, _ in points)
    end = max(end, begin + 1)
    heights = charting.ticks(low, high, 4)
    steps = [one for one in charting.ticks(begin, end) if one == int(one)]
    words = charting.labels(heights, first.unit)
    left = max(LEAST_LEFT, LETTER * max(map(len, words), default=0) + 2 * GAP)

    def place(x: float, y: float) -> Point:
        across = left + (x - begin) / (end - begin) * (WIDTH - left - RIGHT)
        return across, TOP + (1 - (y - low) / (high - low)) * (HEIGHT - TOP - charting.BELOW)

    drawn = []
    for height, said in zip(heights, words, strict=True):
        y = place(begin, height)[1]
        drawn.append(tag("line", x1=left, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        drawn.append(tag("text", said, x=left - GAP, y=f"{y + 4:.1f}", text_anchor="end"))
    for step, said in zip(steps, charting.labels(steps), strict=True):
        drawn.append(tag("text", said, x=f"{place(step, low)[0]:.1f}", y=HEIGHT - 8, text_anchor="middle"))
    drawn.append(tag("text", first.along, x=charting.AXIS, y=HEIGHT - 8))
    for line, kind in zip(lines, ("a", "b"), strict=True):
        placed = [place(x, y) for x, y in line]
        drawn.append(tag("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in placed), class_=kind))
        if len(placed) == 1:
            drawn.append(tag("circle", cx=f"{placed[0][0]:.1f}", cy=f"{placed[0][1]:.1f}", r=3, class_=kind))
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH} {HEIGHT}", role="img", aria_label=title, class_="chart")


def _line(chart: Chart) -> list[Point]:
    points = [one for one in chart.points if math.isfinite(one[1])]
    smooth = chart.smooth and len(points) > 20
    return charting.thin(charting.running_mean(points) if smooth else points)


def _facts(first: Story, second: Story) -> Html:
    ours, theirs = dict(first.facts), dict(second.facts)
    rows = [(name, ours.get(name, ""), theirs.get(name, "")) for name in dict.fromkeys([*ours, *theirs])]
    return _card("The runs", _table(("", first.run, second.run), rows)) if rows else tag("div")


def _phase(name: str, first: Story, second: Story) -> Iterator[Html]:
    ours, theirs = (next(one for one in story.phases if one.name == name) for story in (first, second))
    yield tag("h2", f"{name}: {progress(ours)}, and {progress(theirs)}", style="margin:36px 0 0;font-size:20px")
    shown = [_card(title, svg(title, *pair)) for _, title, *pair in overlays(ours, theirs)]
    found = differences({first.run: ours.config, second.run: theirs.config})
    rows = [(one["name"], *(_said(one["values"][run]) for run in (first.run, second.run))) for one in found]
    same = tag("p", "The recipes of this phase are equal.", class_="soft")
    recipes = _table(("setting", first.run, second.run), rows) if rows else same
    told = list(_last(ours, theirs))
    silent = [story.run for story, phase in ((first, ours), (second, theirs)) if not any(charts(phase))]
    last = tag("p", f"No comparison: figures of {' and '.join(silent)} are missing on this machine.", class_="soft")
    if told:
        last = _table(("figure", first.run, second.run, "difference"), told)
    cards = [_card("Differences between the recipes", recipes), _card("At the last steps", last)]
    yield tag("div", *cards, *shown, class_="cards")


def _last(first: PhaseStory, second: PhaseStory) -> Iterator[tuple[str, str, str, str]]:
    for _, title, ours, theirs in overlays(first, second):
        a, b = (_line(one)[-1][1] for one in (ours, theirs))
        unit = ours.unit
        yield title, f"{number(a)}{unit}", f"{number(b)}{unit}", f"{'+' if b >= a else '-'}{number(abs(b - a))}{unit}"


def _said(value: object) -> str:
    return "–" if value is None else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    body = (tag("tr", tag("th", row[0]), *(tag("td", one) for one in row[1:])) for row in rows)
    return tag("table", tag("tr", *(tag("th", one) for one in head)), *body)


def _card(title: str, *inner: Html) -> Html:
    return tag("div", tag("h2", title), *inner, class_="card")
