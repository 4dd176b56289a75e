"""The user's own code in a run: what its words name is read, told apart from ours, and written down with it.

In: words of phases, of a source, of a reward, and the settings. Out: extensions that this process knows, which plans
take in; texts. Nothing is run here.
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
    """An extension as a receipt has it."""

    name: str
    word: str
    """File or module of the extension."""
    sha256: str
    kind: str
    """The role in which it was used."""


def use_phases(words: str, settings: Settings) -> None:
    """Register the phases that extensions add in this process. Raises UsageError, ConfigError."""
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
    """Register the sources that extensions add in this process; return their texts by name. Raises UsageError.

    A source that could be a misspelt one of them is none: whoever lists files says that there is no such file.
    """
    found = {}
    for part in sources_of(source):
        word = part.rpartition("=")[0] if "," in source else part
        if own := extensions.find("source", word, settings, (*NAMED_SOURCES, *STREAMS)):
            found[own.name] = use(own).text
    return found


def reward_text(word: str, settings: Settings) -> str:
    """Return the text of what `--reward` names: a file, or an extension; "" for nothing. Raises UsageError."""
    if not word:
        return ""
    if not is_file(word) and (own := extensions.find("reward", word, settings)):
        return use(own).text
    if not is_file(word) and not Path(word).exists():
        near = difflib.get_close_matches(word, names(settings.extensions), 1)
        hint = f"did you mean {near[0]!r}?" if near else "give a .py file"
        raise UsageError(f"--reward {word}: there is no such file; {hint}{extensions.named(settings)}")
    return use(extensions.of_file("--reward", word, "reward")).text


def of_job(job: Mapping[str, Any], provider: str, settings: Settings, wanted: str = "") -> list[dict[str, str]]:
    """Return the extensions that a job runs, and those that its machine comes from, for its receipt.

    wanted: the filter of machines.
    """
    kinds: dict[str, str] = {}  # kind of each text
    for step in job.get("steps", ()):
        config = step.get("config", {})
        kind = "phase" if "keeping" in config else "source"
        kinds |= dict.fromkeys(config.get("extensions", {}).values(), kind)
        if reward := (config.get("spec", {}).get("rl") or {}).get("reward"):
            kinds[reward] = "reward"
    for step in job.get("trackers", ()):
        if code := step.get("config", {}).get("code"):
            kinds[code] = "tracker"
    found = [OwnCode(name=one.name, word=one.word, sha256=one.sha256, kind=kinds[one.text])
             for one in all_used() if one.text in kinds]  # fmt: skip
    if is_rented(provider) and provider not in VENDORS and (own := extensions.find("provider", provider, settings)):
        found.append(OwnCode(name=own.name, word=own.word, sha256=own.sha256, kind="provider"))
    if wanted and (own := extensions.find("filter", wanted, settings)):
        found.append(OwnCode(name=own.name, word=own.word, sha256=own.sha256, kind="filter"))
    return [asdict(one) for one in found]


def changed(recorded: Sequence[Mapping[str, str]]) -> list[str]:
    """Return in words which extensions of a run are otherwise today; [] where none is."""
    found = []
    for one in recorded:
        word = one["word"]
        try:
            now = of_file(Path(word)) if is_file(word) else read(word)
        except ExtensionError as error:
            found.append(f"{one['kind']} {one['name']}: {error}")
            continue
        if now.sha256 != one["sha256"]:
            found.append(f"{one['kind']} {one['name']}: {word} is another one: sha256 {now.sha256[:12]}, then "
                         f"{one['sha256'][:12]}")  # fmt: skip
    return found
