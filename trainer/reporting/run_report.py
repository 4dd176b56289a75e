"""Report of a run: an HTML page, and a PNG per curve, with metrics, configuration, cost and samples over time.

The functions take a `Story`, the data read from a run, and return the text of the page, and charts. Data missing in an
unfinished run is left out. No torch here.
"""

import bisect
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data.chat.conversation_counts import TalkCounts
from data.report.html import Html, document, tag
from trainer.reporting.chart import STYLE, Chart, number, svg

CURVES = (  # key, title, unit, smooth, from zero, factor
    ("loss", "Loss, nats per token", "", True, False, 1.0),
    ("reward", "Reward of an answer, mean", "", True, False, 1.0),
    ("right", "Right answers, sampled", " %", True, False, 100.0),
    ("greedy", "Held-out problems, greedy answer right", " %", False, False, 100.0),
    ("pass_at_1", "Held-out problems, sampled answer right", " %", False, False, 100.0),
    ("length", "Length of an answer, tokens", "", True, False, 1.0),
    ("truncated", "Answers cut off at max_new", " %", True, True, 100.0),
    ("silent_groups", "Problems with equal rewards for all answers", " %", True, True, 100.0),
    ("entropy", "Entropy, nats per token", "", True, False, 1.0),
    ("clipped", "Tokens with a clipped ratio", " %", True, True, 100.0),
    ("mismatch", "Log-probabilities, engine against trainer, nats", "", True, True, 1.0),
    ("moved", "Log-probabilities, change since the answers, nats", "", True, True, 1.0),
    ("kl", "KL divergence from the first model, nats per token", "", True, True, 1.0),
    ("grad_norm", "Gradient norm", "", True, True, 1.0),
    ("lr", "Learning rate", "", False, True, 1.0),
    ("tokens_per_s", "Tokens per second", "", False, True, 1.0),
    ("mfu", "Model FLOPs utilisation (MFU)", " %", False, True, 100.0),
    ("memory_bytes", "Peak memory", " GB", False, True, 1e-9),
    ("data_share", "Waiting for data or answers, share of a step", " %", False, True, 100.0),
    ("rollout_tokens_per_s", "Tokens per second during rollouts", "", True, True, 1.0),
    ("update_tokens_per_s", "Tokens per second in the update", "", True, True, 1.0),
    ("rollout_s", "Rollout time of a step", " s", True, True, 1.0),
)
TOLD_OTHERWISE = {"step", "tokens", "learnt_tokens", "step_s", "data_wait_s", "at"}
MFU = (
    "MFU = tokens per second x operations per token / peak; operations per token = 6 x (parameters of the matrices) "
    "+ 12 x layers x heads x head size x row length, attention not halved, recomputation not counted. Peak: "
)
MARK_S = 60.0  # seconds after a phase's last step in which events still belong to the phase
MOST_SAMPLES = 12  # maximum number of sampled steps to show per phase


@dataclass(frozen=True)
class PhaseStory:
    """Data of a phase so far."""

    name: str
    state: str = ""
    """State of the phase's step: waiting, running, done, reused, failed."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the phase's `PhaseConfig`; {} if unknown."""
    lines: Sequence[Mapping[str, Any]] = ()
    """Lines of metrics.jsonl."""
    samples: Sequence[Mapping[str, Any]] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    """Facts about the resulting model."""
    measured: Sequence[tuple[str, str, str]] = ()
    """Results of `inv eval`: measure, value, interval."""


@dataclass(frozen=True)
class Story:
    run: str
    facts: Sequence[tuple[str, str]]
    """Facts about the whole run, as (name, value): provider, state, cost, time."""
    phases: Sequence[PhaseStory]
    written: str
    """Time of writing, formatted for display."""
    note: str = ""
    marks: Sequence[tuple[float, str]] = ()
    """Events of the run: UTC epoch seconds and a label."""
    cost: Sequence[tuple[float, float]] = ()
    """Minutes since the request for the first pod, and the cost so far in US dollars."""
    memory: Sequence[tuple[float, float]] = ()
    """Minutes since the first GPU query, and the GB in use on the fullest GPU."""


