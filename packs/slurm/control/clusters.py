"""Provider for Slurm clusters reached by SSH: a pod is a folder on the cluster's file system and a Slurm job.

    offers   lists the partitions suitable for the request, regardless of load, because a job waits in the queue
    create   creates the folder `~/.slipway/pods/<run>` with sbatch's options, after sbatch has accepted the options
    start    runs sbatch through `packs.slurm.agent` on the login node once code and job are there; leaves no process
    find     reads the marker in the folder and queries squeue
    delete   ends the work, then runs scancel until squeue lists no job of the pod

A run over N nodes is N folders and a job over N nodes, named after node 0's token. Slurm restarts the job after a
preemption or the loss of a node: this side only observes. A pod's id is `token@cluster`. When a login node or a queue
does not answer, the provider raises an error and never reports the pod as absent.
"""

import functools
import getpass
import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.agent.job import Limits, PodFolder
from infra.errors import Ambiguous, AuthError, NoOffer, SlipwayError, UsageError
from infra.machines.host_memory import ask, map_parallel, run_script
from infra.machines.inventory import InvalidEntry, tell_unusable
from infra.machines.survey import LOOK_S
from infra.names import check_name
from infra.providers import PartialListing, Provider
from infra.providers.pod_keys import is_token
from infra.records import Account, Address, Offer, Pod, Request
from infra.settings import Settings
from infra.transport.protocol import ConnectionLost, TimedOut, Transport, Unreachable
from packs.slurm.agent import queue
from packs.slurm.control.inventory import Clusters, SlurmCluster, load
from packs.slurm.control.partitions import Nodes, fit, kinds_of, options_of, state_of
from packs.slurm.control.settings import SlurmSettings

Pods = list[Pod]
Offers = list[Offer]
Kinds = list[Nodes]
GONE_S, POLL_S = 90.0, 1.0  # time for a cancelled job to disappear
STOP_S = 400.0  # time for the trainer to save, and for Slurm to end the job


