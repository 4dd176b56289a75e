"""Leases on artifacts, which lie in the store itself, so that whoever shares it removes nothing that is in use.

    <store>/references/<owner>.json     what one run or service reads, and until when that holds

In: an owner's name, and kinds with fingerprints. Out: by kind and fingerprint, who reads it. Written when a run or a
service begins, and renewed while it is followed.
"""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from store import outside
from store.backends.backend import Backend
from store.backends.by_uri import open_place
from store.manifest import BY_FINGERPRINT, Artifact, StoreError, check_name, kept_name, kind_of

FOLDER, SCHEMA = "references", 1
LEASE_S = 30 * 86400.0  # lifetime of a lease that nobody renews
KEPT_S = 14 * 86400.0  # time for which unreferenced artifacts are kept

What = tuple[str, str]  # kind and fingerprint


@dataclass(frozen=True)
class Reference:
    """One owner's lease."""

    owner: str
    """Name of the owner, in words, such as `run brave-otter-3`."""
    reads: frozenset[What]
    until: float
    """UTC epoch seconds."""


def hold(uri: str, name: str, owner: str, reads: Iterable[What], now: float) -> None:
    """Write or renew the lease `name`. Raises StoreError."""
    said = {"schema": SCHEMA, "owner": owner, "reads": sorted(set(reads)), "until": now + LEASE_S}
    _put(uri, {_file(name): json.dumps(said, indent=1).encode()}, [])


def release(uri: str, name: str) -> None:
    """End the lease `name`, if there is one. Raises StoreError."""
    _put(uri, {}, [_file(name)])


def _put(uri: str, new: Mapping[str, bytes], gone: list[str]) -> None:
    place = open_place(uri)
    try:
        try:
            place.put(new, gone)
        except FileNotFoundError:  # another process removed the folder with its last lease
            place.put(new, gone)
    except OSError as error:
        raise StoreError(f"{uri}: {FOLDER}: {error}") from error


def living(uri: str, now: float, odd: list[str] | None = None) -> list[Reference]:
    """Return every lease that has not expired.

    Raises StoreError for one that cannot be read, as it may protect anything; with `odd` the message is appended there
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
    """Return the owners that read each artifact."""
    found: dict[What, tuple[str, ...]] = {}
    for one in references:
        for what in one.reads:
            found[what] = (*found.get(what, ()), one.owner)
    return found


def unread(
    named: Iterable[Artifact], kept: Iterable[Artifact], held: Collection[What], before: float
) -> list[Artifact]:
    """Return the kept artifacts that no name and no lease refers to, published before that moment; oldest first.

    named: what names refer to; held: what leases refer to.
    """
    spoken_for = {kept_at(kept_name(one.name, one.fingerprint)) for one in named if one.fingerprint} | {
        kept_at(kept_name(kind, fingerprint)) for kind, fingerprint in held
    }
    left = [one for one in kept if kept_at(one.name) not in spoken_for]
    # otherwise its manifest cannot be read, and it is not known what it is
    told = [one for one in left if one.published_at]
    return sorted((one for one in told if one.published_at < before), key=lambda one: (one.published_at, one.name))


def of_making(making: Mapping[str, Any]) -> set[What]:
    """Return kind and fingerprint of what a step makes, and of what it reads."""
    both = [making, *making.get("inputs", {}).values()]
    return {(kind_of(str(one["name"])), str(one["fingerprint"])) for one in both}


def kept_at(path: str) -> What | None:
    """Return kind and fingerprint of the kept artifact that a path or an address leads to or into."""
    found = re.search(rf"(?:^|/){BY_FINGERPRINT}/([^/]+)/([^/]+)(?:/|$)", path)
    return (found[1], found[2]) if found else None


def _file(name: str) -> str:
    return f"{FOLDER}/{check_name(name)}.json"


def _read(place: Backend, name: str) -> Reference | None:
    """Return the lease in that file, or None for one that was ended meanwhile."""
    try:
        said = outside.mapping(place.small(name))
        reads = frozenset((str(kind), str(fingerprint)) for kind, fingerprint in outside.typed(said, "reads", list))
        return Reference(outside.typed(said, "owner", str), reads, _number(said, "until"))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"{place.uri}: {name}: {error}; who wrote it may read anything there: mend or remove it"
        ) from None


def _number(said: Mapping[str, Any], key: str) -> float:
    return float(outside.typed(said, key, float))
