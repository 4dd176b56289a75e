"""Options of a phase, applied as text to a `PhaseConfig`. Light to import.

The functions take a `PhaseConfig` and the text of each option by path (`optimizer.lr`, `schedule.kind`,
`mixture.identity`), and return a record with those fields changed. Names and types come from the record and the nested
records. Options such as `model.hidden_size` belong to the shape, shared by all phases.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from data.config import ConfigError
from store import packs, strict_records
from trainer.records.model_config import ModelConfig
from trainer.records.phase_registry import PHASES

NOT_FOR_A_PHASE = {
    "phase": "the name of a phase is fixed",
    "adopted": "--init sets this option",
    "extension": "the file of the phase sets this option",
    "model": "all phases share the shape: use --set model.FIELD=VALUE, or `model` in a profile file",
}
MODEL = "model"  # prefix of options for the shape
P = TypeVar("P")  # `PhaseConfig` or a phase's own record


def with_options(phase: P, options: Mapping[str, str]) -> P:
    """Return the phase with the options of the phase applied.

    options: text of each option by PHASE.FIELD, including options of other phases. Raises ConfigError for an unknown
    field, with the nearest name, and for an invalid value.
    """
    record: Any = phase
    by = fields_of(phase, options)
    if not by:
        return phase
    values = dataclasses.asdict(record)
    said = ", ".join(f"{record.phase}.{path}={text}" for path, text in of_phase(record.phase, options))
    try:
        return strict_records.read(type(phase), changed(values, by))
    except strict_records.RecordMismatch as error:
        raise ConfigError(f"--set {said}: {error}") from None


def fields_of(phase: P, options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of a phase, nested as under the phase's name in a profile file; {} without options.

    Raises ConfigError for an unknown field, with the nearest name, and for a value of the wrong type.
    """
    record: Any = phase
    by: dict[str, Any] = {}
    for path, text in of_phase(record.phase, options):
        names, value = _typed(type(phase), path, text, f"--set {record.phase}.{path}={text}")
        inner = by
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = value
    if isinstance(by.get("mixture"), dict):
        by["mixture"] = {**(record.mixture or {}), **by["mixture"]}
    return by


