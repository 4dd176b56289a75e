"""The user code of a run: extensions named on the command line are read, registered and recorded with the run.

The input is the words for phases, sources and rewards, and the settings; the result is extensions registered in this
process, which plans include, and source texts. No extension is executed here.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.providers import extensions
from infra.settings import NAMED_SOURCES, VENDORS, Settings, is_rented, sources_of
from store.extensions import ExtensionError, all_used, is_file, names, of_file, read, use
from trainer.records.own_phase import adopt, taken
from trainer.records.phase_registry import PHASES

STREAMS = ("stdin", "stdin.jsonl")


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
        if own := extensions.find("phase", word, settings, ours):
            adopt(own)
            continue
        near = difflib.get_close_matches(word, [*PHASES, *listed], 1) if word not in (*PHASES, *ours) else []
        if near and near[0] in listed:
            raise UsageError(f"unknown phase {word!r}; did you mean {near[0]!r}, of {extensions.VARIABLE}?")


def use_source(source: str, settings: Settings) -> dict[str, str]:
    """Register the extension sources in `source` in this process; return the texts by name. Raise UsageError.

    A misspelt extension name is not an error here: the file lookup reports a missing file later.
    """
    found = {}
    for part in sources_of(source):
        word = part.rpartition("=")[0] if "," in source else part
        if own := extensions.find("source", word, settings, (*NAMED_SOURCES, *STREAMS)):
            found[own.name] = use(own).text
    return found


def reward_text(word: str, settings: Settings) -> str:
    """Return the source text of the file or extension in `--reward`; "" without a reward. Raise UsageError."""
    if not word:
        return ""
    if not is_file(word) and (own := extensions.find("reward", word, settings)):
        return use(own).text
    if not is_file(word) and not Path(word).exists():
        near = difflib.get_close_matches(word, names(settings.extensions), 1)
        hint = f"did you mean {near[0]!r}?" if near else "give a .py file"
        raise UsageError(f"--reward {word}: no such file; {hint}{extensions.named(settings)}")
    return use(extensions.of_file("--reward", word, "reward")).text


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
    if is_rented(provider) and provider not in VENDORS and (own := extensions.find("provider", provider, settings)):
        found.append(OwnCode(name=own.name, word=own.word, sha256=own.sha256, kind="provider"))
    if wanted and (own := extensions.find("filter", wanted, settings)):
        found.append(OwnCode(name=own.name, word=own.word, sha256=own.sha256, kind="filter"))
    return [asdict(one) for one in found]


def changed(recorded: Sequence[Mapping[str, str]]) -> list[str]:
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
