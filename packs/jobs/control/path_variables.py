"""Variables of `envs` and `secrets` in the paths and volumes of a job file: `$NAME` and `${NAME}`, as in SkyPilot.

    a parsed document, values from outside -> `filled` -> the document with the values in place of the names

The plan and the journal show paths, so a secret is refused at each place that no shell reads.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra import file_variables
from infra.settings import is_secret
from infra.strict_yaml import Place, YamlDocument
from packs.jobs.control.refusals import Refusals

SHORTEST_HIDDEN = 4  # letters; a shorter value, or a number, is also a part of other words of a message
# Buckets of Slipway and of engines. An address with a user or password is no bucket.
PLAIN_BUCKET = re.compile(r"(s3|gs|hf|r2|cos|oci|nebius|cw|vastdata)://[^/@:\s]+(/.*)?")


@dataclass(frozen=True, kw_only=True)
class Values:
    """Values of variables from outside of a job file."""

    given: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Values that override the values in the file."""
    usual: Mapping[str, str] | None = field(default=None, repr=False)
    """Values of variables without a value in the file; None before these values are known."""
    hidden: frozenset[str] = frozenset()
    """Names of the variables that the user marked as secrets on the command line."""


UNKNOWN = Values()


def filled(document: YamlDocument, outside: Values, refused: Refusals) -> YamlDocument:
    """Return the document with `$NAME` and `${NAME}` replaced in paths and volumes, as in SkyPilot.

    A secret in the address of a repository stays, because the plan and the journal have the address; the shell on the
    machine replaces the secret. Volumes and addresses of mounts reach no shell, so a secret is refused; a bucket and a
    path may have a secret.
    """
    said = document.value
    if not isinstance(said, dict):
        return document
    known = _Known.of(document, outside)
    refused.hidden |= known.texts_to_hide()
    body = dict(said)
    if said.get("workdir"):
        kept: Collection[str] = known.hidden if isinstance(said["workdir"], dict) else ()
        body["workdir"] = _fill(said["workdir"], ("workdir",), document, known, refused, kept)
    if isinstance(said.get("volumes"), dict):
        body["volumes"] = _volumes(said["volumes"], document, known, refused)
    lines = dict(document.lines)
    if isinstance(said.get("file_mounts"), dict):
        body["file_mounts"], lines = _mounts(said["file_mounts"], document, known, refused)
    return replace(document, value=body, lines=lines)


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The variables of a document with the values from outside."""

    values: Mapping[str, str | None] = field(repr=False)
    marked: frozenset[str]
    """Names of the secrets."""
    is_complete: bool
    """True if a variable without a value has no value at all."""

    @classmethod
    def of(cls, document: YamlDocument, outside: Values) -> "_Known":
        secrets = secrets_in(document)
        values = {**values_in(document, "envs"), **secrets}
        if outside.usual is not None:
            values = {name: outside.usual.get(name) if value is None else value for name, value in values.items()}
        values |= outside.given
        marked = frozenset(name for name in values if name in secrets or name in outside.hidden or is_secret(name))
        return cls(values=values, marked=marked, is_complete=outside.usual is not None)

    @property
    def hidden(self) -> set[str]:
        """Return the names of the secrets with a value."""
        return {name for name in self.marked if self.values[name] is not None}

    def texts_to_hide(self) -> dict[str, str]:
        """Return the values of secrets, with the text that a refusal has instead."""
        return {
            value: f"${name}"
            for name, value in self.values.items()
            if name in self.marked and value and len(value) >= SHORTEST_HIDDEN and not value.isdecimal()
        }


def _fill(
    one: Any, place: Place, document: YamlDocument, known: _Known, refused: Refusals, kept: Collection[str] = ()
) -> Any:
    """Return a value with the values of variables, except the names in `kept`; collect names without a value."""

    def unknown(name: str) -> None:
        refused.add(
            document.line(*place),
            f"{place[0]}: ${name} is not a variable of envs; write the value, or a line {name}: VALUE under envs",
        )

    found = file_variables.filled(one, {**known.values, **dict.fromkeys(kept)}, unknown)
    for name in file_variables.names_in(found) if known.is_complete else ():
        if name in known.values and name not in kept:
            refused.add(
                document.line(*place),
                f"{place[0]}: ${name} has no value; give -e {name}=VALUE, or set the variable in .env",
            )
    return found


def _volumes(said: Mapping[str, Any], document: YamlDocument, known: _Known, refused: Refusals) -> Any:
    for key, one in said.items():
        for name in known.marked.intersection(file_variables.names_in({str(key): one})):
            refused.add(
                document.line("volumes", key),
                f"volumes: ${name} is a secret, and the plan shows volumes; if the value is not a secret, write "
                "the value, or use a variable of envs with a different name",
            )
    return _fill(said, ("volumes",), document, known, refused, known.marked)


def _mounts(
    said: Mapping[str, Any], document: YamlDocument, known: _Known, refused: Refusals
) -> tuple[dict[str, Any], dict[Place, int]]:
    """Return the mounts at the paths with values, and the lines of the document with these paths."""
    found: dict[str, Any] = {}
    lines = dict(document.lines)
    for key, one in said.items():
        at = ("file_mounts", key)
        if secrets := _secrets_of_address(one, known.values, known.marked):
            refused.add(
                document.line(*at),
                f"file_mounts: ${secrets[0]} is a secret, and the plan shows the address; remove the mount, and "
                f"fetch the files in `setup` with ${secrets[0]}",
            )
            continue
        path = _fill(key, at, document, known, refused)
        found[path] = _fill(one, at, document, known, refused)
        lines |= {(*at[:1], path, *place[2:]): line for place, line in document.lines.items() if place[:2] == at}
    return found, lines


def _secrets_of_address(said: Any, values: Mapping[str, str | None], marked: Collection[str]) -> list[str]:
    """Return the secrets in the addresses of a mount, without addresses of buckets."""
    if isinstance(said, str):
        address = file_variables.filled(said, {name: value or "x" for name, value in values.items()}, lambda _: None)
        is_address = "://" in address and not PLAIN_BUCKET.fullmatch(address)
        return [name for name in file_variables.names_in(said) if name in marked] if is_address else []
    parts = said.values() if isinstance(said, Mapping) else said if isinstance(said, list) else ()
    return [name for one in parts for name in _secrets_of_address(one, values, marked)]


def values_in(document: YamlDocument, section: str) -> dict[str, str | None]:
    """Return the variables of a section with the text of each value as written in the file."""
    said = document.value.get(section)
    if not isinstance(said, dict):
        return {}
    return {
        str(name): None if value is None else document.texts.get((section, name), str(value))
        for name, value in said.items()
    }


def secrets_in(document: YamlDocument) -> dict[str, str | None]:
    """Return the variables of the section `secrets`, also of a list of names."""
    said = document.value.get("secrets")
    names = [one for one in said if isinstance(one, str)] if isinstance(said, list) else ()
    return {**dict.fromkeys(names), **values_in(document, "secrets")}
