"""Any number of machines on loopback: an sshd per machine, with a private home."""

import contextlib
import getpass
import socket
from collections.abc import Iterator
from pathlib import Path

from infra.records import Address
from tests.hosts import Host, make_key


@contextlib.contextmanager
def loopback(folder: Path, *variables: str) -> Iterator[Host]:
    """Run a machine on loopback. `variables`: further variables of the environment, as NAME=VALUE."""
    folder.mkdir()
    make_key(folder / "host")
    key = make_key(folder / "user")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    address = Address(getpass.getuser(), "127.0.0.1", port, str(key), "/")
    host = Host(folder, address, "127.0.0.1", options=[f"-oSetEnv={' '.join((f'HOME={folder}', *variables))}"])
    host.start()
    try:
        yield host
    finally:
        host.stop()
