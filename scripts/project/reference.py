"""docs/reference/: generated pages about every command, setting, exit code and file.

    python -m scripts.project.reference write

A test compares the pages in the checkout with the generated text. Commands come from invoke's tasks, and flags from the
records that define the command line.
"""

import dataclasses
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from invoke import Config, FilesystemLoader
from invoke.collection import Collection

from data.config import Persona
from infra import errors, settings
from infra.flags import Flag, flags_of
from infra.machines import inventory
from infra.runs.keepers import pod_set
from scripts.cli import flag_file, flag_help, front_page
from scripts.cli.context import ROOT
from scripts.project import agents, other_tools, packs_index, requirements, rooms
from scripts.project.schemas import meanings
from serve.service import ServiceFile
from store import packs

FOLDER = ROOT / "docs" / "reference"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
# Flags with the same meaning in every command, documented once.
COMMON = (
    "json",
    "yes",
    "env",
    "rehearse",
    "state-file",
)
PLACES = (  # place, setting or "", content, and removal rule of each file or folder that Slipway writes
    (
        "artifacts",
        "store",
        "text, tokenizers, checkpoints: each stored once by fingerprint, and listed under a name",
        "yes; the next launch makes missing artifacts again",
    ),
    ("pods", "pods", "pods on this machine: code, logs, checkpoints of each run", "when nothing runs"),
    (
        "`var/runs`",
        "",
        "the folder of each run: the receipt `run.json`; in `kept/` the code for the next pod; in `pod/` "
        "the files fetched from the pod (logs, reports, metrics, checkpoints), which are never trusted",
        "yes",
    ),
    ("`var/logs`", "", "tracebacks of bugs in Slipway", "yes"),
    ("`var/reports`", "", "pages written by `./inv report`", "yes"),
    ("`var/ui-chat.log`", "", "log of the last model in the chat of the page", "yes"),
    (
        "`var/services`",
        "",
        "services: logs of requests and of the controller, hashes of API keys",
        "when no service runs",
    ),
    (
        "environments",
        "environments",
        "environments for training, serving and tests; `~/.cache/slipway/environments` by default",
        "yes",
    ),
    ("`.venv`", "", "the environment of the `inv` commands", "yes"),
    ("`~/.slipway` on an SSH machine", "", "pods and artifacts of the machine", "when nothing runs there"),
    (
        "`~/.slipway/control` on a control host",
        "",
        "the journal, keys, artifacts, logs, and the code of each checkout",
        "after `./inv control.down`",
    ),
    (
        "`journal-control` beside the journal",
        "",
        "the host key of a control host, and the last copy of the host's journal",
        "no, while the control host has the journal",
    ),
    (
        "the journal",
        "state_file",
        "rented machines and open costs; `~/.local/state/slipway/journal.sqlite` by default",
        "no",
    ),
    ("`journal-rehearsal` beside the journal", "", "journal, store and machines of a rehearsal", "when none runs"),
    (
        "`journal-ssh-config` beside the journal",
        "",
        "names of pods for ssh, written by `./inv ssh --config`",
        "by `./inv ssh --config --remove`",
    ),
    ("`journal-prices.json` beside the journal", "", "prices saved by `./inv offers --save`", "yes"),
    ("`chat-history` beside the journal", "", "history of questions typed in `./inv chat`", "yes"),
    ("`~/.config/slipway`", "", "the id of each journal on each machine; may be copied to other machines", "no"),
)
OTHER_CODES = (
    ("0", "Done."),
    ("2", "Also: an unknown word or flag; unusable settings or data, or an unusable store."),
    ("130", "Interrupted by Ctrl-C. A followed run continues."),
    ("129, 143", "Ended by SIGHUP or SIGTERM (128 + the number of the signal)."),
    ("141", "The reader of the output has closed the pipe."),
)


def namespace() -> Collection:
    """Return the commands as loaded by invoke."""
    module, folder = FilesystemLoader(config=Config(), start=str(ROOT)).load()
    return Collection.from_module(module, loaded_from=folder)


def copied(text: str) -> str:
    """Return text with commands ready to copy: `inv keep` -> `./inv keep`."""
    return re.sub(r"(?<![\w./-])inv (?=[a-z])", "./inv ", text)


def cell(text: str) -> str:
    """Return text escaped for a table cell."""
    return copied(" ".join(text.split())).replace("|", "\\|").replace("<", "&lt;")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)]
    return [*lines, ""]


def is_common(one: Flag) -> bool:
    """Return whether the common section documents the flag."""
    return one.spelling in COMMON and (one.spelling != "yes" or one.about == "ask nothing") or is_of_line(one)


def is_of_line(one: Flag) -> bool:
    """Return whether the flag is a pack's flag for every command."""
    return f"--{one.spelling}" in packs.words("line_flags")


