"""Renderers for the steps of a job: a live table, plain timestamped lines, and JSON."""

import shutil
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from infra.units import count, duration
from scripts.cli.render import clean, iso

if TYPE_CHECKING:
    from rich.console import RenderableType


MARKS = {"waiting": "·", "running": "▸", "done": "✓", "reused": "=", "failed": "✗"}


def steps_table(progress: Mapping[str, Any], now: float, scale: float = 1.0) -> "RenderableType":
    """Return a table with a row per step: mark, name, duration, progress bar, and last report.

    `scale`: speed of the clock that counts the run's cost, relative to real time; 1 except in a rehearsal.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("mark")
    table.add_column("step", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("words")
    columns = shutil.get_terminal_size().columns
    styles = {"running": "bold", "done": "green", "reused": "green", "failed": "red"}
    for step in progress.get("steps", ()):
        style = styles.get(step["state"], "dim")
        record = step.get("record") or {}
        running = step["state"] == "running"
        bar: Any = ""
        share = record["done"] / record["total"] if record.get("total") and "done" in record else record.get("share")
        if running and share and columns >= 80:  # else the bar leaves no room for the report
            bar = ProgressBar(total=1.0, completed=share, width=24 if columns >= 100 else 12)
        table.add_row(
            f"[{style}]{MARKS.get(step['state'], '?')}[/]",
            f"[{style}]{step['name']}[/]",
            duration(elapsed(step, now) * scale) if step.get("started_at") else "",
            bar,
            Text(record_words(step, scale=scale)),
        )
    return table


def elapsed(step: Mapping[str, Any], now: float) -> float:
    if not step.get("started_at"):  # reused from an earlier agent
        return 0.0
    if step.get("ended_at"):
        return step["ended_at"] - step["started_at"]
    return max(0.0, now - step["started_at"])


def record_words(step: Mapping[str, Any], brief: bool = False, scale: float = 1.0) -> str:
    """Return the report of a step: the result after the end, else the last progress record."""
    ended = step["state"] in ("done", "reused", "failed")
    record = (step.get("result") if ended else None) or step.get("record") or {}
    if record.get("text"):
        return clean(str(record["text"]))
    words = []
    if record.get("total") and not ended:
        total = "" if brief else f" of {record['total']:,} {record.get('unit', '')}"
        words.append(f"{100 * record.get('done', 0) / record['total']:.0f} %{total}")
    elif record.get("share") and not ended:  # input of known length, but unknown result size
        words.append(f"about {100 * record['share']:.0f} %")
    if record.get("shards") is not None and not brief and (ended or "done" in record):
        words.extend(_shard_words(record, ended))
    if record.get("reward") is not None:  # the loss of a reinforcement-learning step is not informative
        words.append(f"reward {record['reward']:.3f}")
        if record.get("mismatch") is not None and not brief:
            words.append(f"mismatch {record['mismatch']:.1e}")
    elif record.get("loss") is not None:
        words.append(f"loss {record['loss']:.3f}")
    if record.get("margin") is not None and record.get("accuracy") is not None:
        words.append(f"margin {record['margin']:.3f}, accuracy {record['accuracy']:.2f}")
    if record.get("greedy") is not None and ended:
        words.append(f"{100 * record['greedy']:.1f} % of {record.get('problems', 0):,} problems solved")
    if record.get("bits_per_byte") is not None:
        words.append(f"{record['bits_per_byte']:.2f} bits per byte")
        words.extend(f"{name} {record[name]:.2f}" for name in ("gzip", "xz") if record.get(name))
    if record.get("tokens_per_s"):
        words.append(f"{record['tokens_per_s']:,.0f} tok/s")
    if record.get("eta_s") is not None and not ended:
        words.append(f"{duration(record['eta_s'] * scale)} left")
    if ended:
        counts = ("documents", "conversations", "tokens") if record.get("shards") is None else ("tokens",)
        words.extend(count(record[name], name[:-1]) for name in counts if record.get(name))
    return ", ".join(words)


LEFT_OUT = {
    "invalid": "invalid lines left out (listed as skipped in manifest.json)",
    "empty": "empty documents left out",
    "null": "of these are null (NA and null in a CSV file are null)",
    "filtered": "documents filtered out",
    "duplicate": "duplicates left out",
    "carriage_returns": "documents with a CR inside, where `datasets` would begin a new line",
    "invalid_utf8": "documents with bytes that are not UTF-8, replaced",
}


def _shard_words(record: Mapping[str, Any], ended: bool) -> list[str]:
    """Return the words for a step that makes text shards."""
    shards = count(record["shards"], "shard" if ended else "whole shard")
    if ended:
        made, available = record.get("documents", 0), record.get("available", 0)
        words = [f"{f'{made:,} of ' if available > made else ''}{count(max(made, available), 'document')} in {shards}"]
        words += [f"{record['held_out']:,} held out"] if record.get("held_out") else []
        counts = record.get("counts") or {}
        return words + [f"{counts[name]:,} {told}" for name, told in LEFT_OUT.items() if counts.get(name)]
    words = [shards] if record.get("total") else [count(record.get("done", 0), "document"), shards]
    if record.get("documents_per_s"):
        words += [f"{record['documents_per_s']:,} documents/s, {record.get('mb_per_s', 0):,.1f} MB/s"]
    return words


def step_line(step: Mapping[str, Any], now: float, scale: float = 1.0) -> str:
    """Return a plain line for a step, with a timestamp and the data of `steps_table`."""
    clock = datetime.fromtimestamp(now).strftime("%H:%M:%S")
    line = f"{clock} {MARKS.get(step['state'], '?')} {step['name']} {duration(elapsed(step, now) * scale)}"
    words = record_words(step, scale=scale)
    return f"{line}: {words}" if words else line


def steps_json(progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of a progress document with times in ISO form."""

    def step_json(step: Mapping[str, Any]) -> dict[str, Any]:
        times = {key: iso(step.get(key)) for key in ("started_at", "ended_at")}
        said = {key: {**one, "at": iso(one.get("at"))} for key in ("record", "result") if (one := step.get(key))}
        return {**step, **times, **said}

    return [step_json(step) for step in progress.get("steps", ())]
