"""The measures of a model that `inv eval` has kept beside it in the store, with the format of each number."""

from collections.abc import Mapping
from typing import Any

from infra.errors import UsageError
from infra.settings import Settings
from store import outside
from store.artifacts.artifacts import Store

FILE = "eval.json"


def kept_as(name: str) -> str:
    """Return the name in the store under which the measures of a model are."""
    return f"evals/{name}"


def kept(settings: Settings, name: str, fingerprint: str) -> dict[str, Any]:
    """Return the measures of that very model; {} when there are none."""
    store = Store(settings.store)
    found = store.check(kept_as(name))
    if found.problem or found.fingerprint != fingerprint:
        return {}
    path = store.path(found.name, found.fingerprint) / FILE
    try:
        whole = outside.mapping(outside.content(path), nan_is_null=True)
        outside.typed(whole, "measures", dict, {})
    except outside.Unreadable as error:
        raise UsageError(f"{path}: {error}; measure again: ./inv eval") from None
    return whole


def of_unit(measure: Mapping[str, Any], value: float) -> str:
    return f"{100 * value:.1f} %" if measure["unit"] == "share" else f"{value:.4f}"


def between(measure: Mapping[str, Any], interval: Mapping[str, Any]) -> str:
    """Return `[71.2 %, 80.1 %]`, `?` where there is no interval."""
    if interval["low"] is None:
        return "?"
    return f"[{of_unit(measure, interval['low'])}, {of_unit(measure, interval['high'])}]"
