"""Pinned host keys of machines.

First contact pins the machine's host key in a known_hosts file per machine. Later connections accept this key only.
"""

import contextlib
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError, UsageError
from store import local_files

ALIAS = "pod"  # host name in every pod's known_hosts: the address may change, the host key may not


class HostKeyMismatch(SlipwayError):
    """The host key differs from the pinned key; no data was sent."""


class PinFirstKey:
    """A paramiko policy that pins the first key of a host."""

    def __init__(self, known_hosts: Path) -> None:
        self.known_hosts = known_hosts

    def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
        from paramiko import BadHostKeyException

        expected = pin_first(self.known_hosts, key)
        if expected != key:
            raise BadHostKeyException(hostname, key, expected)


def pinned(known_hosts: Path) -> Any:
    """Return the host key in a pod's known_hosts, or None without the file.

    Raises UsageError for a damaged file.
    """
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

    try:
        entry = HostKeyEntry.from_line(known_hosts.read_text())
    except FileNotFoundError:
        return None
    except (InvalidHostKey, ValueError):
        entry = None
    if entry is None:
        raise UsageError(f"{known_hosts} holds no host key, so the host cannot be verified; no data was sent")
    return entry.key


def pin_first(known_hosts: Path, key: Any) -> Any:
    """Pin `key` unless a pin exists, and return the pin. Concurrent callers all get the first pin."""
    known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):  # a concurrent caller pinned first
        local_files.create(known_hosts, f"{ALIAS} {key.get_name()} {key.get_base64()}\n".encode(), mode=0o600)
    return pinned(known_hosts)
