"""Store leases of a service on the served artifacts, so no command removes a served model.

Every version of the desired state with an artifact of ours is covered by a lease in the version's store.
"""

from serve.policy.service_state import WantedService
from store.artifacts import references
from store.artifacts.references import What

RENEW_S = 86400.0


def hold(name: str, installation: str, wanted: WantedService, now: float) -> None:
    """Write or renew the leases of all versions, as of `now`. Raises StoreError."""
    for store, reads in _read_by(wanted).items():
        references.hold(store, _lease(name, installation), f"service {name}", reads, now)


def release(name: str, installation: str, wanted: WantedService) -> None:
    """Release the leases of all versions. Raises StoreError."""
    for store in _read_by(wanted):
        references.release(store, _lease(name, installation))


def _read_by(wanted: WantedService) -> dict[str, set[What]]:
    """Return the artifacts of versions and variants, by store; models from other sources need no lease."""
    found: dict[str, set[What]] = {}
    for version in wanted.versions:
        what = references.kept_behind(version.model)
        if what is not None:
            found.setdefault(version.store, set()).add(what)
    for variant in wanted.variants.values():
        what = references.kept_behind(variant.source)
        if what is not None:
            found.setdefault(wanted.newest.store, set()).add(what)
    return found


def _lease(name: str, installation: str) -> str:
    return f"service-{name}-{installation}"[:128]
