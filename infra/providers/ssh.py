"""The user's own machines, reached by SSH: a pod is a folder `~/.slipway/pods/<run>` with processes on one machine.

Two locks limit a machine to one pod, or to several pods with separate GPUs. In the journal, the machine is leased to
the live row for the machine, from the committed intent until the proof of absence; `pods.settle` ends a row with a dead
launch, recognized by the process, never by age. On the machine, the marker names the holder, visible to the journals of
other users too. A pod's id is `token@pool/host`, which fixes the location. A machine without an answer is an error,
never an absence. Ending a pod ends only the processes of the pod.
"""

import contextlib
import functools
import getpass
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from infra.agent.host import may_share
from infra.agent.job import Limits, PodFolder
from infra.agent.process import SURVIVED
from infra.errors import Ambiguous, Busy, NoOffer, SlipwayError, UsageError
from infra.machines.host_memory import AGENT, HostMemory, ask, map_parallel, run_script
from infra.machines.inventory import Host, InvalidEntry, OwnMachines, load, tell_unusable
from infra.machines.survey import LOOK_S, Connect, contact, hardware_of, inventory_mismatch, request_mismatch
from infra.market.gpus import missing_devices
from infra.names import check_name
from infra.providers import PartialListing, Provider
from infra.records import Account, Address, Offer, Pod, Request
from infra.settings import Settings
from infra.transport.protocol import ConnectionLost, TimedOut, Transport
from infra.units import count

STOP_S = 300.0  # seconds for the agent to end the work, and for a concurrent start or stop to finish
ANSWER_S = 30.0
Pods = list[Pod]
END_ALL = b"""
import json
print(json.dumps({"survivors": describe_survivors(end_all(sys.argv[1], 2.0, kill_s=float(sys.argv[2])))}))
"""


