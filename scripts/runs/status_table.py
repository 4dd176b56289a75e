"""Renderers for the state of runs: tables for people, and JSON."""

import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from flows.reading.status import current_record
from infra.ledger.spend import LimitOverrun
from infra.records import PodView
from infra.units import about, between, cents, count, duration, in_usd, moment, per_hour, size
from infra.units import dollars as usd
from scripts.cli import command_hints
from scripts.cli.render import FittedTable, clean, iso
from scripts.cli.steps_text import record_words, steps_json, steps_table
from store import terminal

if TYPE_CHECKING:
    from rich.console import RenderableType


SHOWN = 4  # listed names of pending uploads
BLOCKS = "▁▂▃▄▅▆▇█"


def view_json(view: PodView) -> dict[str, Any]:
    """Return a run as JSON: ISO times, money as decimal strings in US dollars, null for unknown values."""
    seen = figures(view, time.time())
    return {
        "run": view.run,
        "provider": view.provider,
        "group": view.group or None,
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
        "over_limit_usd": usd(view.over_limit_micro_usd) if view.over_limit_micro_usd else None,
        "over_limit_s": round(view.over_limit_s, 1) or None,
        "heard_age_s": None if view.heard_s is None else round(view.heard_s, 1),
        "ssh": view.ssh or None,
        "ends": list(view.ends),
        "started_at": iso(view.started_at or None),
        "note": view.note or None,
        "left_s": None if view.left_s is None else [round(one, 1) for one in view.left_s],
        "left_from": view.left_from or None,
        "beyond_limit": view.beyond_limit or None,
        "tracking": dict(view.progress.get("tracking") or {}),
        "in_store": {name: iso(at) for name, at in view.in_store.items()},
        "recoveries": view.recoveries,
        "elapsed_s": None if view.elapsed_s is None else round(view.elapsed_s, 1),
        "ended_at": iso(view.ended_at),
        "clock_scale": view.clock_scale,
        "uploads_pending": list(view.pending),
        "upload_problem": view.upload_problem or None,
    }


def figures(view: PodView, now: float) -> dict[str, Any]:
    """Return the figures of a run and its machine, each group with an age in seconds; None = unknown."""
    record, machine = current_record(view.progress), view.progress.get("machine") or {}
    is_training = record.get("kind") == "progress"

    def age_s(at: float | None) -> float | None:
        return None if at is None else max(0.0, now - at)

    return {
        "train_step": record.get("step") if is_training else None,
        "loss": record.get("loss"),
        "tokens_per_s": record.get("tokens_per_s"),
        "mfu": record.get("mfu") if machine.get("gpus") else None,  # other programs change the measured peak of a CPU
        "curve": record.get("curve") or [],
        "eta_s": record.get("eta_s") if is_training else None,
        "train_age_s": age_s(record.get("at")),
        "gpus": machine.get("gpus") or [],
        "gpus_age_s": age_s(machine.get("gpus_at")),
        "disk_free_bytes": machine.get("disk_free_bytes"),
        "disk_age_s": age_s(machine.get("disk_at")),
    }


