"""A `Quality` as one HTML page that needs nothing but itself: no script, no network, plots as SVG.

All text passes `tag`, which escapes what is not markup of ours; and the page forbids scripts, should that ever fail.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from data.manifest import TOOL
from data.quality import BINS, FINE, SCORES, Quality

MOST_ROWS = 200
WIDTH, HEIGHT, LEFT, BELOW = 640, 220, 46, 26
COARSE = 12  # fine bins of length in one bar
STYLE = """
:root { color-scheme: light dark; --ink: #1b2733; --soft: #64748b; --line: #e2e8f0;
  --card: #fff; --back: #f4f6f9; --bar: #2f6fdb; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #8fa1b3; --line: #2b3743; --card: #161d25; --back: #0d1218; --bar: #5b96f7; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 20px 60px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 16px; margin: 0 0 10px; }
p { margin: 4px 0; } .soft { color: var(--soft); font-size: 13px; }
.tiles, .cards { display: grid; gap: 16px; margin-top: 16px; align-items: start; }
.tiles { align-items: stretch; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); }
.cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 16px 18px; min-width: 0; }
.wide { grid-column: 1 / -1; }
.tiles b { display: block; font-size: 24px; font-weight: 650; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg rect { fill: var(--bar); } svg rect:hover { opacity: .7; }
svg text { fill: var(--soft); font-size: 12px; } svg line { stroke: var(--line); }
table { width: 100%; border-collapse: collapse; font-size: 13px; }
td, th { text-align: left; padding: 4px 8px 4px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; }
.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
.share { width: 90px; min-width: 60px; }
.share i { display: block; height: 8px; margin-top: 6px; border-radius: 2px; background: var(--bar); }
code, pre { font: 12.5px/1.55 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; max-height: 200px; overflow: auto; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; margin-top: 8px; }
"""


class Html(str):
    """Markup: text that is not escaped again."""


def tag(name: str, *inner: Any, **attributes: Any) -> Html:
    """`<name ...>inner</name>`; whatever is not Html is escaped. A trailing _ is dropped, others become -."""
    words = (f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    text = "".join(one if isinstance(one, Html) else escape(str(one)) for one in inner)
    return Html(f"<{name}{''.join(words)}>{text}</{name}>")


def page(found: Quality, folder: str) -> str:
    """The whole document."""
    source = next(iter(found.manifests.values())).get("source", "")
    head = (
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'),
        Html("<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"),
        tag("title", f"Shards of {source}"),
        tag("style", Html(STYLE)),
    )
    listed = sum(len(one["shards"]) for one in found.manifests.values())
    of = (
        f"{found.shards_read:,} of {listed:,} shards were read"
        if found.shards_read < listed
        else "every shard was read"
    )
    body = tag(
        "main",
        tag("h1", f"Shards of {source}"),
        tag("p", f"{folder} · {of} · {TOOL}", class_="soft"),
        _tiles(found),
        tag("div", _lengths(found), *_scores(found), *_tables(found), _samples(found), class_="cards"),
        tag("div", *(_part(name, one) for name, one in found.manifests.items()), class_="cards"),
    )
    return f"<!doctype html>\n<html lang=en><head>{''.join(head)}</head><body>{body}</body></html>\n"


def size(num_bytes: float) -> str:
    """In units of a thousand: `1.5 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.3g} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:,.3g} TB"


def bars(rows: Sequence[tuple[str, float]], ticks: Mapping[float, str]) -> Html:
    """One bar for each (what it is, how many), and below those that `ticks` names their words."""
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
        *(tag("div", tag("span", name, class_="soft"), tag("b", value), tag("span", more, class_="soft"), class_="card")
          for name, value, more in tiles),
        class_="tiles",
    )  # fmt: skip


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
        why = "These shards carry none. Shards of --format jsonl or parquet keep what the source says of a document."
        cards.append(_card("Language score", tag("p", why, class_="soft")))
    return cards


def _tables(found: Quality) -> list[Html]:
    bound = f"; counts may be up to {found.lines.lost:,} too high" if found.lines.lost else ""
    whole = found.repeated.top()
    cards = [
        _card(
            "Most frequent lines",
            _ranking(found.lines.top(), "no line is there twice"),
            tag("p", f"lines inside of documents{bound}", class_="soft"),
        ),
        _card("Most repeated documents", _ranking(whole, "no document is there twice")),
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
        tag("tr", tag("td", tag("code", words)), tag("td", f"{count:,}", class_="number"),
            tag("td", tag("i", style=f"width:{100 * count / most:.1f}%"), class_="share"))
        for words, count in rows
    )  # fmt: skip
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
        tag("tr", tag("td", one["name"]), *(tag("td", f"{one[key]:,}") for key in ("lines", "bytes", "raw_bytes")),
            tag("td", tag("code", one["sha256"])))
        for one in shards[:MOST_ROWS]
    )  # fmt: skip
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
