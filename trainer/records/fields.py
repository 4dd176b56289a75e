"""Fields of configuration records: their bounds, and which of them a fingerprint is made of. Light: no torch here."""

import math
from collections.abc import Mapping
from dataclasses import Field, field, fields, is_dataclass
from typing import Any

from data.config import ConfigError


def in_bounds(record: Any, names: str, least: float, *, above: bool = False) -> None:
    """Raise ConfigError for a field that is below `least` (`above`: or equal to it), or no finite number."""
    for name in names.split():
        value = getattr(record, name)
        if value is not None and not (least < value < math.inf or value == least and not above):
            raise ConfigError(f"{name} is {value}; it must be {'above' if above else 'at least'} {least}")


def rounding(default: Any) -> Any:
    """Return a field that changes the result by rounding only, as hardware does: it is in no fingerprint."""
    return field(default=default, metadata={"rounding": True})


def newer(default: Any) -> Any:
    """Return a field that came later.

    At its default it is in no fingerprint, so what was made before it is still that.
    """
    return field(default=default, metadata={"newer": True})


def what_counts(spec: Any) -> Any:
    """Return the fields of a record that its fingerprint is made of, as plain values; records in it likewise."""
    if is_dataclass(spec):
        return {one.name: what_counts(getattr(spec, one.name)) for one in fields(spec) if not _is_neutral(spec, one)}
    if isinstance(spec, Mapping):
        return {key: what_counts(value) for key, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [what_counts(value) for value in spec]
    return spec


def _is_neutral(record: Any, one: "Field[Any]") -> bool:
    is_at_default = getattr(record, one.name) == one.default
    return bool(one.metadata.get("rounding") or one.metadata.get("newer") and is_at_default)
