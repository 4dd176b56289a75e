"""Artifact fingerprints, and the reuse of artifacts from the store by kind and fingerprint.

    <spec>-<version>-<inputs>    settings of the step, `v1` from VERSIONS, fingerprints of the inputs
    steps (`Node`), store contents and checkout -> `choices` -> a `Choice` per step

The code is not part of a fingerprint: the store records the commit beside the artifact, the plan reports the files
changed since, and the user decides. An artifact rebuilt for changed code (`--remake`) carries a digest of the code in
the version, `v1.3f0c9a1b`.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.manifest import kind_of
from trainer.records.fields import fingerprint_fields
from trainer.records.phase_registry import PHASES

VERSIONS = {
    "text": 1,
    "tokenizer": 1,
    "tokens": 1,
    "identity": 2,
    "questions": 2,
    "talk": 3,
    "problems": 1,
    "import": 1,
    **{name: phase.version for name, phase in PHASES.items()},
}
"""Version by step name (`-m data tokens`). Raise a version when a change alters the output for equal settings and
inputs (for a phase: in the registry). tests/test_golden.py fails for a forgotten change."""


MOST_SHOWN = 40  # characters of one value
DIGEST = 8  # hexadecimal digits of the code digest in a version
MOST_NAMED = 8  # files listed
UNCOMMITTED = "files that were not committed then"
FOLDERS = ("data", "trainer", "packs")
SENT = "SLIPWAY_CHECKOUT_STATE"  # `sent_state` of the checkout of which this one is a copy without a repository
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

Code = dict[str, str]
"""The code state of a checkout: `commit`, plus `changed`, a digest of files differing from the commit, if any.
{} outside a git repository."""
Held = Mapping[tuple[str, str], Mapping[str, Any]]
"""Manifest facts by (kind, fingerprint), for every whole artifact in a store."""


def version_of(word: str) -> int:
    """Return the version of a step from VERSIONS; always 1 for an extension, whose settings include the code digest."""
    return VERSIONS[word] if word != "own" else 1


def digest(value: Any) -> str:
    """Return the first 12 hexadecimal digits of the sha256 of a JSON-serializable value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


class CheckoutCode:
    """The git state of a checkout: the commit, and the files differing from a given commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        said = self._git("rev-parse", "--show-toplevel", "HEAD")
        top, commit = said.decode().split("\n")[:2] if said else ("", "")
        # Ignore the commit of an enclosing repository of a different project.
        self.commit = commit if top and Path(top).resolve() == root.resolve() else ""
        sent = {} if self.commit else json.loads(os.environ.get(SENT) or "{}")
        self.commit = self.commit or commit_of(sent)
        self._changed: dict[str, Mapping[str, str] | None] = {self.commit: sent["files"]} if sent else {}

    def of(self, folders: Sequence[str]) -> Code:
        """Return the code record for an artifact made by the code in `folders` (folders or files)."""
        changed = _digest_of(_within(self.digests_since(self.commit), folders)) if self.commit else ""
        return {name: one for name, one in (("commit", self.commit), ("changed", changed)) if one}

    def sent_state(self) -> str:
        """Return commit and changed files for the variable SENT of a copy, or "" without a commit."""
        said = json.dumps({"commit": self.commit, "files": self.digests_since(self.commit)}) if self.commit else ""
        return said if len(said) < 96 << 10 else ""  # systems accept variables of 128 KiB

    def changed_files(self, before: Any, folders: Sequence[str]) -> tuple[str, ...] | None:
        """Return the files in `folders` differing from the code record `before`, at most MOST_NAMED plus a count.

        None = this checkout does not contain the recorded commit; () = no file differs, or no commit is recorded.
        """
        commit = commit_of(before)
        if not (commit and self.commit):
            return ()
        changed = self.digests_since(commit)
        if changed is None:
            return None
        now = _within(changed, folders)
        if _digest_of(now) == before.get("changed", ""):
            return ()
        more = (f"and {len(now) - MOST_NAMED} more",) if len(now) > MOST_NAMED else ()
        return (*sorted(now)[:MOST_NAMED], *more) or (UNCOMMITTED,)

    def digests_since(self, commit: str) -> Mapping[str, str] | None:
        """Return the digest by path of files differing from `commit`, or None for an unknown commit; cached."""
        if commit not in self._changed:
            options = ("--name-only", "-z", "--no-renames", "--no-ext-diff")
            changed = self._git("diff", *options, commit, "--", *FOLDERS)
            untracked = self._git("ls-files", "-o", "-z", "--exclude-standard", "--", *FOLDERS)
            paths = filter(None, [*(changed or b"").split(b"\0"), *(untracked or b"").split(b"\0")])
            digests = {path: _digest_of_file(self.root / path) for path in map(os.fsdecode, paths)}
            self._changed[commit] = None if changed is None else digests
        return self._changed[commit]

    def _git(self, *words: str) -> bytes | None:
        """Return the stdout of a git command in the checkout, or None when git is missing or fails."""
        line = ["git", "--no-optional-locks", "-C", str(self.root), *words]
        try:
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None


def commit_of(code: Any) -> str:
    """Return the commit of a code record, or "" for a missing or malformed commit (untrusted input)."""
    found = code.get("commit") if isinstance(code, dict) else None
    return found if isinstance(found, str) and _COMMIT.fullmatch(found) else ""


def short(code: Mapping[str, str]) -> str:
    """Return the 8-digit code digest for the version of a remade artifact."""
    return digest(dict(code))[:DIGEST]


def _within(changed: Mapping[str, str] | None, folders: Sequence[str]) -> dict[str, str]:
    below = tuple(f"{one}/" for one in folders)
    return {path: held for path, held in (changed or {}).items() if path in folders or path.startswith(below)}


def _digest_of(changed: Mapping[str, str]) -> str:
    return digest(dict(changed)) if changed else ""


def _digest_of_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:  # the file was removed
        return ""


def differences(before: Any, now: Mapping[str, Any]) -> list[str]:
    """Return changed settings as text, such as `persona name Bosun -> Ursula K.`; [] without recorded settings."""
    if not isinstance(before, dict) or not before:
        return []
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return [
        f"{name} {_shown(old.get(name))} -> {_shown(new.get(name))}"
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{above} {name}".strip()
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"  # 0.352 for a product of weights of 0.35200000000000004
    text = "none" if value is None else value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


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
        spec, version = digest(fingerprint_fields(node.spec)), f"v{version_of(node.words[-1])}"
        code, inputs = checkout.of(node.code), _inputs(node, found)
        follows = any(found[source].is_remade for source in node.inputs.values())
        usual = f"{spec}-{version}-{inputs}"
        remade = sorted(one for of, one in held if of == kind and _is_remade(one, f"{spec}-{version}.", inputs))
        makers = {one: held[kind, one].get("code") for one in (usual, *remade) if (kind, one) in held}
        there = {one: checkout.changed_files(maker, node.code) for one, maker in makers.items()}
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
