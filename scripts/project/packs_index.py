"""Index of the vocabulary of all packs, and a reference page for each pack.

The input is the records of the packs and their commands. The output is `store/known_packs.json`, which lets the core
explain a command or flag of a missing pack, and `packs/<name>/reference.md`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from infra.flags import Flag, flags_of
from infra.settings import table
from scripts.cli import flag_help
from store import packs
from store.packs import Pack, PackProvider

BY_WORD = (
    *("model_formats", "profiles", "model_features", "model_layouts", "model_changes", "phase_settings"),
    *("served_models", "variant_routes", "exports", "row_readers", "schedule_ends"),
)
ASKS = "yes"  # the flag of commands that ask first


def index(namespace: Any) -> dict[str, Any]:
    """Return the vocabulary of the installed packs by pack and kind. namespace: the commands as loaded by invoke."""
    return {
        name: {
            "about": pack.about,
            "needs": list(pack.needs),
            "commands": {one: _about_command(namespace[one]) for one in pack.commands},
            "line_flags": {f"--{one.spelling}": _about_flag(one) for one in line_flags(pack)},
            "command_flags": [f"{at} --{one.spelling}" for at, flags in command_flags(pack).items() for one in flags],
            "works": [*pack.works],
            "file_keys": [key for entry in pack.works.values() for key in entry.file_keys],
            "settings": dict(_settings(pack)),
            "providers": {one: _about_provider(entry) for one, entry in pack.providers.items()},
            "schemas": [*pack.schemas],
            "shard_engines": [*pack.shard_engines],
            "trackers": list(pack.trackers),
            **{kind: [*getattr(pack, kind)] for kind in BY_WORD},
            "sizes": [size for where in pack.phases.values() for size in packs.load(where).sizes],
            "phases": [*pack.phases, *filter(None, (packs.load(where).alias for where in pack.phases.values()))],
        }
        for name, pack in packs.installed().items()
    }


def index_text(namespace: Any) -> str:
    return json.dumps(index(namespace), indent=1) + "\n"


def page(
    pack: Pack, sections: Sequence[str], settings_table: Callable[[Sequence[dict[str, Any]]], Sequence[str]]
) -> str:
    """Return the reference page of a pack.

    sections: the lines about the commands; settings_table: renders rows of settings as lines.
    """
    lines = [f"# The pack `{pack.name}`", "", f"{pack.about}.", "", *sections]
    if pack.line_flags:
        lines += ["## Flags of every command", ""]
        lines += [*(f"- `--{one.spelling} {one.unit}`: {one.about}" for one in line_flags(pack)), ""]
    for where in dict.fromkeys(pack.command_flags.values()):
        names = ", ".join(f"`{name}`" for name, its in pack.command_flags.items() if its == where)
        lines += [f"## Flags of {names}", ""]
        lines += [*(f"- `{flag_help.spelling(one)}`: {one.about}" for one in flags_of(packs.load(where))), ""]
    if found := dict(_settings(pack)):
        lines += ["## Settings", "", *settings_table([{"name": name, **row} for name, row in found.items()])]
    if pack.model_formats:
        lines += ["## Model formats", "", "`--init` and `ckpt.push` read folders of these formats:", ""]
        lines += [f"- `{name}`: {packs.load(where).about}" for name, where in pack.model_formats.items()]
    for where in pack.file_pages.values():
        lines += packs.load(where)()
    return "\n".join(lines)


def _about_command(task: Any) -> dict[str, Any]:
    flags = {one.spelling for one in task.flags}
    return {
        "summary": packs_summary(task),
        "dry_run": "dry-run" in flags,
        "json": "json" in flags,
        "asks": ASKS in flags,
        "rents": task.rents,
    }


def _about_provider(entry: PackProvider) -> dict[str, Any]:
    traits = ("is_run_engine", "pool", "host", "inventory")
    return {name: getattr(entry, name) for name in traits}


def packs_summary(task: Any) -> str:
    """Return the first line of a command's help; imports the command's module."""
    return str(task.loaded.__doc__).strip().splitlines()[0]


def line_flags(pack: Pack) -> list[Flag]:
    """Return a pack's flags for every command; imports the modules of the records."""
    return [one for where in dict.fromkeys(pack.line_flags.values()) for one in flags_of(packs.load(where))]


def command_flags(pack: Pack) -> dict[str, tuple[Flag, ...]]:
    """Return a pack's extra flags by command; imports the modules of the records."""
    return {name: flags_of(packs.load(where)) for name, where in pack.command_flags.items()}


def _about_flag(one: Flag) -> dict[str, str]:
    return {"unit": one.unit, "about": one.about}


def _settings(pack: Pack) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, row) for each setting of a pack."""
    for one in table(packs.load(pack.settings)) if pack.settings else ():
        yield one.name, {key: one.metadata[key] for key in ("variable", "about", "default", "secret")}
