"""Provider for runs on held pods: rented pods that stay, shared by several runs on separate GPUs.

    live journal rows of held pods -> a machine each -> the operations of `infra.providers.ssh`

A run on a held pod has a separate folder, guard and processes, and a journal row at no cost: the pod's row is billed,
and the pod's own guard enforces the pod's limits. The machine is gone with the pod, by the pod's row or by the vendor's
report, along with all data; so a run uploads results to the store meanwhile, as on any rented pod. The provider reads
the journal on every call and keeps no state.
"""

import getpass
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infra.agent.job import Limits
from infra.agent.limits import read_clocks
from infra.errors import Busy, NoOffer, SlipwayError
from infra.ledger import accounts
from infra.ledger.held_pods import asked_of, gpus_of, is_held, place_of
from infra.ledger.journal import Journal
from infra.ledger.op import READY, Op
from infra.machines.host_memory import HostMemory
from infra.machines.inventory import Host
from infra.providers import Provider, Vendors, find_pod
from infra.providers.ssh import SshPools
from infra.records import Account, Address, Offer, Pod, Request
from infra.settings import HELD, Settings
from infra.transport.protocol import Transport, Unreachable

ENDED = ("stopped", "failed", "ending")  # vendor states without running processes


@dataclass(frozen=True)
class HeldPods(Provider):
    """The provider of runs on held pods."""

    state_file: Path
    vendors: Vendors
    memory: HostMemory

    name = HELD
    is_here, is_rented = False, False
    is_ephemeral = True
    settle_s = 0.0
    pod_store = ""

    @staticmethod
    def from_settings(settings: Settings, vendors: Vendors) -> "HeldPods":
        """Return the provider for the journal of an installation."""
        return HeldPods(settings.state_file, vendors, HostMemory.for_journal(settings.state_file))

    def account(self) -> Account:
        return Account(provider=self.name, owner=getpass.getuser())

    def rows(self, request: Request | None = None) -> list[Op]:
        """Return the rows of held pods; a request filters by `host` (run or place) and `pool` (pod set or vendor)."""
        with Journal.open(self.state_file) as journal:
            found = [op for op in journal.ops(live=True) if is_held(op) and _has_address(op)]
        if request is None:
            return found
        return [
            op
            for op in found
            if request.host in ("", op.run, place_of(op)) and request.pool in ("", op.pod_set, op.vendor)
        ]

    def with_gpu_count(self, request: Request) -> Request:
        """Return the request with a GPU count: if open, all GPUs of the smallest matching pod."""
        if request.num_gpus:
            return request
        return replace(request, num_gpus=min((gpus_of(op) for op in self.rows(request)), default=0))

    def predict_offer(self, request: Request) -> Offer | None:
        """Return the first matching pod as an offer, from the pod's original request; None without a held pod."""
        found = next(iter(self.rows(request)), None)
        if found is None:
            return None
        asked = asked_of(found)
        return Offer(
            provider=found.vendor, offer_id="", gpu=asked.get("gpu", ""), num_gpus=request.num_gpus or gpus_of(found)
        )

    def offers(self, request: Request) -> list[Offer]:
        """Return the matching held pods with free GPUs.

        Raises NoOffer without such a pod, with a reason per pod, and Busy if `inv pod.run` uses all of them.
        """
        found = [op for op in self.rows(request) if op.state == READY]
        if not found:
            which = request.host or (f"of {request.pool}" if request.pool else "")
            there = ", ".join(op.run for op in self.rows()) or "none"
            name = f" --run-name {request.host.partition('/')[0]}" if request.host else ""
            raise NoOffer(
                f"no pod {which} is held; held pods: {there}; create a pod: inv pod.create{name}".replace("  ", " ")
            )
        free = [op for op in found if not op.target]
        if not free:
            raise Busy(f"{', '.join(op.run for op in found)}: busy with the work of inv pod.run")
        return self._machines(free).offers(replace(request, host="", pool=""))

    def named_places(self, request: Request) -> tuple[str, ...]:
        """Return the places of the pods named by a request, regardless of hardware and use; no network access."""
        return tuple(place_of(op) for op in self.rows(request))

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Mark a folder on the pod for the run. Raises NoOffer if the pod is gone or the GPUs are taken."""
        op = self._row(offer.place)
        if op is None:
            raise NoOffer(f"held: {offer.place} is gone")
        return self._machines([op]).create(request, offer, token, limits)

    def find(self, pod: str) -> Pod | None:
        """Return a run's pod by id from its machine, or by token from all machines; None if the machine is gone."""
        place = pod.partition("@")[2]
        if not place:
            return self._machines(self.rows()).find(pod)
        op = self._row(place)
        if op is None:
            return None
        try:
            return self._machines([op]).find(pod)
        except SlipwayError:
            if self._is_gone(op):
                return None
            raise

    def list(self) -> "list[Pod]":
        return self._machines(self.rows()).list()

    def delete(self, pod_id: str) -> None:
        """Kill every process of a run, then remove the run's marker and secrets; the held pod stays."""
        op = self._row(pod_id.partition("@")[2])
        if op is None:
            return
        try:
            self._machines([op]).delete(pod_id)
        except SlipwayError:
            if not self._is_gone(op):
                raise

    def reach(self, pod: Pod) -> Transport:
        """Return the transport to the held pod. Raises Unreachable if the pod is gone."""
        op = self._row(pod.pod_id.partition("@")[2])
        if op is None:
            raise Unreachable(f"the pod of {pod.run} is gone")
        return self._reach(op)

    def _row(self, place: str) -> Op | None:
        return next((op for op in self.rows() if place_of(op) == place), None)

    def _reach(self, op: Op) -> Transport:
        pod = Pod(provider=op.vendor, pod_id=op.remote_id or "", token=op.token, run=op.run, address=op.address or "")
        return self.vendors(op.vendor).reach(pod)

    def _is_gone(self, op: Op) -> bool:
        """Return whether the vendor reports the held pod as gone. Raises SlipwayError without a reliable answer."""
        vendor = self.vendors(op.vendor)
        seen = find_pod(vendor, op.remote_id or op.token, op.is_spot)
        if seen is None and accounts.is_another(vendor, op, read_clocks()):
            raise SlipwayError(accounts.account_advice(op))
        return seen is None or seen.state in ENDED

    def _machines(self, rows: Sequence[Op]) -> SshPools:
        by_place = {place_of(op): op for op in rows}
        hosts = tuple(
            Host(
                pool=op.run,
                name=op.token[-8:],
                token=op.token,
                address=replace(Address.parse(op.address or ""), folder="/"),
            )
            for op in rows
        )
        return SshPools(hosts, lambda host: self._reach(by_place[host.place]), self.memory, name=self.name)


def _has_address(op: Op) -> bool:
    """Return whether the row has a valid address; a damaged row must not hide the other pods."""
    try:
        Address.parse(op.address or "")
    except ValueError:
        return False
    return True
