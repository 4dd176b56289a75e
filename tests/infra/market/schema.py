"""Check requests against an OpenAPI document, with the part of JSON Schema used by the vendors' documents.

Stricter than the documents: refuses every property without a definition, as RunPod does.
"""

import re
from collections.abc import Mapping
from typing import Any

KINDS: dict[str, Any] = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list,
                         "object": dict, "null": type(None)}  # fmt: skip


def complaints(document: Mapping[str, Any], schema: Mapping[str, Any], value: Any, place: str = "$") -> list[str]:
    """Return the complaints about `value`; [] for a valid value."""
    schema = resolve(document, schema)
    bad = []
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = [isinstance(value, KINDS[kind]) and not (isinstance(value, bool) and kind != "boolean") for kind in kinds]
    if kinds and not any(fits):
        return [f"{place}: {value!r} is not {' or '.join(kinds)}"]
    if "enum" in schema and value not in schema["enum"]:
        bad.append(f"{place}: {value!r} is not one of {schema['enum']}")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        bad.append(f"{place}: {value!r} does not match {schema['pattern']}")
    if isinstance(value, int) and value < schema.get("minimum", value):
        bad.append(f"{place}: {value} is less than {schema['minimum']}")
    if isinstance(value, str) and len(value) < schema.get("minLength", 0):
        bad.append(f"{place}: too short")
    if isinstance(value, list):
        for index, one in enumerate(value):
            bad += complaints(document, schema.get("items", {}), one, f"{place}[{index}]")
        if len(value) > schema.get("maxItems", len(value)):
            bad.append(f"{place}: too many")
    if isinstance(value, dict) and place == "$" or isinstance(value, dict) and properties(document, schema):
        known, required = properties(document, schema), needed(document, schema, value)
        bad += [f"{place}: missing property '{name}'" for name in sorted(required - value.keys())]
        bad += [f"{place}: additional properties '{name}' not allowed" for name in value.keys() - known.keys()]
        for name in value.keys() & known.keys():
            bad += complaints(document, known[name], value[name], f"{place}.{name}")
    elif isinstance(value, dict) and isinstance(schema.get("additionalProperties"), dict):
        for name, one in value.items():
            bad += complaints(document, schema["additionalProperties"], one, f"{place}.{name}")
    return bad


def resolve(document: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        found: Any = document
        for part in schema["$ref"].split("/")[1:]:
            found = found[part]
        schema = found
    return schema


def properties(document: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    schema = resolve(document, schema)
    found = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found.update(properties(document, part))
    return found


def needed(document: Mapping[str, Any], schema: Mapping[str, Any], value: Mapping[str, Any]) -> set[str]:
    schema = resolve(document, schema)
    found = set(schema.get("required", []))
    for part in schema.get("allOf", []):
        found |= needed(document, part, value)
    unless = schema.get("if", {}).get("not", {}).get("required")
    if unless and not set(unless) <= value.keys():
        found |= set(schema["then"]["required"])
    return found