def flag_row(one: Flag) -> tuple[str, str, str]:
    """Return the spelling, default and help of a flag."""
    word = " (also as a bare word)" if one.is_word else ""
    default = flag_help.default_of(one)
    return f"`{flag_help.spelling(one)}`", f"`{default}`" if default else "", cell(one.about + word)


def flag_rows(task: Any) -> dict[str, list[tuple[str, str, str]]]:
    """Return the rows of a command's own flags by group title, without common and pack flags."""
    of_packs = {one.name for record in task.added_records for one in flags_of(record)}
    own = tuple(one for one in task.flags if not is_common(one) and one.name not in of_packs)
    return {title: [flag_row(one) for one in flags] for title, flags in flag_help.grouped(own).items()}


def commands() -> str:
    """Return the page of all commands."""
    found = namespace()
    lines = [
        "# Commands",
        "",
        "`./inv --list --all` lists the commands in a terminal, `./inv COMMAND --help` explains a "
        "command, and `./inv COMMAND --help-all` shows all flags of a command. A line may have several "
        "commands, which run one after the other: `./inv pod.create pod.run pod.down`.",
        "",
        "These flags have the same meaning in every command:",
        "",
    ]
    every = [one for name in found.task_names for one in found[name].flags if is_common(one)]
    common = {one.spelling: one for one in every}
    meant = [(flag_row(common[one])[0], flag_row(common[one])[2]) for one in COMMON]
    meant += [
        (f"`{flag} {row['unit']}`", cell(row["about"]))
        for pack in packs.known().values()
        for flag, row in pack["line_flags"].items()
    ]
    lines += table(("flag", "meaning"), meant)
    for title, tasks in front_page.groups(found).items():
        if title != front_page.PACKS:
            lines += [f"## {title}", "", *command_sections(found, tasks)]
    rows = [
        (
            f"`{name}`",
            ", ".join(f"`{one}`" for one in pack["commands"]),
            cell(pack["about"]),
            f"[flags](../../packs/{name}/reference.md)",
        )
        for name, pack in packs.known().items()
    ]
    lines += ["## Packs", "", "Each pack is a folder of `packs/`, and is off if the folder is missing.", ""]
    lines += table(("pack", "commands", "", ""), rows)
    return "\n".join(lines)


def command_sections(namespace: Collection, tasks: Iterable[tuple[str, Any]]) -> list[str]:
    """Return the lines about commands: help, example and flags of each command."""
    lines = []
    for name, task in tasks:
        aliases = [f"`./inv {one}`" for one in namespace.task_names[name]]
        flags = task.flags  # imports the module of a lazy command, and so the full help text
        about = copied(task.__doc__ or "").strip().splitlines()
        lines += [f"### `{name}`", "", *(line.strip() for line in about), ""]
        lines += [f"Also: {', '.join(aliases)}.", ""] if aliases else []
        lines += [f"Example: `./{task.example}`", ""] if task.example else []
        for group, rows in flag_rows(task).items():
            lines += table((group, "default", "meaning"), rows)
        for pack, entry in packs.known().items():
            if added := [f"`{word.split()[1]}`" for word in entry["command_flags"] if word.split()[0] == name]:
                lines += [f"The pack [`{pack}`](../../packs/{pack}/reference.md) adds {', '.join(added)}.", ""]
        taken = [f"`--{one.spelling}`" for one in flags if is_common(one) and not is_of_line(one)]
        taken += [] if task.is_here else [f"`{one}`" for one in packs.words("line_flags")]
        lines += [f"Also takes {', '.join(taken)}.", ""] if taken else []
    return lines


def pack_pages() -> dict[Path, str]:
    """Return the reference page of each installed pack by file path."""
    found = namespace()
    return {
        packs.FOLDER / name / "reference.md": NOTE
        + packs_index.page(
            pack, command_sections(found, [(one, found[one]) for one in pack.commands]), settings_table
        ).rstrip()
        + "\n"
        for name, pack in packs.installed().items()
    }


