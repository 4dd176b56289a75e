"""Render a `Quality` as a self-contained HTML page, with plots as SVG."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from data.manifest import TOOL
from data.report.html import Html, document, tag
from data.report.quality import BINS, FINE, SCORES, Quality

MOST_ROWS = 200
WIDTH, HEIGHT, LEFT, BELOW = 640, 220, 46, 26
COARSE = 12  # number of fine length bins per bar


def page(found: Quality, folder: str) -> str:
    """Return the HTML document."""
    source = next(iter(found.manifests.values())).get("source", "")
    listed = sum(len(one["shards"]) for one in found.manifests.values())
    of = (
        f"{found.shards_read:,} of {listed:,} shards were read"
        if found.shards_read < listed
        else "every shard was read"
    )
    return document(
        f"Shards of {source}",
        tag("h1", f"Shards of {source}"),
        tag("p", f"{folder} · {of} · {TOOL}", class_="soft"),
        _tiles(found),
        tag("div", _lengths(found), *_scores(found), *_tables(found), _samples(found), class_="cards"),
        tag("div", *(_part(name, one) for name, one in found.manifests.items()), class_="cards"),
    )


def size(num_bytes: float) -> str:
    """Return a size in decimal units: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def bars(rows: Sequence[tuple[str, float]], ticks: Mapping[float, str]) -> Html:
    """Return a bar chart of (label, value) rows as SVG, with the tick labels in `ticks` at bar indices."""
    most = max(1.0, *(value for _, value in rows))
    step = (WIDTH - LEFT) / len(rows)
    high = HEIGHT - BELOW - 8
    drawn = []
    for share in (0.5, 1.0):
        y = HEIGHT - BELOW - high * share
        drawn.append(tag("line", x1=LEFT, x2=WIDTH, y1=f"{y:.1f}", y2=f"{y:.1f}"))
        drawn.append(tag("text", _short(most * share), x=LEFT - 6, y=f"{y + 4:.1f}", text_anchor="end"))
    for at, (what, value) in enumerate(rows):
        tall = high * value / most
        place = {"x": f"{LEFT + at * step:.2f}", "y": f"{HEIGHT - BELOW - tall:.2f}"}
        shape = {"width": f"{max(1.0, step - 1.5):.2f}", "height": f"{tall:.2f}", "rx": 1.5}
        drawn.append(tag("rect", tag("title", f"{what}: {value:,.0f}"), **place, **shape))
    drawn.append(tag("line", x1=LEFT, x2=WIDTH, y1=HEIGHT - BELOW, y2=HEIGHT - BELOW))
    for where, words in ticks.items():
        drawn.append(tag("text", words, x=f"{LEFT + where * step:.1f}", y=HEIGHT - 8, text_anchor="middle"))
    return tag("svg", *drawn, viewBox=f"0 0 {WIDTH + 16} {HEIGHT}", role="img")


def _tiles(found: Quality) -> Html:
    total = sum(one["total_lines"] for one in found.manifests.values())
    raw, packed = (sum(one[key] for one in found.manifests.values()) for key in ("total_raw_bytes", "total_bytes"))
    duplicates = f"{found.repeated.share:.2%}"
    of = f"exact; of one document in {1 << found.repeated.shift:,}" if found.repeated.shift else "exact, to the byte"
    tiles = [
        ("documents", f"{total:,}", "lines of all shards"),
        ("text", size(raw), f"{size(packed)} on the disk"),
        ("median length", f"{found.length_at(0.5):,}", f"characters; mean {found.characters / found.documents:,.0f}"),
        ("duplicates", duplicates, of),
        ("bytes per character", f"{found.num_bytes / max(1, found.characters):.3f}", "1 is plain ASCII"),
    ]
    if "val" in found.manifests:
        held_out = found.manifests["val"]["total_lines"]
        tiles.append(("held out", f"{held_out / total:.2%}", f"{held_out:,} documents"))
    return tag(
        "div",
        *(
            tag(
                "div",
                tag("span", name, class_="soft"),
                tag("b", value),
                tag("span", more, class_="soft"),
                class_="card",
            )
            for name, value, more in tiles
        ),
        class_="tiles",
    )


