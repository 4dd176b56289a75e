"""Reuse of artifacts: match the steps of a recipe with artifacts in the store, by kind and fingerprint.

Changed code alone never causes a rebuild; the plan reports the changed files and the user decides (`--remake`).

steps (`Node`), store contents and checkout -> `choices` -> a `Choice` per step
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from store.manifest import kind_of
from trainer.fingerprints import CheckoutCode, Code, commit_of, digest, short, version_of
from trainer.records.fields import what_counts

Held = Mapping[tuple[str, str], Mapping[str, Any]]
"""Manifest facts by (kind, fingerprint), for every whole artifact in a store."""


@dataclass(frozen=True)
class Node:
    """A step of a recipe and the artifact built by the step."""

    name: str
    artifact: str
    words: tuple[str, ...]
    code: tuple[str, ...]  # folders and files of the building code
    spec: Any
    inputs: dict[str, str] = field(default_factory=dict)  # role -> name of the source node


@dataclass(frozen=True)
class Choice:
    """The artifact chosen for a step."""

    fingerprint: str
    code: Code
    """Code state of the checkout, not of the artifact."""
    is_here: bool = False
    differs: tuple[str, ...] = ()
    """Files changed since the artifact was built; () if none or unknown."""
    made_by: str = ""
    """Commit of the artifact, if missing in this checkout; else ""."""
    is_remade: bool = False
    """True if the artifact, or an input of the artifact, was remade for changed code."""


def choices(
    nodes: Mapping[str, Node],
    held: Held,
    pointers: Mapping[str, str],
    checkout: CheckoutCode,
    given: Mapping[str, str],
    remake: tuple[str, ...] = (),
) -> dict[str, Choice]:
    """Return the choice for every step; `nodes` must be in execution order.

    pointers: current fingerprint by artifact name, preferred among candidates. given: fixed fingerprints by step name.
    remake: steps to rebuild when the code of the artifact differs from the checkout.
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
    """Yield the missing steps required for `names`, without the inputs of artifacts already in the store."""
    seen, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        if name not in seen and not made[name].is_here:
            seen.add(name)
            yield name
            todo.extend(nodes[name].inputs.values())
