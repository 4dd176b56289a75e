"""Running an extension: its modules are made of the texts that were checked and hashed, not of what the disk has."""

import importlib
import importlib.abc
import importlib.machinery
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from store.extensions import Extension, ExtensionError, require

T = TypeVar("T")


def function(extension: Extension, kind: str) -> Callable[..., Any]:
    """Return the function of that kind; its module is run now, once per process. Raises ExtensionError."""
    require(extension, kind)
    made = getattr(_module(extension), kind, None)
    if not callable(made):
        raise ExtensionError(f"{extension.where}: {kind} is {type(made).__name__}, no function")
    return made


def in_time(call: Callable[[], T], name: str, limit_s: float) -> tuple[list[T], BaseException | None]:
    """Return the result of a user's code, which is called in a thread of that name, and what it raised.

    Both are empty when it has not returned within `limit_s`; it may never do so.
    """
    made: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            made.append(call())
        except BaseException as error:  # also SystemExit: a user's code must not end ours
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True, name=name)
    thread.start()
    thread.join(limit_s)
    return made, raised[0] if raised else None


def blame(extension: Extension, error: BaseException) -> str:
    """Return the error and its place: the last line of the extension that led there."""
    ours = {_place(extension, module) for module in extension.modules}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
    at = f"{files[-1]}:{lines[-1]}" if lines else extension.where
    return f"{at}: {type(error).__name__}: {error}"[:1000]


class _Texts(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """Imports the modules of an extension from their texts, which were checked and hashed, and not from the disk."""

    def __init__(self, extension: Extension) -> None:
        self.texts = extension.modules
        self.places = {name: _place(extension, name) for name in self.texts}

    def find_spec(self, fullname: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self.texts:
            return None
        is_package = self.is_package(fullname)
        spec = importlib.machinery.ModuleSpec(fullname, self, origin=self.places[fullname], is_package=is_package)
        spec.has_location = True
        return spec

    def is_package(self, fullname: str) -> bool:
        return any(name.startswith(f"{fullname}.") for name in self.texts)

    def get_source(self, fullname: str) -> str:
        return self.texts[fullname]

    def get_filename(self, fullname: str) -> str:
        return self.places[fullname]


def _module(extension: Extension) -> Any:
    """Return the module of an extension, run once per process. Raises ExtensionError with the line that failed."""
    finder = _Texts(extension)
    first = next(iter(finder.texts))
    top = first.partition(".")[0]
    if top in sys.modules:
        loader = getattr(sys.modules[top].__spec__, "loader", None)
        if not isinstance(loader, _Texts) or loader.texts != finder.texts:
            raise ExtensionError(f"{extension.where}: another module {top} is in use by this process already; give the "
                                 "package another name, or run the command again")  # fmt: skip
    else:
        sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(first)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: whatever it raises is told
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
            for name in finder.texts:
                sys.modules.pop(name, None)
        raise ExtensionError(blame(extension, error)) from error


def _place(extension: Extension, module: str) -> str:
    """Return the file that a traceback names for a module of an extension."""
    if module == next(iter(extension.modules)):
        return extension.where
    return f"{module.replace('.', '/')}.py"
