"""Preparation of the document of a service before the conversion into records: variables, aliases, empty keys."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from infra.file_variables import filled
from infra.settings import is_secret

ALIASES = {"gpus": "accelerators", "ephemeral_storage": "disk_size"}


def with_variables(document: Any, given: Mapping[str, str]) -> Any:
    """Return a document with more variables in `envs`."""
    if not isinstance(document, dict) or not isinstance(document.get("envs") or {}, dict):
        return document
    return {**document, "envs": {**(document.get("envs") or {}), **given}}


def without_empty(document: Any) -> Any:
    """Return a document without empty keys, as SkyPilot reads the file: a section with comments only says nothing.

    Empty variables stay, because their values come from elsewhere.
    """
    if not isinstance(document, dict):
        return document
    found = {key: one for key, one in document.items() if one is not None}
    for key in ("resources", "service", "slipway"):
        if isinstance(found.get(key), dict):
            found[key] = {name: one for name, one in found[key].items() if one is not None}
    return found


def without_aliases(document: dict[Any, Any], found: list[str]) -> dict[Any, Any]:
    """Return the document with the usual keys of `resources` in place of aliases. Both keys together are a refusal."""
    said = document.get("resources")
    if not isinstance(said, dict):
        return document

    def plain(one: Any) -> Any:
        if not isinstance(one, dict):
            return one
        for alias, key in ALIASES.items():
            if one.get(alias) is not None and one.get(key) is not None:
                found.append(f"resources: {alias} and {key} exclude each other; keep {key}")
        return {ALIASES.get(key, key): value for key, value in one.items()}

    several = {key: list(map(plain, said[key])) for key in ("any_of", "ordered") if isinstance(said.get(key), list)}
    return {**document, "resources": {**plain(said), **several}}


def with_values(document: dict[Any, Any], found: list[str]) -> dict[Any, Any]:
    """Return the document with `$NAME` of `envs` replaced in `service`, `workdir` and `file_mounts`, as in SkyServe.

    A secret stays in `service`: the journal stores the document, and `own_run.probe` replaces the secret later. An
    unknown variable is a refusal, and stays as written.
    """
    if not isinstance(document.get("envs") or {}, dict):
        return document
    envs = {str(name): str(value) for name, value in (document.get("envs") or {}).items() if value is not None}

    empty = [str(name) for name, value in (document.get("envs") or {}).items() if value is None]
    secrets = document.get("secrets") or ()
    hidden = [str(name) for name in secrets] if isinstance(secrets, (dict, list)) else []
    hidden += [name for name in empty if is_secret(name)]

    def unknown(section: str, name: str) -> None:
        if name in hidden:
            found.append(f"{section}: ${name} is a secret, and the plan shows {section}; write the value")
            return
        advice = (
            f"{name}: under secrets, and set the variable in .env" if is_secret(name) else f"{name}: VALUE under envs"
        )
        found.append(f"{section}: ${name} is not a variable of envs; write the value, or {advice}")

    own = {key: document[key] for key in ("service", "workdir", "file_mounts") if key in document}
    known = {**dict.fromkeys(one for one in empty if one not in hidden), **envs}
    for key, one in own.items():
        values = {**dict.fromkeys(hidden), **known} if key == "service" else known
        own[key] = filled(one, values, partial(unknown, key))
    return {**document, **own}
