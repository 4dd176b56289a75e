"""Custom provider: machines of a lab, rented by the hour from a small web service.

SLIPWAY_EXTENSIONS=examples/own/lab.py LAB_URL=https://rack.example LAB_KEY=... ./inv offers --provider lab

    GET    /kinds        [{"kind", "gpu", "gpus", "gpu_memory_gb", "disk_gb", "usd_per_hour", "free"}]
    POST   /machines     {"kind", "token", "run", "ssh_key", "seconds"}: rent a machine for `seconds`; a timer ends it
    GET    /machines     all machines: [{"id", "token", "run", "state", "user", "host", "port", "usd_per_hour", ...}]
    GET    /machines/ID  one machine; 404 when the machine is gone
    DELETE /machines/ID  delete the machine; 404 when the machine is gone
"""

import math
import os

from msgspec import Struct

from infra.agent.limits import hard_limit_s
from infra.errors import MissingKey, NoOffer
from infra.providers import Abilities
from infra.providers.json_api import JsonApi, VendorRefused
from infra.providers.pod_keys import PodKeys
from infra.records import Account, Offer, Pod
from infra.units import micro_usd


class Kind(Struct):
    kind: str
    gpu: str
    gpus: int
    gpu_memory_gb: int
    disk_gb: int
    usd_per_hour: str
    free: int


class Machine(Struct):
    id: str
    token: str
    run: str
    state: str
    usd_per_hour: str
    created: int
    ends: float
    user: str = ""
    host: str = ""
    port: int = 22


def provider(settings):
    """Return the provider. `settings`: of this installation. The key of the lab comes from the environment."""
    if not os.environ.get("LAB_KEY"):
        raise MissingKey("lab: no key is set; put LAB_KEY and LAB_URL into the shell")
    api = JsonApi("lab", os.environ["LAB_URL"], {"X-Lab-Key": os.environ["LAB_KEY"]})
    return Lab(api, PodKeys.for_journal(settings.state_file))


class Lab:
    can = Abilities(time_limit=True, tells_limits=True, self_terminate="native", settle_s=60.0)

    def __init__(self, api: JsonApi, keys: PodKeys) -> None:
        self.api, self.keys = api, keys

    def account(self):
        self.api.read("/machines", list[Machine])  # Raises for an invalid key.
        return Account(provider="lab", owner=self.api.owner)

    def offers(self, request):
        """Return an offer for each kind with a free machine. The caller drops offers that do not match the request."""
        return [
            Offer(
                provider="lab",
                offer_id=one.kind,
                instance_type=one.kind,
                gpu=one.gpu,
                num_gpus=one.gpus,
                gpu_memory_bytes=one.gpu_memory_gb * 10**9,
                disk_bytes=one.disk_gb * 10**9,
                micro_usd_per_hour=micro_usd(one.usd_per_hour),
            )
            for one in self.api.read("/kinds", list[Kind])
            if one.free
        ]

    def create(self, request, offer, token, limits):
        """Rent a machine, without a retry. Raise NoOffer for status 404.

        `send_change` raises Ambiguous for a lost response.
        """
        limit_s = hard_limit_s(limits)
        assert limit_s is not None  # because of `time_limit`
        body = {
            "kind": offer.offer_id,
            "token": token,
            "run": request.run,
            "ssh_key": self.keys.ensure_public_key(token),
            "seconds": math.ceil(limit_s),
        }
        try:
            reply = self.api.send_change("POST", "/machines", body)
        except VendorRefused as refused:
            if refused.reply.status == 404:  # Another user rented the last machine of this kind.
                raise NoOffer(str(refused)) from None
            raise
        return self.pod(self.api.decode(reply, Machine))

    def find(self, pod):
        """Return the pod with this id or token, or None if the lab has no such machine."""
        if pod.startswith("sw1-"):  # A token: the response with the id was lost.
            return next((one for one in self.list() if one.token == pod), None)
        try:
            return self.pod(self.api.read(f"/machines/{pod}", Machine))
        except VendorRefused as refused:
            if refused.reply.status == 404:
                return None
            raise

    def list(self):
        return [self.pod(one) for one in self.api.read("/machines", list[Machine])]

    def delete(self, pod_id):
        try:
            self.api.send_change("DELETE", f"/machines/{pod_id}")
        except VendorRefused as refused:
            if refused.reply.status != 404:
                raise

    def pod(self, one):
        """Convert a machine of the lab into a `Pod`; `token` is the tag that `create` sent."""
        address = self.keys.address(one.token, one.user, one.host, one.port) if one.token and one.host else ""
        return Pod(
            provider="lab",
            pod_id=one.id,
            token=one.token,
            run=one.run,
            name=one.run,
            address=address,
            state=one.state,
            created_at=one.created,
            ends_at=one.ends,
            micro_usd_per_hour=micro_usd(one.usd_per_hour),
        )
