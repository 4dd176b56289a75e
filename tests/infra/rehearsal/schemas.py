"""The part of JSON Schema that the vendors' documents use. The documents are trimmed to what is checked here."""

import json
import re
from pathlib import Path
from typing import Any

TYPES = {
    "object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float),
    "null": type(None),
}  # fmt: skip


def load(vendor: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "openapi" / f"{vendor}.json").read_text())


def problems(document: dict[str, Any], name: str, value: Any) -> list[str]:
    """Return the places where `value` violates the schema `name`; [] = none."""
    found, _ = _check(document, document[name], value, "$")
    return found


def _check(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str) -> tuple[list[str], set[str]]:
    """Return the complaints, and the properties that are known."""
    if "$ref" in schema:
        return _check(document, document[schema["$ref"].rsplit("/", 1)[1]], value, at)
    bad: list[str] = []
    known = set(schema.get("properties", {}))
    kinds = schema.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    fits = [kind for kind in kinds if isinstance(value, TYPES[kind])]
    if kinds and (not fits or (isinstance(value, bool) and "boolean" not in kinds)):
        return [f"{at}: {value!r} is no {' or '.join(kinds)}"], known
    if "enum" in schema and value not in schema["enum"]:
        bad.append(f"{at}: {value!r} is none of {schema['enum']}")
    if "minimum" in schema and value < schema["minimum"]:
        bad.append(f"{at}: {value} is below {schema['minimum']}")
    if isinstance(value, str):
        bad += [f"{at}: too short"] if len(value) < schema.get("minLength", 0) else []
        bad += [f"{at}: {value!r} does not match"] if not re.search(schema.get("pattern", ""), value) else []
    if isinstance(value, list):
        bad += [f"{at}: too many"] if len(value) > schema.get("maxItems", len(value)) else []
        for index, item in enumerate(value):
            bad += _check(document, schema.get("items", {}), item, f"{at}[{index}]")[0]
    for part in schema.get("allOf", []):
        more, names = _check(document, part, value, at)
        bad, known = bad + more, known | names
    if "anyOf" in schema and all(_check(document, part, value, at)[0] for part in schema["anyOf"]):
        bad.append(f"{at}: fits none of several")
    if "if" in schema:
        is_so = not _check(document, schema["if"], value, at)[0]
        bad += _check(document, schema.get("then" if is_so else "else", {}), value, at)[0]
    if "not" in schema and not _check(document, schema["not"], value, at)[0]:
        bad.append(f"{at}: must not fit")
    if isinstance(value, dict):
        bad += [f"{at}: {name} is missing" for name in schema.get("required", []) if name not in value]
        more = schema.get("additionalProperties", True)
        for name, one in value.items():
            if name in schema.get("properties", {}):
                bad += _check(document, schema["properties"][name], one, f"{at}.{name}")[0]
            elif isinstance(more, dict):
                bad += _check(document, more, one, f"{at}.{name}")[0]
        is_closed = more is False or schema.get("unevaluatedProperties") is False
        bad += [f"{at}: {name} is unknown" for name in value if is_closed and name not in known]
    return bad, known
