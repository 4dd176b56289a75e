"""Fingerprints of artifacts, made of a step's settings, the version of its semantics, and its inputs.

A fingerprint is `<spec>-<version>-<inputs>`: `<spec>` hashes the settings of the step, `<inputs>` the fingerprints of
what the step reads, and `<version>` is `v1`, `v2`, ... after VERSIONS. The code is not part of it: its digest stands
beside the artifact, so that a plan can name the files that are different today. What was made anew because of that
(`--remake`) has the digest in its version, `v1.3f0c9a1b`. The trees up to 8284afb hashed the code itself in that place,
and those digests mean version 1.
"""

import ast
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from store import local_files, outside
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


FIRST_CODE = {
    "text": "d1c28a08248a",
    "tokenizer": "d8204fe40cdb",
    "tokens": "006afa236bc5",
    "identity": "537e4535fa6f",
    "questions": "0b17a1fdb5bd",
    "talk": "bf04e1742227",
    "import": "a347d20602dc",
    "base": "715f4ef357fd",
    "mid": "3bdb437f0b0b",
    "sft": "47d3cd0df839",
}
"""The digests that stand for version 1 in fingerprints written by 8284afb: each hashes all the code behind a step.
Steps that came later have none."""

# Modules, and packages of them, that change how a thing is told or kept, never what it is.
NEUTRAL = {
    *("data.events", "data.config", "data.errors", "data.report.compressors"),
    *(
        "trainer.config",
        "trainer.records",
        "trainer.errors",
        "trainer.reporting.metrics",
        "trainer.reporting.jsonl_log",
    ),
    *("trainer.reporting.peak_flops", "trainer.reporting.samples"),
    *("trainer.checkpoints.checkpoint", "trainer.checkpoints.saving", "trainer.tensor_file"),
}
OURS = ("data", "trainer")
MOST_SHOWN = 40  # letters of one value
DIGEST = 8  # hexadecimal digits of one definition

BESIDE = "beside "
Code = dict[str, str]
"""Digests of the definitions in each file, in order; `beside <file>` for what does not count."""
Module = tuple[str, tuple[str, ...]]
"""The digests of its definitions, and the modules of ours that it imports."""
KEPT = Path("var/code.json")


def version_of(word: str) -> int:
    """Return the version of what a step makes; the code of an extension is part of its settings instead."""
    return VERSIONS[word] if word != "own" else 1


