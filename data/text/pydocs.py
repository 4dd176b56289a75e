"""English text available offline: docstrings and help topics of Python's standard library.

Modules are imported rather than parsed: half of the library is written in C and has docstrings only at run time, and
the import reveals the public name of an object (`os.path.join`, `random.randint`). Modules with import side effects,
modules that need a display, and platform-dependent modules are left out.
"""

import builtins
import importlib
import inspect
import io
import os
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from hashlib import sha256
from types import ModuleType
from typing import Any

from data.errors import InputError
from data.text.documents import Document

_LEFT_OUT = """
    antigravity this idlelib test lib2to3 turtle turtledemo tkinter distutils ensurepip pydoc_data encodings
    msilib readline rlcompleter xxlimited xxlimited_35 xxsubtype nt ntpath macpath posix posixpath genericpath
    winreg winsound msvcrt
"""
LEFT_OUT = frozenset(_LEFT_OUT.split())
"""Excluded modules; `posix` and `posixpath` are covered through `os`."""
CONSTANTS = (type(None), bool, int, float)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
UNDERLINE = r"(?:\*{3,}|={3,}|-{3,}|~{3,}|\^{3,})$"
HEADING = re.compile(rf"^(?=\S[^\n]*\n{UNDERLINE})", re.MULTILINE)


def documents(packages: tuple[str, ...] = ()) -> Iterator[Document]:
    """Yield one document per module, class, function and topic section: name, signature, docstring.

    The order is a shuffle by content hash, equal in every run with the same Python version. Objects with the same
    beginning of the docstring appear once, under the shortest name, so that held-out documents are not copies of
    training documents. Raises InputError for a package that cannot be imported.
    """
    found: dict[str, tuple[str, str]] = {}  # name and document, by the beginning of the docstring
    for name, head, words in sorted(
        [*_library(packages), *_topics()], key=lambda one: (one[0].count("."), len(one[0]), one)
    ):
        if _is_useful(words):
            found.setdefault(_beginning(words), (name, f"{head}\n\n{words}" if head else words))
    ordered = sorted((sha256(text.encode("utf-8", "replace")).hexdigest(), name, text) for name, text in found.values())
    for digest, name, text in ordered:
        yield Document(
            text,
            id=digest[:16],
            url=f"python:{name}",
            language="en",
            language_score=1.0,
            dump=f"pydocs-{sys.version_info.major}.{sys.version_info.minor}",
            file_path=name,
        )


def _topics() -> Iterator[tuple[str, str, str]]:
    """Yield the language reference as shown by `help("FOR")`, by section, because topics share sections."""
    from pydoc_data import topics

    for name, text in topics.topics.items():
        for number, section in enumerate(HEADING.split(text)):
            yield f"topic {name} {number}", "", section.strip()


def _library(packages: tuple[str, ...]) -> Iterator[tuple[str, str, str]]:
    for package in packages:
        if _load(package) is None:
            raise InputError(f"package {package!r} cannot be imported by {sys.executable}")
    tops = sorted(sys.stdlib_module_names - LEFT_OUT) + list(packages)
    names = [name for top in tops if not top.startswith("_") for name in (top, *_submodules(top))]
    for name in ["os.path", *names]:
        module = sys.modules["os.path"] if name == "os.path" else _load(name)
        if module is not None:
            yield from _walk(name, module)


def _submodules(top: str) -> Iterator[str]:
    module = _load(top)
    for _, name, is_package in pkgutil.iter_modules(getattr(module, "__path__", ()), top + "."):
        if not any(part.startswith("_") or part in LEFT_OUT | {"tests"} for part in name.split(".")[1:]):
            yield name
            if is_package:
                yield from _submodules(name)


def _load(name: str) -> ModuleType | None:
    """Return the module, or None if the import fails; output and warnings of the module are hidden."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit):  # libraries for a different platform fail in many ways
            return None


def _walk(module_name: str, module: ModuleType) -> Iterator[tuple[str, str, str]]:
    yield module_name, f"module {module_name}", _words(module)
    public = getattr(module, "__all__", None)
    for name in sorted(public or vars(module)):
        thing = vars(module).get(name)
        if name.startswith("_") or not _is_at_home(thing, module, public):
            continue
        yield from _describe(f"{module_name}.{name}", thing)


def _is_at_home(thing: Any, module: ModuleType, public: Any) -> bool:
    """Return True if a name is defined by this module, or listed in `__all__`, rather than only imported."""
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return False
    home = getattr(thing, "__module__", None) or ""
    return public is not None or module is builtins or home == module.__name__ or home.startswith("_")


def _describe(name: str, thing: Any) -> Iterator[tuple[str, str, str]]:
    public_name = name.removeprefix("builtins.")
    if not inspect.isclass(thing):
        yield public_name, public_name + _signature(thing), _words(thing)
        return
    yield public_name, f"class {public_name}{_signature(thing)}", _words(thing)
    for member, value in sorted(vars(thing).items()):
        inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if isinstance(inner, property):
            yield f"{public_name}.{member}", f"{public_name}.{member}", _words(inner)
        elif not member.startswith("_") and inspect.isroutine(inner):
            yield f"{public_name}.{member}", f"{public_name}.{member}{_signature(inner)}", _words(inner)


def _words(thing: Any) -> str:
    words = getattr(thing, "__doc__", None)  # not inspect.getdoc: an inherited docstring counts only for the base class
    return inspect.cleandoc(ADDRESS.sub("", words)).rstrip() if isinstance(words, str) else ""


def _signature(thing: Any) -> str:
    """Return a signature such as `(path, mode=511)` without annotations and without machine-dependent defaults.

    A default may be any object, such as os.environ or a value of it; everything but a short plain constant becomes
    `...`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            signature = inspect.signature(thing)
        except (ValueError, TypeError, NameError, AttributeError):  # some C functions have no signature
            return ""
    plain = [one.replace(annotation=one.empty, default=_plain(one.default)) for one in signature.parameters.values()]
    return str(inspect.Signature(plain)).replace("Ellipsis", "...")


def _plain(default: Any) -> Any:
    if isinstance(default, (str, bytes)):
        return default if len(default) <= 12 and (len(default) < 2 or os.sep not in str(default)) else ...
    return default if default is inspect.Parameter.empty or type(default) in CONSTANTS else ...


def _beginning(words: str) -> str:
    """Return the common part of two copies of a section; topics repeat sections with other underlines and footnotes."""
    return re.sub(UNDERLINE, "", words[:300], flags=re.MULTILINE)


def _is_useful(words: str) -> bool:
    """Return True for at least three words, and more than 60% letters and spaces."""
    letters = sum(character.isalpha() or character.isspace() for character in words)
    return len(words.split()) >= 3 and len(words) >= 16 and letters > 0.6 * len(words)