def status_table(views: Iterable[PodView], now: float | None = None) -> "RenderableType":
    """Return a table of runs, newest first, with figures of active runs, notes, and armed ends."""
    from rich.console import Group
    from rich.text import Text

    now = time.time() if now is None else now
    views = list(views)
    styles = {"running": "bold green", "succeeded": "green", "failed": "red", "lost": "red", "limit": "yellow"}
    table = FittedTable("run", "provider", "state", "step", "cost", "time", "age", least=(6, 1, 5, 3))
    lines: list[Text] = []  # notes too wide for a column
    for view in views:
        step = next((one for one in view.progress.get("steps", ()) if one["name"] == view.step), None)
        is_running = view.state == "running"
        style = styles.get(view.state, "")
        table.add_row(
            view.run,
            view.provider,
            f"[{style}]{view.state}[/]" if style else view.state,
            view.step,
            in_usd(view.spent_micro_usd),
            "" if view.elapsed_s is None else duration(view.elapsed_s),
            aged(view.age_s, view.clock_scale) if is_running else "",
        )
        said = (
            record_words(step, brief=True, scale=view.clock_scale)
            if step and is_running and figures(view, now)["loss"] is None
            else ""
        )
        if said:
            lines.append(Text(f"{view.run}: {said}"))
        back = f"recovered {count(view.recoveries, 'time')}" if view.recoveries else ""
        more_recent = "" if is_running else " or a newer checkpoint"  # the known state may be older than the store
        safe = (
            f"checkpoint {clean(one)}{more_recent} is in the store, {aged(now - at, view.clock_scale)} ago"
            for one, at in sorted(view.in_store.items(), key=lambda item: item[1])[-1:]
            if view.state != "succeeded"
        )
        told = view.progress.get("tracking") or {}
        linked = [f"{clean(name)}: {clean(link)}" for name, link in told.items() if link]
        words = (
            left(view),
            view.beyond_limit,
            curve(view),
            clean(view.note),
            ended(view, now),
            *safe,
            *uploads(view),
            back,
            money(view),
            more(view),
            *linked,
            *map(clean, view.ends),
            view.ssh,
        )
        texts = (command_hints.insert_carried_flags(f"{view.run}: {one}") for one in words if one)
        lines.extend(Text(terminal.wrap_text(one, sys.stdout), style="dim") for one in texts)
    at_work = [view for view in views if view.state in ("running", "lost") and view.progress]
    return Group(table, *([figures_tables(at_work, now)] if at_work else []), *lines)


def sparkline(values: Sequence[float]) -> str:
    """Return a block character per value, scaled from lowest to highest; a space for non-finite values."""
    numbers = [one for one in values if math.isfinite(one)]
    if not numbers:
        return ""
    low, high = min(numbers), max(numbers)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(BLOCKS[round((one - low) * scale)] if math.isfinite(one) else " " for one in values)


def curve(view: PodView) -> str:
    """Return the running phase's loss, or reward for rl, as first value, sparkline and last value.

    Return "" if the run is not active or has fewer than two values.
    """
    seen = figures(view, 0.0)
    points = [float(one) for one in seen["curve"]]
    if view.state not in ("running", "lost") or len(points) < 2:
        return ""
    what = "loss" if current_record(view.progress).get("reward") is None else "reward"
    return f"{what} of {view.step} {points[0]:.2f} {sparkline(points)} {points[-1]:.2f}"


def left(view: PodView) -> str:
    """Return the remaining time of a run, with range and basis; "" if unknown."""
    if view.left_s is None:
        return ""
    low, expected, high = (one * view.clock_scale for one in view.left_s)
    return f"{about(expected)} left ({between(low, high)}; {view.left_from})"


def aged(seconds: float | None, scale: float) -> str:
    """Format seconds of this machine as a duration by the run's cost clock."""
    return duration(None if seconds is None else seconds * scale)


def ended(view: PodView, now: float) -> str:
    """Return the end time of a run, and the duration of each phase; "" for an unfinished run."""
    if view.ended_at is None:
        return ""
    ago = aged(max(0.0, now - view.ended_at), view.clock_scale)
    took = "" if view.elapsed_s is None else f" after {duration(view.elapsed_s)}"
    steps = [one for one in view.progress.get("steps", ()) if one.get("elapsed_s") and one["state"] != "reused"]
    each = ", ".join(f"{clean(one['name'])} {aged(one['elapsed_s'], view.clock_scale)}" for one in steps)
    return f"ended {moment(view.ended_at)} ({ago} ago){took}{': ' if each else ''}{each}"


def uploads(view: PodView) -> Iterator[str]:
    """Yield the uploads missing from the store, and the error of the last failed write."""
    if view.pending:
        names = [clean(one).removeprefix("work/checkpoints/") for one in view.pending[:SHOWN]]
        more = f" and {len(view.pending) - SHOWN} more" if len(view.pending) > SHOWN else ""
        are = "upload is" if len(view.pending) == 1 else "uploads are"
        yield f"{len(view.pending)} {are} pending: {', '.join(names)}{more}"
    if view.upload_problem and view.pending:
        yield f"the last write to the store failed and is retried: {clean(view.upload_problem)}"


