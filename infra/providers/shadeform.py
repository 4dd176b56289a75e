"""Shadeform: virtual machines of some twenty clouds through one API. Sends requests, returns records.

Prices are in whole cents per hour of the whole machine, amounts are decimal text in dollars. Shadeform has no spot, no
stop and no idempotency key, and ends a machine by itself at a date and at an amount. Billing begins at `active` and
stops at `deleting`. Source: the vendor's API document of 2026-03-05.
"""

import contextlib
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Annotated, Any
from urllib.parse import quote

from msgspec import Meta, Struct

from infra.agent.job import SELF_END_KEY, Call, Limits
from infra.agent.lifecycle import self_terminate
from infra.errors import Ambiguous, NoOffer, SlipwayError, UsageError
from infra.market import gpus
from infra.providers import Abilities, rows
from infra.providers.by_http import ByHttp
from infra.providers.json_api import USER_AGENT, JsonApi, VendorRefused, endpoint, epoch, rfc3339
from infra.providers.pod_keys import PodKeys, is_token
from infra.providers.promises import DrillRecord
from infra.providers.rate_limit import Pace
from infra.providers.refusals import RefusalKind, RefusalTable, Sentence
from infra.records import Account, Offer, Pod, Request
from infra.settings import Settings
from infra.units import dollars, reported_micro_usd

URL = "https://api.shadeform.ai/v1"
VOLUMES = ("/mnt/*", "/data", "/data/*", "/volume*")  # the vendor's documents do not say which path a cloud uses
STATES = {
    "creating": "booting",
    "pending_provider": "booting",
    "pending": "booting",
    "active": "running",
    "error": "failed",
    "deleting": "ending",
}
GONE = ("deleted",)
CENT = Decimal("0.01")
REFUSALS = RefusalTable(
    vendor="shadeform",
    billing_url="https://platform.shadeform.ai",
    codes={"OUT_OF_STOCK": RefusalKind.NO_STOCK},
    sentences=(
        Sentence("funds", RefusalKind.NO_MONEY, "brevdev/cloud: structured errors of a create are 409"),
        Sentence("balance", RefusalKind.NO_MONEY, "the vendor's FAQ on the wallet of an account"),
        Sentence("wallet", RefusalKind.NO_MONEY, "the vendor's FAQ on the wallet of an account"),
        Sentence("quota", RefusalKind.NO_STOCK, "brevdev/cloud, as above; a quota is of one cloud"),
        Sentence("out of stock", RefusalKind.NO_STOCK, "the vendor's API document, answer of /instances/create"),
    ),
    statuses={
        400: RefusalKind.BAD_REQUEST,
        403: RefusalKind.BAD_KEY,
        404: RefusalKind.NO_STOCK,
        422: RefusalKind.BAD_REQUEST,
    },
)


class Configuration(Struct):
    num_gpus: Annotated[int, Meta(ge=0)]
    gpu_type: str
    memory_in_gb: int = 0
    storage_in_gb: int = 0
    vcpus: int = 0
    vram_per_gpu_in_gb: int = 0
    interconnect: str = ""
    nvlink: bool | None = None


class Availability(Struct):
    region: str
    available: bool
    display_name: str = ""


class InstanceType(Struct):
    cloud: str
    shade_instance_type: str
    configuration: Configuration
    hourly_price: Decimal
    availability: list[Availability]


class InstanceTypes(Struct):
    instance_types: list[Any]


class AutoDelete(Struct):
    date_threshold: Any = None
    spend_threshold: Any = None


class Instance(Struct):
    id: str
    name: str
    status: str
    hourly_price: Decimal
    ip: str | None = None
    ssh_user: str | None = None
    ssh_port: int | None = None
    status_details: str | None = None
    cost_estimate: Any = None
    created_at: Any = None
    active_at: Any = None
    tags: list[Any] | None = None
    auto_delete: AutoDelete | None = None


class Instances(Struct):
    instances: list[Any]


class Volume(Struct):
    id: str
    cloud: str
    region: str
    size_in_gb: int = 0


class SshKey(Struct):
    id: str
    name: str


class SshKeys(Struct):
    ssh_keys: tuple[Any, ...]


class Created(Struct):
    id: Annotated[str, Meta(min_length=1)]


