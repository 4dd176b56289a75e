"""Variants of a served model, such as adapters: which ones a service gets, and the room for them in the engines."""

import dataclasses
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.runs.timing import Say
from infra.settings import Settings
from serve import variants
from serve.policy.replica_states import State
from serve.policy.service_state import Member, ServiceRecord, Version, WantedService, served_name
from serve.processes import controller_client
from serve.replicas import placement
from serve.variants import Variant, VariantFlags

POLL_S, WAIT_S = 0.2, 900.0
SLOTS = 8  # variants in a batch, unless the service file says otherwise
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
Named = Mapping[str, tuple[VariantFlags, str]]
"""Flags and typed source of each variant by name."""


def named_by(added: Iterable[Any]) -> Named:
    """Return the variants in the flags of packs."""
    flags = [one for one in added if isinstance(one, VariantFlags)]
    return {name: (one, source) for one in flags for name, source in one.named().items()}


def with_variants(
    name: str, version: Version, named: Named, old: WantedService | None, settings: Settings
) -> tuple[Version, dict[str, Variant]]:
    """Return a version whose engines have room for the variants of a service, and all variants. Raises UsageError."""
    if old is not None:
        check_model(name, version, old)
    found = {**(old.variants if old else {}), **(resolve(name, version, named, settings) if named else {})}
    if not found:
        return version, found
    check_engine(version)
    if not version.engine.startswith("vllm"):
        return version, found
    tuning = version.service.slipway.engine
    rank = max(tuning.variant_rank, *(one.rank for one in found.values()))
    variants.vllm_rank(rank)
    ours = dict(version.document.get("slipway") or {})
    ours["engine"] = {**(ours.get("engine") or {}), "variants": tuning.variants or SLOTS, "variant_rank": rank}
    return dataclasses.replace(version, document={**version.document, "slipway": ours}), found


def check_engine(version: Version) -> None:
    """Raise UsageError for an engine that loads no variants."""
    if version.engine not in variants.ENGINES:
        known = ", ".join(one for one in variants.ENGINES if one != "fake")
        raise UsageError(f"the engine {version.engine} loads no variants of a model; use --engine {known}")


def resolve(name: str, version: Version, named: Named, settings: Settings) -> dict[str, Variant]:
    """Return the variants for a version of the service `name`. Raises UsageError for an unusable variant."""
    check_engine(version)
    found, taken = {}, served_name(name, version.service)
    is_here = placement.candidates(version.provider, settings) == ("local",)
    for one, (flags, source) in named.items():
        if not NAME.fullmatch(one) or one == taken:
            raise UsageError(
                f"{one!r} cannot be the name of a variant: use letters, digits, '.', '_', '/' and '-', and not "
                f"{taken}, the name of the model itself"
            )
        variant = flags.resolve(source, version.model, settings)
        if "://" not in variant.source and not is_here and version.engine != "fake":
            raise UsageError(
                f"{one}: {variant.source} is on this machine, and the replicas are on others. Upload the folder to the "
                f"hub, then: {one}=hf://user/repo"
            )
        if "://" in variant.source and version.engine == "torch":
            raise UsageError(f"{one}: the engine torch loads variants from folders of this machine; download {source}")
        found[one] = variant
    return found


def check_model(name: str, version: Version, old: WantedService) -> None:
    """Raise UsageError if the model changes under variants of the earlier model."""
    same = (version.model, version.weights) == (old.newest.model, old.newest.weights)
    if old.variants and not same:
        raise UsageError(
            f"{name} has variants of the model {old.newest.model}: {', '.join(old.variants)}. Remove the variants "
            f"first, or start the other model as a new service: inv serve.down {name}, then inv serve.up"
        )


def ready_members(wanted: WantedService, seen: ServiceRecord) -> list[Member]:
    """Return the ready replicas of the newest version."""
    newest = wanted.newest.number
    return [one for one in seen.members if one.state is State.READY and one.version == newest]


def is_settled(wanted: WantedService, seen: ServiceRecord) -> bool:
    """Return whether every ready replica of the newest version has loaded or refused each variant, and has no other."""
    ready = ready_members(wanted, seen)
    return bool(ready) and all(
        {name: one.identity for name, one in wanted.variants.items() if one.identity not in member.refused}
        == member.variants
        for member in ready
    )


def last_errors(wanted: WantedService, seen: ServiceRecord) -> dict[str, str]:
    """Return the last error of each variant that a ready replica tries to load again, by name."""
    errors = {one: why for member in ready_members(wanted, seen) for one, why in member.failed.items()}
    return {name: errors[one.identity] for name, one in wanted.variants.items() if one.identity in errors}


def await_loaded(name: str, settings: Settings, journal: Journal, tell: Say) -> tuple[WantedService, ServiceRecord]:
    """Wait until the ready replicas of a service have the wanted variants; return both states.

    Raises SlipwayError on a timeout, and for a variant that an engine refused.
    """
    until, shown = time.monotonic() + WAIT_S, ""
    while True:
        seen, wanted = controller_client.read_states(name, settings, journal, tell)
        if is_settled(wanted, seen):
            break
        errors = "".join(f"; {one}: {why}, tried again" for one, why in last_errors(wanted, seen).items())
        if time.monotonic() > until:
            raise SlipwayError(
                f"{name}: the variants are not loaded yet{errors}; see: inv serve.logs {name} --controller"
            )
        if errors not in ("", shown):
            shown = errors
            tell(f"{name}: the variants are not loaded yet{errors}")
        time.sleep(POLL_S)
    known = {variant.identity: one for one, variant in wanted.variants.items()}
    ready = ready_members(wanted, seen)
    refused = {known[one]: why for each in ready for one, why in each.refused.items() if one in known}
    if refused:
        said = "; ".join(f"{one} is not loaded: {why}" for one, why in sorted(refused.items()))
        raise SlipwayError(f"{name} serves the other variants; {said}; see: inv serve.logs {name} --controller")
    return wanted, seen
