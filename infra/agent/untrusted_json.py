"""Parser for untrusted JSON with bounds on size, depth and numbers: `store/untrusted_input.py` for pods.

The result has at most `DEPTH` levels and only finite numbers that fit into 64 bits. NaN and Infinity, which Python's
own JSON writer emits, become null. All other violations raise ValueError.
"""

import json
import math
from typing import Any, Union

MOST_BYTES = 16 << 20
DEPTH = 32


def parse(text: Union[str, bytes]) -> Any:
    """Parse a JSON document. Raises ValueError."""
    if len(text) > MOST_BYTES:
        raise ValueError(f"the document has more than {MOST_BYTES} bytes")
    try:
        text = text if isinstance(text, str) else text.decode("utf-8")
        value = json.loads(text, parse_constant=_null, parse_float=_float, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"the document is nested deeper than {DEPTH} levels") from None
    level = [value]
    for _ in range(DEPTH + 1):
        level = [one for one in level if isinstance(one, (dict, list))]
        if not level:
            return value
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    raise ValueError(f"the document is nested deeper than {DEPTH} levels")


def _null(word: str) -> None:
    return None


def _float(word: str) -> float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word[:40]} is not a finite number")
    return number


def _integer(word: str) -> int:
    if len(word) > 20 or not -(2**63) <= int(word) < 2**64:
        raise ValueError(f"{word[:40]} does not fit 64 bits")
    return int(word)
