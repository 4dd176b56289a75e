"""The line of a `pack.py` that failed, loaded only after a failure."""

import sys
import traceback
from pathlib import Path


def explain(path: Path, error: BaseException) -> int:
    """Print the failing line of the file and the error to stderr; return the exit code."""
    at = str(path)
    lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code.co_filename == at]
    line = error.lineno if isinstance(error, SyntaxError) and error.filename == at else [1, *lines][-1]
    print(f"inv: {at}:{line}: {type(error).__name__}: {error}; or remove the folder", file=sys.stderr)
    return 2
