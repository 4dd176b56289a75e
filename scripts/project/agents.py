"""AGENTS.md: the commands for coding agents, and the prohibitions about money, for any program that reads the file.

The input is the same set of records as for docs/reference: commands with flags, settings, exit codes and files. The
output is a single page. Each command named in a rule is looked up during generation, so the page cannot name a missing
command.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra import settings
from infra.selection.default_limit import MOST_USD
from scripts.cli import front_page
from store import packs

ASKS = "yes"  # flag of commands that ask first, because they rent, end or remove a resource


@dataclass(frozen=True)
class AgentTables:
    """Tables of the page as lines: all commands, all exit codes, and the places of contributions."""

    commands: Sequence[str]
    codes: Sequence[str]
    rooms: Sequence[str]


def text(found: Any, kept: Sequence[str], tables: AgentTables) -> str:
    """Return the page. Raises KeyError if the text names an unknown command or flag.

    found: the commands. kept: the places that must not be removed.
    """
    core = {name: found[name] for name in found.task_names if not found[name].is_of_pack}
    of_packs = {name: about for pack in packs.known().values() for name, about in pack["commands"].items()}
    rents = [name for name, task in core.items() if task.rents]
    rents += [name for name, about in of_packs.items() if about["rents"]]
    ask = [name for name, task in core.items() if _has(task, ASKS)]
    ask += [name for name, about in of_packs.items() if about["asks"]]
    ask = [name for name in ask if name not in rents]
    rows = (*(one.metadata for one in settings.table()), *(row for _, row in settings.of_packs()))
    keys = [f"`{row['variable']}`" for row in rows if row["secret"]]

    def typed(words: str) -> str:
        return _typed(found, words)

    lines = [
        "# For coding agents",
        "",
        "Slipway trains and serves language models, here for nothing or on machines that are rented by the hour. "
        f"{typed('launch')} and its like can spend a person's money, and a machine that is forgotten bills until a "
        "limit ends it. So the rules about money come first, and no task outweighs them.",
        "",
        "## Never",
        "",
        f"- Never rent unless a person has approved this very run: which machine, how long, and the most that it may "
        f"cost. These commands may rent: {_listed(rents)}. Until then give them `--dry-run` where they take it, or "
        f"practise: {typed('rehearse --phase sft')}, and `--rehearse` on other commands. Without a key in the shell "
        "or `.env`, and with `--provider local`, nothing is rented.",
        f"- Never leave out the limit that the person named: `--spend-limit` and `--ttl`. What is rented without one "
        f"may cost up to {MOST_USD} USD. Never raise a limit, and never set `SLIPWAY_SPEND_CAP_USD`, by yourself.",
        f"- Never give `--yes` to a command that rents, ends or removes, unless the person has seen what it shows. "
        f"Beside those above these ask first: {_listed(ask)}.",
        f"- Never end what you did not start: no {typed('down --all')}, no {typed('audit --kill')}, no "
        f"{typed('reap')} unless you were asked to.",
        "- Never end a rented machine by other means than these commands: its row in the journal would not know.",
        f"- Never touch, move or remove the records of what is rented and owed: {'; '.join(kept)}.",
        f"- Never read, print, log or commit keys: `.env`, {', '.join(keys)}, and anything else named like a key.",
        "- Never go on to something else while a machine of yours may bill. After an error, a lost connection or an "
        f"interruption look first: {typed('status')}, then {typed('audit')}. Exit code 5 of either, and whatever "
        "says that something may bill, goes to the person at once, in its own words.",
        "- Never run an extension (`SLIPWAY_EXTENSIONS`, `--reward FILE`, `--track FILE`) that you have not read: "
        "it is code that runs with the person's keys.",
        "",
        "## What to type",
        "",
        f"`./inv` makes its own environment on first use. {typed('doctor')} says what this machine lacks, "
        f"{typed('config')} which settings are in force and where from. `--json` gives one document on stdout; talk "
        "goes to stderr. A failure is a document as well, with `error` and `exit_code`; its sentence ends with what to "
        "type next.",
        "",
        "```sh account",
        typed("launch --phase sft --dry-run").strip("`") + "    # what would be made, on which machine, at which price",
        typed("launch --phase sft --provider local").strip("`") + "    # trains here, for nothing",
        typed("status --json").strip("`") + "    # every run: its step, its cost, which ends are armed",
        typed("why RUN").strip("`") + "    # what happened to a run, from the records",
        typed("logs RUN --tail 50").strip("`"),
        typed("down RUN").strip("`") + "    # returns when nothing of it is left or bills",
        typed("check").strip("`") + "    # the lint and types of the project",
        typed("test --fast").strip("`") + "    # the tests that start no process",
        "```",
        "",
        "Every command; those with a mark show a plan first (`--dry-run`), print JSON (`--json`), may rent (money):",
        "",
        *tables.commands,
        "Their flags: [docs/reference/commands.md](docs/reference/commands.md); those of a pack: "
        "`packs/NAME/reference.md`.",
        "",
        "## Exit codes",
        "",
        *tables.codes,
        "## In the code",
        "",
        "- Folders say where code runs, and imports go down: [docs/architecture.md](docs/architecture.md); "
        "`tests/test_floors.py` holds it.",
        "- Find the right folder in the table below; it is also in [CONTRIBUTING.md](CONTRIBUTING.md), with the form "
        "of commits. `infra/` rents and watches machines, `trainer/` trains, `serve/` answers, `flows/` holds use "
        "cases, `scripts/` holds commands.",
        "- An extension adds a provider, a filter, a source, a reward, a phase or a tracker without a change of this "
        "checkout: [docs/extend.md](docs/extend.md).",
        "- `docs/reference/`, this page and `.env.example` are generated: `python -m scripts.project.reference write` "
        "after any change of a command, a flag, a setting or an error.",
        "- Guidelines, which no test holds: a folder of about 17 files, a module of at most 400 lines, a class name "
        "with one meaning, a docstring of a function that begins with a verb.",
        f"- Tests rehearse: they rent nothing and need no key. {typed('test')} runs them, {typed('check')} the lint.",
        "",
        *tables.rooms,
    ]
    return "\n".join(lines)


HEADS = ("command", "what it does", "`--dry-run`", "`--json`", "money")


def rows(found: Any) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each command of the core and of all packs."""
    for tasks in front_page.groups(found).values():
        for name, task in tasks:
            if not task.is_of_pack:
                marks = (_has(task, "dry-run"), _has(task, "json"), task.rents)
                yield _row(name, front_page.summary(task), marks)
    for pack in packs.known().values():
        for name, about in pack["commands"].items():
            yield _row(name, about["summary"].rstrip("."), (about["dry_run"], about["json"], about["rents"]))


def _row(name: str, summary: str, marks: Sequence[bool]) -> tuple[str, ...]:
    return (f"`{name}`", summary, *("yes" if mark else "" for mark in marks))


def _has(task: Any, flag: str) -> bool:
    return any(one.spelled == flag for one in task.flags)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{one}`" for one in names)


def _typed(found: Any, words: str) -> str:
    """Return a command line ready to copy. Raises KeyError for an unknown command or flag."""
    name, *rest = words.split()
    flags = {f"--{one.spelled}" for one in found[name].flags}
    if unknown := [word for word in rest if word.startswith("--") and word not in flags]:
        raise KeyError(f"inv {name} has no {unknown[0]}")
    return f"`./inv {words}`"
