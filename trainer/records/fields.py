"""Helpers for fields of configuration records: bounds, and the selection for fingerprints. Light: no torch here."""

import math
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any

from data.config import ConfigError


def check_bounds(record: Any, names: str, least: float, *, above: bool = False) -> None:
    """Raise ConfigError for a field below `least` (`above`: or equal to `least`), or not finite; None is valid."""
    for name in names.split():
        value = getattr(record, name)
        if value is not None and not (least < value < math.inf or value == least and not above):
            raise ConfigError(f"{name} is {value}; it must be {'above' if above else 'at least'} {least}")


def rounding(default: Any) -> Any:
    """Return a field that changes the result only by rounding, as hardware does; no fingerprint contains the field."""
    return field(default=default, metadata={"rounding": True})


def newer(default: Any) -> Any:
    """Return a field added in a later version.

    At the default, the field is left out of the fingerprint, so that older artifacts keep their fingerprints.
    """
    return field(default=default, metadata={"newer": True})


def fingerprint_fields(spec: Any) -> Any:
    """Return the fields of a record that count for the fingerprint, as plain values, recursively."""
    if is_dataclass(spec):
        return {
            one.name: fingerprint_fields(getattr(spec, one.name)) for one in fields(spec) if not _is_neutral(spec, one)
        }
    if isinstance(spec, Mapping):
        return {key: fingerprint_fields(value) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [fingerprint_fields(value) for value in spec]
    return spec


def _is_neutral(record: Any, one: "Field[Any]") -> bool:
    is_at_default = getattr(record, one.name) == one.default
    return bool(one.metadata.get("rounding") or one.metadata.get("newer") and is_at_default)