def settings_table(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return settings as a table. rows: the name of each setting with the arguments of `infra.settings.row`."""
    cells = [
        (
            f"`{one['variable']}`",
            "" if one["secret"] else f"`{one['name']}`",
            f"`{one['default']}`" if one["default"] else "",
            cell(one["about"]),
        )
        for one in rows
    ]
    return table(("variable", "in slipway.yaml", "default", "meaning"), cells)


def settings_page() -> str:
    """Return the page of all settings."""
    of_packs = [
        f"[`{name}`](../../packs/{name}/reference.md)" for name, pack in packs.known().items() if pack["settings"]
    ]
    return "\n".join(
        [
            "# Settings",
            "",
            "The value of a setting comes from the first source with a value: a flag, the shell's "
            "environment, `.env`, `slipway.yaml`, the default. `./inv config` shows each value with the "
            "source.",
            "",
            "`.env` and `slipway.yaml` are at the root of the checkout. `.env` holds variables; copy "
            "`.env.example`. In `.env`, single quotes protect all characters, and outside of single quotes "
            "`${NAME}` is the value of a variable and `\\$` a dollar; `$NAME` stays text, except in `export` "
            "lines. `slipway.yaml` holds lines of the form `name: value` with the names of the "
            "second column; keys in `slipway.yaml` are ignored. Relative paths start at the checkout, or "
            "at the current folder if typed or exported.",
            "",
            *settings_table([{"name": one.name, **one.metadata} for one in settings.table()]),
            f"Settings of packs: {', '.join(of_packs)}.",
            "",
            "`.env`, `--env` and the shell also set these variables of client libraries:",
            "",
            *table(
                ("variable", "meaning"), [(f"`{name}`", cell(about)) for name, about in settings.ENVIRONMENT.items()]
            ),
            "",
            "These variables are read only from the environment of a pod's guard, not from a file:",
            "",
            *table(
                ("variable", "meaning"), [(f"`{name}`", cell(about)) for name, about in settings.SHELL_ONLY.items()]
            ),
        ]
    )


def code_table() -> list[str]:
    """Return a table of the exit codes, parsed from the docstring of `infra/errors.py` and from OTHER_CODES."""
    drawn = re.findall(r"(\w+) +([0-9])  (.+)", errors.__doc__ or "")
    rows = [(code, f"`{name}`", cell(text[0].upper() + text[1:] + ".")) for name, code, text in drawn]
    rows += [(code, "", text) for code, text in OTHER_CODES]
    return table(("code", "error", "meaning"), sorted(rows, key=lambda row: (int(row[0].split(",")[0]), row[1])))


def exit_codes() -> str:
    """Return the page of exit codes."""
    return "\n".join(
        [
            "# Exit codes",
            "",
            "Every command exits with one of these codes. With `--json`, a failure is also a JSON "
            'document: `{"error": "...", "exit_code": 5}`.',
            "",
            *code_table(),
            "`./inv logs --follow`, and a `./inv launch` that follows a run, exit with 0 if the run "
            "succeeded. `./inv ssh RUN -- COMMAND` and `./inv test` exit with the exit code of the "
            "command or the tests.",
            "",
        ]
    )


def keys(record: type, at: str = "") -> list[tuple[str, str, str]]:
    """Return (key, default, meaning) of a file record; nested records appear as `outer.inner`."""
    rows: list[tuple[str, str, str]] = []
    about = meanings(record)
    for one in dataclasses.fields(record):
        nested = one.default if one.default is not dataclasses.MISSING else None
        if one.default_factory is not dataclasses.MISSING and not isinstance(one.default_factory(), (dict, list)):
            nested = one.default_factory()
        name = f"{at}{one.name}"
        if dataclasses.is_dataclass(nested) and not isinstance(nested, type):
            rows += keys(type(nested), f"{name}.")
        elif inner := INSIDE.get(name):
            rows += keys(inner, f"{name}.")
        else:
            required = nested is None and one.default is dataclasses.MISSING
            required &= one.default_factory is dataclasses.MISSING
            default = "required" if required else "" if nested in (None, "", ()) else f"`{nested}`"
            rows.append((f"`{name}`", default, cell(about.get(one.name, ""))))
    return rows


def _inside() -> dict[str, type]:
    """Return nested records of a service file by key, for keys without a record as field default."""
    from serve import service
    from serve.gateway.http.certificate import Tls

    return {
        "service": service.ServiceSection,
        "service.readiness_probe": service.Probe,
        "service.replica_policy": service.ReplicaPolicy,
        "service.tls": Tls,
    }


INSIDE = _inside()


def files() -> str:
    """Return the page of files: files written by Slipway, and files written by users."""
    by_name = {one.name: one.metadata for one in settings.table()}
    places = []
    for place, name, what, removable in PLACES:
        meta = by_name.get(name)
        where = place if meta is None else f"`{meta['default']}` ({place})" if meta["default"] else place
        places.append((where, f"`{meta['variable']}`" if meta else "", what, removable))
    renamed = ", ".join(f"`{theirs}` for `{ours}`" for theirs, ours in flag_file.RUNPOD.items())
    pods = [
        (f"`{name}`", "required" if name == "name" else "" if default is None else f"`{default}`", cell(about))
        for name, default, about in pod_set.schema()
    ]
    return "\n".join(
        [
            "# Files",
            "",
            "## Files written by Slipway",
            "",
            *table(("where", "setting", "what", "may be removed"), places),
            "## Flags of a launch (`./inv launch FILE`)",
            "",
            "Every key is a [flag of `launch`](commands.md#launch), or `phases` with nested options of "
            "phases: `phases: {sft: {optimizer: {lr: 1e-3}}}` is `--set sft.optimizer.lr=1e-3`. `./inv "
            "config --schema launch` prints the file's JSON Schema; `--schema pod` and `--schema "
            "service` print the schemas of the files below. Command-line flags override the file. "
            f"RunPod's names work too: {renamed}. Example: "
            "[examples/launch.yaml](../../examples/launch.yaml).",
            "",
            "## A set of pods (`./inv apply FILE`)",
            "",
            "`pods` is a list with these keys; `set` is the name of the set, by default the name of the "
            "file. "
            + ", ".join(f"`{theirs}` may be written for `{ours}`" for theirs, ours in pod_set.ALIASES.items())
            + ". Example: [examples/fleet.yaml](../../examples/fleet.yaml).",
            "",
            *table(("key", "default", "meaning"), pods),
            "## A service (`./inv serve.up --config FILE`)",
            "",
            "The keys are SkyServe's (SkyServe's documentation explains keys without a meaning here), "
            "except for the section `slipway`, which `./inv serve.export` leaves out. Examples: "
            "[examples/service.yaml](../../examples/service.yaml), "
            "[serve/service.yaml](../../serve/service.yaml).",
            "",
            *table(("key", "default", "meaning"), keys(ServiceFile)),
            "## Own machines (`ssh_node_pools.yaml`)",
            "",
            "The file maps the name of each pool to these keys: "
            + ", ".join(f"`{one}`" for one in inventory.POOL_KEYS)
            + ". An entry of `hosts` is an address, an alias of `~/.ssh/config`, or a map of: "
            + ", ".join(f"`{one}`" for one in inventory.HOST_KEYS)
            + ". `password` is refused. "
            "Example: [ssh_node_pools.yaml.example](../../ssh_node_pools.yaml.example).",
            "",
            "## A persona (`./inv launch --persona FILE`)",
            "",
            "The keys are " + ", ".join(f"`{one.name}`" for one in dataclasses.fields(Persona)) + ". "
            "Examples: [examples/persona.yaml](../../examples/persona.yaml), "
            "[data/persona.yaml](../../data/persona.yaml).",
            "",
            "## Conversations (`./inv launch --mixture FILE.jsonl=WEIGHT`)",
            "",
            'Each line is `{"messages": [{"role": "user", "content": "..."}, '
            '{"role": "assistant", "content": "..."}]}`; '
            "ShareGPT's `conversations` (`from`, `value`) are read too. "
            "Example: [examples/talk.jsonl](../../examples/talk.jsonl).",
            "",
        ]
    )


PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands,
    "settings.md": settings_page,
    "exit-codes.md": exit_codes,
    "files.md": files,
    "requirements.md": requirements.page,
    "other-tools.md": other_tools.page,
}


NOTE = "<!-- Generated: python -m scripts.project.reference write -->\n\n"


def pages() -> dict[str, str]:
    """Return the text of each page by name, with a note that marks the page as generated."""
    return {name: NOTE + make().rstrip() + "\n" for name, make in PAGES.items()}


def for_agents() -> str:
    """Return the text of AGENTS.md at the root of the checkout, the usual place for coding agents."""
    found = namespace()
    kept = [where for where, _, _, removable in PLACES if removable.split(",")[0] == "no"]
    every = [tuple(map(cell, row)) for row in agents.rows(found)]
    tables = agents.AgentTables(table(agents.HEADS, every), code_table(), room_table())
    return NOTE + agents.text(found, kept, tables).rstrip() + "\n"


def room_table() -> list[str]:
    """Return the table of places for contributions."""
    return table(rooms.HEADS, rooms.rows())


def for_contributors() -> str:
    """Return the text of CONTRIBUTING.md: handwritten except for the generated table."""
    return rooms.filled(CONTRIBUTING.read_text(encoding="utf-8"), "\n".join(room_table()))


def main(words: Sequence[str]) -> int:
    if list(words) != ["write"]:
        print("expected: python -m scripts.project.reference write", file=sys.stderr)
        return 2
    # Write the pack index first, because the other pages are generated from the index.
    packs.INDEX.write_text(packs_index.index_text(namespace()), encoding="utf-8")
    packs.known.cache_clear()
    for path, text in pack_pages().items():
        path.write_text(text, encoding="utf-8")
    for name, text in pages().items():
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        (FOLDER / name).write_text(text, encoding="utf-8")
    (ROOT / ".env.example").write_text(settings.example(), encoding="utf-8")
    (ROOT / "AGENTS.md").write_text(for_agents(), encoding="utf-8")
    CONTRIBUTING.write_text(for_contributors(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
