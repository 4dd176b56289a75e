"""The relay of a control host on its own: runs the words that BEGIN names; there is no journal to copy."""

import os
import sys
from typing import Any

from infra.control.relay import Relay


def line_of(about: dict[str, Any]) -> tuple[list[str], str, dict[str, str]]:
    return about["words"], about["cwd"], {**os.environ, **about["environ"]}


def look_after() -> None:
    """Say that it was asked for, to whoever watches the standard error of this process."""
    print("looked after", file=sys.stderr, flush=True)


sys.exit(Relay(line_of=line_of, copy_of=lambda: ("a copy", "its digest"), look_after=look_after).run())
