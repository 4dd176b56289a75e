"""Program for the `skypilot` environment's Python: prints, as JSON, SkyPilot's refusal of each job file on stdin.

A file is a text, or a text and the values of variables.
"""

import contextlib
import io
import json
import sys

import sky  # noqa: F401
from sky.utils import dag_utils


def verdict(text: str, values: dict[str, str]) -> str:
    given = [*values.items()]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            dag_utils.load_dag_from_yaml_str(text, given, given)
    except Exception as error:  # SkyPilot raises a dozen kinds.
        return f"{type(error).__name__}: {error}"
    return ""


print(json.dumps([verdict(*([one, {}] if isinstance(one, str) else one)) for one in json.load(sys.stdin)]))