def charts(phase: PhaseStory, story: Story | None = None) -> Iterator[tuple[str, Chart]]:
    """Yield (short name, chart) for each metric with data; with a story, charts carry the run's name and events."""
    run, marks = (story.run, tuple(_placed(phase, story.marks))) if story else ("", ())
    lines = [{**one, "data_share": waiting_share(one)} for one in phase.lines]
    for key, title, unit, smooth, from_zero, factor in (*CURVES, *_of_objective(phase)):
        points = tuple((float(one["step"]), one[key] * factor) for one in lines if one.get(key) is not None)
        if any(math.isfinite(value) for _, value in points):
            yield (
                key.replace("_", "-"),
                Chart(f"{phase.name}: {title}", points, smooth, from_zero, unit, run=run, marks=marks),
            )


def cost_chart(story: Story) -> Chart | None:
    """Return the chart of a run's cost over time, or None without costs."""
    if not story.cost:
        return None
    return Chart("Cost, US dollars", tuple(story.cost), from_zero=True, unit=" USD", along="minute", run=story.run)


def memory_chart(story: Story) -> Chart | None:
    """Return the chart of the GPU memory over time, or None without data."""
    if not story.memory:
        return None
    return Chart(
        "GPU memory, peak of the fullest GPU",
        tuple(story.memory),
        from_zero=True,
        unit=" GB",
        along="minute",
        run=story.run,
    )


def _placed(phase: PhaseStory, marks: Sequence[tuple[float, str]]) -> Iterator[tuple[float, str]]:
    """Yield the step and the label of each event within a phase."""
    times = [float(one.get("at") or 0.0) for one in phase.lines]
    for at, words in marks:
        row = bisect.bisect_left(times, at)
        if times and times[0] and times[0] <= at <= times[-1] + MARK_S:
            yield float(phase.lines[min(row, len(times) - 1)]["step"]), words


def _of_objective(phase: PhaseStory) -> Iterator[tuple[str, str, str, bool, bool, float]]:
    """Yield entries in the form of CURVES for metrics known only to the phase's objective, in order of appearance."""
    seen = dict.fromkeys(key for line in phase.lines for key, one in line.items() if isinstance(one, (int, float)))
    for key in (one for one in seen if one not in TOLD_OTHERWISE and one not in {curve[0] for curve in CURVES}):
        yield key, key.replace("_", " ").capitalize(), "", True, False, 1.0


def waiting_share(line: Mapping[str, Any]) -> float | None:
    if not line.get("step_s") or line.get("data_wait_s") is None:
        return None
    return line["data_wait_s"] / line["step_s"]


def page(story: Story) -> str:
    """Return the whole document."""
    done = ", ".join(f"{one.name} {progress(one)}" for one in story.phases)
    note = [tag("p", story.note)] if story.note else []
    return document(
        f"Run {story.run}",
        tag("style", Html(STYLE)),
        tag("h1", f"Run {story.run}"),
        tag("p", f"{done or 'no phase has started'} · written {story.written}", class_="soft"),
        *note,
        *([_tiles(story)] if story.facts else []),
        *_cost(story),
        *(part for phase in story.phases for part in _phase(phase, story)),
    )


def progress(phase: PhaseStory) -> str:
    steps = phase.config.get("steps")
    if not phase.lines:
        return phase.state or "not begun"
    last = phase.lines[-1]["step"]
    of = f" of {steps:,}" if steps and last < steps else ""
    return f"{last:,}{of} steps"


def _tiles(story: Story) -> Html:
    tiles = [
        tag("div", tag("span", name, class_="soft"), tag("b", value), class_="card") for name, value in story.facts
    ]
    return tag("div", *tiles, class_="tiles")


def _cost(story: Story) -> Iterator[Html]:
    if shown := [chart for chart in (cost_chart(story), memory_chart(story)) if chart]:
        yield tag("div", *(_card(chart.title, svg(chart)) for chart in shown), class_="cards")