@dataclass(frozen=True)
class SlurmClusters(Provider):
    """Provider for the clusters of an inventory; `connect` returns the transport to a login node."""

    clusters: tuple[SlurmCluster, ...]
    connect: Callable[[SlurmCluster], Transport]
    unusable: tuple[InvalidEntry, ...] = ()  # entries of the inventory

    name = "slurm"
    is_here, is_rented = False, False
    restarts_runs = True
    settle_s = 0.0
    pod_store = "../../../artifacts"  # ~/.slipway/artifacts, shared by the runs on that cluster

    @staticmethod
    def from_settings(settings: Settings) -> "SlurmClusters":
        """Return the provider for the clusters of the configured inventory. Raises UsageError.

        Reports and skips unusable inventory entries.
        """
        found = load(settings.for_pack(SlurmSettings).clusters)
        tell_unusable(found.unusable)
        return SlurmClusters(found.usable, connections(settings), found.unusable)

    @property
    def inventory(self) -> Clusters:
        return Clusters(self.clusters, self.unusable)

    def account(self) -> Account:
        return Account(provider=self.name, owner=getpass.getuser())

    def offers(self, request: Request) -> Offers:
        """Return the partitions suitable for the request, including busy partitions.

        Raises NoOffer with the reasons when no partition can run the request, and AuthError or SlipwayError when no
        cluster answers.
        """
        asked = self.inventory.select(request.host or request.pool)
        found: list[Offers | SlipwayError] = map_parallel(lambda one: self._offers(*one, request), asked, LOOK_S)
        offers = [offer for one in found if not isinstance(one, SlipwayError) for offer in one]
        if not offers:
            why = [f"\n  {cluster.name}: {one}" for (cluster, _), one in zip(asked, found, strict=True)]
            why += [f"\n  {one.place}: {one.why}" for one in self.unusable]
            if any(isinstance(one, NoOffer) for one in found):
                raise NoOffer(f"slurm: no partition can run this request:{''.join(why)}")
            kind = AuthError if all(isinstance(one, AuthError) for one in found) else SlipwayError
            raise kind(f"slurm: no cluster has answered:{''.join(why)}")
        return offers

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Create and mark the run's folder on the cluster and write sbatch's options there.

        Raises NoOffer when the folder belongs to another pod or sbatch refuses the job, and Ambiguous when the
        connection breaks during the writes.
        """
        cluster = self.inventory.find(offer.region)
        options = options_of(cluster, request, offer, limits)
        transport = self.connect(cluster)
        nodes = [f"--nodes={request.nodes}", "--ntasks-per-node=1"]
        problem = self._ask_queue(cluster, "test", *nodes, *options)["problem"]
        if problem:
            raise NoOffer(f"slurm: {offer.offer_id}: {problem}")
        try:
            said = ask(transport, cluster.python, "mark", check_name(request.run), token, "beside")
        except (TimedOut, ConnectionLost) as error:
            raise Ambiguous(f"slurm: marking {request.run} on {cluster.name}: {error}") from error
        if "holder" in said:
            holder = said["holder"]
            whose = holder.get("token", "another run")
            where = f"{holder['folder']} on {cluster.name}"
            raise NoOffer(f"slurm: the folder {where} belongs to {whose}; run: inv down {request.run}")
        try:
            place = PodFolder(Path(said["folder"])).state / "sbatch.json"
            transport.put(json.dumps({"options": options}).encode(), place)
        except (TimedOut, ConnectionLost, Unreachable) as error:
            raise Ambiguous(f"slurm: writing to {request.run} on {cluster.name}: {error}") from error
        return _pod(cluster, request.run, token, said["folder"], offer.micro_usd_per_hour)

    def find(self, pod: str) -> Pod | None:
        """Find a pod by its id on the cluster named in the id, or by token on all clusters; None if absent."""
        name = pod.partition("@")[2]
        pods = self._on(self._cluster(name)) if name else self.list()
        return next((one for one in pods if pod in (one.pod_id, one.token)), None)

    def list(self) -> Pods:
        """Return a pod for every marked folder, and for every live job of ours without a folder.

        Raises PartialListing with the known pods when a cluster does not answer or an inventory entry is unusable.
        """
        found: list[Pods | SlipwayError] = map_parallel(self._on, self.clusters, LOOK_S)
        deaf = [f"{one.place}: {one.why}" for one in self.unusable]
        deaf += [
            f"{cluster.name}: {one}"
            for cluster, one in zip(self.clusters, found, strict=True)
            if isinstance(one, SlipwayError)
        ]
        pods = [pod for one in found if not isinstance(one, SlipwayError) for pod in one]
        if deaf:
            raise PartialListing(f"slurm: some clusters have not answered: {'; '.join(deaf)}", pods)
        return pods

    def delete(self, pod_id: str) -> None:
        """End the work, cancel the job, then remove the folder's marker and secrets; the outputs stay.

        Raises SlipwayError when Slurm still lists the job after `GONE_S` seconds.
        """
        token, _, name = pod_id.partition("@")
        cluster = self._cluster(name)
        transport = self.connect(cluster)
        pod = next((one for one in self._on(cluster) if one.pod_id == pod_id), None)
        if pod and pod.address:
            _stop(transport, PodFolder(Path(Address.parse(pod.address).folder)))
        deadline = time.monotonic() + GONE_S
        while (left := self._ask_queue(cluster, "cancel", token)["jobs"]) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if left:
            words = ", ".join(f"{one['job']} ({one['state']})" for one in left)
            raise SlipwayError(f"slurm: {name} still has job {words} after the request to end")
        if pod and pod.address:
            ask(transport, cluster.python, "unmark", pod.run, token)

    def reach(self, pod: Pod) -> Transport:
        """Return the transport to the login node. Raises UsageError when the inventory lacks the pod's cluster."""
        return self.connect(self._cluster(pod.pod_id.partition("@")[2]))

    def node_kinds(self, cluster: SlurmCluster) -> Kinds:
        """Return the kinds of nodes in the partitions of a cluster. Raises SlipwayError."""
        return kinds_of(self._ask_queue(cluster, "partitions")["nodes"])

    def _offers(self, cluster: SlurmCluster, partition: str, request: Request) -> Offers:
        """Return the offers of a cluster. Raises NoOffer with the reason of each partition."""
        shown = self.node_kinds(cluster)
        kinds = [one for one in shown if partition in ("", one.partition) and cluster.queue(one.partition)]
        if not kinds:
            names = ", ".join(sorted({one.partition for one in shown})) or "none"
            raise NoOffer(f"the cluster has no partition {partition or 'of the inventory'}; partitions: {names}")
        found: dict[str, Offer] = {}
        why = []
        for kind in kinds:
            problem, gres = fit(kind, request)
            if problem:
                why.append(f"{kind.partition}: {problem}")
                continue
            known = cluster.queue(kind.partition) or cluster.common
            found.setdefault(
                kind.partition,
                Offer(
                    provider=self.name,
                    offer_id=f"{cluster.name}/{kind.partition}",
                    region=cluster.name,
                    gpu=gres,
                    num_gpus=request.num_gpus,
                    cpus=kind.cpus,
                    memory_bytes=kind.memory_bytes,
                    micro_usd_per_hour=known.micro_usd_per_hour,
                    instance_type=kind.partition,
                ),
            )
        if not found:
            raise NoOffer("; ".join(dict.fromkeys(why)))
        return list(found.values())

    def _on(self, cluster: SlurmCluster) -> Pods:
        """Return the pods of one cluster. Raises SlipwayError when the cluster's state is unknown."""
        transport = self.connect(cluster)
        said = ask(transport, cluster.python, "pods")["pods"]
        damaged = [f"{one['folder']}: {one['problem']}" for one in said if "problem" in one]
        if damaged:
            raise SlipwayError(f"{'; '.join(damaged)}; remove the folder when no process uses the folder")
        jobs = {one["name"]: one for one in self._ask_queue(cluster, "jobs")["jobs"] if is_token(one["name"])}
        forgotten = [one["token"] for one in said if one["token"] not in jobs]
        if forgotten:
            jobs |= {one["name"]: one for one in self._ask_queue(cluster, "ended", *forgotten)["jobs"]}
        pods: Pods = []
        for one in said:
            job = jobs.pop(one["token"], {})
            pods.append(_seen(_pod(cluster, one["run"], one["token"], one["folder"]), job))
        orphans = [one for one in jobs.values() if queue.lives(one)]
        return [*pods, *(_seen(_pod(cluster, "", one["name"], ""), one) for one in orphans)]

    def _ask_queue(self, cluster: SlurmCluster, verb: str, *words: str) -> Mapping[str, Any]:
        """Run `queue.py` on the cluster and return the answer. Raises SlipwayError when Slurm cannot be queried."""
        script = Path(queue.__file__).read_bytes()
        said = run_script(self.connect(cluster), cluster.python, script, verb, *words, timeout_s=queue.CALL_S * 3.0)
        if "unheard" in said:
            raise SlipwayError(f"the queue does not answer: {said['unheard']}")
        return said

    def _cluster(self, name: str) -> SlurmCluster:
        try:
            return self.inventory.find(name)
        except UsageError as error:
            raise UsageError(
                f"slurm: {error}; add the cluster to the inventory again to end the pods of the cluster"
            ) from None