def money(view: PodView) -> str:
    """Return the spent money and the limit; "" for a free run."""
    if not view.micro_usd_per_hour or view.limit_in_s is None:
        return ""
    limit = "" if view.limit_micro_usd is None else f" of {cents(view.limit_micro_usd)}"
    rate = per_hour(view.micro_usd_per_hour)
    excess = LimitOverrun(view.over_limit_micro_usd, view.over_limit_s).description
    until = f"over its limit by {excess}" if excess else f"the limit is reached in {duration(view.limit_in_s)}"
    return f"{cents(view.spent_micro_usd)}{limit} USD spent at {rate}; {until}"


def more(view: PodView) -> str:
    """Return a resume command with twice the limit if the spend limit ended the run; else ""."""
    if view.state != "limit" or not view.run_limit_micro_usd:
        return ""
    limit = usd(2 * view.run_limit_micro_usd)
    return f"continue from the newest checkpoint: inv resume {view.run} --spend-limit {limit}"


def figures_tables(views: Sequence[PodView], now: float) -> "RenderableType":
    """Return two tables of active runs for 80 columns: training figures, then GPUs and disk.

    Each table shows the age of the figures.
    """
    from rich.console import Group

    seen = {view.run: figures(view, now) for view in views}
    has_gpus = any(one["gpus"] for one in seen.values())
    has_mfu = any(one["mfu"] is not None for one in seen.values())
    of_training = ("at work", "at", "loss", "tok/s", *(("MFU",) if has_mfu else ()), "phase left", "age")
    of_machines = ("machine", *(("GPU", "memory", "age") if has_gpus else ()), "disk free", "age")
    training = FittedTable(*of_training, least=(len(of_training) - 1, 3, 4))
    machines = FittedTable(*of_machines, least=(len(of_machines) - 1, *((3, 4, 2) if has_gpus else ())))
    scales = {view.run: view.clock_scale for view in views}
    for run, one in seen.items():
        scale = scales[run]
        training.add_row(
            run,
            "" if one["train_step"] is None else f"{one['train_step']:,}",
            "" if one["loss"] is None else f"{one['loss']:.3f}",
            "" if one["tokens_per_s"] is None else f"{one['tokens_per_s']:,.0f}",
            *(("" if one["mfu"] is None else f"{100 * one['mfu']:.1f} %",) if has_mfu else ()),
            "" if one["eta_s"] is None else duration(one["eta_s"] * scale),
            "" if one["train_age_s"] is None else duration(one["train_age_s"] * scale),
        )
        gpus = (*gpu_words(one["gpus"]), aged(one["gpus_age_s"], scale) if one["gpus"] else "") if has_gpus else ()
        free = one["disk_free_bytes"]
        machines.add_row(run, *gpus, *(("", "") if free is None else (size(free), aged(one["disk_age_s"], scale))))
    return Group(training, machines)


def gpu_words(gpus: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the mean GPU load (`8 x 93 %`), and the memory of the fullest GPU with the peak of the run.

    Memory has the form `31.2 GB of 80.0 GB, peak 71.0 GB`; ? = unknown.
    """
    if not gpus:
        return "", ""
    percents = [gpu["percent"] for gpu in gpus if gpu["percent"] is not None]
    many = f"{len(gpus)} x " if len(gpus) > 1 else ""
    full = max(gpus, key=lambda gpu: gpu["used_bytes"] or 0)
    used, whole = (size(full[key]) if full[key] is not None else "?" for key in ("used_bytes", "memory_bytes"))
    peak = max((gpu.get("peak_bytes") or 0 for gpu in gpus), default=0)
    most = f", peak {size(peak)}" if peak > (full["used_bytes"] or 0) else ""
    return f"{many}{sum(percents) / len(percents):.0f} %" if percents else f"{many}?", f"{used} of {whole}{most}"


def watch_screen(views: list[PodView], every_s: float) -> "RenderableType":
    """Return the steps of the newest active run, above the table, which a small screen may cut off."""
    from rich.console import Group

    clock = datetime.now().strftime("%H:%M:%S")
    parts: list[Any] = [f"{clock}, refreshed every {duration(every_s)}; Ctrl-C ends this view, not the runs", ""]
    running = next((view for view in views if view.state == "running"), None)
    if running:
        parts.extend([running.run, steps_table(running.progress, time.time(), running.clock_scale), ""])
    return Group(*parts, status_table(views))