@dataclass(frozen=True)
class Shadeform(ByHttp):
    """The account of the key in `api`."""

    api: JsonApi
    keys: PodKeys
    self_end_key: str = field(default="", repr=False)
    drills: DrillRecord = DrillRecord()

    name = "shadeform"
    one_path, gone_states = "/instances/{}/info", GONE
    documented = Abilities(
        time_limit=True, spend_limit=True, tells_limits=True, self_terminate="native", volumes=VOLUMES
    )

    @staticmethod
    def from_settings(settings: Settings) -> "Shadeform":
        """Return the account of the settings. Raise UsageError for an address to which the key must not go."""
        url = endpoint(URL, settings.shadeform_url, "SLIPWAY_SHADEFORM_URL")
        api = JsonApi(
            "shadeform",
            url,
            {"X-API-KEY": settings.shadeform_api_key},
            clock_scale=settings.clock_scale,
            pace=Pace.for_journal(settings.state_file, "shadeform", settings.clock_scale),
        )
        drills = DrillRecord.from_settings("shadeform", settings)
        return Shadeform(api, PodKeys.for_journal(settings.state_file), settings.shadeform_api_key, drills)

    def self_end(self, pod_id: str) -> tuple[Call, ...]:
        headers = {"X-API-KEY": f"{{{SELF_END_KEY}}}", "Accept": "application/json", "User-Agent": USER_AGENT}
        return (Call("POST", self.api.base + self.format_path("/instances/{}/delete", pod_id), headers),)

    def check_self_end(self) -> str:
        """Return the warning: the vendor's keys open the whole account. Raise UsageError for an unusable key."""
        if not self_terminate.is_sendable(self.self_end_key):
            raise UsageError("shadeform: --self-end: the key is missing or invalid; set SHADEFORM_API_KEY")
        return (
            "--self-end puts the key of your whole Shadeform account into the memory of the pod's guard: any "
            "code that runs as root on the pod, and the host of the pod, can use the account"
        )

    def account(self) -> Account:
        """Check the key and return the account; the vendor reports neither owner nor balance."""
        self._keys()
        return Account(provider=self.name, owner=self.api.owner)

    def catalog(self, request: Request) -> list[Offer]:
        """Return an offer for each region with the type in stock."""
        if request.image:
            raise NoOffer("a machine of shadeform is a VM, which boots no container image; use runpod or lium")
        types = self.api.read("/instances/types", InstanceTypes, available="true", sort="price").instance_types
        now = self.api.now()
        found = []
        for row in types:
            one = rows.offered(InstanceType, row)
            rate = one and reported_micro_usd(one.hourly_price, CENT)
            if one and rate:
                found += [_offer(one, there, rate, now) for there in one.availability if there.available]
        if not request.volume:
            return found
        volume = self._volume(request.volume)
        size, place = volume.size_in_gb * 10**9, (volume.cloud, volume.region)
        return [
            replace(one, volume=volume.id, volume_bytes=size) if (one.cloud, one.region) == place else one
            for one in found
        ]

    def _volume(self, volume: str) -> Volume:
        """Return a volume. Raise NoOffer for a volume not in the account."""
        try:
            return self.api.read(f"/volumes/{quote(volume, safe='')}/info", Volume)
        except VendorRefused as refused:
            if refused.reply.status in (400, 404):  # 400: the id does not have the vendor's format
                raise NoOffer(f"this account has no volume {volume}") from None
            raise

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Rent as `Provider` specifies; first add the pod's SSH key to the account. Raise NoOffer if out of stock."""
        ends = {}
        if limits.time_s is not None:
            ends["date_threshold"] = rfc3339(self.api.now() + limits.time_s)
        if limits.spend_micro_usd is not None:
            ends["spend_threshold"] = dollars(limits.spend_micro_usd)
        body = {
            "cloud": offer.cloud,
            "region": offer.region,
            "shade_instance_type": offer.instance_type,
            "shade_cloud": True,
            "name": token,
            "ssh_key_id": self._add_key(token),
            "tags": [f"slipway-token={token}", f"slipway-run={request.run}"],
            **({"volume_ids": [request.volume], "volume_mount": {"auto": True}} if request.volume else {}),
            **({"auto_delete": ends} if ends else {}),
        }
        try:
            made = self.api.decode(self.api.send_change("POST", "/instances/create", body), Created)
        except SlipwayError as error:
            refusal = REFUSALS.to_error(error)
            if not isinstance(refusal, Ambiguous):
                with contextlib.suppress(SlipwayError):  # a leftover key opens no machine and costs no money
                    self._drop_key(token)
            raise refusal from None
        return Pod(
            provider=self.name,
            pod_id=made.id,
            token=token,
            run=request.run,
            address="",
            name=token,
            micro_usd_per_hour=offer.micro_usd_per_hour,
            state="booting",
        )

    def list(self) -> "list[Pod]":
        """Return all pods except deleted pods, oldest first. The vendor has no pages."""
        return rows.complete_listing(self.name, map(self._pod, self.api.read("/instances", Instances).instances), GONE)

    def delete(self, pod_id: str) -> None:
        """Delete as `Provider` specifies.

        Also remove the pod's SSH key from the account, if the vendor shows the pod's token.
        """
        token = ""
        with contextlib.suppress(SlipwayError):  # state unknown: end the machine all the same
            found = self.find(pod_id)
            if found is None:
                return
            token = found.token
        try:
            self.api.send_change("POST", self.format_path("/instances/{}/delete", pod_id))
        except VendorRefused as refused:
            if refused.reply.status != 404:
                raise
        if token:
            with contextlib.suppress(SlipwayError):  # a leftover key opens no machine and costs no money
                self._drop_key(token)

    def billed(self, pod_id: str) -> int | None:
        """Return the bill as `Provider` specifies, as long as the vendor shows the machine."""
        found = self.find(pod_id)
        return found.spent_micro_usd if found else None

    def _keys(self) -> tuple[SshKey, ...]:
        return tuple(rows.read(SshKey, one)[0] for one in self.api.read("/sshkeys", SshKeys).ssh_keys)

    def _add_key(self, token: str) -> str:
        """Add a key; return the id in the account. Every error here is definite: no machine was requested."""
        try:
            reply = self.api.send_change(
                "POST", "/sshkeys/add", {"name": token, "public_key": self.keys.ensure_public_key(token)}
            )
            return self.api.decode(reply, Created).id
        except SlipwayError as error:  # lost answer, or the name exists: an earlier call added the key
            for key in self._keys():
                if key.name == token:
                    return key.id
            if isinstance(error, Ambiguous):
                raise SlipwayError(f"{error}; no machine was asked for") from None
            raise

    def _drop_key(self, token: str) -> None:
        for key in self._keys():
            if key.name == token:
                try:
                    self.api.send_change("POST", f"/sshkeys/{quote(key.id, safe='')}/delete")
                except VendorRefused as refused:
                    if refused.reply.status != 404:  # 404: a concurrent process for the same pod was faster
                        raise

    def _pod(self, row: Any, pod_id: str = "") -> Pod:
        """Return the pod of any row. `pod_id`: the id of the lookup."""
        one, odd = rows.read(Instance, row)
        words = [tag for tag in one.tags or () if isinstance(tag, str)]
        if len(words) != len(one.tags or ()):
            odd["tags"] = "some tags are not text"
        tags = dict(word.split("=", 1) for word in words if "=" in word)
        port = 22 if one.ssh_port is None else one.ssh_port
        has_address = one.status == "active" and "ssh_port" not in odd
        ends = one.auto_delete or AutoDelete()
        return self.pod(
            odd,
            marks=("name", "tags"),
            pod_id=pod_id or one.id,
            token=next((word for word in (tags.get("slipway-token", ""), one.name) if is_token(word)), ""),
            run=tags.get("slipway-run", ""),
            way=(one.ssh_user, one.ip, port) if has_address and one.ssh_user and one.ip else None,
            rate=reported_micro_usd(one.hourly_price, CENT),
            state=STATES.get(one.status, one.status),
            note=one.status_details or "",
            name=one.name,
            created_at=int(epoch(one.created_at) or 0),
            billed_at=epoch(one.active_at),
            ends_at=epoch(ends.date_threshold),
            spend_limit_micro_usd=reported_micro_usd(ends.spend_threshold),
            spent_micro_usd=reported_micro_usd(one.cost_estimate),
        )


