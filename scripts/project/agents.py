"""AGENTS.md: the commands for coding agents, and the prohibitions about money, for any program that reads the file.

The input is the same set of records as for docs/reference: commands with flags, settings, exit codes and files. The
output is a single page. Each command named in a rule is looked up during generation, so the page cannot name a missing
command.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from infra import settings
from infra.selection.preflight import MOST_USD
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
        "Slipway trains and serves language models, free of charge on this machine, or on machines "
        f"rented by the hour. {typed('launch')} and similar commands can spend a person's money, and a "
        "forgotten machine bills until a limit ends the machine. So the rules about money come first, "
        "before every task.",
        "",
        "## Never",
        "",
        "- Never rent unless a person has approved this very run: which machine, how long, and the "
        f"maximum cost. These commands may rent: {_listed(rents)}. Until then use `--dry-run` if the "
        f"command has the flag, or practise: {typed('rehearse --phase sft')}, and `--rehearse` on other "
        "commands. Without a key in the shell or `.env`, and with `--provider local`, no machine is "
        "rented.",
        "- Never leave out the limit named by the person: `--spend-limit` and `--ttl`. A machine rented "
        f"without a limit may cost up to {MOST_USD} USD. Never raise a limit, and never set "
        "`SLIPWAY_SPEND_CAP_USD`, by yourself.",
        "- Never give `--yes` to a command that rents, ends or removes, unless the person has seen the "
        "plan of the command. In addition to the commands above, these commands ask first: "
        f"{_listed(ask)}.",
        f"- Never end a run or machine that you did not start: no {typed('down --all')}, no "
        f"{typed('audit --kill')}, no {typed('reap')} without a request.",
        "- Never end a rented machine by other means than these commands: the journal would still list "
        "the machine as live.",
        f"- Never touch, move or remove the records of rented machines and open costs: {'; '.join(kept)}.",
        f"- Never read, print, log or commit keys: `.env`, {', '.join(keys)}, and every other variable "
        "named like a key.",
        "- Never start other work while a machine of yours may bill. After an error, a lost connection "
        f"or an interruption look first: {typed('status')}, then {typed('audit')}. If one of the two "
        "exits with code 5, or if a message says that a machine may bill, report the original message to "
        "the person at once.",
        "- Never run an extension (`SLIPWAY_EXTENSIONS`, `--reward FILE`, `--track FILE`) that you have "
        "not read: extensions run with the person's keys.",
        "",
        "## What to type",
        "",
        f"`./inv` creates an environment on first use. {typed('doctor')} shows missing requirements of "
        f"this machine, {typed('config')} every setting with value and source. With `--json`, stdout has "
        "exactly one document, and messages go to stderr. A failure is also a document, with `error` and "
        "`exit_code`; the error ends with the next command.",
        "",
        "```sh account",
        typed("launch --phase sft --dry-run").strip("`") + "    # the plan: steps, machine, price",
        typed("launch --phase sft --provider local").strip("`") + "    # trains on this machine, free of charge",
        typed("status --json").strip("`") + "    # every run: state, step, cost, limits",
        typed("why RUN").strip("`") + "    # cause of the end of a run, from the records",
        typed("logs RUN --tail 50").strip("`"),
        typed("down RUN").strip("`") + "    # returns when no pod of the run exists or bills",
        typed("check").strip("`") + "    # the lint and types of the project",
        typed("test --fast").strip("`") + "    # the tests that start no process",
        "```",
        "",
        "All commands. The marks: shows a plan first (`--dry-run`), prints JSON (`--json`), may rent (money):",
        "",
        *tables.commands,
        "Flags: [docs/reference/commands.md](docs/reference/commands.md); flags of a pack: `packs/NAME/reference.md`.",
        "",
        "## Exit codes",
        "",
        *tables.codes,
        "## In the code",
        "",
        "- Folders show the place of execution, and imports point downwards: "
        "[docs/architecture.md](docs/architecture.md); `tests/test_floors.py` checks the imports.",
        "- The table below names the folder for each kind of change; [CONTRIBUTING.md](CONTRIBUTING.md) "
        "has the same table, and the form of commits. `infra/` rents and watches machines, `trainer/` "
        "trains, `serve/` answers requests, `flows/` holds use cases, `scripts/` holds commands.",
        "- An extension adds a provider, a filter, a source, a reward, a phase or a tracker without a change of this "
        "checkout: [docs/extend.md](docs/extend.md).",
        "- `docs/reference/`, this page and `.env.example` are generated: run `python -m "
        "scripts.project.reference write` after each change of a command, a flag, a setting or an error.",
        "- Guidelines, not checked by tests: a folder of about 17 files, a module of at most 400 lines, "
        "a class name with a single meaning, a docstring of a function that begins with a verb.",
        f"- Tests use the rehearsal: no test rents a machine or needs a key. {typed('test')} runs the "
        f"tests, {typed('check')} the lint.",
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
    return any(one.spelling == flag for one in task.flags)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{one}`" for one in names)


def _typed(found: Any, words: str) -> str:
    """Return a command line ready to copy. Raises KeyError for an unknown command or flag."""
    name, *rest = words.split()
    flags = {f"--{one.spelling}" for one in found[name].flags}
    if unknown := [word for word in rest if word.startswith("--") and word not in flags]:
        raise KeyError(f"inv {name} has no {unknown[0]}")
    return f"`./inv {words}`"
