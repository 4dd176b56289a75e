"""The execution of an extension, from the source texts that were checked and hashed, never from the disk."""

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
    """Return the function of a kind; execute the module on first use in this process. Raise ExtensionError."""
    require(extension, kind)
    made = getattr(_module(extension), kind, None)
    if not callable(made):
        raise ExtensionError(f"{extension.where}: {kind} is {type(made).__name__}, no function")
    return made


def call_with_timeout(call: Callable[[], T], name: str, limit_s: float) -> tuple[list[T], BaseException | None]:
    """Call user code in a named thread; return its result and its exception.

    Both are empty if the call has not returned within `limit_s`; the thread may then run forever.
    """
    made: list[T] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            made.append(call())
        except BaseException as error:  # including SystemExit: user code must not end this process
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True, name=name)
    thread.start()
    thread.join(limit_s)
    return made, raised[0] if raised else None


def error_with_line(extension: Extension, error: BaseException) -> str:
    """Return the error message with the last traceback line inside the extension."""
    ours = {_place(extension, module) for module in extension.modules}
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__) if frame.filename in ours]
    at = f"{files[-1]}:{lines[-1]}" if lines else extension.where
    return f"{at}: {type(error).__name__}: {error}"[:1000]


class _Texts(importlib.abc.MetaPathFinder, importlib.abc.ExecutionLoader):
    """An import hook that loads the modules of an extension from the checked and hashed texts, not from the disk."""

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
    """Return the module of an extension, executed once per process. Raise ExtensionError with the failing line."""
    finder = _Texts(extension)
    first = next(iter(finder.texts))
    top = first.partition(".")[0]
    if top in sys.modules:
        loader = getattr(sys.modules[top].__spec__, "loader", None)
        if not isinstance(loader, _Texts) or loader.texts != finder.texts:
            raise ExtensionError(
                f"{extension.where}: this process already uses a different module {top}; give the package a "
                "different name, or run the command again"
            )
    else:
        sys.meta_path.insert(0, finder)
    try:
        return importlib.import_module(first)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including SystemExit: report every error
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
            for name in finder.texts:
                sys.modules.pop(name, None)
        raise ExtensionError(error_with_line(extension, error)) from error


def _place(extension: Extension, module: str) -> str:
    """Return the file name that tracebacks show for a module of an extension."""
    if module == next(iter(extension.modules)):
        return extension.where
    return f"{module.replace('.', '/')}.py"
