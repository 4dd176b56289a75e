"""The reader of flags in files: the fields of a record with the same names, types and defaults."""

import difflib
import math
from collections.abc import Collection, Mapping
from typing import Any

from flows.specs import work
from flows.specs.work import WorkSpec, phase_flags
from infra.errors import UsageError
from infra.flags import Flag, flags_of
from store import packs

WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
PHASES = "phases"  # file key for nested phase options


def known(record: type, but: Collection[str] = ()) -> dict[str, Flag]:
    """Return the flags of a record that are allowed in a file, by spelling.

    The flags of a training include the flags that packs add for their phases.
    """
    records = (record, *phase_flags()) if issubclass(record, WorkSpec) else (record,)
    return {one.spelling: one for each in records for one in flags_of(each) if one.name not in but}


def check_keys(where: str, body: Any, keys: Collection[str]) -> None:
    """Raise UsageError unless `body` is a mapping with known keys; suggest the closest key."""
    if not isinstance(body, Mapping):
        raise UsageError(f"{where}: expected lines of the form `key: value`")
    for key in body:
        if str(key) not in keys:
            near = difflib.get_close_matches(str(key), keys, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(keys)}"
            raise UsageError(f"{where}: unknown key {key!r}; {hint}")


def read(where: str, body: Any, record: type, but: Collection[str] = ()) -> dict[str, Any]:
    """Return the field values given in a file, with phase options as words. Raise UsageError.

    `spend_limit` and `spend-limit` are the same. A phase option may also be given by path: `sft.optimizer.lr`.
    """
    flags = known(record, but)
    if not isinstance(body, Mapping):
        raise UsageError(f"{where}: expected lines of the form `key: value`")
    found: dict[str, Any] = {}
    words: list[str] = []
    for key, value in body.items():
        if "set" in flags and key == PHASES:
            words += work.flatten_options(f"{where}: {key}", value)
        elif "set" in flags and "." in str(key):
            words += work.flatten_options(f"{where}: {key}", _nested(str(key), value))
        else:
            name = str(key).replace("_", "-")
            if said := packs.missing_pack_message("sizes", name.replace("-", "_")):
                raise UsageError(f"{where}: {said}")
            check_keys(where, {name if name in flags else key: None}, [*flags, PHASES])
            found[flags[name].name] = _value(f"{where}: {key}", flags[name], value)
    if words:
        found[flags["set"].name] = (*found.get(flags["set"].name, ()), *words)
    return found


def _nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return dict(value)


def _value(where: str, one: Flag, value: Any) -> Any:
    """Return a value in the type of the flag; a number for a text flag is converted to text: `spend_limit: 12.50`."""
    if one.is_many:
        many = value if isinstance(value, list) else [value]
        return tuple(str(word) for word in many)
    if one.kind is float and type(value) in (int, float) and math.isfinite(value):
        return float(value)
    if type(value) is one.kind and one.kind is not float:
        if one.minimum is not None and isinstance(value, int) and value < one.minimum:
            raise UsageError(f"{where} is {value}; it must be at least {one.minimum}")
        return value
    if one.kind is str and type(value) in (int, float):
        return str(value)
    raise UsageError(f"{where} is {value!r}; it must be {WANTED[one.kind]}")
