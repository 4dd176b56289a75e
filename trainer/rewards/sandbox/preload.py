"""Imports of standard library modules, done once before the starter forks the sandbox processes.

The forked processes share the memory of the modules. If the sandbox user cannot read the library, only preloaded
modules are available. Standard library only.
"""

import contextlib
import importlib
import io
import os
import sys

USUAL = (
    "abc array ast base64 bisect calendar cmath codecs collections collections.abc contextlib copy datetime decimal "
    "difflib encodings.ascii encodings.idna encodings.latin_1 enum fractions functools gc hashlib heapq inspect "
    "itertools json keyword locale math numbers operator os pprint queue random re secrets stat statistics string "
    "struct textwrap threading time timeit traceback types typing unicodedata uuid warnings weakref _strptime"
).split()
# Submodules, which sys.stdlib_module_names does not list.
PARTS = (
    "concurrent.futures concurrent.futures.thread email.utils http.client importlib.util json.encoder "
    "logging.handlers multiprocessing.dummy os.path unittest.mock urllib.parse xml.dom.minidom xml.etree.ElementTree"
).split()
# Modules that no answer needs and that have side effects: open a browser or a window, query a terminal, run tests.
NEVER = {
    "antigravity",
    "this",
    "idlelib",
    "lib2to3",
    "tkinter",
    "turtle",
    "turtledemo",
    "test",
    "__main__",
    "pip",
    "ensurepip",
    "venv",
    "site",
    "sitecustomize",
    "usercustomize",
    "msilib",
    "winreg",
}


def load(is_all: bool) -> None:
    """Import the modules commonly used by answers, or the whole standard library if `is_all`."""
    names = [*sorted(sys.stdlib_module_names - NEVER), *PARTS] if is_all else []
    with contextlib.redirect_stdout(io.StringIO()):
        for name in (*USUAL, *names):
            with contextlib.suppress(Exception):  # not in this Python build, or for another OS
                importlib.import_module(name)
        if is_all:
            for name in _encodings():
                with contextlib.suppress(Exception):
                    importlib.import_module(f"encodings.{name}")


def _encodings() -> list[str]:
    import encodings

    return [one[:-3] for one in os.listdir(os.path.dirname(encodings.__file__)) if one.endswith(".py")]
