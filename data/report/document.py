"""Report on shards as JSON: the figures of a `Quality`, without text formatting."""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

from data.manifest import TOOL
from data.report.quality import BINS, FINE, SCORES, Quality

REPORT = "report.json"
COARSE = 12  # number of fine length bins per bar
MOST_ROWS = 200
MOST_LANGUAGES = 15
SHARES = (0.01, 0.1, 0.5, 0.9, 0.99)


def write(found: Quality, folder: Path) -> Path:
    """Write the report into the folder, as a hidden file into an artifact of a store; return the path."""
    # A visible file that the manifest does not list counts as damage.
    is_artifact = any((one / "ARTIFACT.json").is_file() for one in (folder, folder.parent))
    path = folder / (f".{REPORT}" if is_artifact else REPORT)
    path.write_text(json.dumps(document(found), indent=1), encoding="utf-8")
    return path


def document(found: Quality) -> dict[str, Any]:
    """Return the report as JSON values."""
    manifests = found.manifests.values()
    return {
        "source": next(iter(manifests)).get("source", ""),
        "tool": TOOL,
        "shards": sum(len(one["shards"]) for one in manifests),
        "shards_read": found.shards_read,
        "documents": sum(one["total_lines"] for one in manifests),
        "raw_bytes": sum(one["total_raw_bytes"] for one in manifests),
        "stored_bytes": sum(one["total_bytes"] for one in manifests),
        "read": {"documents": found.documents, "characters": found.characters, "bytes": found.num_bytes},
        "duplicates": {"share": found.repeated.share, "one_of": 1 << found.repeated.shift},
        "lengths": _lengths(found),
        "quantiles": [[share, found.length_at(share)] for share in SHARES],
        "scores": {
            name: {"most": most, "counts": [counts[at] for at in range(BINS)], "known": counts.total()}
            for name, most in SCORES.items()
            if (counts := found.scores.get(name))
        },
        "lines": found.lines.most_common(),
        "lines_lost": found.lines.lost,
        "repeated": found.repeated.most_common(),
        "languages": found.languages.most_common(MOST_LANGUAGES),
        "sites": found.sites.most_common(),
        "samples": [{"text": text, "characters": length} for _, (text, length) in sorted(found.samples.items())],
        "parts": [_part(name, one) for name, one in found.manifests.items()],
    }


def _lengths(found: Quality) -> list[list[float]]:
    """Return (shortest, longest, documents) per bar of the histogram of lengths in characters."""
    coarse: Counter[int] = Counter()
    for at, count in found.lengths.items():
        coarse[at // COARSE] += count
    edges = {at: round(math.exp(at * COARSE * FINE)) for at in range(min(coarse), max(coarse) + 2)}
    return [[edges[at], edges[at + 1], coarse[at]] for at in range(min(coarse), max(coarse) + 1)]


def _part(name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    known = ("finished", "total_lines", "total_bytes", "counts", "options")
    rows = [{key: one[key] for key in ("name", "lines", "bytes", "raw_bytes", "sha256")} for one in manifest["shards"]]
    about = {key: manifest.get(key) for key in known}
    return {"name": name, **about, "num_shards": len(rows), "shards": rows[:MOST_ROWS]}
