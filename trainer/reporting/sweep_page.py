"""HTML page of a sweep: ranked arms, overlaid curves, significant differences, cost.

`page` takes a `SweepStory` of plain words and numbers, and returns the text of the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from data.report.html import Html, document, tag
from trainer.reporting import overlay
from trainer.reporting.overlay import CurveLine


@dataclass(frozen=True, kw_only=True)
class ArmStory:
    """An arm of a sweep, as formatted text, with numbers only for charts."""

    name: str
    asked: Mapping[str, str] = field(default_factory=dict)
    score: str = ""
    seeds: str = ""
    apart: str = ""
    verdict: str = ""
    state: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    """Additional metrics by name."""
    difference: tuple[float, float] | None = None
    """Mean of the difference, and half the width of the interval."""


@dataclass(frozen=True, kw_only=True)
class SweepStory:
    """Data of the page."""

    name: str
    about: str
    figure: str
    """Metric for ranking the arms, in words."""
    against: str
    facts: Sequence[tuple[str, str]]
    arms: Sequence[ArmStory]
    """Arms in rank order, the best first."""
    curves: Sequence[tuple[str, Sequence[CurveLine]]]
    """Charts by title."""
    best: str
    """Command for repeating the best arm; "" without a result."""
    promote: str
    written: str


def page(story: SweepStory) -> str:
    """Return the whole document."""
    by_group = overlay.colours([one.name for one in story.arms])
    tiles = [
        tag("div", tag("span", name, class_="soft"), tag("b", value), class_="card") for name, value in story.facts
    ]
    cards = [_card("Arms, the best first", _table(story, by_group))]
    for title, lines in story.curves:
        picture = overlay.curves(title, lines, by_group)
        note = [tag("p", "dashed: stopped early", class_="soft")] if any(one.is_stopped for one in lines) else []
        cards.append(_card(title, picture, overlay.legend(by_group), *note))
    apart = [(one.name, *one.difference) for one in story.arms if one.difference]
    if apart:
        sure = tag(
            "p",
            f"{story.figure}, each arm minus {story.against}, seed by seed; a bar is Student's interval of 95 %. "
            "A bar that crosses the line means no significant difference.",
            class_="soft",
        )
        cards.append(_card("Differences", overlay.differences("Differences", apart, by_group), sure))
    axes = list(dict.fromkeys(key for one in story.arms for key in one.asked))
    scored = [one for one in story.arms if one.score]
    if axes and len(scored) > 1:
        rows = [(one.name, [*(one.asked.get(axis, "") for axis in axes), one.score]) for one in scored]
        picture = overlay.parallel("Parallel coordinates", [*axes, story.figure], rows, by_group)
        cards.append(_card("Parallel coordinates", picture))
    if story.best:
        said = [tag("pre", story.best), tag("p", "Keep it under a name:", class_="soft"), tag("pre", story.promote)]
        cards.append(_card("The best configuration", *said))
    return document(
        f"Sweep {story.name}",
        tag("style", Html(overlay.STYLE)),
        tag("h1", f"Sweep {story.name}"),
        tag("p", " · ".join(filter(None, (story.about, f"written {story.written}"))), class_="soft"),
        tag("div", *tiles, class_="tiles"),
        tag("div", *cards, class_="cards"),
    )


def _table(story: SweepStory, by_group: Mapping[str, str]) -> Html:
    axes = list(dict.fromkeys(key for one in story.arms for key in one.asked))
    beside = list(dict.fromkeys(key for one in story.arms for key in one.beside))
    names = ["arm", *axes, story.figure, "by seed", f"minus {story.against}", "", *beside, "runs"]
    head = tag("tr", *(tag("th", name) for name in names))
    rows = []
    for one in story.arms:
        dot = tag(
            "i",
            style=f"display:inline-block;width:10px;height:10px;margin-right:8px;border-radius:5px;"
            f"background:{by_group[one.name]}",
        )
        cells = [tag("td", dot, one.name), *(tag("td", one.asked.get(axis, "")) for axis in axes)]
        words = [one.score, one.seeds, one.apart, one.verdict, *(one.beside.get(key, "") for key in beside), one.state]
        cells += [tag("td", word) for word in words]
        rows.append(tag("tr", *cells))
    return tag("table", head, *rows)


def _card(title: str, *inner: Html) -> Html:
    return tag("div", tag("h2", title), *inner, class_="card wide")
