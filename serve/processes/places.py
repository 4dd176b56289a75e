"""The places of a service's files on this machine, and the lines that its processes write there.

Imports nothing that takes long: a gateway that was killed is missed until it is there again.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class HasPods(Protocol):
    """Settings, as far as they matter here."""

    @property
    def pods(self) -> Path: ...


@dataclass(frozen=True)
class Places:
    """The files of a service on this machine; the folder stays when it has ended, as logs do."""

    folder: Path

    @staticmethod
    def of(settings: HasPods, name: str) -> "Places":
        return Places(settings.pods.parent / "services" / name)

    @property
    def log(self) -> Path:
        return self.folder / "controller.log"

    @property
    def access(self) -> Path:
        return self.folder / "access.jsonl"

    @property
    def gateway_log(self) -> Path:
        return self.folder / "gateway.log"

    @property
    def gateway_socket(self) -> Path:
        """Return the path of the socket for the gateway's controller."""
        return self.folder / "gateway.sock"

    @property
    def gateway_lock(self) -> Path:
        """Return the file that the living gateway has locked, and that says which process it is."""
        return self.folder / "gateway.lock"

    @property
    def history(self) -> Path:
        """Return the file that gets a line whenever another number of replicas is ready."""
        return self.folder / "replicas.jsonl"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def engine_seed(self) -> Path:
        """Return the file with the seed of the keys that engines ask the gateway for."""
        return self.folder / "engine-seed"


def say(text: str) -> None:
    """Write down what happened: on standard error, which is a log of the service, each line with its time."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for line in text.splitlines():
        print(f"{stamp} {line}", file=sys.stderr, flush=True)
