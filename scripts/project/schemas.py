"""JSON Schemas of user-written files, generated from the records that parse the files; for editors and `--schema`.

The input is records with flags as fields, or with a docstring below each field. The output is JSON Schema 2020-12
documents.
"""

import ast
import dataclasses
import inspect
import itertools
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from flows.specs import files
from infra.errors import UsageError
from infra.flags import Flag
from infra.runs.keepers import pod_set
from scripts.cli.flags import Environment
from scripts.runs.launch import LaunchFlags
from serve.service import ServiceFile
from store import packs
from trainer.config import PhaseConfig
from trainer.recipes import PROFILES
from trainer.records.phase_options import NOT_FOR_A_PHASE
from trainer.records.phase_registry import PHASES

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
TEXT = {"type": ["string", "number"]}  # numbers are accepted as text: `spend_limit: 12.50`
Schema = dict[str, Any]


def meanings(record: type) -> dict[str, str]:
    """Return the docstring below each field of a record by field name, including inherited fields."""
    found: dict[str, str] = {}
    for one in reversed(record.__mro__):
        if dataclasses.is_dataclass(one):
            (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
            for field, below in itertools.pairwise(getattr(body, "body", ())):
                is_said = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
                if isinstance(field, ast.AnnAssign) and is_said:
                    found[ast.unparse(field.target)] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return found


def of_type(hint: Any) -> Schema:
    """Return the schema of a type: plain types, lists, mappings, unions and nested records; {} for other types."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    if dataclasses.is_dataclass(hint):
        return of_record(typing.cast(type, hint))
    if origin in (types.UnionType, typing.Union):
        each = [of_type(one) for one in inside]
        if all(set(one) == {"type"} and isinstance(one["type"], str) for one in each):
            return {"type": [one["type"] for one in each]}
        return {"anyOf": each}
    if origin in (list, tuple):
        return {"type": "array", "items": of_type(inside[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": of_type(inside[1])}
    if isinstance(hint, typing.ForwardRef):  # a recursive record
        return {"type": "object"}
    return {}


def of_record(record: type, but: Collection[str] = (), is_partial: bool = False) -> Schema:
    """Return the schema of a record. `but`: omitted fields.

    `is_partial`: all fields are optional, also in nested records.
    """
    hints, about = typing.get_type_hints(record), meanings(record)
    properties: dict[str, Schema] = {}
    required = []
    for one in dataclasses.fields(record):
        if one.name in but:
            continue
        inner = next((kind for kind in _kinds(hints[one.name]) if dataclasses.is_dataclass(kind)), None)
        is_same = inner is record  # for example a list of the same record
        found = (
            of_record(typing.cast(type, inner), is_partial=True)
            if inner and is_partial and not is_same
            else _once(hints[one.name], record)
        )
        said = one.metadata.get("about") or about.get(one.name)
        default = {} if not isinstance(one.default, (str, int, float)) else {"default": one.default}
        properties[one.name] = {**found, **({"description": said} if said else {}), **default}
        if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING:
            required.append(one.name)
    must = {"required": required} if required and not is_partial else {}
    return {"type": "object", "properties": properties, **must, "additionalProperties": False}


def _once(hint: Any, record: type) -> Schema:
    """Return `of_type` of the hint, or a list of plain objects if the record contains records of the same type."""
    holds = any(record in _kinds(one) for one in (hint, *(typing.get_args(kind) for kind in _kinds(hint))) if one)
    return {"type": ["array", "null"], "items": {"type": "object"}} if holds else of_type(hint)


def _kinds(hint: Any) -> tuple[Any, ...]:
    if isinstance(hint, tuple):
        return hint
    return typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)


def of_flag(one: Flag) -> Schema:
    """Return the schema of a flag."""
    found: Schema = {"type": PLAIN[one.kind]} if one.kind is not str else dict(TEXT)
    if one.is_many:
        found = {"anyOf": [{"type": "array", "items": found}, found]}
    if one.default not in (None, "", ()):
        found["default"] = one.default
    unit = f" ({one.unit})" if one.unit else ""
    return {**found, "description": f"{one.about}{unit}"}


def phases() -> dict[str, Schema]:
    """Return the option schema of each phase in a flag file: the fields of the phase's record in the profiles."""
    found: dict[str, type] = {}
    for make in PROFILES.values():
        for name, phase in make().phases.items():
            found.setdefault(name, type(phase))
    return {name: of_record(found.get(name, PhaseConfig), tuple(NOT_FOR_A_PHASE), is_partial=True) for name in PHASES}


def of_flags(record: type, but: Collection[str] = ()) -> Schema:
    """Return the schema of a flag file; each flag may be spelled with `-` or `_`."""
    properties: dict[str, Schema] = {}
    for spelled, one in files.known(record, but).items():
        properties[spelled] = of_flag(one)
        if "-" in spelled:
            properties[spelled.replace("-", "_")] = {"$ref": f"#/$defs/flags/properties/{spelled}"}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def with_phases(flags: Schema) -> Schema:
    nested = {
        "type": "object",
        "description": "options of single phases, instead of the options of the profile",
        "properties": {name: {"$ref": f"#/$defs/phases/{name}"} for name in PHASES},
        "additionalProperties": False,
    }
    return {**flags, "properties": {**flags["properties"], files.PHASES: nested}}


def launch() -> Schema:
    flags = with_phases(of_flags(LaunchFlags, ("file",)))
    for record in (Environment, *map(packs.load, packs.command_flags("launch"))):
        flags["properties"] |= of_flags(record)["properties"]
    return {
        "title": "Flags of a launch: ./inv launch FILE",
        **{"$ref": "#/$defs/flags"},
        "$defs": {"flags": flags, "phases": phases()},
    }


def pod() -> Schema:
    one = of_record(pod_set.PodEntry)
    for name, known in one["properties"].items():
        if "string" in known.get("type", ()) and name != "name":  # numbers are accepted as text
            known["type"] = [*([known["type"]] if isinstance(known["type"], str) else known["type"]), "number"]
    one["properties"] |= {theirs: dict(one["properties"][ours]) for theirs, ours in pod_set.ALIASES.items()}
    properties = {
        "set": {"type": "string", "description": "name of the set (default: the file's)"},
        "pods": {"type": "array", "items": one, "description": "the pods of the set; [] ends all pods"},
        "spend_limit": {**TEXT, "description": "rented: limit in US dollars for all pods together"},
    }
    return {
        "title": "A set of pods: ./inv apply FILE",
        "type": "object",
        "properties": properties,
        "required": ["pods"],
        "additionalProperties": False,
    }


def service() -> Schema:
    return {"title": "A service: ./inv serve.up --config FILE", **of_record(ServiceFile)}


SCHEMAS: dict[str, Callable[[], Schema]] = {
    "launch": launch,
    "pod": pod,
    "service": service,
}


def schemas() -> dict[str, Callable[[], Schema]]:
    """Return the function that generates each schema, by file kind, including the kinds of packs."""
    return {**SCHEMAS, **{name: partial(_of_pack, where) for name, where in packs.entries("schemas").items()}}


def _of_pack(where: str) -> Schema:
    found: Schema = packs.load(where)()
    return found


def schema(name: str) -> Schema:
    """Return the named JSON Schema. Raises UsageError with the known names."""
    found = schemas()
    if name not in found:
        raise UsageError(
            f"--schema {name}: {packs.missing_pack_message('schemas', name) or 'known: ' + ', '.join(found)}"
        )
    return {"$schema": DRAFT, **found[name]()}