def of_model(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of the shape, nested as under `model` in a profile file.

    Raises ConfigError for an unknown field, with the nearest name, and for an invalid value.
    """
    by: dict[str, Any] = {}
    for path, text in of_phase(MODEL, options):
        names, value = _typed(ModelConfig, path, text, f"--set {MODEL}.{path}={text}")
        inner = by
        for name in names[:-1]:
            inner = inner.setdefault(name, {})
        inner[names[-1]] = value
    return by


def of_phase(phase: str, options: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a phase as (path within the phase, text)."""
    for path, text in options.items():
        name, rest = phase_of(path)
        if name == phase:
            yield rest, text


def phase_of(path: str) -> tuple[str, str]:
    """Return PHASE and FIELD of PHASE.FIELD; phase names may contain dots, so `bits1.9.steps` belongs to bits1.9."""
    name = max((one for one in PHASES if path == one or path.startswith(f"{one}.")), key=len, default="")
    return (name, path[len(name) + 1 :]) if name else (path.partition(".")[0], path.partition(".")[2])


def refuse_unknown(options: Mapping[str, str], phases: Mapping[str, Any]) -> None:
    """Raise ConfigError for options of a phase missing in the profile, with the nearest name."""
    for path in options:
        name, _ = phase_of(path)
        if name not in phases and name != MODEL:
            if said := packs.missing_pack_message("phases", name):
                raise ConfigError(f"--set {path}: {said}")
            near = difflib.get_close_matches(name, phases, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(phases)}"
            raise ConfigError(f"--set {path}: the profile has no phase {name!r}; {hint}")


def differences(options: Mapping[str, str], phases: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the changes of the options to a profile's phases: `sft.optimizer.lr 0.0005 (profile: 0.001)`."""
    said = []
    for path, text in of_phase(MODEL, options):
        before = [_at(phase.model, path) for phase in phases.values()]
        said.append(f"{MODEL}.{path} {text} (profile: {' or '.join(dict.fromkeys(map(str, before)))})")
    for name, phase in phases.items():
        after = with_options(phase, options)
        for path, _ in of_phase(name, options):
            said.append(f"{name}.{path} {_at(after, path)} (profile: {_at(phase, path)})")
    return tuple(said)


def _at(record: Any, path: str) -> Any:
    """Return the value at a path in a record; the rest of the path is the key if a dictionary is reached."""
    while path and dataclasses.is_dataclass(record):
        name, _, path = path.partition(".")
        record = getattr(record, name)
    return record.get(path) if path and isinstance(record, Mapping) else record


def _typed(record: type, path: str, text: str, where: str) -> tuple[list[str], Any]:
    """Return the names on the path to a field, and the text converted to the field's type. Raises ConfigError."""
    names: list[str] = []
    while True:
        name, _, rest = path.partition(".")
        hints = typing.get_type_hints(record)
        if not names and name in NOT_FOR_A_PHASE:
            raise ConfigError(f"{where}: {name} cannot be set for a phase; {NOT_FOR_A_PHASE[name]}")
        if name not in hints:
            near = difflib.get_close_matches(name, hints, 1)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(hints)}"
            raise ConfigError(f"{where}: {'.'.join([*names, name])} is not an option; {hint}")
        names.append(name)
        kinds = _kinds(hints[name])
        inner = next((kind for kind in kinds if dataclasses.is_dataclass(kind)), None)
        table = next((kind for kind in kinds if typing.get_origin(kind) is dict), None)
        if table is not None and rest:
            return [*names, rest], _value(_kinds(typing.get_args(table)[1]), text, where)
        if table is not None and text != "null":
            raise ConfigError(f"{where}: expected {name}.NAME=VALUE, because {name} has several values")
        if inner is None or not rest:
            if rest:
                raise ConfigError(f"{where}: {'.'.join(names)} has no sub-options")
            if inner is not None and text != "null":
                fields = ", ".join(typing.get_type_hints(inner))
                raise ConfigError(f"{where}: {'.'.join(names)} has sub-options; choose from: {fields}")
            return names, _value(kinds, text, where)
        record, path = typing.cast(type, inner), rest


def _kinds(hint: Any) -> tuple[Any, ...]:
    return (
        typing.get_args(hint)
        if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union
        else (hint,)
    )


def _value(kinds: tuple[Any, ...], text: str, where: str) -> Any:
    """Return a text converted to the first possible type of `kinds`. Raises ConfigError."""
    plain = text.strip()
    if type(None) in kinds and plain.lower() in ("null", "none", ""):
        return None
    for kind in kinds:
        origin = typing.get_origin(kind)
        if kind is bool and plain.lower() in ("true", "false"):
            return plain.lower() == "true"
        if origin in (tuple, list):
            inner = tuple(one for one in typing.get_args(kind) if one is not Ellipsis)
            words = plain.split(",")
            if origin is tuple and Ellipsis not in typing.get_args(kind) and len(words) != len(inner):
                raise ConfigError(f"{where}: expected {len(inner)} values, separated by commas")
            return [_value(inner[:1], one, where) for one in words]
        if kind in (int, float):
            try:
                return kind(plain)
            except ValueError:
                continue
        if kind is str:
            return text
    known = {bool: "true or false", int: "a whole number", float: "a number"}
    wanted = " or ".join(known[kind] for kind in kinds if kind in known) or "a value"
    raise ConfigError(f"{where}: expected {wanted}")


def changed(values: Mapping[str, Any], by: Any) -> dict[str, Any]:
    """Return a copy of `values` with the changes in `by`.

    Mappings are changed key by key, and other values are replaced. A mixture is replaced as a whole, because the keys
    of a mixture are not fields. A phase with given `micro_rows` is not fitted to the GPU (`fit` becomes False), unless
    `fit` is given as well.
    """
    if not isinstance(by, Mapping):
        raise ConfigError(f"expected a mapping, got {by!r}")
    result = dict(values)
    for key, value in by.items():
        inner = result.get(key)
        if isinstance(inner, dict) and key != "mixture" and value is not None:
            result[key] = changed(inner, value)
        else:
            result[key] = value
    if "micro_rows" in by and "fit" in values:  # keep the given number instead of a fitted number
        result["fit"] = by.get("fit", False)
    return result
