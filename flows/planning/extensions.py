"""The user code of a run, and its trackers: named on the command line, read, registered and recorded with the run.

The input is the words for phases, sources, rewards and trackers, and the settings; the result is extensions registered
in this process, which plans include, source texts, and the sidecars of a job. No extension is executed here. A tracker
is a Python file of the user, or belongs to an extension or a pack; each tracker of a pack has a separate environment,
created by the sidecar process, since a failure must not end the run.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from infra.agent.job import Step
from infra.errors import UsageError
from infra.providers import by_name
from infra.settings import NAMED_SOURCES, VENDORS, Settings, is_rented, sources_of
from store import packs
from store.extensions import ExtensionError, all_used, is_file, names, of_file, read, use, used
from trainer.records.extension_phase import register_phase, taken
from trainer.records.phase_registry import PHASES

STREAMS = ("stdin", "stdin.jsonl")
TRACKER_MODULE = "trainer.tracking"
NO_TRACKER = "none"


@dataclass(frozen=True, kw_only=True)
class OwnCode:
    """The record of an extension in a receipt."""

    name: str
    word: str
    """File or module of the extension."""
    sha256: str
    kind: str
    """Role of the extension in the run."""


def use_phases(words: str, settings: Settings) -> None:
    """Register the extension phases among `words` in this process. Raise UsageError or ConfigError."""
    listed = names(settings.extensions)
    ours = taken()
    for word in words.split("+"):
        if own := by_name.find_extension("phase", word, settings, ours):
            register_phase(own)
            continue
        near = difflib.get_close_matches(word, [*PHASES, *listed], 1) if word not in (*PHASES, *ours) else []
        if near and near[0] in listed:
            raise UsageError(f"unknown phase {word!r}; did you mean {near[0]!r}, of {by_name.EXTENSIONS}?")


def use_source(source: str, settings: Settings) -> dict[str, str]:
    """Register the extension sources in `source` in this process; return the texts by name. Raise UsageError.

    A misspelt extension name is not an error here: the file lookup reports a missing file later.
    """
    found = {}
    for part in sources_of(source):
        word = part.rpartition("=")[0] if "," in source else part
        if own := by_name.find_extension("source", word, settings, (*NAMED_SOURCES, *STREAMS)):
            found[own.name] = use(own).text
    return found


def reward_text(word: str, settings: Settings) -> str:
    """Return the source text of the file or extension in `--reward`; "" without a reward. Raise UsageError."""
    if not word:
        return ""
    if not is_file(word) and (own := by_name.find_extension("reward", word, settings)):
        return use(own).text
    if not is_file(word) and not Path(word).exists():
        near = difflib.get_close_matches(word, names(settings.extensions), 1)
        hint = f"did you mean {near[0]!r}?" if near else "give a .py file"
        raise UsageError(f"--reward {word}: no such file; {hint}{by_name.extensions_named(settings)}")
    return use(by_name.extension_of_file("--reward", word, "reward")).text


def of_job(job: Mapping[str, Any], provider: str, settings: Settings, wanted: str = "") -> list[dict[str, str]]:
    """Return the extensions in a job and the extensions behind its machine, for the receipt.

    wanted: name of the machine filter.
    """
    kinds: dict[str, str] = {}  # kind by source text
    for step in job.get("steps", ()):
        config = step.get("config", {})
        kind = "phase" if "keeping" in config else "source"
        kinds |= dict.fromkeys(config.get("extensions", {}).values(), kind)
        if reward := (config.get("spec", {}).get("rl") or {}).get("reward"):
            kinds[reward] = "reward"
    for step in job.get("trackers", ()):
        if code := step.get("config", {}).get("code"):
            kinds[code] = "tracker"
    found = [
        OwnCode(name=one.name, word=one.word, sha256=one.sha256, kind=kinds[one.text])
        for one in all_used()
        if one.text in kinds
    ]
    if (
        is_rented(provider)
        and provider not in VENDORS
        and (own := by_name.find_extension("provider", provider, settings))
    ):
        found.append(OwnCode(name=own.name, word=own.word, sha256=own.sha256, kind="provider"))
    if wanted and (own := by_name.find_extension("filter", wanted, settings)):
        found.append(OwnCode(name=own.name, word=own.word, sha256=own.sha256, kind="filter"))
    return [asdict(one) for one in found]


def changed_extensions(recorded: Sequence[Mapping[str, str]]) -> list[str]:
    """Return descriptions of recorded extensions with changed files; [] without changes."""
    found = []
    for one in recorded:
        word = one["word"]
        try:
            now = of_file(Path(word)) if is_file(word) else read(word)
        except ExtensionError as error:
            found.append(f"{one['kind']} {one['name']}: {error}")
            continue
        if now.sha256 != one["sha256"]:
            found.append(
                f"{one['kind']} {one['name']}: {word} has changed: sha256 {now.sha256[:12]} now, "
                f"{one['sha256'][:12]} at the launch"
            )
    return found


def requested_trackers(words: str, settings: Settings) -> tuple[str, ...]:
    """Return the names and files of the requested trackers. Raise UsageError for an unknown tracker.

    Without a request, return the trackers enabled by their own settings.
    """
    named = packs.named_trackers()
    meant = ",".join(name for name, one in named.items() if one.is_enabled(settings))
    said = words or settings.track or meant
    if said == NO_TRACKER:
        return ()
    found = tuple(dict.fromkeys(filter(None, (one.strip() for one in said.split(",")))))
    for one in found:
        if is_file(one):
            by_name.extension_of_file("--track", one, "tracker")
        elif own := by_name.find_extension("tracker", one, settings, (*named, NO_TRACKER)):
            use(own)
        elif one not in named:
            if why := packs.missing_pack_message("trackers", one):
                raise UsageError(f"--track {one}: {why}")
            near = difflib.get_close_matches(one, named, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            listed = (
                f"{', '.join((*named, 'a .py file of yours'))}, or {NO_TRACKER}{by_name.extensions_named(settings)}"
            )
            raise UsageError(f"--track {one}: {hint}known: {listed}")
    names = [tracker_step_name(one) for one in found]
    if twice := [one for one in names if names.count(one) > 1]:
        both = " and ".join(one for one in found if tracker_step_name(one) == twice[0])
        raise UsageError(f"--track {both}: two trackers have the same name; rename one of the files")
    return found


def tracker_steps(names: Sequence[str], work: Sequence[Step]) -> tuple[Step, ...]:
    """Return the sidecars for a job with these steps; () if no step trains. Raise UsageError."""
    configs = {one.name: _plain(one.config["spec"]) for one in work if "keeping" in one.config}
    if not configs:
        return ()
    return tuple(_tracker_step(name, configs) for name in names)


def _tracker_step(name: str, configs: dict[str, Any]) -> Step:
    if one := packs.named_trackers().get(name):
        words = ("-m", "infra.agent.own_environment", one.environment, TRACKER_MODULE)
        config = {"tracker": name, "opened_by": one.opened_by, "sent_later_by": one.sent_later_by, "configs": configs}
        return Step(tracker_step_name(name), words, config=config)
    own = by_name.extension_of_file("--track", name, "tracker") if is_file(name) else used(name)
    assert own is not None, "asked() has found it"
    called = tracker_step_name(name)
    config = {"tracker": called.removeprefix("track-"), "configs": configs, "code": use(own).text}
    return Step(called, ("-m", TRACKER_MODULE), "train", config)


def tracker_step_name(tracker: str) -> str:
    """Return the name of the sidecar of a tracker; for a file, with characters safe for folder names."""
    stem = Path(tracker).name.removesuffix(".py") if is_file(tracker) else tracker
    return f"track-{re.sub('[^A-Za-z0-9_-]', '-', stem)}"


def _plain(spec: Any) -> Any:
    return asdict(spec) if is_dataclass(spec) and not isinstance(spec, type) else spec


def tracker_variables(settings: Settings) -> dict[str, str]:
    """Return the non-secret settings of trackers by variable. Raise UsageError for a value with a secret."""
    found = [pair for one in packs.named_trackers().values() for pair in one.variables(settings).items()]
    return {name: value for name, value in found if value}


def tracker_notes(names: Sequence[str], settings: Settings) -> tuple[str, ...]:
    """Return the locations of the run in the trackers, as text, for trackers with a note."""
    named = packs.named_trackers()
    return tuple(note for name in names if name in named and (note := named[name].describe_location(settings)))
