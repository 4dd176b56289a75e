"""A user's own code: a provider, a source, a reward, a phase, a tracker or a filter in a Python file or package.

In: a word of SLIPWAY_EXTENSIONS, such as `lab/boxes.py` or `lab.boxes`. Out: an `Extension`, which is its text: it is
read and checked without being run, is hashed, and goes along with a run. `store.extensions.run` runs it from that text.

An extension is called as its file is, and adds what it has functions for: `def provider(settings)` in lab/boxes.py is
the provider `boxes`.
"""

import ast
import difflib
import hashlib
import importlib.machinery
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from store.extensions.trust import MOST_BYTES, ExtensionError, text_of

FUNCTIONS = {
    "provider": ("settings",),
    "source": (),
    "reward": ("question", "answer", "completion"),
    "phase": ("run",),
    "tracker": ("run", "folder", "configs"),
    "filter": ("offer", "facts"),
}
"""The kinds of extensions, each with the parameters of its function."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
PACKED = '{"slipway-package": '  # beginning of the text of a package
OURS = ("infra", "data", "trainer", "serve", "store", "sdk", "flows", "scripts", "packs", "tests", "tasks")

_used: dict[str, "Extension"] = {}


@dataclass(frozen=True)
class Extension:
    """The code of one extension."""

    name: str
    text: str = field(repr=False)
    """Text of its file; for a package JSON with all of its modules: as it is shipped and hashed."""
    where: str
    """Path of its file on this machine; on a pod the name of that file only."""
    word: str = ""
    """The file or module that the user named; "" on a pod."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """Return the label of this very code in settings and fingerprints: `boxes.py 3f0c9a1b72d4`."""
        return f"{Path(self.where).name} {self.sha256[:12]}"

    @property
    def modules(self) -> dict[str, str]:
        """Return the text of each of its modules by dotted names, the extension itself first."""
        if not self.text.startswith(PACKED):
            return {f"slipway_extension_{self.sha256[:16]}": self.text}
        said = json.loads(self.text)
        first = said["slipway-package"]
        return {first: said["modules"][first], **said["modules"]}

    @property
    def tree(self) -> ast.Module:
        """Return its statements. Raises ExtensionError with the line where it is not Python."""
        return _parsed(next(iter(self.modules.values())), self.where)

    @property
    def adds(self) -> tuple[str, ...]:
        """Return the kinds of things that it has a function for. Raises ExtensionError where it is not Python."""
        return tuple(kind for kind in FUNCTIONS if kind in _defined(self.tree))

    def literal(self, name: str) -> tuple[Any, int]:
        """Return the value of a constant, and its line, without running it; (None, 0) for none.

        Raises ExtensionError for a value that is not written out.
        """
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign) and [ast.unparse(one) for one in statement.targets] == [name]:
                try:
                    return ast.literal_eval(statement.value), statement.lineno
                except ValueError:
                    raise ExtensionError(
                        f"{self.where}:{statement.lineno}: {name} must be written out, of texts, numbers, lists and "
                        "dictionaries: it is read without running the file"
                    ) from None
        return None, 0


def words_of(setting: str) -> list[str]:
    """Return the files and modules that a setting lists."""
    return list(dict.fromkeys(filter(None, (one.strip() for one in setting.split(",")))))


def is_file(word: str) -> bool:
    return word.endswith(".py") or "/" in word


def name_of(word: str) -> str:
    """Return the name of the extension in a file or module."""
    return Path(word).name.removesuffix(".py") if is_file(word) else word.rpartition(".")[2]


def names(setting: str) -> list[str]:
    """Return the names of the listed extensions; no file is touched."""
    return [name_of(one) for one in words_of(setting)]


def find(setting: str, kind: str, name: str, ours: Sequence[str] = ()) -> Extension | None:
    """Return the listed extension that adds a `kind` called `name`; None where none is called so.

    ours: the names that Slipway itself has of that kind. Only files of that name are read, and none is run. Raises
    ExtensionError for a file that is missing, is not Python, belongs to somebody else or does not have the function,
    for two of one name, and for a name that is Slipway's own.
    """
    listed = [word for word in words_of(setting) if name_of(word).casefold() == name.casefold()]
    taken = next((one for one in ours if one.casefold() == name.casefold()), "")
    if not listed or taken and not any(kind in read(word).adds for word in listed):
        return None
    if taken:
        raise ExtensionError(f"{listed[0]} adds a {kind} called {name}, and Slipway's own {kind} has that name; rename "
                             "the file")  # fmt: skip
    if name not in (name_of(word) for word in listed):
        raise ExtensionError(f"{kind} {name!r} is not known; did you mean {name_of(listed[0])!r}, of {listed[0]}?")
    if len(listed) > 1:
        raise ExtensionError(f"{' and '.join(listed)} are both called {name}; rename one of them, or list only one")
    found = read(listed[0])
    require(found, kind)
    return found


def read(word: str) -> Extension:
    """Return the extension of a file or module, which is not run. Raises ExtensionError."""
    name = name_of(word)
    if not NAME.fullmatch(name):
        raise ExtensionError(
            f"{word}: an extension is called as its file is, and {name!r} cannot be a name: letters, digits, _ and -, "
            "beginning with a letter; rename the file"
        )
    if is_file(word):
        return of_file(Path(word))
    return _of_module(word)


def of_file(path: Path) -> Extension:
    """Return the extension of a file, whatever it is called. Raises ExtensionError."""
    where = path.expanduser().absolute()
    text = text_of(where)
    _parsed(text, str(where))
    return Extension(where.name.removesuffix(".py"), text, str(where), str(where))


def of_text(text: str, name: str, where: str = "") -> Extension:
    """Return the extension that was shipped as `text`."""
    return Extension(name, text, where or f"{name}.py")


def require(extension: Extension, kind: str) -> None:
    """Raise ExtensionError unless it has the function of that kind, with the parameters that this is given."""
    wanted = f"{kind}({', '.join(FUNCTIONS[kind])})"
    defined = _defined(extension.tree)
    if kind not in defined:
        raise ExtensionError(f"{extension.where} has no function {wanted}{nearest(kind, defined)}")
    node = defined[kind]
    if isinstance(node, ast.AsyncFunctionDef):
        raise ExtensionError(f"{extension.where}:{node.lineno}: {kind} is async; expected a plain function: {wanted}")
    if isinstance(node, ast.FunctionDef):
        given = node.args
        by_place = [one.arg for one in (*given.posonlyargs, *given.args)]
        needed = len(by_place) - len(given.defaults)
        needed_names = [one.arg for one, usual in zip(given.kwonlyargs, given.kw_defaults, strict=True) if not usual]
        number = len(FUNCTIONS[kind])
        if needed > number or len(by_place) < number and not given.vararg or needed_names:
            said = f"{kind}({', '.join([*by_place, *needed_names])})"
            raise ExtensionError(f"{extension.where}:{node.lineno}: {said} cannot be called as {wanted}")


def adds_nothing(extension: Extension) -> str:
    """Return in words that it has none of the functions, and which may have been meant."""
    defined = _defined(extension.tree)
    near = next((said for kind in FUNCTIONS if (said := nearest(kind, defined))), "")
    return f"adds nothing: {extension.where} has no function {', '.join(FUNCTIONS)}{near}"


def nearest(name: str, defined: Mapping[str, ast.stmt]) -> str:
    """Return in words which definition may have been meant, with its line; "" for none."""
    lower = {one.lower(): one for one in defined if not one.isupper()}  # a constant is no misspelt function
    near = difflib.get_close_matches(name, lower, 1, 0.7)
    return f"; line {defined[lower[near[0]]].lineno} has {lower[near[0]]}: did you mean that?" if near else ""


# The extensions that this process uses: filled where a run is planned, and where its job runs.


def use(extension: Extension) -> Extension:
    """Register an extension in this process, by its name."""
    _used[extension.name] = extension
    return extension


def used(name: str) -> Extension | None:
    return _used.get(name)


def all_used() -> tuple[Extension, ...]:
    return tuple(_used.values())


def receive(shipped: Mapping[str, str]) -> None:
    """Register the extensions that came along with this process's work, by name."""
    for name, text in shipped.items():
        use(of_text(text, name))


