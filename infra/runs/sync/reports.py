"""Reports of a pod (progress, verdict and guard): read on the pod, and stored in the run's local home.

The functions return plain mappings by kind, validated by `pod_reports`. The local files lie below `pod/state/` in the
run's home.
"""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from infra.ledger.op import Op
from infra.runs.observation import folder_of
from infra.runs.pod_reports import SAID_BYTES, parse
from infra.runs.run_home import RunHome
from infra.runs.sync import fetched_files
from infra.transport.protocol import Transport

KINDS = ("progress", "verdict", "guard")


def read_remote(op: Op, transport: Transport) -> dict[str, Any]:
    """Return the reports on the pod with this pod's token, by kind."""
    said = {}
    for kind in KINDS:
        with contextlib.suppress(FileNotFoundError):
            content = transport.get(folder_of(op).state / f"{kind}.json", SAID_BYTES)
            found = parse(content, f"the {kind} of {op.run}")
            if found.get("token") == op.token:
                said[kind] = found
    return said


def download(op: Op, transport: Transport, home: RunHome) -> None:
    """Copy the pod's reports to the run's home."""
    for kind, found in read_remote(op, transport).items():
        save(home, kind, found)


def save(home: RunHome, kind: str, said: Mapping[str, Any]) -> None:
    """Write a report into the run's home."""
    fetched_files.replace(home.pod.root, f"state/{kind}.json", [json.dumps(said).encode()])


def read_local(op: Op, home: RunHome) -> dict[str, Any]:
    """Return the local reports written by `save`, by kind."""
    said = {}
    for kind in KINDS:
        with contextlib.suppress(FileNotFoundError):
            content = fetched_files.content(home.pod.root, f"state/{kind}.json", 2 * SAID_BYTES)
            said[kind] = parse(content, f"the local copy of the {kind} of {op.run}")
    return said
