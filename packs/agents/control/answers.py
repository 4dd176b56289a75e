"""Answers of the tools: documents of `inv` commands -> facts for an agent -> at most MOST_BYTES of printable text."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from store.untrusted_input import printable

MOST_BYTES = 8000  # of an answer as JSON
CUT = "long lists are cut: ask for less, or for a single run"
ARGUMENTS = {  # flags in errors of `inv`, and the arguments of the tools
    "gpu": "gpu",
    "num-gpus": "num_gpus",
    "provider": "provider",
    "use-spot": "use_spot",
    "spend-limit": "spend_usd",
    "ttl": "hours",
    "phase": "phase",
    "profile": "profile",
    "source": "source",
    "task": "task",
    "steps": "steps",
    "set": "options",
    "replicas": "replicas",
}
FLAG = re.compile(rf"--({'|'.join(ARGUMENTS)})(?![a-z-])")
PATH = re.compile(r"(?<![\w:/.~])(?:~|\.)?/[^\s,;:][^,;:]*")  # up to a mark, since a path may hold spaces
ADDRESS = re.compile(r"\b(?!hf:|https?:)[a-z][a-z0-9+.-]*://[^\s,;]*[^\s,;:.]")  # a tool takes no such address
# Words that only the owner can follow: a command, a flag without an argument, or names of other models.
COMMAND = re.compile(r"(?:\./)?\binv [a-z]|--[a-z]|\bavailable: ")
LABEL = re.compile(r"\A--(?=[a-z][a-z-]* \S+: )")  # begins an error about a flag with a value


def for_the_agent(error: str) -> tuple[str, str]:
    """Return the part of an error of `inv` for an agent, and the rest for the owner, without line breaks.

    The first clause is cut at a command, and has names for paths and addresses of the owner; the part ends before the
    next clause with a command, a path or an address.
    """
    clauses = re.split(r"(?<=[;.])\s+|\s*\n\s*", error.strip())
    clauses = [printable(one if one[-1:] in ";.:," else f"{one};") for one in clauses]
    first, *more = [FLAG.sub(lambda found: ARGUMENTS[found[1]], clause) for clause in clauses]
    first, cut = _before_command(LABEL.sub("", first))
    if not first.strip(" ;"):
        return "", _joined(clauses)
    shown = [ADDRESS.sub("(an address of the owner)", PATH.sub("(a path of the owner)", first))]
    shown += itertools.takewhile(lambda one: not any(each.search(one) for each in (COMMAND, PATH, ADDRESS)), more)
    return _joined(shown), _joined([cut, *clauses[len(shown) :]])


def _before_command(clause: str) -> tuple[str, str]:
    """Return a clause up to the last mark before the first command, and the rest; without a command, the clause."""
    found = COMMAND.search(clause)
    if not found:
        return clause, ""
    marks = [one.end() for one in re.finditer(r"[,:(] ?", clause[: found.start()])]
    at = marks[-1] if marks else found.start()
    return clause[:at].rstrip(" ,:(") + ";", clause[at:]


def _joined(clauses: Iterable[str]) -> str:
    return " ".join(one for one in clauses if one.strip(" ;")).rstrip(" ;")


def training_facts(shown: Mapping[str, Any]) -> dict[str, Any]:
    due = [row["name"] for row in shown["artifacts"] if row["step"]]
    facts = {"steps": shown["steps"], "artifacts": due, "notes": [clean(one) for one in shown["notes"]][:8]}
    if not shown["steps"]:
        return {"message": "every artifact exists; nothing to do", **facts}
    if not shown.get("offers"):
        return facts
    names = ("low", "expected", "high")
    return {
        **facts,
        "cost_usd": dict(zip(names, shown["cost_usd"] or (), strict=False)),
        "seconds": dict(zip(names, shown["cost_s"] or (), strict=False)),
        "ends": [f"{end['when']}: {end['by']}" for end in shown["ends"]],
    }


def service_facts(shown: Mapping[str, Any]) -> dict[str, Any]:
    return {"model": shown["model_name"], "engine": shown["engine"]}


def clean(text: str) -> str:
    """Return untrusted text without control characters, and without escape sequences of a terminal."""
    return "".join(one for one in text if one == "\n" or one.isprintable())


def bounded(document: dict[str, Any]) -> dict[str, Any]:
    """Return a document of at most MOST_BYTES as JSON: the longest texts and lists are cut, and say so."""
    document, is_cut = _cleaned(document), False
    while len(json.dumps(document).encode()) > MOST_BYTES - is_cut * len(CUT) * 2:
        holder, key, size = max(_long_parts(document), key=lambda one: one[2])
        value = holder[key]
        cut, is_list = value[: len(value) // 2], isinstance(value, list)
        holder[key] = cut if is_list else f"{cut} [cut]"
        is_cut = is_cut or is_list
        if size < 4:
            return {"refused": "the answer is too long; ask for less"}
    if is_cut:
        document["result"]["cut"] = CUT
    return document


def newest(text: str) -> str:
    """Return the last whole lines of a text, in at most three quarters of an answer as JSON."""
    whole = clean(text)
    part = whole[-MOST_BYTES:]
    while len(json.dumps(part).encode()) > MOST_BYTES * 3 // 4:
        part = part[max(1, len(part) // 8) :]
    return part if part == whole else part.partition("\n")[2] or part


def _cleaned(value: Any) -> Any:
    """Return a document whose texts have no control characters."""
    if isinstance(value, dict):
        return {clean(str(name)): _cleaned(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_cleaned(one) for one in value]
    return clean(value) if isinstance(value, str) else value


def _long_parts(value: Any) -> Iterator[tuple[Any, Any, int]]:
    """Yield the holder, the key and the size as JSON of each text and list."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in pairs:
        if isinstance(one, (str, list)):
            yield value, key, len(json.dumps(one)) if isinstance(one, str) or len(one) > 1 else 0
        yield from _long_parts(one)


def run_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    names = ("run", "state", "provider", "gpu", "step", "cost_usd", "usd_per_hour", "limit_usd", "eta_s")
    said = {name: row[name] for name in names if row.get(name) not in (None, "")}
    return {**said, **({"untrusted_text": row["reason"]} if row.get("reason") else {})}  # may hold words of a machine


def step_facts(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return a step with its artifact and figures, without paths of machines."""
    result = {name: one for name, one in (step.get("result") or {}).items() if name not in ("kind", "at", "step")}
    figures = {name: one for name, one in result.items() if type(one) in (int, float)}
    return {
        "step": step["name"],
        "state": step["state"],
        "elapsed_s": round(step.get("elapsed_s") or 0.0, 1),
        **({"artifact": result["name"]} if result.get("name") else {}),
        **({"figures": figures} if figures else {}),
    }


def service_row_facts(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: row.get(name) for name in ("service", "state", "ready", "target", "model_name", "usd_per_hour", "held")
    }
