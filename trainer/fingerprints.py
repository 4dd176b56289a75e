"""Fingerprints of artifacts, made of a step's settings, the version of its semantics, and its inputs.

A fingerprint is `<spec>-<version>-<inputs>`: `<spec>` hashes the settings of the step, `<inputs>` the fingerprints of
what the step reads, and `<version>` is `v1`, `v2`, ... after VERSIONS. The code is not part of it: the commit of the
checkout stands beside the artifact, so that a plan can name the files that are different today. What was made anew
because of that (`--remake`) has a digest of its code in its version, `v1.3f0c9a1b`.
"""

import hashlib
import json
import os
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.records.phase_registry import PHASES

VERSIONS = {
    "text": 1,
    "tokenizer": 1,
    "tokens": 1,
    "identity": 2,
    "questions": 2,
    "talk": 2,
    "problems": 1,
    "import": 1,
    **{name: phase.version for name, phase in PHASES.items()},
}
"""Versions by the name of the step (`-m data tokens`): raised by whoever changes its output for the same settings and
inputs (for a phase: in the registry). tests/test_golden.py fails when that was forgotten."""


MOST_SHOWN = 40  # letters of one value
DIGEST = 8  # hexadecimal digits of the code in a version
MOST_NAMED = 8  # files
UNCOMMITTED = "files that were not committed then"
FOLDERS = ("data", "trainer", "packs")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

Code = dict[str, str]
"""The code of a checkout: its `commit`, and `changed`, a digest of the files that differ from that commit, where there
are any; {} where git knows nothing of it."""


def version_of(word: str) -> int:
    """Return the version of what a step makes; the code of an extension is part of its settings instead."""
    return VERSIONS[word] if word != "own" else 1


def digest(value: Any) -> str:
    """Return 12 hexadecimal digits of a value that JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


class CheckoutCode:
    """The code of a checkout as git knows it: its commit, and what differs from that commit or from another one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        said = self._git("rev-parse", "--show-toplevel", "HEAD")
        top, commit = said.decode().split("\n")[:2] if said else ("", "")
        # A checkout below another project's would be told by the commits of that project.
        self.commit = commit if top and Path(top).resolve() == root.resolve() else ""
        self._changed: dict[str, Mapping[str, str] | None] = {}

    def of(self, folders: Sequence[str]) -> Code:
        """Return what is written beside an artifact that the code in these folders and files makes."""
        changed = _digest_of(_within(self._since(self.commit), folders)) if self.commit else ""
        commit = {"commit": self.commit} if self.commit else {}
        return {**commit, **({"changed": changed} if changed else {})}

    def differing(self, before: Any, folders: Sequence[str]) -> tuple[str, ...] | None:
        """Return the files of these folders that differ from the code `before`, the first of many.

        None: this checkout does not know the commit of that code. (): nothing differs, or no commit is on record.
        """
        commit = commit_of(before)
        if not (commit and self.commit):
            return ()
        changed = self._since(commit)
        if changed is None:
            return None
        now = _within(changed, folders)
        if _digest_of(now) == before.get("changed", ""):
            return ()
        more = (f"and {len(now) - MOST_NAMED} more",) if len(now) > MOST_NAMED else ()
        return (*sorted(now)[:MOST_NAMED], *more) or (UNCOMMITTED,)

    def _since(self, commit: str) -> Mapping[str, str] | None:
        """Return the files that differ from a commit, each with a digest of what it holds; None: no such commit."""
        if commit not in self._changed:
            options = ("--name-only", "-z", "--no-renames", "--no-ext-diff")
            changed = self._git("diff", *options, commit, "--", *FOLDERS)
            untracked = self._git("ls-files", "-o", "-z", "--exclude-standard", "--", *FOLDERS)
            paths = None if changed is None else [*changed.split(b"\0"), *(untracked or b"").split(b"\0")]
            self._changed[commit] = None if paths is None else {
                path: _digest_of_file(self.root / path) for path in map(os.fsdecode, filter(None, paths))
            }  # fmt: skip
        return self._changed[commit]

    def _git(self, *words: str) -> bytes | None:
        """Return what git prints here; None where it is not there, or refuses."""
        line = ["git", "--no-optional-locks", "-C", str(self.root), *words]
        try:
            done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True)
        except OSError:
            return None
        return done.stdout if done.returncode == 0 else None


def commit_of(code: Any) -> str:
    """Return the commit that is written beside an artifact; "" where none is, or what is there names none."""
    found = code.get("commit") if isinstance(code, dict) else None
    return found if isinstance(found, str) and _COMMIT.fullmatch(found) else ""


def short(code: Mapping[str, str]) -> str:
    """Return the digest of code that stands in the version of what was made anew."""
    return digest(dict(code))[:DIGEST]


def _within(changed: Mapping[str, str] | None, folders: Sequence[str]) -> dict[str, str]:
    return {
        path: held
        for path, held in (changed or {}).items()
        if any(path == one or path.startswith(f"{one}/") for one in folders)
    }


def _digest_of(changed: Mapping[str, str]) -> str:
    return digest(dict(changed)) if changed else ""


def _digest_of_file(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError:  # it was removed
        return ""


def differences(before: Any, now: Mapping[str, Any]) -> list[str]:
    """Return the settings that are not the same, such as `persona name Bosun -> Ursula K.`; [] where nobody knows."""
    if not isinstance(before, dict) or not before:
        return []
    old, new = dict(_leaves(before)), dict(_leaves(now))
    return [f"{name} {_shown(old.get(name))} -> {_shown(new.get(name))}"
            for name in sorted(old.keys() | new.keys()) if old.get(name) != new.get(name)]  # fmt: skip


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        path = f"{above} {name}".strip()
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        else:
            yield path, value


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.10g}"  # 0.352, where a product of weights is 0.35200000000000004
    text = "none" if value is None else value if isinstance(value, str) and value else json.dumps(value)
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."
