"""User extensions: a provider, source, reward, phase, tracker or filter in a Python file or package of the user.

The input is an entry of SLIPWAY_EXTENSIONS, such as `lab/boxes.py` or `lab.boxes`. The result is an `Extension` with
the source text, which is read and checked without execution, hashed, and shipped with a run. `store.extensions.run`
executes this text. The code gets the keys of the user, so only trusted users may have write access to the file.

The file name is the name of the extension, and its functions define the kinds: `def provider(settings)` in lab/boxes.py
is the provider `boxes`.
"""

import ast
import difflib
import hashlib
import importlib.machinery
import json
import os
import re
import stat
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20  # maximum total size of an extension, which is shipped with the job
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
PACKED = '{"slipway-package": '  # prefix of the text of a package
OURS = ("infra", "data", "trainer", "serve", "store", "sdk", "flows", "scripts", "packs", "tests", "tasks")
_used: dict[str, "Extension"] = {}


class ExtensionError(Exception):
    """An invalid extension; the message gives the extension, the line and the fix."""


def text_of(path: Path) -> str:
    """Return the text of a file that only trusted users can write. Raise ExtensionError.

    The code runs with the keys of the user, so a user without these keys must not be able to change the file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # no folders, and no pipes, which block on opening
            raise ExtensionError(f"{path} is no file")
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        raise ExtensionError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    with os.fdopen(descriptor, "rb") as file:
        about = os.fstat(file.fileno())
        real = Path(os.path.realpath(path))
        for place, one in ((real, about), *((folder, folder.stat()) for folder in real.parents)):
            if said := ownership_problem(one, trusted_owners()):
                whose = f"{place} {said}" if place == real else f"{path} lies in {place}, which {said}"
                raise ExtensionError(
                    f"{whose}: the code would run with your keys; own the file, then: chmod go-w '{place}'"
                )
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise ExtensionError(
            f"{path} is larger than {MOST_BYTES >> 10} KiB, the limit for code that is sent with a run"
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ExtensionError(f"{path}:{line}: not UTF-8") from None


def trusted_owners() -> frozenset[int]:
    """Return the trusted user ids: this user, root, the owner of this file and, for root under sudo, the caller."""
    by_sudo = os.environ.get("SUDO_UID", "") if os.geteuid() == 0 else ""
    of_slipway = Path(__file__).stat().st_uid
    return frozenset({os.geteuid(), 0, of_slipway, *([int(by_sudo)] if by_sudo.isdecimal() else [])})


def ownership_problem(about: os.stat_result, owners: frozenset[int]) -> str:
    """Return why an untrusted user may write the file or replace entries of the folder, or ""."""
    if about.st_uid not in owners:
        return f"belongs to {_user(about.st_uid)}"
    if stat.S_ISDIR(about.st_mode) and about.st_mode & stat.S_ISVTX:
        return ""  # sticky, such as /tmp: only the owner of an entry can replace the entry
    if about.st_mode & stat.S_IWOTH:
        return "may be written by all users"
    if about.st_mode & stat.S_IWGRP and about.st_gid != 0 and not _is_private_group(about.st_gid, about.st_uid):
        return "may be written by the group"
    return ""


def _user(uid: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _is_private_group(gid: int, uid: int) -> bool:
    """Return whether a group belongs to a single user, as on systems with user private groups."""
    import grp
    import pwd

    try:
        user = pwd.getpwuid(uid)
        return user.pw_gid == gid and set(grp.getgrgid(gid).gr_mem) <= {user.pw_name}
    except KeyError:
        return gid == uid


@dataclass(frozen=True)
class Extension:
    """The source code of an extension."""

    name: str
    text: str = field(repr=False)
    """Text of the file, or for a package a JSON document with all modules, as shipped and hashed."""
    where: str
    """Path of the file on this machine; on a pod, the file name only."""
    word: str = ""
    """File or module named by the user; "" on a pod."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def label(self) -> str:
        """Return the label of this exact code in settings and fingerprints: `boxes.py 3f0c9a1b72d4`."""
        return f"{Path(self.where).name} {self.sha256[:12]}"

    @property
    def modules(self) -> dict[str, str]:
        """Return the source texts by dotted module name, the extension itself first."""
        if not self.text.startswith(PACKED):
            return {f"slipway_extension_{self.sha256[:16]}": self.text}
        said = json.loads(self.text)
        first = said["slipway-package"]
        return {first: said["modules"][first], **said["modules"]}

    @property
    def tree(self) -> ast.Module:
        """Return the parsed syntax tree. Raise ExtensionError with the line of a syntax error."""
        return _parsed(next(iter(self.modules.values())), self.where)

    @property
    def adds(self) -> tuple[str, ...]:
        """Return the kinds for which the extension has a function. Raise ExtensionError for invalid Python."""
        return tuple(kind for kind in FUNCTIONS if kind in _defined(self.tree))

    def place(self, kind: str) -> str:
        """Return the file and the line of the function of a kind."""
        return f"{self.where}:{_defined(self.tree)[kind].lineno}"

    def literal(self, name: str) -> tuple[Any, int]:
        """Return the value of a constant and its line number without executing the file; (None, 0) if undefined.

        Raise ExtensionError unless the value is a literal.
        """
        for statement in self.tree.body:
            if isinstance(statement, ast.Assign) and [ast.unparse(one) for one in statement.targets] == [name]:
                try:
                    return ast.literal_eval(statement.value), statement.lineno
                except ValueError:
                    raise ExtensionError(
                        f"{self.where}:{statement.lineno}: {name} must be a literal of texts, numbers, lists and "
                        f"dictionaries, because Slipway reads {name} without running the file"
                    ) from None
        return None, 0


