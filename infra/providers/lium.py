"""Lium: containers ("pods") on single hosts ("executors") of many owners. Sends requests, returns records.

Prices are in dollars per GPU-hour in offers, and in dollars per hour of the whole pod in `price`. A pod's environment
belongs to a template, so the name is the only marker. The rent takes whole hours, counted from the boot; an exact end
is sent after the rent and again after the boot, since the boot replaces the end. Sizes of hosts are in KiB, of GPUs in
MiB, as reported by the owners. Source: the vendor's own client, lium.io 0.32.0.
"""

import contextlib
import math
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Struct

from infra.agent.job import SELF_END_KEY, Call, Limits
from infra.agent.lifecycle import self_terminate
from infra.agent.limits import hard_limit_s
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.market import gpus
from infra.providers import Abilities, rows
from infra.providers.by_http import ByHttp
from infra.providers.json_api import (
    USER_AGENT,
    JsonApi,
    RequestNotSent,
    UnclearOutcome,
    VendorRefused,
    endpoint,
    epoch,
    rfc3339,
)
from infra.providers.pod_keys import PodKeys, is_token
from infra.providers.promises import DrillRecord
from infra.providers.rate_limit import Pace
from infra.providers.refusals import RefusalKind, RefusalTable, Sentence
from infra.records import Account, Offer, Pod, Request
from infra.settings import Settings
from infra.units import micro_usd, reported_micro_usd

URL = "https://lium.io/api"
OWN_TEMPLATE = {
    "docker_image_digest": "",
    "internal_ports": [22],
    "startup_commands": "",
    "category": "UBUNTU",
    "container_start_immediately": True,
    "description": "slipway",
    "entrypoint": "",
    "environment": {},
    "is_private": True,
    "one_time_template": True,
    "is_temporary": False,
    "readme": "slipway",
    "volumes": ["/root"],
}
ARM_TRIES = 3
USABLE = ("CREATED", "UPDATED", "VERIFY_SUCCESS")
MOST_HOURS = 720
PORTS = 4
COUNTS = (1, 2, 4, 8)
STATES = {
    "PENDING": "booting",
    "REBOOT_PENDING": "booting",
    "RUNNING": "running",
    "DELETING": "ending",
    "STOPPED": "stopped",
    "CREATION_FAILED": "failed",
    "FAILED": "failed",
    "BROKEN": "failed",
    "REBOOT_FAILED": "failed",
    "ERROR": "failed",
}
GONE = ("TERMINATED", "DELETED", "REMOVED", "CANCELLED")
NOBODY = "00000000-0000-0000-0000-000000000000"  # an id without a resource
MAKE_KEY = "create a key with only the scope manage at https://lium.io"
REFUSALS = RefusalTable(
    vendor="lium",
    billing_url="https://lium.io/billing",
    codes={
        "API_KEY_BUDGET_EXCEEDED": RefusalKind.NO_MONEY,
        **dict.fromkeys(  # source: dstack 0.22.5, codes of no capacity
            (
                "node_not_found",
                "node_rent_in_progress",
                "node_not_verified",
                "node_unavailable",
                "node_paused_by_provider",
                "provider_banned",
                "node_below_bandwidth_floor",
                "gpu_count_invalid",
                "gpu_split_not_allowed",
            ),
            RefusalKind.NO_STOCK,
        ),
        "conflict": RefusalKind.NO_STOCK,
        # The first request with the same key is still running, or the outcome is unknown.
        "idempotency_in_progress": RefusalKind.UNKNOWN,
        "idempotency_outcome_unknown": RefusalKind.UNKNOWN,
    },
    sentences=(Sentence("insufficient balance", RefusalKind.NO_MONEY, "lium.io 0.32.0, text of a 403 of the rent"),),
    statuses={
        400: RefusalKind.NO_STOCK,
        403: RefusalKind.BAD_KEY,
        404: RefusalKind.NO_STOCK,
        422: RefusalKind.BAD_REQUEST,
    },
)
_SSH = re.compile(r"ssh ([^\s@]+)@([^\s@]+)(?: -p (\d{1,5}))?")


