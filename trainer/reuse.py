"""Find the artifact that each step would make, and whether the store has it already under any name.

In: the steps of a recipe, what the store holds by kind and fingerprint, the checkout. Out: a `Choice` for each step.
Nothing is made again because its code has changed: the plan says so, and the user decides.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.manifest import kind_of
from trainer.fingerprints import BESIDE, FIRST_CODE, Code, codes_of, differing, digest, short, version_of
from trainer.records.fields import what_counts

FILE = re.compile(rf"(?:{BESIDE})?[A-Za-z0-9_/]+\.py")  # name of a file of ours, whoever wrote it down

Held = Mapping[tuple[str, str], Mapping[str, Any]]
"""Kind and fingerprint of everything whole in a store -> what its maker wrote about it."""


@dataclass(frozen=True)
class Node:
    """One step of the recipe and the one artifact that it makes."""

    name: str
    artifact: str
    words: tuple[str, ...]
    entry: str  # file whose imports are the code behind it
    spec: Any
    inputs: dict[str, str] = field(default_factory=dict)  # role -> name of the node that makes it


@dataclass(frozen=True)
class Choice:
    """The artifact that stands for a step."""

    fingerprint: str
    code: Code
    """Code of the checkout, not of the artifact."""
    is_here: bool = False
    differs: tuple[str, ...] = ()
    """Files whose code differs from that which made it; () where that is not known."""
    is_remade: bool = False
    """True if it, or an artifact that it comes from, was remade because code had changed."""


def choices(
    nodes: Mapping[str, Node], held: Held, pointers: Mapping[str, str], root: Path, given: Mapping[str, str],
    remake: tuple[str, ...] = (),
) -> dict[str, Choice]:  # fmt: skip
    """Return one for every step; `nodes` in an order in which they can run.

    pointers: the fingerprint under each name; given: fingerprints that are not ours to choose; remake: the steps whose
    artifact is not the one that other code made.
    """
    found: dict[str, Choice] = {}
    codes = codes_of(root, {node.entry for name, node in nodes.items() if name not in given})
    plain, first = dict(given), dict(given)  # fingerprints as if nothing had been remade, and as 8284afb made them
    for name, node in nodes.items():
        kind = kind_of(node.artifact)
        if name in given:
            found[name] = Choice(given[name], {}, (kind, given[name]) in held)
            continue
        spec, version = digest(what_counts(node.spec)), f"v{version_of(node.words[-1])}"
        code, old = codes[node.entry], FIRST_CODE.get(node.words[-1], version)
        ours = _inputs(node, {source: one.fingerprint for source, one in found.items()})
        follows = any(found[source].is_remade for source in node.inputs.values())
        tails = [ours] if follows else [ours, _inputs(node, plain), _inputs(node, first)]
        versions = [version, old] if version == "v1" else [version]
        wanted = [f"{spec}-{one}-{tail}" for tail in tails for one in versions]
        wanted += sorted(one for of, one in held if of == kind and _is_remade(one, f"{spec}-{version}.", ours))
        plain[name], first[name] = f"{spec}-{version}-{_inputs(node, plain)}", f"{spec}-{old}-{_inputs(node, first)}"
        there = {one: _differing(held[kind, one], code) for one in wanted if (kind, one) in held}
        best = min(there, key=lambda one: (pointers.get(node.artifact) != one, bool(there[one])), default="")
        if best and name in remake and there[best]:
            found[name] = Choice(f"{spec}-{version}.{short(code)}-{ours}", code, is_remade=True)
        elif best:
            is_remade = follows or _is_remade(best, f"{spec}-{version}.", ours)
            found[name] = Choice(best, code, True, there[best], is_remade)
        else:
            found[name] = Choice(f"{spec}-{version}-{ours}", code, is_remade=follows)
    return found


def _inputs(node: Node, prints: Mapping[str, str]) -> str:
    return digest({role: prints[source] for role, source in node.inputs.items()})


def _is_remade(fingerprint: str, beginning: str, inputs: str) -> bool:
    return fingerprint.startswith(beginning) and fingerprint.endswith(f"-{inputs}")


def _differing(about: Mapping[str, Any], code: Code) -> tuple[str, ...]:
    before: Any = about.get("code")
    is_told = isinstance(before, dict) and all(
        isinstance(one, str) and FILE.fullmatch(path) for path, one in before.items()
    )
    return differing(before, code) if is_told else ()


def needed(nodes: Mapping[str, Node], names: tuple[str, ...], made: Mapping[str, Choice]) -> Iterator[str]:
    """Yield the steps that are due for `names`: what is here needs nothing, not even what it was made of."""
    seen, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        if name not in seen and not made[name].is_here:
            seen.add(name)
            yield name
            todo.extend(nodes[name].inputs.values())