def digest(value: Any) -> str:
    """Return 12 hexadecimal digits of a value that JSON can say."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def code_of(root: Path, entry: str) -> Code:
    """Return the digests of `entry` and of every module of ours that it imports, directly or not.

    They are of the meaning of each definition: comments, docstrings, the order of definitions, the modules that they
    stand in and the names by which they are imported do not count, and neither do the modules in NEUTRAL and what only
    they import; those are listed all the same, since a definition may move to them and from them.
    """
    return codes_of(root, [entry])[entry]


def codes_of(root: Path, entries: Iterable[str]) -> dict[str, Code]:
    """Return `code_of` of several; what is found is kept in `<root>/var/code.json` while the code stays the same."""
    checkout = _checkout(root)
    found = {}
    for entry in entries:
        counted = checkout.reached(entry, NEUTRAL)
        beside = checkout.reached(entry, frozenset()).items() - counted.items()
        whole = {**counted, **{f"{BESIDE}{path}": said for path, said in beside}}
        found[entry] = {path: said for path, said in sorted(whole.items()) if said}
    checkout.save()
    return found


class _Checkout:
    """Our modules below a root as they are when it is made, and what each of them says.

    Reading what the whole house says takes longer than anything else in a plan. So it is written down, for exactly
    these files and this way of reading them.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.texts = {path: (root / path).read_bytes() for one in OURS for path in _python_files(root, one)}
        texts = {**self.texts, "": Path(__file__).read_bytes()}
        hashes = [(path, hashlib.sha256(text).hexdigest()) for path, text in sorted(texts.items())]
        self.of = hashlib.sha256(repr(hashes).encode()).hexdigest()
        self.modules = self._kept()
        self.num_kept = len(self.modules)

    def reached(self, entry: str, without: Set[str]) -> Code:
        """Return the digests of a module, and of all that it imports but those in `without`."""
        seen, todo = dict[str, str](), [entry]
        while todo:
            path = todo.pop()
            if path not in seen:
                seen[path], imported = self._module(path)
                todo.extend(file for one in imported if not _lies_in(one, without) for file in self.files(one))
        return seen

    def files(self, module: str) -> tuple[str, ...]:
        """Return the files of a module of ours; () when it is none."""
        stem = module.replace(".", "/")
        return tuple(file for file in (f"{stem}.py", f"{stem}/__init__.py") if file in self.texts)

    def _module(self, path: str) -> Module:
        if path not in self.modules:
            self.modules[path] = _read(self.texts[path], lambda module: bool(self.files(module)))
        return self.modules[path]

    def _kept(self) -> dict[str, Module]:
        try:
            kept = outside.load(self.root / KEPT)
            modules = kept["modules"] if kept["of"] == self.of else {}
            return {path: (str(said), tuple(map(str, imported))) for path, (said, imported) in modules.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # absent or damaged: all is read again
            return {}

    def save(self) -> None:
        """Write down what was read since this was made."""
        if len(self.modules) == self.num_kept:
            return
        with suppress(OSError):  # a checkout that cannot be written to: the next plan reads it again
            local_files.replace(self.root / KEPT, json.dumps({"of": self.of, "modules": self.modules}).encode())
        self.num_kept = len(self.modules)


@cache
def _checkout(root: Path) -> _Checkout:
    return _Checkout(root)


def _python_files(root: Path, folder: str) -> Iterator[str]:
    for above, _, names in os.walk(root / folder):
        yield from (Path(above, name).relative_to(root).as_posix() for name in names if name.endswith(".py"))


def _lies_in(module: str, some: Set[str]) -> bool:
    return module in some or any(module.startswith(f"{one}.") for one in some)


def short(code: Mapping[str, str]) -> str:
    """Return one digest of all definitions that count, wherever they stand."""
    return digest(sorted(_definitions(_counted(code))))[:DIGEST]


def differing(before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """Return the files with definitions that only one of the two has; definitions that were moved are in both."""
    ours, theirs = _definitions(now), _definitions(before)
    changed = {path for path, text in _counted(now).items() if _definitions({path: text}) - theirs}
    lost = {path for path, text in _counted(before).items() if _definitions({path: text}) - ours}
    return tuple(sorted(changed or lost))


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


def _counted(code: Mapping[str, str]) -> Code:
    return {path: text for path, text in code.items() if not path.startswith(BESIDE)}


def _definitions(code: Mapping[str, str]) -> set[str]:
    return {text[at : at + DIGEST] for text in code.values() for at in range(0, len(text), DIGEST)}


def _read(text: bytes, is_ours: Callable[[str], bool]) -> Module:
    """Return the digests of a module's definitions, and the modules of ours that it imports."""
    tree = ast.parse(text)
    names, modules = _imported(tree, is_ours)
    found = [_said(statement, names) for statement in tree.body]
    return "".join(sorted(hashlib.sha256(one.encode()).hexdigest()[:DIGEST] for one in found if one)), modules


def _imported(tree: ast.AST, is_ours: Callable[[str], bool]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the meaning of imported names of ours ("" for a module), and the modules that are read for it."""
    names, modules = dict[str, str](), set[str]()
    for statement in ast.walk(tree):
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                if is_ours(alias.name):
                    names[alias.asname or alias.name] = ""
                    modules.add(alias.name)
        elif isinstance(statement, ast.ImportFrom) and is_ours(statement.module or ""):
            modules.add(statement.module or "")
            for alias in statement.names:
                whole = f"{statement.module}.{alias.name}"
                names[alias.asname or alias.name] = "" if is_ours(whole) else alias.name
                modules.add(whole)
    return names, tuple(sorted(modules))


def _said(node: Any, names: Mapping[str, str]) -> str:
    """Return a part of a program as text, the same under every Python; "" for what does not count."""
    if isinstance(node, (ast.Import, ast.ImportFrom)) or _is_docstring(node):
        return ""
    if isinstance(node, ast.AST):
        if isinstance(node, ast.Attribute) and _dotted(node.value) in names and not names[_dotted(node.value)]:
            return f"Name({node.attr!r})"  # the name of any module of ours
        if isinstance(node, ast.Name):
            return f"Name({(names.get(node.id) or node.id)!r})"  # the name that it has where it is defined
        parts = [f"{name}={said}" for name, said in _fields(node, names) if said]
        if isinstance(node, ast.If) and not any(part.startswith("body=") for part in parts):
            return ""  # it held imports only
        return f"{type(node).__name__}({', '.join(parts)})"
    return repr(node)


def _fields(node: ast.AST, names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in ast.iter_fields(node):
        if name in ("ctx", "type_comment", "kind") or value is None:
            continue
        if isinstance(value, list):
            said = [one for one in (_said(part, names) for part in value) if one]
            yield name, f"[{', '.join(said)}]" if said else ""
        else:
            yield name, _said(value, names)


def _is_docstring(node: Any) -> bool:
    """Return whether a statement is a string alone, which does nothing."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _dotted(node: ast.AST) -> str:
    """Return `a.b` for the expression a.b; "" for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return ""