def _lengths(found: Quality) -> Html:
    coarse: Counter[int] = Counter()
    for at, count in found.lengths.items():
        coarse[at // COARSE] += count
    first, last = min(coarse), max(coarse)

    def edge(at: int) -> float:
        return math.exp(at * COARSE * FINE)

    rows = [(f"{edge(at):,.0f} to {edge(at + 1):,.0f} characters", coarse[at]) for at in range(first, last + 1)]
    round_ones = ((math.log(one * 10**n) / FINE / COARSE - first, one * 10**n) for n in range(10) for one in (1, 3))
    ticks = {at: f"{value:,}" for at, value in round_ones if 0 <= at <= len(rows)}
    spread = ", ".join(f"{share:.0%} {found.length_at(share):,}" for share in (0.01, 0.1, 0.5, 0.9, 0.99))
    return _card("Length in characters", bars(rows, ticks), tag("p", f"shorter than: {spread}", class_="soft"))


def _scores(found: Quality) -> list[Html]:
    cards = []
    for name, most in SCORES.items():
        if counts := found.scores.get(name):
            rows = [(f"{at / BINS * most:.2f} to {(at + 1) / BINS * most:.2f}", counts[at]) for at in range(BINS)]
            ticks = {share * BINS: f"{share * most:g}" for share in (0, 0.2, 0.4, 0.6, 0.8, 1)}
            known = f"{counts.total():,} of {found.documents:,} documents have one"
            cards.append(_card(_words(name), bars(rows, ticks), tag("p", known, class_="soft")))
    if not cards:
        why = "These shards hold no such values. Shards of --format jsonl or parquet keep the values of the source."
        cards.append(_card("Language score", tag("p", why, class_="soft")))
    return cards


def _tables(found: Quality) -> list[Html]:
    bound = f"; counts may be up to {found.lines.lost:,} too high" if found.lines.lost else ""
    whole = found.repeated.top()
    cards = [
        _card(
            "Most frequent lines",
            _ranking(found.lines.top(), "no line is repeated"),
            tag("p", f"lines inside of documents{bound}", class_="soft"),
        ),
        _card("Most repeated documents", _ranking(whole, "no document is repeated")),
    ]
    if found.languages:
        cards.append(_card("Languages", _ranking(found.languages.most_common(15), "")))
    if sites := found.sites.top():
        cards.append(_card("Most frequent sites", _ranking(sites, "")))
    return cards


def _ranking(rows: list[tuple[str, int]], otherwise: str) -> Html:
    if not rows:
        return tag("p", otherwise, class_="soft")
    most = max(count for _, count in rows)
    lines = (
        tag(
            "tr",
            tag("td", tag("code", words)),
            tag("td", f"{count:,}", class_="number"),
            tag("td", tag("i", style=f"width:{100 * count / most:.1f}%"), class_="share"),
        )
        for words, count in rows
    )
    return tag("table", *lines)


def _samples(found: Quality) -> Html:
    cards = [
        tag("div", tag("p", f"{length:,} characters", class_="soft"), tag("pre", text), class_="card")
        for _, (text, length) in sorted(found.samples.items())
    ]
    note = tag("p", "chosen by hash: the same ones each time; cut after 2,000 characters", class_="soft")
    return tag("div", tag("h2", "Samples"), note, tag("div", *cards, class_="cards"), class_="card wide")


def _part(name: str, manifest: dict[str, Any]) -> Html:
    state = "finished" if manifest["finished"] else "not finished"
    title = f"{name or 'shards'}: {manifest['total_lines']:,} documents, {size(manifest['total_bytes'])}, {state}"
    facts = {
        **{_words(key): value for key, value in (manifest.get("counts") or {}).items()},
        **{key: value for key, value in (manifest.get("options") or {}).items() if value not in (None, "", [], ())},
    }
    rows = (tag("tr", tag("th", key), tag("td", _plain(value))) for key, value in facts.items())
    shards = manifest["shards"]
    heads = tag("tr", *(tag("th", one) for one in ("shard", "lines", "bytes", "text", "sha256")))
    lines = (
        tag(
            "tr",
            tag("td", one["name"]),
            *(tag("td", f"{one[key]:,}") for key in ("lines", "bytes", "raw_bytes")),
            tag("td", tag("code", one["sha256"])),
        )
        for one in shards[:MOST_ROWS]
    )
    more = [tag("p", f"and {len(shards) - MOST_ROWS:,} more in manifest.json")] if len(shards) > MOST_ROWS else []
    listing = tag("details", tag("summary", f"{len(shards):,} shards"), tag("table", heads, *lines), *more)
    return tag("div", tag("h2", title), tag("table", *rows), listing, class_="card wide")


def _card(title: str, *inner: Html) -> Html:
    return tag("div", tag("h2", title), *inner, class_="card")


def _words(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value[:20])) + (", ..." if len(value) > 20 else "")
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _short(count: float) -> str:
    for unit, much in (("M", 1e6), ("k", 1e3)):
        if count >= much:
            return f"{count / much:.3g}{unit}"
    return f"{count:.3g}"