def words_of(setting: str) -> list[str]:
    """Return the files and modules in a comma-separated setting, without duplicates."""
    return list(dict.fromkeys(filter(None, (one.strip() for one in setting.split(",")))))


def is_file(word: str) -> bool:
    return word.endswith(".py") or "/" in word


def name_of(word: str) -> str:
    """Return the name of the extension in a file or module."""
    return Path(word).name.removesuffix(".py") if is_file(word) else word.rpartition(".")[2]


def names(setting: str) -> list[str]:
    """Return the names of the listed extensions without accessing files."""
    return [name_of(one) for one in words_of(setting)]


def find(setting: str, kind: str, name: str, ours: Sequence[str] = ()) -> Extension | None:
    """Return the listed extension that adds a `kind` called `name`, or None if no listed extension has this name.

    ours: the built-in names of this kind. Only files with this name are read, and no file is executed. Raise
    ExtensionError for a file that is missing, invalid Python, owned by an untrusted user or without the function, for
    two extensions with the same name, and for a built-in name.
    """
    listed = [word for word in words_of(setting) if name_of(word).casefold() == name.casefold()]
    taken = next((one for one in ours if one.casefold() == name.casefold()), "")
    if not listed or taken and not any(kind in read(word).adds for word in listed):
        return None
    if taken:
        raise ExtensionError(
            f"{listed[0]} adds a {kind} called {name}, but {name} is also a {kind} of Slipway; rename the file"
        )
    if name not in (name_of(word) for word in listed):
        raise ExtensionError(f"{kind} {name!r} is not known; did you mean {name_of(listed[0])!r}, of {listed[0]}?")
    if len(listed) > 1:
        raise ExtensionError(f"{' and '.join(listed)} are both called {name}; rename one of them, or list only one")
    found = read(listed[0])
    require(found, kind)
    return found


def read(word: str) -> Extension:
    """Return the extension of a file or module without executing the code. Raise ExtensionError."""
    name = name_of(word)
    if not NAME.fullmatch(name):
        raise ExtensionError(
            f"{word}: the file name is the name of the extension, and {name!r} is not a valid name: letters, digits, "
            "_ and -, beginning with a letter; rename the file"
        )
    if is_file(word):
        return of_file(Path(word))
    return _of_module(word)


def of_file(path: Path) -> Extension:
    """Return the extension of a file with any name. Raise ExtensionError."""
    where = path.expanduser().absolute()
    text = text_of(where)
    _parsed(text, str(where))
    return Extension(where.name.removesuffix(".py"), text, str(where), str(where))


def of_text(text: str, name: str, where: str = "") -> Extension:
    """Return the extension with the shipped source `text`."""
    return Extension(name, text, where or f"{name}.py")


def require(extension: Extension, kind: str) -> None:
    """Raise ExtensionError unless the extension has a function of this kind that accepts the expected parameters."""
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
    """Return the message for an extension without any known function, with the closest misspelling if any."""
    defined = _defined(extension.tree)
    near = next((said for kind in FUNCTIONS if (said := nearest(kind, defined))), "")
    return f"adds nothing: {extension.where} has no function {', '.join(FUNCTIONS)}{near}"


def nearest(name: str, defined: Mapping[str, ast.stmt]) -> str:
    """Return a hint with the definition closest to `name` and its line, or ""."""
    lower = {one.lower(): one for one in defined if not one.isupper()}  # constants are not misspelt functions
    near = difflib.get_close_matches(name, lower, 1, 0.7)
    return f"; did you mean {lower[near[0]]} in line {defined[lower[near[0]]].lineno}?" if near else ""


# Extensions registered in this process, by the planner of a run and by the job of a run.


def use(extension: Extension) -> Extension:
    """Register an extension in this process under its name."""
    _used[extension.name] = extension
    return extension


def used(name: str) -> Extension | None:
    return _used.get(name)


def all_used() -> tuple[Extension, ...]:
    return tuple(_used.values())


def receive(shipped: Mapping[str, str]) -> None:
    """Register the extensions shipped with the work of this process, by name."""
    for name, text in shipped.items():
        use(of_text(text, name))


def _of_module(word: str) -> Extension:
    """Return the extension in a module of a package. Unlike an import, no code of the package is executed."""
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
                raise ExtensionError(
                    f"{word}: {sys.executable} has no module {word[:end]}; give the file: path/to/NAME.py"
                )
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
    for name in list(modules):  # parents without __init__.py
        for end, letter in enumerate(name):
            if letter == ".":
                modules.setdefault(name[:end], "")
    text = PACKED + json.dumps(word) + ', "modules": ' + json.dumps(modules, sort_keys=True) + "}"
    if len(text) > MOST_BYTES:
        raise ExtensionError(
            f"{word}: the package {top} has {len(text) >> 10} KiB of code, and all code is sent with each run; the "
            f"limit is {MOST_BYTES >> 10} KiB. Give a single file"
        )
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