def _phase(phase: PhaseStory, story: Story) -> Iterator[Html]:
    shown = [_card(chart.title.partition(": ")[2], svg(chart)) for _, chart in charts(phase, story)]
    peaks = list(dict.fromkeys(one["mfu_of"] for one in phase.lines if one.get("mfu_of")))
    facts = [*_numbers(phase), *((name, f"{value} {interval}".strip()) for name, value, interval in phase.measured)]
    if facts:
        shown.insert(1 if phase.lines else 0, _card("Figures", _table(facts)))
    title = f"{phase.name}, {progress(phase)}"
    yield tag("h2", title, style="margin:36px 0 0;font-size:20px")
    if not shown and not phase.samples:
        yield tag("p", "It has told nothing yet.", class_="soft")
    mfu = tag("p", MFU + "; then ".join(peaks), class_="soft")
    explained = [tag("div", tag("h2", "What MFU is"), mfu, class_="card wide")] if peaks else []
    cards = [*shown, *explained, *_said(phase), *_config(phase)]
    if cards:
        yield tag("div", *cards, class_="cards")


def _numbers(phase: PhaseStory) -> Iterator[tuple[str, str]]:
    last = phase.lines[-1] if phase.lines else {}
    if last:
        if "reward" in last:  # rl's loss is uninformative
            yield "last reward", f"{last['reward']:.4f}"
        else:
            yield "last loss", f"{last['loss']:.4f} nats per token"
        yield "tokens", f"{last['tokens']:,}, without padding"
        if last.get("learnt_tokens") is not None and last["tokens"]:
            share = last["learnt_tokens"] / last["tokens"]
            yield "tokens in the loss", f"{last['learnt_tokens']:,} ({100 * share:.2f} %)"
        if counts := phase.lines[0].get("conversations"):
            yield from TalkCounts.of(counts).lines()
        spent = sum(one.get("step_s", 0.0) for one in phase.lines)
        if spent:
            yield "time in steps", took(spent)
            waited = sum(one.get("data_wait_s", 0.0) for one in phase.lines)
            what = "answers" if "reward" in last else "data"
            yield f"waited for {what}", f"{100 * waited / spent:.2f} % of the time in steps"
    found = phase.result
    if found.get("bits_per_byte") is not None:
        beside = ", ".join(f"{name} {found[name]:.3f}" for name in ("gzip", "xz") if name in found)
        yield "held-out text", f"{found['bits_per_byte']:.4f} bits per byte{f' ({beside})' if beside else ''}"
    if found.get("params"):
        yield "parameters", f"{found['params']:,}"


def took(seconds: float) -> str:
    """Return seconds as `48 s`, `3 min 05 s` or `2 h 10 min`."""
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest:02d} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def _said(phase: PhaseStory) -> list[Html]:
    moments: dict[int, dict[str, str]] = {}
    for one in phase.samples:
        moments.setdefault(one["step"], {})[one["prompt"]] = one["text"]
    if not moments:
        return []
    prompts = list(dict.fromkeys(one["prompt"] for one in phase.samples))
    each = -(-len(moments) // MOST_SAMPLES)
    chosen = sorted(moments)[::-1][::each][::-1]  # always includes the last step
    head = tag("tr", tag("th", "step", class_="number"), *(tag("th", prompt) for prompt in prompts))
    rows = (
        tag(
            "tr",
            tag("td", f"{step:,}", class_="number"),
            *(tag("td", tag("code", moments[step].get(prompt, ""))) for prompt in prompts),
        )
        for step in chosen
    )
    note = tag("p", "the same prompts at several steps; greedy, at most 40 tokens", class_="soft")
    return [tag("div", tag("h2", "Sample answers"), note, tag("table", head, *rows), class_="card wide")]


def _config(phase: PhaseStory) -> list[Html]:
    if not phase.config:
        return []
    rows = list(_flat(phase.config))
    return [tag("div", tag("details", tag("summary", "Configuration"), _table(rows)), class_="card wide")]


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", number(value) if isinstance(value, float) else str(value)


def _table(rows: Sequence[tuple[str, str]]) -> Html:
    return tag("table", *(tag("tr", tag("th", name), tag("td", value)) for name, value in rows))


def _card(title: str, *inner: Html) -> Html:
    return tag("div", tag("h2", title), *inner, class_="card")
