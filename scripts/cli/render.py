"""Records into text: tables and bars on a terminal, plain timed lines elsewhere, JSON documents when asked.

In: the records of the street. Out: text on stdout (data) or stderr (talk). Nothing here decides anything.
"""

import math
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from infra.money import cents
from infra.money import dollars as usd
from infra.records import Plan, PodView
from infra.transport.shipment import SyncPlan
from infra.units import count, duration, size
from scripts.cli import command_hints

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

RIGHT = set("time about cost age at loss tok/s MFU left GPU memory".split()) | {"disk free", "A", "B", "B - A"}
BLOCKS = "▁▂▃▄▅▆▇█"
MARKS = {"waiting": "·", "running": "▸", "done": "✓", "reused": "=", "failed": "✗"}


def say(words: str) -> None:
    """Talk: to stderr, at once."""
    print(command_hints.as_typed(words), file=sys.stderr, flush=True)


def clean(text: str) -> str:
    """Without control sequences: what a pod says must not steer a terminal."""
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable())


def tell(words: str) -> None:
    """Talk that may hold what a vendor, a pod or another program has said."""
    say(clean(words))


def iso(at: float | None) -> str | None:
    """UTC, to the second."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ") if at else None


def console(stderr: bool = True) -> "Console":
    from rich.console import Console

    class Frank(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich itself would leave with code 1

    return Frank(stderr=stderr, highlight=False)


def _table(*headings: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        right = heading in RIGHT
        wraps = heading in ("why", "beside", "measure")
        table.add_column(heading, justify="right" if right else "left", no_wrap=not wraps)
    return table


def plan_json(plan: Plan) -> dict[str, Any]:
    estimate = sum(one.estimate_s or 0 for one in plan.artifacts)
    return {
        "target": plan.target,
        "provider": plan.request.provider,
        "artifacts": [asdict(one) for one in plan.artifacts],
        "steps": [step.name for step in plan.job.steps] if plan.job else [],
        "estimate_s": round(estimate, 1),
        "estimate_usd": usd(0) if plan.request.provider == "local" else None,
        "notes": list(plan.notes),
        "doubtful": [one.name for one in plan.doubtful],
    }


def show_plan(plan: Plan, stderr: bool = True) -> None:
    """Every artifact with its state, every step that is due with an estimate, and the sum."""
    from rich.text import Text

    styles = {"here": "green", "missing": "yellow", "stale": "yellow", "damaged": "red"}
    table = _table("artifact", "state", "step", "about", "why")
    for one in plan.artifacts:
        about = duration(one.estimate_s) if one.step else ""
        table.add_row(one.name, f"[{styles[one.state]}]{one.state}[/]", one.step, about, Text(clean(one.reason)))
    out = console(stderr)
    out.print(table)
    total = sum(one.estimate_s or 0 for one in plan.artifacts)
    steps = sum(1 for one in plan.artifacts if one.step)
    for note in plan.notes:
        out.print(clean(note), markup=False)
    for one in plan.doubtful:
        said = f"{one.name} was made by other code than today's: {', '.join(one.differs)} (--keep-made or --remake)"
        out.print(said, markup=False)
    if steps:
        where = "on this machine, 0.00 USD (estimates)" if plan.request.provider == "local" else "of work (an estimate)"
        out.print(f"{count(steps, 'step')}, about {duration(total)} {where}")


def steps_table(progress: Mapping[str, Any], now: float) -> "RenderableType":
    """One line per step: a mark, a name, its time, and what it last said."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("mark")
    table.add_column("step", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("bar", no_wrap=True)
    table.add_column("words")
    styles = {"running": "bold", "done": "green", "reused": "green", "failed": "red"}
    for step in progress.get("steps", ()):
        style = styles.get(step["state"], "dim")
        record = step.get("record") or {}
        running = step["state"] == "running"
        bar: Any = ""
        share = record["done"] / record["total"] if record.get("total") and "done" in record else record.get("share")
        if running and share:
            bar = ProgressBar(total=1.0, completed=share, width=24)
        table.add_row(
            f"[{style}]{MARKS.get(step['state'], '?')}[/]",
            f"[{style}]{step['name']}[/]",
            duration(elapsed(step, now)) if step.get("started_at") else "",
            bar,
            Text(record_words(step)),
        )
    return table


def elapsed(step: Mapping[str, Any], now: float) -> float:
    if not step.get("started_at"):  # reused: an earlier agent's work
        return 0.0
    if step.get("ended_at"):
        return step["ended_at"] - step["started_at"]
    return max(0.0, now - step["started_at"])


def record_words(step: Mapping[str, Any], brief: bool = False) -> str:
    """What a step says of itself: its result when it has ended, its last record while it runs."""
    ended = step["state"] in ("done", "reused", "failed")
    record = (step.get("result") if ended else None) or step.get("record") or {}
    if record.get("text"):
        return clean(str(record["text"]))
    words = []
    if record.get("total") and not ended:
        total = "" if brief else f" of {record['total']:,} {record.get('unit', '')}"
        words.append(f"{100 * record.get('done', 0) / record['total']:.0f} %{total}")
    elif record.get("share") and not ended:  # of an input whose end is known, but not what will come of it
        words.append(f"about {100 * record['share']:.0f} %")
    if record.get("shards") is not None and not brief and (ended or "done" in record):
        words.extend(_shard_words(record, ended))
    if record.get("loss") is not None:
        words.append(f"loss {record['loss']:.3f}")
    if record.get("bits_per_byte") is not None:
        words.append(f"{record['bits_per_byte']:.2f} bits per byte")
        words.extend(f"{name} {record[name]:.2f}" for name in ("gzip", "xz") if record.get(name))
    if record.get("tokens_per_s"):
        words.append(f"{record['tokens_per_s']:,.0f} tok/s")
    if record.get("eta_s") is not None and not ended:
        words.append(f"{duration(record['eta_s'])} left")
    if ended:
        counts = ("documents", "conversations", "tokens") if record.get("shards") is None else ("tokens",)
        words.extend(count(record[name], name[:-1]) for name in counts if record.get(name))
    return ", ".join(words)


LEFT_OUT = {
    "empty": "empty ones left out",
    "filtered": "filtered out",
    "duplicate": "duplicates left out",
    "invalid_utf8": "with bytes that are not UTF-8, replaced",
}


def _shard_words(record: Mapping[str, Any], ended: bool) -> list[str]:
    """Of a step that makes text shards."""
    shards = count(record["shards"], "shard" if ended else "whole shard")
    if ended:
        words = [f"{count(record.get('documents', 0), 'document')} in {shards}"]
        words += [f"{record['held_out']:,} held out"] if record.get("held_out") else []
        counts = record.get("counts") or {}
        return words + [f"{counts[name]:,} {told}" for name, told in LEFT_OUT.items() if counts.get(name)]
    words = [shards] if record.get("total") else [count(record.get("done", 0), "document"), shards]
    if record.get("documents_per_s"):
        words += [f"{record['documents_per_s']:,} documents/s, {record.get('mb_per_s', 0):,.1f} MB/s"]
    return words


def step_line(step: Mapping[str, Any], now: float) -> str:
    """The plain form of one line of `steps_table`."""
    clock = datetime.fromtimestamp(now).strftime("%H:%M:%S")
    line = f"{clock} {MARKS.get(step['state'], '?')} {step['name']} {duration(elapsed(step, now))}"
    words = record_words(step)
    return f"{line}: {words}" if words else line


def steps_json(progress: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The steps of a progress, their times in ISO form."""

    def step_json(step: Mapping[str, Any]) -> dict[str, Any]:
        times = {key: iso(step.get(key)) for key in ("started_at", "ended_at")}
        said = {key: {**one, "at": iso(one.get("at"))} for key in ("record", "result") if (one := step.get(key))}
        return {**step, **times, **said}

    return [step_json(step) for step in progress.get("steps", ())]


def view_json(view: PodView) -> dict[str, Any]:
    seen = figures(view, time.time())
    return {
        "run": view.run,
        "provider": view.provider,
        "state": view.state,
        "step": view.step or None,
        "steps": steps_json(view.progress),
        **{
            key: round(value, 1) if key.endswith("_age_s") and value is not None else value
            for key, value in seen.items()
        },
        "age_s": None if view.age_s is None else round(view.age_s, 1),
        "usd_per_hour": usd(view.micro_usd_per_hour),
        "spent_usd": usd(view.spent_micro_usd),
        "limit_usd": None if view.limit_micro_usd is None else usd(view.limit_micro_usd),
        "limit_in_s": None if view.limit_in_s is None else round(view.limit_in_s, 1),
        "ssh": view.ssh or None,
        "ends": list(view.ends),
        "started_at": iso(view.started_at),
        "note": view.note or None,
        "tracking": seen["tracking"] or "offline",
        "in_store": {name: iso(at) for name, at in view.in_store.items()},
        "recoveries": view.recoveries,
    }


def figures(view: PodView, now: float) -> dict[str, Any]:
    """What a run and its machine are doing, each group with the age of its figures; None = not known."""
    record, machine = current_record(view.progress), view.progress.get("machine") or {}
    is_training = record.get("kind") == "progress"

    def age_s(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    return {
        "train_step": record.get("step") if is_training else None,
        "loss": record.get("loss"),
        "tokens_per_s": record.get("tokens_per_s"),
        "mfu": record.get("mfu"),
        "curve": record.get("curve") or [],
        "tracking": record.get("tracking"),
        "eta_s": record.get("eta_s") if is_training else None,
        "train_age_s": age_s(record.get("at")),
        "gpus": machine.get("gpus") or [],
        "gpus_age_s": age_s(machine.get("gpus_at")),
        "disk_free_bytes": machine.get("disk_free_bytes"),
        "disk_age_s": age_s(machine.get("disk_at")),
    }


def current_record(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """The last record of the step that runs, or of the last one that did."""
    for step in reversed(progress.get("steps", ())):
        if step.get("record") and step["state"] != "waiting":
            return step["record"]
    return {}


def status_table(views: Iterable[PodView], now: float | None = None) -> "RenderableType":
    """One row per run, newest first; the figures of those at work; what each says, and which ends are armed."""
    from rich.console import Group
    from rich.text import Text

    now = time.time() if now is None else now
    views = list(views)
    styles = {"running": "bold green", "succeeded": "green", "failed": "red", "lost": "red", "limit": "yellow"}
    table = _table("run", "provider", "state", "step", "cost", "time", "age")
    lines: list[Text] = []  # what is said: a column would be too narrow for it
    for view in views:
        step = next((one for one in view.progress.get("steps", ()) if one["name"] == view.step), None)
        is_running = view.state == "running"
        style = styles.get(view.state, "")
        table.add_row(
            view.run,
            view.provider,
            f"[{style}]{view.state}[/]" if style else view.state,
            view.step,
            cents(view.spent_micro_usd),
            duration(now - view.started_at) if is_running and view.started_at else "",
            duration(view.age_s) if is_running else "",
        )
        said = record_words(step, brief=True) if step and is_running and figures(view, now)["loss"] is None else ""
        if said:
            lines.append(Text(f"{view.run}: {said}"))
        back = f"brought back {count(view.recoveries, 'time')}" if view.recoveries else ""
        more_recent = "" if is_running else " or a newer one"  # what is known here may be older than what is there
        safe = (
            f"checkpoint {clean(one)}{more_recent} is in the store, {duration(now - at)} ago"
            for one, at in sorted(view.in_store.items(), key=lambda item: item[1])[-1:]
            if view.state != "succeeded"
        )
        tracked = figures(view, now)["tracking"] if is_running else None
        linked = f"W&B: {clean(str(tracked))}" if tracked else ""
        words = (curve(view), clean(view.note), *safe, back, money(view), more(view), linked, *view.ends, view.ssh)
        lines.extend(Text(command_hints.as_typed(f"{view.run}: {one}"), style="dim") for one in words if one)
    at_work = [view for view in views if view.state in ("running", "lost") and view.progress]
    return Group(table, *([figures_tables(at_work, now)] if at_work else []), *lines)


def sparkline(values: Sequence[float]) -> str:
    """One block for each value, from the lowest to the highest; what is no number leaves a gap."""
    numbers = [one for one in values if math.isfinite(one)]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((one - low) * scale)] if math.isfinite(one) else " " for one in values)


def curve(view: PodView) -> str:
    """The loss of the phase that runs: where it began, how it went, where it is."""
    seen = figures(view, 0.0)
    points = [float(one) for one in seen["curve"]]
    if view.state not in ("running", "lost") or len(points) < 2:
        return ""
    return f"loss of {view.step} {points[0]:.2f} {sparkline(points)} {points[-1]:.2f}"


def money(view: PodView) -> str:
    """What is spent of what may be; "" where nothing is paid."""
    if not view.micro_usd_per_hour or view.limit_in_s is None:
        return ""
    limit = "" if view.limit_micro_usd is None else f" of {usd(view.limit_micro_usd)}"
    rate = f"{usd(view.micro_usd_per_hour)} USD/h"
    return f"{cents(view.spent_micro_usd)}{limit} USD spent at {rate}; the limit is {duration(view.limit_in_s)} away"


def more(view: PodView) -> str:
    """What to type when the money was not enough: twice as much, from the beginning of the run; else ""."""
    if view.state != "limit" or not view.limit_micro_usd:
        return ""
    return f"to go on from its newest checkpoint: inv resume {view.run} --spend-limit {usd(2 * view.limit_micro_usd)}"


def figures_tables(views: Sequence[PodView], now: float) -> "RenderableType":
    """Training, then GPUs and disk of the runs at work, each followed by how old it is: two tables, for 80 columns."""
    from rich.console import Group

    seen = {view.run: figures(view, now) for view in views}
    has_gpus = any(one["gpus"] for one in seen.values())
    has_mfu = any(one["mfu"] is not None for one in seen.values())
    training = _table("at work", "at", "loss", "tok/s", *(("MFU",) if has_mfu else ()), "left", "age")
    machines = _table("machine", *(("GPU", "memory", "age") if has_gpus else ()), "disk free", "age")
    for run, one in seen.items():
        training.add_row(
            run,
            "" if one["train_step"] is None else f"{one['train_step']:,}",
            "" if one["loss"] is None else f"{one['loss']:.3f}",
            "" if one["tokens_per_s"] is None else f"{one['tokens_per_s']:,.0f}",
            *(("" if one["mfu"] is None else f"{100 * one['mfu']:.1f} %",) if has_mfu else ()),
            "" if one["eta_s"] is None else duration(one["eta_s"]),
            "" if one["train_age_s"] is None else duration(one["train_age_s"]),
        )
        gpus = (*gpu_words(one["gpus"]), duration(one["gpus_age_s"]) if one["gpus"] else "") if has_gpus else ()
        free = one["disk_free_bytes"]
        machines.add_row(run, *gpus, *(("", "") if free is None else (size(free), duration(one["disk_age_s"]))))
    return Group(training, machines)


def gpu_words(gpus: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """`8 x 93 %` (their mean), and the memory of the fullest: `31.2 GB of 80.0 GB`; ? = it does not say."""
    if not gpus:
        return "", ""
    percents = [gpu["percent"] for gpu in gpus if gpu["percent"] is not None]
    many = f"{len(gpus)} x " if len(gpus) > 1 else ""
    full = max(gpus, key=lambda gpu: gpu["used_bytes"] or 0)
    used, whole = (size(full[key]) if full[key] is not None else "?" for key in ("used_bytes", "memory_bytes"))
    return f"{many}{sum(percents) / len(percents):.0f} %" if percents else f"{many}?", f"{used} of {whole}"


def watch_screen(views: list[PodView], every_s: float) -> "RenderableType":
    """The steps of the newest run that is at work, and under them the table, which a small screen may cut."""
    from rich.console import Group

    clock = datetime.now().strftime("%H:%M:%S")
    parts: list[Any] = [f"{clock}, every {duration(every_s)}; Ctrl-C ends the watching, not the runs", ""]
    running = next((view for view in views if view.state == "running"), None)
    if running:
        parts.extend([running.run, steps_table(running.progress, time.time()), ""])
    return Group(*parts, status_table(views))


MEASURES = {  # what each measures, in words, and what it should be
    "text": ("held-out text", ""),
    "identity": ("says its name when asked who it is", "wanted: at least 80 %"),
    "leaks": ("says its name when asked anything else", "wanted: at most 5 %"),
    "pydocs": ("right about a function, or says it does not know", "wanted: at least 50 %"),
}


def show_scores(name: str, found: Mapping[str, Any]) -> None:
    """The numbers of `inv eval`, each with its interval and what it is held against, and some answers that missed."""
    table = _table("measure", "value", "95 %", "beside")
    by_turn = {key: one for key, one in found["measures"].items() if " turn " in key}
    for key, one in found["measures"].items():
        if key in by_turn:
            continue
        what, beside = MEASURES.get(key, (key, ""))
        if key == "text":
            beside = ", ".join(f"{word} {found[kind]:.2f}" for kind, word in (("gzip", "gzip -9"), ("xz", "xz -9"))
                               if kind in found)  # fmt: skip
        elif "chance" in one:
            beside = f"by chance: {100 * one['chance']:.1f} %"
        of = f" of {one['of']:,}" if one.get("of") else ""
        unit = "" if one["unit"] == "share" else f" {one['unit']}"
        table.add_row(what, f"{of_unit(one, one['value'])}{of}{unit}", between(one, one), beside)
    out = console(stderr=False)
    out.print(f"{name}", markup=False)
    out.print(table)
    if by_turn:
        out.print(turns_table(by_turn))
    methods = dict.fromkeys(one["method"] for one in found["measures"].values())
    say(f"95 % intervals by: {'; '.join(methods)}")
    for key in MEASURES:
        for odd in found.get(f"{key}_odd", ()):
            out.print(f"{key}: {odd['question']!r} -> {odd['answer']!r}", markup=False)


def turns_table(measures: Mapping[str, Mapping[str, Any]]) -> Any:
    """How a conversation goes: a row for each turn, the same questions at each."""
    right, leaks = (
        {int(key.rsplit(" ", 1)[1]): one for key, one in measures.items() if key.startswith(f"{what} turn ")}
        for what in ("right", "leaks")
    )
    table = _table("turn", "right", "95 %", "leaks", "95 %")
    for turn, one in right.items():
        cells = [cell for each in (one, leaks[turn]) for cell in (of_unit(each, each["value"]), between(each, each))]
        table.add_row(str(turn), *cells)
    table.caption = f"the same {one['of']} questions at every turn; wanted: at most 5 % leaks"
    return table


def of_unit(measure: Mapping[str, Any], value: float) -> str:
    return f"{100 * value:.1f} %" if measure["unit"] == "share" else f"{value:.4f}"


def between(measure: Mapping[str, Any], interval: Mapping[str, Any]) -> str:
    """`[71.2 %, 80.1 %]`, `?` where there is no interval."""
    if interval["low"] is None:
        return "?"
    return f"[{of_unit(measure, interval['low'])}, {of_unit(measure, interval['high'])}]"


def show_comparison(names: Sequence[str], rows: Mapping[str, Mapping[str, Any]]) -> None:
    """Two models side by side: B less A, and whether that may be chance."""
    out = console(stderr=False)
    for letter, name in zip("AB", names, strict=True):
        out.print(f"{letter}: {name}", markup=False)
    table = _table("measure", "A", "B", "B - A", "95 %", "beside")
    for key, row in rows.items():
        first, second = (of_unit(row, one["value"]) for one in row["values"])
        found = row["difference"]
        is_sure = found["low"] is not None and (found["low"] > 0 or found["high"] < 0)
        said = [] if is_sure else ["may be chance"]
        said += [f"p {row['p']:.3f}"] if "p" in row else []
        said += [] if row["is_same_material"] else ["not the same questions"]
        sign = "+" if found["value"] > 0 else ""
        what = key if row["unit"] == "share" else f"{key}, {row['unit']}"
        table.add_row(
            what, first, second, f"{sign}{of_unit(row, found['value'])}", between(row, found), "; ".join(said)
        )
    out.print(table)
    for method in dict.fromkeys(row["method"] for row in rows.values()):
        say(f"95 % by {method}: {', '.join(key for key, row in rows.items() if row['method'] == method)}")


def show_compression(found: Mapping[str, Any]) -> None:
    """The figures of `inv tokenizer.eval`: a row for each kind of text, ours first, then the others."""
    names = {"ours": "ours", "gpt-2": "GPT-2", "gpt-4": "GPT-4", "bytes": "bytes"}
    there = list(found["vocabularies"])
    table = _table("text", "size", "words", "tokens/word", "ids used", *(names[name] for name in there))
    for kind, row in found["kinds"].items():
        ours, rates = row["by"]["ours"], [row["by"][name]["bytes_per_token"] for name in there]
        beside = [f"{rate:.2f} ({rates[0] / rate:.2f} x)" if rate else "?" for rate in rates[1:]]
        used = f"{100 * ours['vocabulary_used']:.1f} %"
        table.add_row(kind, size(row["bytes"]), f"{row['words']:,}", f"{ours['tokens_per_word']:.2f}", used,
                      f"{rates[0]:.2f}", *beside)  # fmt: skip
    console(stderr=False).print(table)
    sizes = ", ".join(f"{names[name]} {number:,}" for name, number in found["vocabularies"].items())
    say(f"the last columns: bytes per token, and how many times as many ours packs; ids: {sizes}")
    for name, why in found["absent"].items():
        say(f"{names[name]}: {why}; --peers DIR names another folder, --download fetches the file")


def show_sync(plan: SyncPlan, run: str) -> None:
    """What a push would do: totals, the largest files, what is new, what stays here and why."""
    out = console(stderr=False)
    since = f" since the last push to {run}" if run else ""
    out.print(f"{plan.files:,} files, {size(plan.bytes)}; {len(plan.new):,} new{since}, {len(plan.gone):,} to remove")
    table = _table("largest", "size")
    for path, num_bytes in plan.largest:
        table.add_row(clean(path), size(num_bytes))
    out.print(table, markup=False)
    for refusal in plan.refused:
        out.print(f"refused, stays here: {clean(str(refusal))}", markup=False)
    out.print(f"ignored by git: {plan.ignored_files:,} files, {size(plan.ignored_bytes)}")


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows as aligned text."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)
