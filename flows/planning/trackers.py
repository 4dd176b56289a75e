"""The trackers of a run by name: trackers of packs and extensions, or Python files of the user.

The input is the value of `--track` or SLIPWAY_TRACK and the settings of each tracker; the result is the sidecars of a
job. Each tracker of a pack has a separate environment, created by the sidecar process, since a failure must not end the
run.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from infra.agent.job import Step
from infra.errors import UsageError
from infra.providers import extensions
from infra.settings import Settings
from store import packs
from store.extensions import is_file, use, used

MODULE = "trainer.tracking"
OFF = "none"


def asked(words: str, settings: Settings) -> tuple[str, ...]:
    """Return the names and files of the requested trackers. Raise UsageError for an unknown tracker.

    Without a request, return the trackers enabled by their own settings.
    """
    named = packs.named_trackers()
    meant = ",".join(name for name, one in named.items() if one.is_meant(settings))
    said = words or settings.track or meant
    if said == OFF:
        return ()
    found = tuple(dict.fromkeys(filter(None, (one.strip() for one in said.split(",")))))
    for one in found:
        if is_file(one):
            extensions.of_file("--track", one, "tracker")
        elif own := extensions.find("tracker", one, settings, (*named, OFF)):
            use(own)
        elif one not in named:
            if why := packs.lacking("trackers", one):
                raise UsageError(f"--track {one}: {why}")
            near = difflib.get_close_matches(one, named, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            listed = f"{', '.join((*named, 'a .py file of yours'))}, or {OFF}{extensions.named(settings)}"
            raise UsageError(f"--track {one}: {hint}known: {listed}")
    names = [step_name(one) for one in found]
    if twice := [one for one in names if names.count(one) > 1]:
        both = " and ".join(one for one in found if step_name(one) == twice[0])
        raise UsageError(f"--track {both}: two trackers have the same name; rename one of the files")
    return found


def steps(names: Sequence[str], work: Sequence[Step]) -> tuple[Step, ...]:
    """Return the sidecars for a job with these steps; () if no step trains. Raise UsageError."""
    configs = {one.name: _plain(one.config["spec"]) for one in work if "keeping" in one.config}
    if not configs:
        return ()
    return tuple(_step(name, configs) for name in names)


def _step(name: str, configs: dict[str, Any]) -> Step:
    if one := packs.named_trackers().get(name):
        words = ("-m", "infra.agent.own_environment", one.environment, MODULE)
        return Step(step_name(name), words, config={"tracker": name, "opened_by": one.opened_by, "configs": configs})
    own = extensions.of_file("--track", name, "tracker") if is_file(name) else used(name)
    assert own is not None, "asked() has found it"
    called = step_name(name)
    config = {"tracker": called.removeprefix("track-"), "configs": configs, "code": use(own).text}
    return Step(called, ("-m", MODULE), "train", config)


def step_name(tracker: str) -> str:
    """Return the name of the sidecar of a tracker; for a file, with characters safe for folder names."""
    stem = Path(tracker).name.removesuffix(".py") if is_file(tracker) else tracker
    return f"track-{re.sub('[^A-Za-z0-9_-]', '-', stem)}"


def _plain(spec: Any) -> Any:
    return asdict(spec) if is_dataclass(spec) and not isinstance(spec, type) else spec


def variables(settings: Settings) -> dict[str, str]:
    """Return the non-secret settings of trackers by variable. Raise UsageError for a value with a secret."""
    found = [pair for one in packs.named_trackers().values() for pair in one.variables(settings).items()]
    return {name: value for name, value in found if value}


def notes(names: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the locations of the run in the trackers, as text, for trackers with a note."""
    named = packs.named_trackers()
    return tuple(note for name in names if name in named and (note := named[name].note(settings)))
