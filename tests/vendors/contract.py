"""A vendor's OpenAPI document, and the violations by a request or an answer."""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jsonschema import ValidationError
from openapi_schema_validator import OAS30Validator, OAS31Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT202012

FILES = {"runpod": "runpod-rest-v2.openapi.json", "shadeform": "shadeform.openapi.yaml"}
# Required texts that are null without a value in the vendor's own published examples.
NULLED = {"runpod": set[str](), "shadeform": {"ip", "ssh_port", "active_at", "deleted_at"}}
# Filters of the placement in a pod's `gpu`, by the page of `POST /v2/pods` of October 2026: least memory (GB) and vCPUs
# of the host per requested GPU.
LATER = {name: {"type": "integer", "minimum": 1} for name in ("minRamPerGpu", "minVcpuCountPerGpu")}


@dataclass(frozen=True)
class Contract:
    """The document of one vendor. Violations are texts; an empty list is a valid value."""

    vendor: str
    document: dict[str, Any]

    def violations(self, schema_name: str, value: Any) -> list[str]:
        """Return the violations of a schema of `components/schemas` in `value`."""
        return self._violations({"$ref": f"#/components/schemas/{schema_name}"}, value)

    def violations_of_answer(self, method: str, path: str, status: int, body: Any) -> list[str]:
        """Return the violations of the requested operation in an answer; `body` is None without a body."""
        operation = self.operation(method, path)
        if operation is None:
            return [f"{method} {path} is not in the document"]
        answers = operation["responses"]
        described = self._resolved(answers.get(str(status), answers.get("default")))
        if described is None:
            return [f"{method} {path}: the document has no answer with status {status}"]
        forms = [form["schema"] for kind, form in described.get("content", {}).items() if "json" in kind]
        if not forms:
            return [] if body is None else [f"{method} {path}: {status} has no body in the document"]
        return self._violations(forms[0], body)

    def operation(self, method: str, path: str) -> dict[str, Any] | None:
        """Return the operation of a sent path, without a query; the template with most words fits first."""
        templates = sorted(self.document["paths"], key=lambda one: one.count("{"))
        for template in templates:
            if re.fullmatch(re.sub(r"{\w+}", "[^/]+", template), path):
                return self.document["paths"][template].get(method.lower())
        return None

    def _is_nulled(self, error: ValidationError) -> bool:
        return error.instance is None and bool(error.path) and error.path[-1] in NULLED[self.vendor]

    def _resolved(self, node: Any) -> Any:
        while isinstance(node, dict) and "$ref" in node:
            node = functools.reduce(
                lambda at, word: at[word], node["$ref"].removeprefix("#/").split("/"), self.document
            )
        return node

    def _violations(self, schema: dict[str, Any], value: Any) -> list[str]:
        kind = OAS31Validator if self.document["openapi"].startswith("3.1") else OAS30Validator
        # The document is the root of all references, and the schema to check stands beside its components.
        root = {**schema, "components": self.document["components"]}
        registry = Registry().with_resource("", Resource.from_contents(root, default_specification=DRAFT202012))
        found = [one for one in kind(root, registry=registry).iter_errors(value) if not self._is_nulled(one)]
        return [f"{'.'.join(map(str, one.absolute_path)) or '$'}: {one.message}"[:300] for one in found]


@functools.cache
def load(vendor: str) -> Contract:
    """Return the vendor's document, with the fields that only a later page of its documentation has."""
    text = (Path(__file__).parent / FILES[vendor]).read_text()
    document = json.loads(text) if FILES[vendor].endswith(".json") else yaml.safe_load(text)
    if vendor == "runpod":
        document["components"]["schemas"]["CreateGpuConfig"]["allOf"][1]["properties"] |= LATER
    return Contract(vendor, document)
