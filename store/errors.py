"""Errors of stores and packs, light to import: every command line catches or prints them."""

import sys
import traceback
from pathlib import Path


class StoreError(Exception):
    """A failed operation on the store; the message gives the observed state."""

    exit_code = 1


class NoStore(StoreError):
    """A URI that cannot be a store, or a store without write access."""

    exit_code = 2


class AccessDenied(NoStore):
    """A missing or rejected key of a store."""

    exit_code = 4


def explain_pack(path: Path, error: BaseException) -> int:
    """Print the failing line of a `pack.py` and the error to stderr; return the exit code."""
    at = str(path)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == at]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == at else [1, *lines][-1]
    print(f"inv: {at}:{line}: {type(error).__name__}: {error}; or remove the folder", file=sys.stderr)
    return 2
