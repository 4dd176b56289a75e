"""Modules of Python that are loaded once, before processes that run answers are made of this one.

The processes share their memory, and where their user cannot read the library, they have nothing else. Standard library
only.
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
# Parts of packages, which a list of the library's modules does not name.
PARTS = (
    "concurrent.futures concurrent.futures.thread email.utils http.client importlib.util json.encoder "
    "logging.handlers multiprocessing.dummy os.path unittest.mock urllib.parse xml.dom.minidom xml.etree.ElementTree"
).split()
# Nothing that an answer needs, and side effects: a browser is opened, a window made, a terminal asked, tests run.
NEVER = {"antigravity", "this", "idlelib", "lib2to3", "tkinter", "turtle", "turtledemo", "test", "__main__", "pip",
         "ensurepip", "venv", "site", "sitecustomize", "usercustomize", "msilib", "winreg"}  # fmt: skip


def load(is_all: bool) -> None:
    """Import what answers use; all of the library where `is_all`."""
    names = [*sorted(sys.stdlib_module_names - NEVER), *PARTS] if is_all else []
    with contextlib.redirect_stdout(io.StringIO()):
        for name in (*USUAL, *names):
            with contextlib.suppress(Exception):  # what this Python was built without, or is for another system
                importlib.import_module(name)
        if is_all:
            for name in _encodings():
                with contextlib.suppress(Exception):
                    importlib.import_module(f"encodings.{name}")


def _encodings() -> list[str]:
    import encodings

    return [one[:-3] for one in os.listdir(os.path.dirname(encodings.__file__)) if one.endswith(".py")]
