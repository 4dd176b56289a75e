"""Find the artifact that each step would make, and whether the store has it already under any name.

In: the steps of a recipe, what the store holds by kind and fingerprint, the checkout. Out: a `Choice` for each step.
Nothing is made again because its code has changed: the plan says so, and the user decides.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.manifest import kind_of
from trainer.fingerprints import CheckoutCode, Code, commit_of, digest, short, version_of
from trainer.records.fields import what_counts

Held = Mapping[tuple[str, str], Mapping[str, Any]]
"""Kind and fingerprint of everything whole in a store -> what its maker wrote about it."""


@dataclass(frozen=True)
class Node:
    """One step of the recipe and the one artifact that it makes."""

    name: str
    artifact: str
    words: tuple[str, ...]
    code: tuple[str, ...]  # folders and files whose code makes it
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
    """Files that differ from the code which made it; () where that is not known."""
    made_by: str = ""
    """The commit that made it, where this checkout does not know that commit."""
    is_remade: bool = False
    """True if it, or an artifact that it comes from, was remade because code had changed."""


def choices(
    nodes: Mapping[str, Node], held: Held, pointers: Mapping[str, str], checkout: CheckoutCode,
    given: Mapping[str, str], remake: tuple[str, ...] = (),
) -> dict[str, Choice]:  # fmt: skip
    """Return one for every step; `nodes` in an order in which they can run.

    pointers: the fingerprint under each name; given: fingerprints that are not ours to choose; remake: the steps whose
    artifact is not the one that other code made.
    """
    found: dict[str, Choice] = {}
    for name, node in nodes.items():
        kind = kind_of(node.artifact)
        if name in given:
            found[name] = Choice(given[name], {}, (kind, given[name]) in held)
            continue
        spec, version = digest(what_counts(node.spec)), f"v{version_of(node.words[-1])}"
        code, inputs = checkout.of(node.code), _inputs(node, found)
        follows = any(found[source].is_remade for source in node.inputs.values())
        usual = f"{spec}-{version}-{inputs}"
        remade = sorted(one for of, one in held if of == kind and _is_remade(one, f"{spec}-{version}.", inputs))
        makers = {one: held[kind, one].get("code") for one in (usual, *remade) if (kind, one) in held}
        there = {one: checkout.differing(maker, node.code) for one, maker in makers.items()}
        best = min(there, key=lambda one: (pointers.get(node.artifact) != one, there[one] != ()), default="")
        if best and name in remake and code and there[best] != ():
            found[name] = Choice(f"{spec}-{version}.{short(code)}-{inputs}", code, is_remade=True)
        elif best:
            differs, made_by = there[best] or (), commit_of(makers[best]) if there[best] is None else ""
            found[name] = Choice(best, code, True, differs, made_by, is_remade=follows or best != usual)
        else:
            found[name] = Choice(usual, code, is_remade=follows)
    return found


def _inputs(node: Node, found: Mapping[str, Choice]) -> str:
    return digest({role: found[source].fingerprint for role, source in node.inputs.items()})


def _is_remade(fingerprint: str, beginning: str, inputs: str) -> bool:
    return fingerprint.startswith(beginning) and fingerprint.endswith(f"-{inputs}")


def needed(nodes: Mapping[str, Node], names: tuple[str, ...], made: Mapping[str, Choice]) -> Iterator[str]:
    """Yield the steps that are due for `names`: what is here needs nothing, not even what it was made of."""
    seen, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        if name not in seen and not made[name].is_here:
            seen.add(name)
            yield name
            todo.extend(nodes[name].inputs.values())
