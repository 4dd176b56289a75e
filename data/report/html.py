"""Self-contained HTML pages: no script, no network, one style.

All text passes through `tag`, which escapes everything but `Html`. As a second defense, the page's content security
policy forbids scripts.
"""

from html import escape
from typing import Any

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
    """Markup that is not escaped again."""


def tag(name: str, *inner: Any, **attributes: Any) -> Html:
    """Return `<name ...>inner</name>`, with inner text escaped unless it is Html.

    In attribute names, a trailing _ is dropped, and every other _ becomes -.
    """
    words = (f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"' for key, value in attributes.items())
    text = "".join(one if isinstance(one, Html) else escape(str(one)) for one in inner)
    return Html(f"<{name}{''.join(words)}>{text}</{name}>")


def document(title: str, *body: Html) -> str:
    """Return the HTML page."""
    head = (
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width">'),
        Html("<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; style-src 'unsafe-inline'\">"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    main = tag("main", *body)
    return f"<!doctype html>\n<html lang=en><head>{''.join(head)}</head><body>{main}</body></html>\n"