class Place(Struct):
    country_code: str | None = None
    region_name: str | None = None
    city: str | None = None


class GpuDetail(Struct):
    name: str = ""
    capacity: int = 0  # MiB


class GpuSpecs(Struct):
    details: list[GpuDetail] = []
    driver: str | None = None


class Cpu(Struct):
    count: int = 0


class Ram(Struct):
    total: int = 0  # KiB
    pod_reserve: int = 0  # KiB reserved by the host


class Disk(Struct):
    free: int = 0  # KiB


class Specs(Struct):
    gpu: GpuSpecs | None = None
    cpu: Cpu | None = None
    ram: Ram | None = None
    hard_disk: Disk | None = None


class Executor(Struct):
    id: str
    machine_name: str
    gpu_count: int
    available_gpu_count: int
    price_per_gpu: Decimal
    min_gpu_count_for_rental: int | None = None
    status: str | None = None
    tier: str | None = None
    location: Place | None = None
    effective_upload_speed_mbps: float | None = None
    effective_download_speed_mbps: float | None = None
    max_cuda_version: Decimal | None = None
    nvlink: bool | None = None
    gpu_power_limited: bool | None = None
    frequent_rent_failures: bool | None = None
    last_verified_at: str | None = None
    specs: Specs | None = None


class Template(Struct):
    id: str
    docker_image: str | None = None
    docker_image_tag: str | None = None
    status: str | None = None
    user_id: str | None = None
    startup_commands: str | None = None
    entrypoint: str | None = None
    environment: dict[str, Any] | None = None


class Image(Struct):
    docker_image: str
    docker_image_tag: str = "latest"


class Rented(Struct):
    success: bool = True
    pod_id: str | None = None
    id: str | None = None  # some versions answer with the pod itself


class PodRow(Struct):
    id: str
    pod_name: str
    status: str
    price: Decimal
    ssh_connect_cmd: str | None = None
    created_at: Any = None
    removal_scheduled_at: Any = None
    phase: str | None = None


class Volume(Struct):
    id: str


class Record(Struct):
    total: Decimal | None = None


class Me(Struct):
    id: str | None = None
    email: str | None = None
    balance: Decimal | None = None


