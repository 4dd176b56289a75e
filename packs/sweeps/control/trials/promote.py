"""Publication of a trial's artifact under a tag."""

from infra.errors import UsageError
from infra.names import check_name, match
from infra.settings import Settings
from packs.sweeps.control.trials.results import SUCCEEDED, SweepResult
from store.artifacts.artifacts import Store


def promote(result: SweepResult, run: str, tag: str, settings: Settings) -> str:
    """Point `<folder>/<tag>` to the artifact of a run; return the full name.

    run: the run's name, with or without the sweep's name, or a prefix. Raises UsageError when the run has not
    succeeded.
    """
    plain = run.replace("/", ".", 1)
    prefix = plain if plain.startswith(f"{result.name}.") else f"{result.name}.{plain}"
    found = result.trials[match(prefix, result.trials)]
    name, fingerprint = found.made
    if found.state != SUCCEEDED:
        done = [one.run for one in result.trials.values() if one.state == SUCCEEDED]
        has = f"runs that succeeded: {', '.join(done)}" if done else "no run has succeeded yet"
        raise UsageError(f"{found.run} is {found.state} and has no artifact to publish; {has}")
    target = f"{name.split('/')[0]}/{check_name(tag)}"
    Store(settings.store).point_name(target, fingerprint)
    return target
