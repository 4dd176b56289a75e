"""A service of SkyServe as a pod: found, ended, and shown by the commands for pods.

The name of the service is the token of the journal's row, and the names of its clusters are NAME-1, NAME-2, ... A look
at a service writes the names of the clusters down. The end is proven if SkyServe no longer has the service and SkyPilot
has none of these clusters: SkyPilot removes the record of a cluster when the cloud lists no machine of the cluster.
"""

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.records import Pod
from packs.skypilot.agent.managed import REPORT
from packs.skypilot.control.client import Client, SkyPilotAnswer
from packs.skypilot.control.job_view import JobView

PREFIX = "service-"  # of the id of such a pod
NAME = "skypilot"
ENDING = "SHUTTING_DOWN"
FAILED = ("FAILED", "CONTROLLER_FAILED", "FAILED_CLEANUP")
STARTING = ("CONTROLLER_INIT", "REPLICA_INIT")
CLUSTERS = "clusters.json"
OLD_S = 60.0  # age in seconds from which an answer no longer describes the present
UNPROVEN = (
    "not proven: the end of a machine that SkyPilot has lost without a record, of a replica that came and went between "
    "two looks, and of the controller's own machine, which SkyPilot stops ten minutes after the last service"
)


@dataclass(frozen=True)
class Services:
    """The services of an API server."""

    client: Client
    folder: Path
    """Folder with a folder per token."""

    def has(self, pod: str) -> bool:
        """Return whether an id or a token belongs to a service, and not to a job."""
        return pod.startswith(PREFIX) or not pod.isdigit() and (self.folder / pod / CLUSTERS).exists()

    @staticmethod
    def id_of(token: str) -> str:
        return f"{PREFIX}{token}"

    def look(self, pod: str, since: float = 0.0) -> tuple[Mapping[str, Any], float]:
        """Return the record of a service, {} without one, and the time of the read. `since`: UTC epoch seconds."""
        name = pod.removeprefix(PREFIX)
        found = self.client.read_cached("services", name=name, since=since)
        record: Mapping[str, Any] = next((one for one in found.answer if one["name"] == name), {})
        self.write_down(name, record)
        return record, found.at

    def find(self, pod: str) -> Pod | None:
        """Return the service, or None after the proof of the end. Raises SlipwayError without an answer."""
        record, at = self.look(pod)
        if not record or time.time() - at > OLD_S:  # A recent answer about a live service will do.
            record, _ = self.look(pod, since=time.time())
        if record:
            return _pod(record)
        if left := self.left(pod):
            note = f"SkyServe has removed the service, and SkyPilot still has {', '.join(left)}"
            return _pod({"name": pod.removeprefix(PREFIX), "state": ENDING, "replicas": ()}, note)
        return None

    def listed(self) -> list[Pod]:
        """Return the services of SkyServe; [] without a service of this installation, which saves a request."""
        if not any(self.folder.glob(f"*/{CLUSTERS}")):
            return []
        return [_pod(one) for one in self.client.ask("services")]

    def pod(self, token: str) -> Pod:
        """Return a service that SkyServe has just accepted."""
        return _pod({"name": token, "state": STARTING[0], "replicas": ()})

    def left(self, pod: str) -> list[str]:
        """Return the clusters of a service of which SkyPilot has a record.

        SkyServe numbers the clusters, so that the clusters between the seen numbers are known, too.
        """
        token = pod.removeprefix(PREFIX)
        last = max((int(one.rpartition("-")[2]) for one in self.clusters(pod)), default=0)
        every = [f"{token}-{number}" for number in range(1, last + 1)]
        return [one for one in every if self.client.ask("has_cluster", name=one)]

    def clusters(self, pod: str) -> list[str]:
        """Return the names of all clusters that a look has seen."""
        path = self.folder / pod.removeprefix(PREFIX) / CLUSTERS
        with contextlib.suppress(FileNotFoundError, ValueError):
            return [str(one) for one in json.loads(path.read_text(encoding="utf-8"))]
        return []

    def end(self, pod: str) -> None:
        """Ask SkyServe to end a service, and SkyPilot to end a cluster that SkyServe has left behind."""
        record, _ = self.look(pod, since=time.time())
        if record and record["state"] != ENDING:
            # SkyServe ends a failed service only by removing the record; the names of the clusters are written down.
            self.client.ask("end_service", name=record["name"], purge=record["state"] in FAILED)
        for one in self.left(pod) if not record else ():
            self.client.ask("end_cluster", name=one)

    def view(self, pod: Pod, end: Callable[[], None]) -> JobView:
        """Return the service as the files of a pod."""

        def row() -> SkyPilotAnswer:
            record, at = self.look(pod.pod_id or self.id_of(pod.token))
            state = str(record.get("state") or ENDING)
            queued = "STARTING" if state in STARTING else "CANCELLING" if state == ENDING else "RUNNING"
            return SkyPilotAnswer({"status": queued}, at)

        def log(tail: int | None, _: float) -> str:
            record, at = self.look(pod.pod_id or self.id_of(pod.token))
            told = {"run": pod.run, "token": pod.token, "state": "running", "steps": [], "updated_at": at}
            report = {"progress": {**told, "step": in_words(record)}}
            return f"{REPORT}{json.dumps(report)}\n"

        return JobView(row=row, log=log, end=end, token=pod.token, run_name=pod.run)

    def write_down(self, token: str, record: Mapping[str, Any]) -> None:
        """Write down the clusters of a record; SkyServe forgets a replica before the end of the service."""
        known, path = self.clusters(token), self.folder / token / CLUSTERS
        new = [one["cluster"] for one in record.get("replicas", ()) if one["cluster"] not in known]
        if path.exists() and not new:
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps([*known, *new]), encoding="utf-8")
        draft.replace(path)


def in_words(record: Mapping[str, Any]) -> str:
    """Return the state of a service and of its replicas in a few words."""
    replicas = record.get("replicas", ())
    ready = sum(one["state"] == "READY" for one in replicas)
    return f"SkyServe: {record.get('state', 'no record')}, {ready} of {len(replicas)} replicas ready"


def _pod(record: Mapping[str, Any], note: str = "") -> Pod:
    state, token = str(record["state"]), str(record["name"])
    return Pod(
        provider=NAME,
        pod_id=f"{PREFIX}{token}",
        token=token,
        run="",
        address=f"service {token} of SkyServe",
        state="booting" if state in STARTING else "ending" if state == ENDING else "running",
        note=note or in_words(record),
        name=token,
    )
