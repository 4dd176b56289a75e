"""The log of a service's processes: lines on standard error, which is a file of the service, each with its time."""

import sys
import time


def say(text: str) -> None:
    """Write down what happened."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for line in text.splitlines():
        print(f"{stamp} {line}", file=sys.stderr, flush=True)
