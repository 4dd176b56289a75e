"""Paths of a service's files on this machine, and the log lines of the service's processes.

Imports nothing slow: a killed gateway means downtime until the restart completes.
"""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class HasPods(Protocol):
    """Settings with the folder of the pods."""

    @property
    def pods(self) -> Path: ...


@dataclass(frozen=True)
class ServicePaths:
    """Files of a service on this machine; the folder with the logs remains after the end of the service."""

    folder: Path

    @staticmethod
    def for_service(settings: HasPods, name: str) -> "ServicePaths":
        return ServicePaths(settings.pods.parent / "services" / name)

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
        """Return the path of the gateway's control socket."""
        return self.folder / "gateway.sock"

    @property
    def gateway_lock(self) -> Path:
        """Return the lock file of the living gateway, with the process identity."""
        return self.folder / "gateway.lock"

    @property
    def history(self) -> Path:
        """Return the file with a line for each change of the number of ready or wanted replicas."""
        return self.folder / "replicas.jsonl"

    @property
    def keys(self) -> Path:
        return self.folder / "keys"

    @property
    def engine_seed(self) -> Path:
        """Return the file with the seed of the engines' API keys."""
        return self.folder / "engine-seed"


def log_lines(text: str) -> None:
    """Print each line with a UTC timestamp to standard error, which is a log of the service."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    for line in text.splitlines():
        print(f"{stamp} {line}", file=sys.stderr, flush=True)
