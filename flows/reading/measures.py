"""The results of `inv eval` in the store, beside the model, with the number format of each measure."""

from collections.abc import Mapping
from typing import Any

from infra.errors import UsageError
from infra.settings import Settings
from store import untrusted_input
from store.artifacts.artifacts import Store

FILE = "eval.json"


def results_name(name: str) -> str:
    """Return the name in the store for the results of a model."""
    return f"evals/{name}"


def load_results(settings: Settings, name: str, fingerprint: str) -> dict[str, Any]:
    """Return the results for exactly this model; {} without results. Raise UsageError for an unreadable file."""
    store = Store(settings.store)
    found = store.check(results_name(name))
    if found.problem or found.fingerprint != fingerprint:
        return {}
    path = store.path(found.name, found.fingerprint) / FILE
    try:
        whole = untrusted_input.mapping(untrusted_input.content(path), nan_is_null=True)
        untrusted_input.typed(whole, "measures", dict, {})
    except untrusted_input.UnusableDocument as error:
        raise UsageError(f"{path}: {error}; measure again: ./inv eval") from None
    return whole


def of_unit(measure: Mapping[str, Any], value: float) -> str:
    return f"{100 * value:.1f} %" if measure["unit"] == "share" else f"{value:.4f}"


def format_interval(measure: Mapping[str, Any], interval: Mapping[str, Any]) -> str:
    """Return an interval as `[71.2 %, 80.1 %]`, or `?` without an interval."""
    if interval["low"] is None:
        return "?"
    return f"[{of_unit(measure, interval['low'])}, {of_unit(measure, interval['high'])}]"
