"""Requirements of a test on the machine: programs, or the right to mount and to make networks. A test without them is
skipped.
"""

import functools
import subprocess

import pytest

from scripts.project import debian

PRIVILEGE = "root"  # in addition to programs: mounts and network namespaces, which root in a container may lack


def needs(*wanted: str) -> None:
    """Skip the running test if a requirement is missing."""
    for one in wanted:
        if why := _why_not(one):
            pytest.skip(why)


@functools.cache
def _why_not(wanted: str) -> str:
    if wanted == PRIVILEGE:
        words = ["unshare", "--mount", "--net", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
        try:
            done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
        except FileNotFoundError:
            return f"{words[0]} is missing (Debian: util-linux)"
        return "needs root that may mount and make networks" if done.returncode else ""
    packages = {**debian.PACKAGES, **debian.NIGHTLY}
    package = next(name for name, gives in packages.items() if wanted in gives)
    return "" if debian.find(wanted) else f"{wanted.rpartition('/')[2]} is missing (Debian: {package})"
