"""Import of machines created by Terraform into the inventory.

The input is `terraform output -json`, `terraform show -json` or a state file; the import takes every output with an
address, a list of addresses or a map to addresses. The new inventory text keeps all existing lines, comments included,
and only adds lines. A host list on a single line is refused instead of reformatted.
"""

import ipaddress
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.agent.job import write_durably
from infra.errors import UsageError
from infra.names import check_name

_NAME = re.compile(r"(?=.{1,253}$)([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z]{2,63}", re.I)
_PLAIN = re.compile(r"[A-Za-z0-9_~/.-]+")


@dataclass(frozen=True)
class FoundAddress:
    """An address and the position in the outputs."""

    address: str
    origin: str


@dataclass(frozen=True)
class Import:
    """The plan of an import: new and known addresses, and the new text of the file."""

    path: Path
    new: tuple[FoundAddress, ...]
    known: tuple[FoundAddress, ...]
    text: str


def addresses(path: Path, only: str = "") -> tuple[FoundAddress, ...]:
    """Return the distinct addresses in the outputs of a Terraform file, or in the single output `only`.

    Raises UsageError for a file without Terraform's JSON or without an address.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: {error}; write the file with: terraform output -json > {path.name}") from None
    outputs = _outputs(document)
    if only and only not in outputs:
        raise UsageError(f"{path}: output {only!r} does not exist; available: {', '.join(outputs) or 'none'}")
    found = [one for name, output in outputs.items() if only in ("", name) for one in _in(name, output.get("value"))]
    if not found:
        raise UsageError(f"{path}: no output holds an address, a list or a map of addresses ({', '.join(outputs)})")
    first: dict[str, FoundAddress] = {}
    for one in found:
        first.setdefault(one.address, one)
    return tuple(first.values())


def plan(
    path: Path, pool: str, found: Sequence[FoundAddress], *, user: str = "", key: str = "", home: Path | None = None
) -> Import:
    """Plan the inventory at `path` with the found machines in `pool`, without writing. Raises UsageError."""
    from infra import strict_yaml

    check_name(pool)
    for name, value in (("--user", user), ("--key", key)):
        if value and not _PLAIN.fullmatch(value):
            raise UsageError(f"{name} {value!r}: this value needs quotes; add the value to {path} by hand")
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    pools = (strict_yaml.read(path) if text else None) or {}
    if not isinstance(pools, dict):
        raise UsageError(f"{path}: expected `POOL:` with `hosts:` below")
    entries = pools.get(pool, {}).get("hosts", []) if isinstance(pools.get(pool, {}), dict) else []
    there = {entry["ip"] if isinstance(entry, dict) else entry for entry in entries}
    new = tuple(one for one in found if one.address not in there)
    known = tuple(one for one in found if one.address in there)
    if not new:
        return Import(path, new, known, text)
    if pool not in pools:
        return Import(path, new, known, _with_pool(text, pool, new, user, key))
    if user or key:
        raise UsageError(f"{path}: pool {pool} already exists; --user and --key apply only to a new pool")
    longer = _with_hosts(text, pool, new)
    wanted = {**pools, pool: {**pools[pool], "hosts": [*entries, *(one.address for one in new)]}}
    if longer is None or strict_yaml.parse(path, longer) != wanted:
        raise UsageError(
            f"{path}: the hosts of {pool} are not one per line; add the hosts by hand, or choose a new --pool"
        )
    return Import(path, new, known, longer)


def write(one: Import) -> None:
    """Write the planned text to the inventory if the plan has new addresses."""
    if one.new:
        write_durably(one.path, one.text)


def _outputs(document: Any) -> Mapping[str, Mapping[str, Any]]:
    """Return the outputs: top-level in `output -json`, nested in a state file or in `show -json`."""
    if isinstance(document, dict):
        values = document.get("values")
        inside = values.get("outputs") if isinstance(values, dict) else document.get("outputs")
        outputs = inside if isinstance(inside, dict) else document
        return {name: one for name, one in outputs.items() if isinstance(one, dict) and "value" in one}
    return {}


def _in(name: str, value: Any) -> Iterator[FoundAddress]:
    """Yield the addresses of an output; ignore a list or map with any other value."""
    pairs = {"": value} if isinstance(value, str) else dict(enumerate(value)) if isinstance(value, list) else value
    if isinstance(pairs, dict) and all(_is_address(one) for one in pairs.values()):
        for key, one in pairs.items():
            yield FoundAddress(one, re.sub(r"[^A-Za-z0-9._-]", "-", f"{name}.{key}" if key != "" else name))


def _is_address(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        address = ipaddress.ip_address(value)
    except ValueError:
        return bool(_NAME.fullmatch(value))
    return not (address.is_unspecified or address.is_multicast or value.startswith("255."))


def _with_pool(text: str, pool: str, new: Sequence[FoundAddress], user: str, key: str) -> str:
    lines = [f"{json.dumps(pool)}:" if not re.match("[A-Za-z]", pool) else f"{pool}:"]
    lines += [f"  user: {user}"] if user else []
    lines += [f"  identity_file: {key}"] if key else []
    lines += ["  hosts:", *(_line("    ", one) for one in new)]
    before = f"{text.rstrip()}\n\n" if text.strip() else ""
    return before + "\n".join(lines) + "\n"


def _with_hosts(text: str, pool: str, new: Sequence[FoundAddress]) -> str | None:
    """Return the text with new lines after the pool's last machine, with the same indentation.

    Returns None if the pool's hosts are not on separate lines.
    """
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    body = next(value for key, value in root.value if key.value == pool)
    hosts = next((value for key, value in body.value if key.value == "hosts"), None)
    if not isinstance(hosts, yaml.SequenceNode) or hosts.flow_style or not hosts.value:
        return None
    lines = text.splitlines()
    end = hosts.value[-1].start_mark.line + 1
    while end < len(lines) and _indent(lines[end]) > hosts.start_mark.column:
        end += 1
    indent = " " * hosts.start_mark.column
    return "\n".join([*lines[:end], *(_line(indent, one) for one in new), *lines[end:]]) + "\n"


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _line(indent: str, one: FoundAddress) -> str:
    address = json.dumps(one.address) if ":" in one.address else one.address
    return f"{indent}- {address}  # {one.origin}"
