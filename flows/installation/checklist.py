"""Checklist of `inv doctor --for train`: the prerequisites of a rented training.

`training` reads settings and journal, asks the store and any engine's API server, and returns a DoctorLine for each
prerequisite. No machine is rented. State "off" marks an optional part.
"""

from flows.installation import doctor
from flows.installation.doctor import DoctorLine
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.selection import registry
from infra.settings import VENDORS, Settings
from store import packs
from store.artifacts.artifacts import Store
from store.manifest import StoreError
from trainer.plan import profile_named

SMOKE = "smoke-test"


def training(settings: Settings, journal: Journal) -> list[DoctorLine]:
    """Return the readiness of credentials, store, tracking, smoke test and recipe for a rented training."""
    return [_credentials(settings), _store(settings), _tracking(settings), _smoke(journal), _recipe(settings)]


def _credentials(settings: Settings) -> DoctorLine:
    keys = [name for name, key in VENDORS.items() if getattr(settings, key)]
    if keys:
        return DoctorLine(
            "credentials", "ok", f"a key is set for {', '.join(keys)}; to test the key: inv doctor --provider NAME"
        )
    if settings.provider in packs.engines():
        try:
            return DoctorLine("credentials", "ok", registry.provider(settings, settings.provider).account().owner)
        except SlipwayError as error:
            return DoctorLine("credentials", "bad", str(error))
    names = ", ".join(key.upper() for key in VENDORS.values())
    other = "".join(f", or give --provider {name}" for name in packs.engines())
    return DoctorLine("credentials", "bad", f"no key is set; put one of {names} into .env{other}")


def _store(settings: Settings) -> DoctorLine:
    if "://" not in settings.store:
        return DoctorLine(
            "store",
            "bad",
            f"rented machines cannot reach the store {settings.store} on this machine; set SLIPWAY_STORE to "
            "hf://user/repo, s3://bucket/folder or gs://bucket/folder",
        )
    try:
        Store(settings.store).check_writable()
    except (StoreError, OSError) as error:
        return DoctorLine("store", "bad", f"{settings.store}: {error}")
    return DoctorLine("store", "ok", f"{settings.store} can be written")


def _tracking(settings: Settings) -> DoctorLine:
    found = doctor.tracking(settings)
    report = packs.typed("inv report")
    off = f"metrics stay with the run: {report}. To send metrics to trackers, set SLIPWAY_TRACK"
    return found[0] if found else DoctorLine("tracking", "off", off)


def _smoke(journal: Journal) -> DoctorLine:
    runs = [op for op in journal.ops() if op.run.startswith(SMOKE) and op.is_head]
    passed = [op for op in runs if op.outcome == "succeeded"]
    if passed:
        return DoctorLine("smoke test", "ok", f"{passed[-1].run} succeeded on {passed[-1].vendor}")
    tried = f"the last smoke test, {runs[-1].run}, has not succeeded" if runs else "no smoke test was run yet"
    return DoctorLine("smoke test", "bad", f"{tried}; inv launch examples/jobs/smoke_test.yaml --spend-limit 1")


def _recipe(settings: Settings) -> DoctorLine:
    try:
        recipe = profile_named(settings.profile)
    except SlipwayError as error:
        return DoctorLine("recipe", "bad", str(error))
    size = recipe.phases["base"].model.num_params / 1e6
    how = (
        "the recipe for a smoke test of all phases"
        if settings.profile == "smoke"
        else "to list all values: inv config --profile"
    )
    return DoctorLine("recipe", "ok", f"{settings.profile}: {size:.3g} million parameters; {how}")