def connections(settings: Settings) -> Callable[[SlurmCluster], Transport]:
    """Return a function from cluster to cached SSH connection; host keys are pinned beside the journal."""
    from infra.transport.ssh import Ssh

    pins = settings.state_file.parent / "known_hosts"

    @functools.cache
    def connect(name: str, address: Address, python: str) -> Transport:
        transport = Ssh(address, pins / f"slurm_{name}")
        transport.python, transport.agent = python, "packs.slurm.agent"
        return transport

    return lambda cluster: connect(cluster.name, cluster.address, cluster.python)


def _stop(transport: Transport, pod: PodFolder) -> None:
    """Stop the work on the pod: wait for the save, then end the job. Raises SlipwayError on failure."""
    stop = shlex.join([transport.python, "-m", transport.agent, "stop", str(pod.root)])
    command = f"if test -e {shlex.quote(str(pod.job))}; then exec {stop}; fi"
    done = transport.run(["sh", "-c", command], timeout_s=STOP_S, env={"PYTHONPATH": str(pod.code)})
    if done.exited:
        raise SlipwayError(f"slurm: ending {pod.root}: {(done.stderr or done.stdout).strip()}")


def _seen(pod: Pod, job: Mapping[str, str]) -> Pod:
    """Return the pod with state and note from the Slurm job."""
    state, note = state_of(job)
    return replace(pod, state=state, note=note, name=job.get("job", ""))


def _pod(cluster: SlurmCluster, run: str, token: str, folder: str, rate: int = 0) -> Pod:
    address = str(replace(cluster.address, folder=folder)) if folder else ""
    return Pod(
        provider=SlurmClusters.name,
        pod_id=f"{token}@{cluster.name}",
        token=token,
        run=run,
        address=address,
        micro_usd_per_hour=rate,
    )