def _of_module(word: str) -> Extension:
    """Return the extension that is a module of a package. Nothing of the package is run, as an import would."""
    top = word.partition(".")[0]
    if not all(part.isidentifier() for part in word.split(".")):
        raise ExtensionError(f"{word!r} is neither a file that ends in .py nor the name of a module")
    if top in OURS or top in sys.stdlib_module_names:
        raise ExtensionError(f"{word}: {top} is a module of Slipway or Python; give the extension another name")
    places: Sequence[str] | None = None
    spec = None
    for end, letter in enumerate(f"{word}."):
        if letter == ".":
            spec = importlib.machinery.PathFinder.find_spec(word[:end], places)
            places = list(spec.submodule_search_locations or ()) if spec else []
            if spec is None:
                raise ExtensionError(f"{word}: there is no module {word[:end]} for {sys.executable}; give the file: "
                                     "path/to/NAME.py")  # fmt: skip
    assert spec is not None
    if not spec.origin or not spec.origin.endswith(".py"):
        raise ExtensionError(f"{word} is not a Python file ({spec.origin or 'a folder without __init__.py'})")
    if "." not in word and not spec.submodule_search_locations:
        return Extension(word, of_file(Path(spec.origin)).text, spec.origin, word)
    above = Path(spec.origin).parents[word.count(".") + bool(spec.submodule_search_locations)]
    modules = {}
    for path in sorted((above / top).rglob("*.py")):
        parts = path.relative_to(above).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            modules[".".join(parts).removesuffix(".__init__")] = of_file(path).text
    for name in list(modules):  # folders without __init__.py
        for end, letter in enumerate(name):
            if letter == ".":
                modules.setdefault(name[:end], "")
    text = PACKED + json.dumps(word) + ', "modules": ' + json.dumps(modules, sort_keys=True) + "}"
    if len(text) > MOST_BYTES:
        raise ExtensionError(f"{word}: the package {top} is {len(text) >> 10} KiB of code, all of which would be sent "
                             f"with each run; at most {MOST_BYTES >> 10} KiB can be: give a single file")  # fmt: skip
    return Extension(name_of(word), text, spec.origin, word)


def _parsed(text: str, where: str) -> ast.Module:
    try:
        return ast.parse(text, where)
    except SyntaxError as error:
        raise ExtensionError(f"{where}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExtensionError(f"{where}: not Python: {error}") from None


def _defined(node: ast.Module | ast.ClassDef) -> dict[str, ast.stmt]:
    """Return the definitions of a module or class by name: functions, classes, assignments, imports."""
    found: dict[str, ast.stmt] = {}
    for one in node.body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found[one.name] = one
        elif isinstance(one, ast.Assign):
            found |= {target.id: one for target in one.targets if isinstance(target, ast.Name)}
        elif isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            found[one.target.id] = one
        elif isinstance(one, ast.ImportFrom):
            found |= {alias.asname or alias.name: one for alias in one.names}
    return found
