"""JSON on stdout, for programs that read the output of a command."""

import json
from dataclasses import asdict, is_dataclass
from typing import Any


def print_json(document: Any, indent: int | None = 1) -> None:
    """Print a JSON document on stdout and flush.

    Dataclasses become objects; paths, times and amounts become strings.
    """

    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    print(json.dumps(document, default=plain, indent=indent), flush=True)
