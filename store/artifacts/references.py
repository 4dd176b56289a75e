"""The leases on artifacts, stored in the store itself so that every user of a shared store respects them.

    <store>/references/<owner>.json     the artifacts that a run or service reads, and the expiry time

A lease maps an owner to kinds and fingerprints; `readers` returns the owners by artifact. The owner writes the lease at
the start of a run or service and renews the lease while the run is followed.
"""

import json
import os
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from store import untrusted_input
from store.backends.backend import Backend, open_place
from store.manifest import BY_FINGERPRINT, Artifact, StoreError, check_name, is_name, kept_name, kind_of

FOLDER, SCHEMA = "references", 1
LEASE_S = 30 * 86400.0  # lifetime of a lease without renewal
KEPT_S = 14 * 86400.0  # retention of unreferenced artifacts

What = tuple[str, str]  # kind and fingerprint


@dataclass(frozen=True)
class Reference:
    """The lease of an owner."""

    owner: str
    """Display name of the owner, such as `run brave-otter-3`."""
    reads: frozenset[What]
    until: float
    """Expiry time in UTC epoch seconds."""


def hold(uri: str, name: str, owner: str, reads: Iterable[What], now: float) -> None:
    """Write or renew the lease `name`, valid for LEASE_S seconds after `now`. Raise StoreError."""
    said = {"schema": SCHEMA, "owner": owner, "reads": sorted(set(reads)), "until": now + LEASE_S}
    _put(uri, {_file(name): json.dumps(said, indent=1).encode()}, [])


def release(uri: str, name: str) -> None:
    """Remove the lease `name` if present. Raise StoreError."""
    _put(uri, {}, [_file(name)])


def _put(uri: str, new: Mapping[str, bytes], gone: list[str]) -> None:
    place = open_place(uri)
    try:
        try:
            place.put(new, gone)
        except FileNotFoundError:  # a concurrent release removed the empty folder; retry once
            place.put(new, gone)
    except OSError as error:
        raise StoreError(f"{uri}: {FOLDER}: {error}") from error


def live_leases(uri: str, now: float, odd: list[str] | None = None) -> list[Reference]:
    """Return all leases that have not expired at `now`.

    Raise StoreError for an unreadable lease, which may protect any artifact; with `odd`, append the message to the list
    instead.
    """
    place = open_place(uri)
    found = []
    for name in sorted(name for name in place.listing(FOLDER) if name.endswith(".json")):
        try:
            one = _read(place, name)
        except StoreError as error:
            if odd is None:
                raise
            odd.append(str(error))
        else:
            found += [one] if one and one.until > now else []
    return found


def readers(references: Iterable[Reference]) -> dict[What, tuple[str, ...]]:
    """Return the owners of leases by artifact."""
    found: dict[What, tuple[str, ...]] = {}
    for one in references:
        for what in one.reads:
            found[what] = (*found.get(what, ()), one.owner)
    return found


def unread(
    named: Iterable[Artifact], kept: Iterable[Artifact], held: Collection[What], before: float
) -> list[Artifact]:
    """Return the kept artifacts without any name or lease that were published before `before`, oldest first.

    A model that a change refers to is kept as long as the change. named: artifacts that names point to; held: kind and
    fingerprint of artifacts under a lease.
    """
    kept = [*kept]
    spoken_for = {kept_at(kept_name(one.name, one.fingerprint)) for one in named if one.fingerprint} | {
        kept_at(kept_name(kind, fingerprint)) for kind, fingerprint in held
    }
    changed = {kept_at(one.name): _changed_by(one) for one in kept}
    new = spoken_for
    while new := {changed[one] for one in new if changed.get(one)} - spoken_for:
        spoken_for |= new
    left = [one for one in kept if kept_at(one.name) not in spoken_for]
    # An artifact without a publication time has an unreadable manifest and must not be removed.
    told = [one for one in left if one.published_at]
    return sorted((one for one in told if one.published_at < before), key=lambda one: (one.published_at, one.name))


def of_making(making: Mapping[str, Any]) -> set[What]:
    """Return kind and fingerprint of the output and of all inputs of a step."""
    both = [making, *making.get("inputs", {}).values()]
    return {(kind_of(str(one["name"])), str(one["fingerprint"])) for one in both}


def kept_at(path: str) -> What | None:
    """Return kind and fingerprint of the kept artifact at or above a path or URI, or None for other paths."""
    found = re.search(rf"(?:^|/){BY_FINGERPRINT}/([^/]+)/([^/]+)(?:/|$)", path)
    return (found[1], found[2]) if found else None


def kept_behind(place: str) -> What | None:
    """Return kind and fingerprint of the kept artifact at a path or URI, also behind the links of a joined folder."""
    return kept_at(place if "://" in place else os.path.realpath(place))


def _changed_by(one: Artifact) -> What | None:
    """Return kind and fingerprint of the model that an artifact changes, or None for a whole model."""
    said = one.about.get("changes")
    name, fingerprint = (said.get("name"), said.get("fingerprint")) if isinstance(said, Mapping) else (None, None)
    if not (isinstance(name, str) and is_name(name) and isinstance(fingerprint, str) and fingerprint):
        return None
    return kept_at(kept_name(name, fingerprint))


def _file(name: str) -> str:
    return f"{FOLDER}/{check_name(name)}.json"


def _read(place: Backend, name: str) -> Reference | None:
    """Return the lease in a file, or None if the lease was released meanwhile."""
    try:
        said = untrusted_input.mapping(place.read_small(name))
        reads = frozenset(
            (str(kind), str(fingerprint)) for kind, fingerprint in untrusted_input.typed(said, "reads", list)
        )
        return Reference(untrusted_input.typed(said, "owner", str), reads, _number(said, "until"))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{place.uri}: {name}: {error}; the lease may protect any artifact of the store. Fix or remove the lease"
        ) from None


def _number(said: Mapping[str, Any], key: str) -> float:
    return float(untrusted_input.typed(said, key, float))
