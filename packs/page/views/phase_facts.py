"""Figures of a phase as text: progress, last loss, tokens, conversations left out, times, held-out text."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from data.chat.conversation_counts import ConversationCounts
from infra.units import duration
from packs.page.views.figures import FigureTable

SECONDS = "step_s", "data_wait_s"


def facts_of(table: FigureTable, config: Mapping[str, Any], result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) pairs about a phase. result: facts about the model, or {} before the end of the phase."""
    return [*(_of_steps(table, config) if table.steps else ()), *_of_model(result)]


def _of_steps(table: FigureTable, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    last, steps, newest = table.steps[-1], config.get("steps"), table.newest
    yield "steps", f"{last:,} of {steps:,}" if type(steps) is int and last < steps else f"{last:,}"
    if "reward" in newest:  # the loss of rl is uninformative
        yield "last reward", f"{newest['reward']:.4f}"
    elif "margin" in newest and "accuracy" in newest:
        yield "last loss", f"{newest['loss']:.4f}, margin {newest['margin']:.4f}, accuracy {newest['accuracy']:.2f}"
    else:
        yield "last loss", f"{newest['loss']:.4f} nats per token"
    yield "tokens", f"{table.tokens[-1]:,}, without padding"
    if "learnt_tokens" in newest and table.tokens[-1]:
        share = newest["learnt_tokens"] / table.tokens[-1]
        yield "tokens in the loss", f"{round(newest['learnt_tokens']):,} ({100 * share:.2f} %)"
    if table.conversations:
        with contextlib.suppress(TypeError, ValueError):  # the file is untrusted
            yield from ConversationCounts.from_metrics(table.conversations).lines()
    spent, waited = (sum(table.columns[name].values) if name in table.columns else 0.0 for name in SECONDS)
    if spent:
        yield "time in steps", duration(spent)
        what = "answers" if "reward" in newest else "data"
        yield f"waited for {what}", f"{100 * waited / spent:.2f} % of the time in steps"


def _of_model(result: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    known = {name: one for name, one in result.items() if type(one) in (int, float)}
    if "bits_per_byte" in known:
        beside = ", ".join(f"{name} {known[name]:.3f}" for name in ("gzip", "xz") if name in known)
        yield "held-out text", f"{known['bits_per_byte']:.4f} bits per byte{f' ({beside})' if beside else ''}"
    if "params" in known:
        yield "parameters", f"{known['params']:,}"
