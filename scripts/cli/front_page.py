"""First screen of `./inv`, and the command list grouped by topic.

The folder of a command's file below `scripts/` decides the group; the first line of the help is the entry in the list.
"""

from collections.abc import Iterator
from typing import Any

from store import packs

FIRST_SCREEN = """\
Slipway trains and serves language models, from raw text to a chat: on this
machine, for free, or on GPUs rented by the hour and deleted at a limit.

  ./inv launch --phase sft     train a small model, with every missing step
  ./inv chat                   talk to the model
  ./inv status                 every run: state, step, cost, limits
  ./inv down                   end a run; returns when the pod is proven deleted
  ./inv serve.up --name demo   serve the model, with OpenAI's protocol
  ./inv rehearse --phase sft   practise renting in a simulated market, for free

Commands that create something show a plan with --dry-run, most print --json.

  ./inv --list                 the common commands; with --all every command
  ./inv launch --help          the flags of a command
  ./inv init                   enter the keys for renting and for a store
  ./inv config                 every setting, with value and source
  ./inv docs WORDS             search the documentation, without a network

Read on: docs/quickstart.md, docs/concepts.md, docs/money.md (limits of pods)
Tab completion: source <(./inv --print-completion-script bash), or zsh"""
ROOMS = {  # list titles of the scripts/ folders, in list order; folders with equal titles share a group
    "runs": "Runs",
    "models": "Models and data",
    "checkpoints": "Models and data",
    "data": "Models and data",
    "market": "Market and money",
    "pods": "Pods and own machines",
    "pools": "Pods and own machines",
    "services": "Services",
    "store": "Models and data",
    "project": "This installation",
}
OTHER, PACKS = "Other", "Packs"
MOST_VERBS = 6  # verbs of a collection shown on a line of the list
REFUSED = ("stop",)  # unlisted commands: each only refers to a replacement
# Core commands shown by `inv --list`, and collections shown on a single line with a title.
FIRST = tuple(
    "launch status why logs down resume rehearse train chat eval shard offers cost audit ssh init docs doctor".split()
)
COLLECTIONS = {
    "ckpt": "Checkpoints",
    "tokenizer": "Tokenizers",
    "pod": "Pods, one step at a time",
    "pool": "Own machines",
    "serve": "A model at an address",
}


def room_of(task: Any) -> str:
    """Return the group title of a task."""
    parts = (getattr(task, "where", "") or task.body.__module__).split(".")
    if parts[0] == "packs":
        return PACKS
    return ROOMS.get(parts[1], OTHER) if parts[0] == "scripts" and len(parts) > 1 else OTHER


def groups(collection: Any) -> dict[str, list[tuple[str, Any]]]:
    """Return (name, task) pairs of a collection by group, in the order of ROOMS and of the namespace."""
    found: dict[str, list[tuple[str, Any]]] = {title: [] for title in (*ROOMS.values(), PACKS, OTHER)}
    for name in collection.task_names:
        found[room_of(collection[name])].append((name, collection[name]))
    return {title: tasks for title, tasks in found.items() if tasks}


def summary(task: Any) -> str:
    """Return the first line of a task's docstring without the final period, or "" without a docstring."""
    return next(iter((task.__doc__ or "").strip().splitlines()), "").rstrip(".")


def first_listing(collection: Any) -> Iterator[str]:
    """Yield the lines of `inv --list`: core commands and collections by group, then a line per pack.

    If a foreign namespace nests our commands below a name, list all commands. Foreign commands beside ours are listed,
    too.
    """
    if "launch" not in collection.task_names:
        yield from listing(collection)
        return
    width = max(map(len, (*FIRST, *(f"{name}.*" for name in COLLECTIONS), *packs.installed())))
    for title, tasks in groups(collection).items():
        rows: dict[str, str] = {}
        for name, task in tasks if title != PACKS else ():
            above = name.rpartition(".")[0]
            if name in FIRST or title == OTHER:
                rows[name] = summary(task)
            elif above in COLLECTIONS:
                verbs = [one.rpartition(".")[2] for one, _ in tasks if one.startswith(f"{above}.")]
                more = ", ..." if len(verbs) > MOST_VERBS else ""
                rows[f"{above}.*"] = f"{COLLECTIONS[above]}: {', '.join(verbs[:MOST_VERBS])}{more}"
        if rows:
            yield title
            yield from (f"  {name:{width}}  {about}" for name, about in rows.items())
    if packs.installed():
        yield PACKS
        yield from (f"  {name:{width}}  {pack.about}" for name, pack in packs.installed().items())
    yield "All commands: ./inv --list --all. Flags of a command: ./inv COMMAND --help"


def listing(collection: Any) -> Iterator[str]:
    """Yield the lines of `inv --list --all`: a title per group, followed by a line per command."""
    grouped = groups(collection)
    width = max((len(name) for tasks in grouped.values() for name, _ in tasks), default=0)
    for title, tasks in grouped.items():
        yield title
        for name, task in tasks:
            if name not in REFUSED:
                yield f"  {name:{width}}  {summary(task)}".rstrip()
    yield "Flags of a command: ./inv COMMAND --help. Flags of all commands: docs/reference/commands.md"
