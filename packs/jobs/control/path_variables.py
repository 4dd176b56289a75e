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
from infra.strict_yaml import YamlDocument
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
    secrets = secrets_in(document)
    values = {**values_in(document, "envs"), **secrets}
    if outside.usual is not None:
        values = {name: outside.usual.get(name) if value is None else value for name, value in values.items()}
    values |= outside.given
    marked = {name for name in values if name in secrets or name in outside.hidden or is_secret(name)}
    hidden = {name for name in marked if values[name] is not None}
    refused.hidden |= {
        value: f"${name}"
        for name, value in values.items()
        if name in hidden and value and len(value) >= SHORTEST_HIDDEN and not value.isdecimal()
    }
    lines, body = dict(document.lines), dict(said)

    def fill(one: Any, *place: str, kept: Collection[str] = ()) -> Any:
        def unknown(name: str) -> None:
            refused.add(
                document.line(*place),
                f"{place[0]}: ${name} is not a variable of envs; write the value, or a line {name}: VALUE under envs",
            )

        found = file_variables.filled(one, {**values, **dict.fromkeys(kept)}, unknown)
        for name in file_variables.names_in(found) if outside.usual is not None else ():
            if name in values and name not in kept:
                refused.add(
                    document.line(*place),
                    f"{place[0]}: ${name} has no value; give -e {name}=VALUE, or set the variable in .env",
                )
        return found

    if said.get("workdir"):
        body["workdir"] = fill(said["workdir"], "workdir", kept=hidden if isinstance(said["workdir"], dict) else ())
    if isinstance(said.get("volumes"), dict):
        for key, one in said["volumes"].items():
            for name in marked.intersection(file_variables.names_in({str(key): one})):
                refused.add(
                    document.line("volumes", key),
                    f"volumes: ${name} is a secret, and the plan shows volumes; write the value, or move the value to "
                    "a variable of envs with a different name",
                )
        body["volumes"] = fill(said["volumes"], "volumes", kept=marked)
    if isinstance(said.get("file_mounts"), dict):
        body["file_mounts"] = {}
        for key, one in said["file_mounts"].items():
            if found := _secrets_of_address(one, values, marked):
                refused.add(
                    document.line("file_mounts", key),
                    f"file_mounts: ${found[0]} is a secret, and the plan shows the address; remove the mount, and "
                    f"fetch the files in `setup` with ${found[0]}",
                )
                continue
            path = fill(key, "file_mounts", key)
            body["file_mounts"][path] = fill(one, "file_mounts", key)
            lines |= {
                ("file_mounts", path, *place[2:]): line
                for place, line in document.lines.items()
                if place[:2] == ("file_mounts", key)
            }
    return replace(document, value=body, lines=lines)


def _secrets_of_address(said: Any, values: Mapping[str, str | None], marked: Collection[str]) -> list[str]:
    """Return the secrets in the addresses of a mount that are no bucket."""
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