@dataclass(frozen=True)
class Lium(ByHttp):
    """The account of the key in `api`. `cuda`: required CUDA version of a host's driver, such as `13.0`; "" = any."""

    api: JsonApi
    keys: PodKeys
    cuda: str = ""
    self_end_key: str = field(default="", repr=False)
    drills: DrillRecord = DrillRecord()

    name = "lium"
    one_path, gone_states = "/pods/{}", GONE
    documented = Abilities(
        images=True,
        time_limit=True,
        resets_timer=True,
        spot=True,
        tells_limits=True,
        self_terminate="native",
        volumes=("/mnt/*",),
        volumes_apart=True,
    )

    @staticmethod
    def from_settings(settings: Settings) -> "Lium":
        """Return the account of the settings. Raise UsageError for an address to which the key must not go."""
        url = endpoint(URL, settings.lium_url, "SLIPWAY_LIUM_URL")
        api = JsonApi(
            "lium",
            url,
            {"X-API-KEY": settings.lium_api_key},
            clock_scale=settings.clock_scale,
            pace=Pace.for_journal(settings.state_file, "lium", settings.clock_scale),
        )
        drills = DrillRecord.from_settings("lium", settings)
        return Lium(
            api, PodKeys.for_journal(settings.state_file), settings.accept_cuda, settings.lium_self_end_key, drills
        )

    def self_end(self, pod_id: str) -> tuple[Call, ...]:
        headers = {"X-API-KEY": f"{{{SELF_END_KEY}}}", "Accept": "application/json", "User-Agent": USER_AGENT}
        return (Call("DELETE", self.api.base + self.format_path("/pods/{}", pod_id), headers),)

    def check_self_end(self) -> str:
        """Check the key and return no warning: the key must have the right to end pods, but not to rent or see bills.

        The vendor does not report the scopes of a key, so the check uses a machine and a pod that do not exist: no
        change is made. Unless refused for the scope, a request counts as allowed. Raise UsageError for a missing,
        invalid or unsuitable key.
        """
        if not self.self_end_key:
            raise UsageError(f"lium: --self-end needs LIUM_SELF_END_KEY; {MAKE_KEY}")
        if not self_terminate.is_sendable(self.self_end_key):
            raise UsageError("lium: LIUM_SELF_END_KEY holds characters that no key has")
        api = JsonApi("lium", self.api.base, {"X-API-KEY": self.self_end_key}, clock_scale=self.api.clock_scale)
        probes = {
            "rent": ("POST", f"/executors/{NOBODY}/rent"),
            "billing": ("GET", "/billing/statement"),
            "manage": ("DELETE", f"/pods/{NOBODY}"),
        }
        may = {scope: _may(api, *probe) for scope, probe in probes.items()}
        if more := [scope for scope in ("rent", "billing") if may[scope]]:
            raise UsageError(
                f"lium: LIUM_SELF_END_KEY also has the scope {' and '.join(more)}, which any code on the pod "
                f"could use; {MAKE_KEY}"
            )
        if not may["manage"]:
            raise UsageError(f"lium: LIUM_SELF_END_KEY may not end pods; {MAKE_KEY}")
        return ""

    def account(self) -> Account:
        """Return owner and balance; the vendor debits every 5 minutes, so the balance lags."""
        me = self.api.read("/users/me", Me)
        balance = None if me.balance is None else micro_usd(max(me.balance, Decimal(0)))
        return Account(provider=self.name, owner=me.email or me.id or self.api.owner, balance_micro_usd=balance)

    def catalog(self, request: Request) -> list[Offer]:
        """Return free hosts, whole or in parts.

        Leave out hosts with frequent failures, throttled GPUs or old drivers. Raise NoOffer for an unknown volume.
        """
        counts = {count for _, count in gpus.read_set(request.gpu, request.num_gpus)} or {request.num_gpus}
        found: list[Offer] = []
        for row in self.api.read("/executors", list[Any], view="summary"):
            host = rows.offered(Executor, row)
            if host is None or host.frequent_rent_failures or host.gpu_power_limited or self._is_old(host):
                continue
            spec = msgspec.json.encode(row).decode()
            for count in _parts(host, counts):
                if rate := reported_micro_usd(host.price_per_gpu, Decimal(count)):
                    found.append(self._offer(host, count, rate, spec))
        if request.volume:
            self._check_volume(request.volume)
        return [replace(one, volume=request.volume) for one in found]

    def _check_volume(self, volume: str) -> None:
        """Check a volume, which follows the pod to any host. Raise NoOffer for a volume not in the account."""
        try:
            self.api.read(f"/volumes/{quote(volume, safe='')}", Volume)
        except VendorRefused as refused:
            if refused.reply.status in (404, 422):  # 422: the id does not have the vendor's format
                raise NoOffer(f"this account has no volume {volume}") from None
            raise

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Rent as `Provider` specifies. Limits, also a spend limit, are armed as whole hours, rounded up, then exactly.

        Raise UsageError for a limit beyond the vendor's 30 days; a pod without a limit gets 30 days.
        """
        began_at = self.now()
        limit_s = hard_limit_s(limits)
        hours = MOST_HOURS if limit_s is None else max(1, math.ceil(limit_s / 3600))
        if hours > MOST_HOURS:
            raise UsageError(f"lium: a pod can live at most {MOST_HOURS} hours; {hours} were requested")
        body = {
            "pod_name": token,
            "template_id": self._template(request, offer, token),
            "user_public_key": [self.keys.ensure_public_key(token)],
            "gpu_count": offer.num_gpus,
            "initial_port_count": PORTS,
            "termination_hours": hours,
            "enable_backups": False,
            **({"volume_id": request.volume} if request.volume else {}),
        }
        key = {"Idempotency-Key": str(uuid.uuid5(uuid.NAMESPACE_URL, token))}
        host = offer.offer_id.partition("/")[0]
        try:
            reply = self.api.send_change("POST", f"/executors/{quote(host, safe='')}/rent", body, key)
        except (VendorRefused, UnclearOutcome) as error:
            raise REFUSALS.to_error(error) from None
        made = self.api.decode(reply, Rented)
        pod_id = made.pod_id or made.id
        if not (made.success and pod_id):
            raise UnclearOutcome(f"lium: rent: {reply.summary}; the request may have been carried out", reply)
        if limit_s is not None:
            # The pod is rented: a failure here must not lose the id. The boot arms the end again and reads it back.
            with contextlib.suppress(SlipwayError):
                self.arm_timer(pod_id, began_at + limit_s)
        return Pod(
            provider=self.name,
            pod_id=pod_id,
            token=token,
            run=request.run,
            address="",
            name=token,
            micro_usd_per_hour=offer.micro_usd_per_hour,
            state="booting",
        )

    def arm_timer(self, pod_id: str, ends_at: float) -> None:
        """Set the exact end of a pod, before or after the boot; a repeated call with the same end is harmless."""
        path, body = self.format_path("/pods/{}/schedule-removal", pod_id), {"removal_scheduled_at": rfc3339(ends_at)}
        for attempt in range(ARM_TRIES):
            try:
                self.api.send_change("POST", path, body)
                return
            except (UnclearOutcome, RequestNotSent):
                if attempt == ARM_TRIES - 1:
                    raise

    def list(self) -> "list[Pod]":
        """Return all pods, oldest first; the vendor leaves out pods in deletion, and has no pages."""
        return rows.complete_listing(self.name, map(self._pod, self.api.read("/pods", list[Any])), GONE)

    def delete(self, pod_id: str) -> None:
        try:
            self.api.send_change("DELETE", self.format_path("/pods/{}", pod_id))
        except VendorRefused as refused:
            if refused.reply.status != 404:
                raise

    def billed(self, pod_id: str) -> int | None:
        try:
            record = self.api.read(self.format_path("/pods/{}/record", pod_id), Record)
        except VendorRefused as refused:
            if refused.reply.status == 404:
                return None
            raise
        return reported_micro_usd(record.total)

    def _template(self, request: Request, offer: Offer, token: str) -> str:
        """Return a template of the requested image, or of the vendor's default image for GPU and driver of the host.

        The vendor installs and starts sshd in every image.
        Never take a template of a different user, or a template with startup commands. If no other template has the
        image, make a template for this account, which the vendor removes with the pod.
        """
        wanted, _, digest = request.image.partition("@")
        image = _split(wanted) if wanted else self._default_image(offer)
        owner = self.api.read("/users/me", Me).id
        for row in self.api.read("/templates", tuple[Any, ...]):
            one = rows.offered(Template, row)
            if one and not digest and (one.docker_image, one.docker_image_tag) == image and _is_plain(one, owner):
                return one.id
        name, tag = image
        body = {
            **OWN_TEMPLATE,
            "name": token,
            "docker_image": name,
            "docker_image_tag": tag,
            "docker_image_digest": digest,
        }
        try:
            return self.api.decode(self.api.send_change("POST", "/templates", body), Template).id
        except SlipwayError as error:
            raise SlipwayError(
                f"lium: no template of {name}:{tag} is usable, and creating a template failed: {error}; "
                "nothing was rented"
            ) from None

    def _default_image(self, offer: Offer) -> tuple[str, str]:
        host = rows.offered(Executor, msgspec.json.decode(offer.raw)) if offer.raw else None
        specs = host.specs.gpu if host and host.specs else None
        model = next((one.name for one in specs.details if one.name), "") if specs else ""
        params = {"gpu_model": model or offer.instance_type, "driver_version": (specs and specs.driver) or ""}
        found = [
            rows.offered(Image, row) for row in self.api.read("/executors/default-docker-image", list[Any], **params)
        ]
        images = [one for one in found if one]
        # The hosts cache this image, so the pod starts in seconds.
        image = next((one for one in images if "pytorch" in one.docker_image.lower()), images[0] if images else None)
        if image is None:
            raise NoOffer(f"lium: the vendor names no default image for {params['gpu_model']}")
        return image.docker_image, image.docker_image_tag

    def _is_old(self, host: Executor) -> bool:
        serves = host.max_cuda_version
        return bool(self.cuda) and serves is not None and not serves >= Decimal(self.cuda)

    def _offer(self, host: Executor, count: int, micro_usd_per_hour: int, raw: str) -> Offer:
        specs, place = host.specs or Specs(), host.location or Place()
        cards = specs.gpu.details if specs.gpu else []
        memory_gb = round(cards[0].capacity / 1024) if cards else 0
        share = count / host.gpu_count
        ram = (specs.ram.total - specs.ram.pod_reserve) * 1024 if specs.ram else 0
        return Offer(
            provider=self.name,
            offer_id=f"{host.id}/{count}",
            cloud=host.tier or "",
            region=place.region_name or "",
            instance_type=host.machine_name,
            country=place.country_code or "",
            city=place.city or "",
            gpu=gpus.name(host.machine_name, memory_gb),
            num_gpus=count,
            gpu_memory_bytes=memory_gb * 10**9,
            cpus=int(specs.cpu.count * share) if specs.cpu else 0,
            memory_bytes=max(0, int(ram * share)),
            disk_bytes=int(specs.hard_disk.free * 1024 * share) if specs.hard_disk else 0,
            micro_usd_per_hour=micro_usd_per_hour,
            spot=host.tier == "spot",
            upload_mbps=host.effective_upload_speed_mbps,
            download_mbps=host.effective_download_speed_mbps,
            nvlink=host.nvlink,
            seen_at=epoch(host.last_verified_at) or self.api.now(),
            raw=raw,
        )

    def _pod(self, row: Any, pod_id: str = "") -> Pod:
        """Return the pod of any row. `pod_id`: the id of the lookup."""
        one, odd = rows.read(PodRow, row)
        way = None
        if one.status == "RUNNING" and one.ssh_connect_cmd:
            # The owner of the host writes this text: accept only this form.
            found = _SSH.fullmatch(one.ssh_connect_cmd.strip())
            if found:
                way = (found[1], found[2], int(found[3] or 22))
            else:
                odd["ssh_connect_cmd"] = f"{rows.shown(one.ssh_connect_cmd)} is not a valid SSH command"
        return self.pod(
            odd,
            marks=("pod_name",),
            pod_id=pod_id or one.id,
            token=one.pod_name if is_token(one.pod_name) else "",
            run="",
            way=way,
            rate=reported_micro_usd(one.price),
            state=STATES.get(one.status, one.status),
            note=one.phase or "",
            name=one.pod_name,
            created_at=int(epoch(one.created_at) or 0),
            ends_at=epoch(one.removal_scheduled_at),
        )


def _split(image: str) -> tuple[str, str]:
    """Return name and tag of an image; the port of a registry is no tag."""
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def _is_plain(template: Template, owner: str | None) -> bool:
    """Return whether a template is usable, not owned by a different user, and runs only the image."""
    is_foreign = template.user_id not in (None, "", owner)
    runs_more = bool(template.startup_commands or template.entrypoint or template.environment)
    return template.status in USABLE and not is_foreign and not runs_more


def _parts(host: Executor, counts: set[int]) -> Iterator[int]:
    """Yield the numbers of GPUs in which a host can be rented; `counts`: the requested numbers, 0 = any."""
    free, least = host.available_gpu_count, host.min_gpu_count_for_rental
    if host.status not in (None, "AVAILABLE") or not 0 < free <= host.gpu_count:
        return
    if least is None:
        if free == host.gpu_count:
            yield free
        return
    wanted = {free, *COUNTS} if 0 in counts else counts | {free}
    yield from sorted(count for count in wanted if least <= count <= free)


def _may(api: JsonApi, method: str, path: str) -> bool:
    """Return whether the scope of a key allows the request."""
    try:
        api.send_change(method, path, {} if method == "POST" else None)
    except VendorRefused as refused:
        return not (refused.reply.status == 403 and "scope" in refused.reply.summary.lower())
    return True
