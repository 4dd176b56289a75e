"""The processors that this process may use, on Linux and macOS."""

import os


def count_usable() -> int:
    """Return the number of CPUs of this process: on Linux the CPUs of the affinity mask, else all CPUs."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
