"""Real English that is available without a network: the docstrings of Python's own library, and its topics.

Modules are imported rather than parsed, because half of the library is written in C and has its words only at run
time, and because only the import tells under which public name a thing is used (`os.path.join`, `random.randint`).
Modules that act when imported, want a screen, or differ between machines are left out.
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
"""Modules that are not walked; `posix` and `posixpath` are seen through `os`."""
CONSTANTS = (type(None), bool, int, float)
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
UNDERLINE = r"(?:\*{3,}|={3,}|-{3,}|~{3,}|\^{3,})$"
HEADING = re.compile(rf"^(?=\S[^\n]*\n{UNDERLINE})", re.MULTILINE)


def documents(packages: tuple[str, ...] = ()) -> Iterator[Document]:
    """Yield one document per module, class, function and topic section: name, signature, docstring.

    They are shuffled by content, the same for one Python version on every run. Things that begin with the same words
    appear once, under their shortest name, so that what is held out is not a copy of what is trained on. Raises
    InputError for a package that cannot be imported.
    """
    found: dict[str, tuple[str, str]] = {}  # name and document, by the beginning of a docstring
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
    """Yield the language reference as `help("FOR")` shows it, by section, since topics share sections."""
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
    """Return the module, or None when this machine cannot import it; whatever it prints or warns is not shown."""
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            return importlib.import_module(name)
        except (Exception, SystemExit):  # parts of a library that want another system or library say so in many ways
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
    """Return whether a name belongs to this module, rather than having been imported for its own use."""
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
    words = getattr(thing, "__doc__", None)  # not inspect.getdoc: an inherited docstring is said once, by its owner
    return inspect.cleandoc(ADDRESS.sub("", words)).rstrip() if isinstance(words, str) else ""


def _signature(thing: Any) -> str:
    """Return `(path, mode=511)` without annotations, and with those defaults only that are alike on every machine.

    A default may be anything, os.environ or a key out of it: what is not a short plain constant is shown as `...`.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            signature = inspect.signature(thing)
        except (ValueError, TypeError, NameError, AttributeError):  # not every C function has one
            return ""
    plain = [one.replace(annotation=one.empty, default=_plain(one.default)) for one in signature.parameters.values()]
    return str(inspect.Signature(plain)).replace("Ellipsis", "...")


def _plain(default: Any) -> Any:
    if isinstance(default, (str, bytes)):
        return default if len(default) <= 12 and (len(default) < 2 or os.sep not in str(default)) else ...
    return default if default is inspect.Parameter.empty or type(default) in CONSTANTS else ...


def _beginning(words: str) -> str:
    """Return the common part of two copies of a section, which topics repeat with other underlines and footnotes."""
    return re.sub(UNDERLINE, "", words[:300], flags=re.MULTILINE)


def _is_useful(words: str) -> bool:
    """Return whether there are three words or more, and more letters than anything else."""
    letters = sum(character.isalpha() or character.isspace() for character in words)
    return len(words.split()) >= 3 and len(words) >= 16 and letters > 0.6 * len(words)