def _offer(one: InstanceType, there: Availability, micro_usd_per_hour: int, now: float) -> Offer:
    what = one.configuration
    # Machines with a part of an SXM board are reported as PCIe or without a form; the type name shows the form.
    form = "sxm" if "sxm" in one.shade_instance_type.lower() else what.interconnect
    place = [part.strip() for part in there.display_name.split(",")]  # "US, Kansas City, KS"
    country = place[0] if len(place[0]) == 2 and place[0].isupper() else ""
    return Offer(
        provider=Shadeform.name,
        offer_id=f"{one.cloud}/{there.region}/{one.shade_instance_type}",
        cloud=one.cloud,
        region=there.region,
        instance_type=one.shade_instance_type,
        country=country,
        city=place[1] if country and len(place) > 1 else "",
        gpu=gpus.name(what.gpu_type, what.vram_per_gpu_in_gb, form),
        num_gpus=what.num_gpus,
        gpu_memory_bytes=what.vram_per_gpu_in_gb * 10**9,
        cpus=what.vcpus,
        memory_bytes=what.memory_in_gb * 10**9,
        disk_bytes=what.storage_in_gb * 10**9,
        micro_usd_per_hour=micro_usd_per_hour,
        nvlink=what.nvlink,
        interconnect=what.interconnect,
        seen_at=now,
    )