@dataclass(frozen=True)
class SshPools(Provider):
    """The provider of pods on `hosts`."""

    hosts: tuple[Host, ...]
    connect: Connect
    memory: HostMemory
    end_s: float = 60.0  # seconds; a killed process alive for longer keeps the machine leased
    name: str = "ssh"
    unusable: tuple[InvalidEntry, ...] = ()  # unusable entries of the inventory

    is_here, is_rented = False, False
    settle_s = 0.0
    pod_store = "../../../artifacts"  # ~/.slipway/artifacts, shared by the runs on the machine

    @staticmethod
    def from_settings(settings: Settings) -> "SshPools":
        """Return the machines of the inventory in force, and report unusable entries. Raise UsageError."""
        found = load(settings.pools)
        tell_unusable(found.unusable)
        memory = HostMemory.for_journal(settings.state_file)
        return SshPools(found.hosts, connections(settings), memory, unusable=found.unusable)

    @property
    def inventory(self) -> OwnMachines:
        return OwnMachines(self.hosts, self.unusable)

    def account(self) -> Account:
        return Account(provider=self.name, owner=getpass.getuser())

    def offers(self, request: Request) -> list[Offer]:
        """Return the free machines suitable for the request.

        Raise NoOffer, or Busy, with the reason per unsuitable machine if fewer machines are free than nodes requested.
        """
        hosts = self._matching_hosts(request)
        found = map_parallel(lambda host: self._offer(host, request), hosts, LOOK_S)
        offers = [one for one in found if isinstance(one, Offer)]
        if len(offers) < request.nodes:
            why = [f"\n  {host.place}: {one}" for host, one in zip(hosts, found, strict=True) if one not in offers]
            why += [
                f"\n  {one.place}: {one.why}" for one in self.inventory.select_unusable(request.host or request.pool)
            ]
            kind = Busy if any(isinstance(one, Busy) for one in found) else NoOffer
            wanted = count(request.nodes, "machine")
            raise kind(f"{self.name}: {wanted} wanted, {len(offers)} free and fit:{''.join(why)}")
        return offers

    def named_places(self, request: Request) -> tuple[str, ...]:
        """Return the machines named by a request, regardless of capacity and use; send no request."""
        return tuple(host.place for host in self._matching_hosts(request))

    def _matching_hosts(self, request: Request) -> "list[Host]":
        named = self.inventory.select(request.host)
        return [host for host in self.inventory.select(request.pool) if host in named]

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Mark the machine of `offer`.

        Raise Busy if the machine holds a different pod, and Ambiguous after a lost answer.
        """
        host = self.inventory.find(offer.place)
        try:
            said = ask(
                contact(host, self.connect),
                host.python,
                "mark",
                check_name(request.run),
                token,
                "",
                request.devices,
                host.token,
                host.place,
            )
        except (TimedOut, ConnectionLost) as error:
            raise Ambiguous(f"{self.name}: marking {host.place}: {error}") from error
        if "holder" in said:
            raise Busy(f"{self.name}: {host.place} is not free: {_in_words(said['holder'])}")
        return self._pod(host, request.run, token, said["folder"])

    def find(self, pod: str) -> Pod | None:
        """Return the pod, by id from the machine, by token alone from all machines."""
        place = pod.partition("@")[2]
        pods = self._on(self._host(place)) if place else self.list()
        return next((one for one in pods if pod in (one.pod_id, one.token)), None)

    def list(self) -> Pods:
        found = map_parallel(self._on, self.hosts, LOOK_S)
        pods: Pods = []
        deaf = [f"{one.place}: {one.why}" for one in self.unusable]
        for host, one in zip(self.hosts, found, strict=True):
            if isinstance(one, SlipwayError):
                deaf.append(f"{host.place}: {one}")
            else:
                pods.extend(one)
        if deaf:
            raise PartialListing(f"{self.name}: some machines have not answered: {'; '.join(deaf)}", pods)
        return pods

    def delete(self, pod_id: str) -> None:
        """End every process of the pod, then remove the marker and the secrets; keep the results."""
        token, _, place = pod_id.partition("@")
        host = self._host(place)
        transport = contact(host, self.connect)
        pod = self.find(pod_id)
        if pod:
            _stop(transport, host.python, PodFolder(Path(Address.parse(pod.address).folder)))
        script = (AGENT / "process.py").read_bytes() + END_ALL
        ended = run_script(transport, host.python, script, token, str(self.end_s), timeout_s=self.end_s + ANSWER_S)
        survivors, machine = ended["survivors"], f"{self.name}:{host.place}"
        if survivors:
            self.memory.record_failure(machine, survivors)
            raise SlipwayError(
                f"{self.name}: {host.place}: {survivors}; end the processes on that machine, then run the command again"
            )
        if pod:
            ask(transport, host.python, "unmark", pod.run, token)
        if self.memory.get(machine).failure.endswith(SURVIVED):
            self.memory.clear_failure(machine)

    def reach(self, pod: Pod) -> Transport:
        """Return the transport by the pod's id. Raise UsageError for a machine no longer in the inventory."""
        return self.connect(self._host(pod.pod_id.partition("@")[2]))

    def _offer(self, host: Host, request: Request) -> Offer:
        """Return the offer of a machine. Raise SlipwayError with the reason for no offer."""
        known = self.memory.get(f"{self.name}:{host.place}")
        if known.failure and request.host not in (host.place, host.name):
            raise NoOffer(f"the machine failed before: {known.failure}; run: inv hosts --forget {host.place}")
        facts = known.facts if known.facts and not inventory_mismatch(host, known.facts) else {}
        said = ask(contact(host, self.connect), host.python, "pods" if facts else "facts")
        if not facts:
            facts = said
            self.memory.save_facts(f"{self.name}:{host.place}", facts)
        what = hardware_of(host, facts)
        problem = (
            inventory_mismatch(host, facts)
            or request_mismatch(request, what)
            or missing_devices(request.devices, what.num_gpus or 0)
        )
        if problem:
            raise NoOffer(problem)
        others = [pod for pod in said["pods"] if not host.token or pod.get("token") != host.token]
        if taken := [pod for pod in others if not may_share(pod.get("devices", ""), request.devices)]:
            raise Busy(_in_words(taken[0]))
        return Offer(
            provider=self.name,
            offer_id=host.place,
            region=host.pool,
            gpu=what.gpu,
            num_gpus=what.num_gpus or 0,
            cpus=what.cpus or 0,
            memory_bytes=what.memory_bytes or 0,
            micro_usd_per_hour=host.micro_usd_per_hour,
            place=host.place,
        )

    def _host(self, place: str) -> Host:
        try:
            return self.inventory.find(place)
        except UsageError as error:
            raise UsageError(
                f"ssh: {error}; put the machine back into the inventory to end the pods on the machine"
            ) from None

    def _on(self, host: Host) -> Pods:
        """Return the pods of a machine. Raise SlipwayError without a readable answer."""
        said = ask(contact(host, self.connect), host.python, "pods")["pods"]
        damaged = [f"{one['folder']}: {one['problem']}" for one in said if "problem" in one]
        if damaged:
            raise SlipwayError(f"{'; '.join(damaged)}; remove the file when no pod runs on the machine")
        others = {other.place for other in self.hosts} - {host.place}  # names of this machine, or of a shared home
        return [self._pod(host, one["run"], one["token"], one["folder"]) for one in said if one["place"] not in others]

    def _pod(self, host: Host, run: str, token: str, folder: str) -> Pod:
        return Pod(
            provider=self.name,
            pod_id=f"{token}@{host.place}",
            token=token,
            run=run,
            address=str(replace(host.address, folder=folder)),
            micro_usd_per_hour=host.micro_usd_per_hour,
        )


def connections(settings: Settings) -> Connect:
    """Return a function with one cached connection per machine, opened at first use.

    The host key of a machine is pinned beside the journal.
    """
    from infra.transport.ssh import Ssh

    pins = settings.state_file.parent / "known_hosts"

    @functools.cache
    def connect(host: Host) -> Transport:
        transport = Ssh(host.address, pins / host.place.replace("/", "_"))
        transport.python = host.python
        return transport

    return connect


def _stop(transport: Transport, python: str, pod: PodFolder) -> None:
    """Ask the agent to save and stop; the agent may be missing or broken.

    The caller checks for leftover processes.
    """
    stop = shlex.join([python, "-m", "infra.agent", "stop", str(pod.root)])
    command = f"if test -e {shlex.quote(str(pod.job))}; then exec {stop}; fi"
    with contextlib.suppress(TimedOut):  # the caller kills the leftover processes
        transport.run(["sh", "-c", command], timeout_s=STOP_S, env={"PYTHONPATH": str(pod.code)})


def _in_words(marker: Mapping[str, str]) -> str:
    """Return the description of the pod on a machine."""
    if "problem" in marker:
        return f"{marker['folder']}: {marker['problem']}"
    part = f", on device {marker['devices']}" if marker.get("devices") else ""
    return f"the machine holds the pod of {marker['run']} ({marker['token']}){part}"
