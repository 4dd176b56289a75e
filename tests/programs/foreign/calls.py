"""The calls of a foreign client, and their results. Standard library only: the module runs with the client.

Reads one JSON object from stdin: the address of a rehearsed vendor, a key, a public key. Prints {call: problem}, "" for
a working call.
"""

import json
import sys
import time

ASKED = json.load(sys.stdin)
CAME: dict[str, object] = {}


def works(name, ask, is_right=lambda found: True):
    """Make a call with expected success; return the result, None after a failure."""
    try:
        found = ask()
        CAME[name] = "" if is_right(found) else f"answered {found!r}"[:300]
        return found
    except Exception as error:
        CAME[name] = f"{type(error).__name__}: {error}"[:300]
        return None


def refuses(name, ask, kind, words=""):
    """Make a call that should raise the given error with the given words."""
    try:
        CAME[name] = f"answered {ask()!r}"[:300]
    except kind as error:
        CAME[name] = "" if words in str(error) else f"other words: {error}"[:300]
    except Exception as error:
        CAME[name] = f"{type(error).__name__}: {error}"[:300]


def until(is_true, within_s=60.0):
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if found := is_true():
            return found
        time.sleep(0.2)
    raise TimeoutError("it did not come to be")


def done():
    print(json.dumps(CAME))
