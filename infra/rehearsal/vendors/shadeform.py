"""Shadeform's API, simulated: instances of many clouds, prices in cents per hour, spend in dollars as text.

Source: the vendor's API document of 2026-03-05.
"""

import base64
import binascii
import getpass
import uuid
from typing import Any, Literal

import msgspec

from infra.rehearsal import web
from infra.rehearsal.clock import iso, parse_iso
from infra.rehearsal.market import Market
from infra.rehearsal.offers import VOLUME, micro_usd, volume_at
from infra.rehearsal.records import Machine, Offer, Order, Refused

# Properties of the schema InstanceInfoResponse, missing in the schema Instance (a row of the list).
INFO_ONLY = {"ssh_key_id", "auto_delete", "alert", "volume_ids", "volume_mount", "envs"}
OS = "ubuntu22.04_cuda12.6_shade_os"
# GPU types with different names at the vendor
GPU_TYPES = {"A100-80GB": "A100_80G", "A100-40GB": "A100", "RTXPRO6000": "RTXPro6000"}
BOOT = {"min_boot_in_sec": 93, "max_boot_in_sec": 190}


class _Body(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class Threshold(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    date_threshold: str | None = None
    spend_threshold: str | None = None


class Env(_Body, frozen=True, forbid_unknown_fields=True):
    name: str
    value: str


class Script(_Body, frozen=True, forbid_unknown_fields=True):
    base64_script: str


class Docker(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    image: str
    args: str | None = None
    shared_memory_in_gb: int | None = None
    envs: list[Env] = []
    port_mappings: list[dict[str, int]] = []
    volume_mounts: list[dict[str, str]] = []
    registry_credentials: dict[str, str] | None = None


class Launch(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    type: Literal["docker", "script"]
    script_configuration: Script | None = None
    docker_configuration: Docker | None = None


class Mount(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    auto: bool = False


class Create(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    cloud: str
    region: str
    shade_instance_type: str
    shade_cloud: bool
    name: str
    os: str | None = None
    template_id: str | None = None
    ssh_key_id: str | None = None
    launch_configuration: Launch | None = None
    auto_delete: Threshold | None = None
    alert: Threshold | None = None
    volume_ids: list[str] = []
    volume_mount: Mount | None = None
    tags: list[str] = []
    envs: list[Env] = []


class Update(_Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: str | None | msgspec.UnsetType = msgspec.UNSET
    tags: list[str] | None | msgspec.UnsetType = msgspec.UNSET
    auto_delete: Threshold | None | msgspec.UnsetType = msgspec.UNSET
    alert: Threshold | None | msgspec.UnsetType = msgspec.UNSET


class Key(_Body, frozen=True, forbid_unknown_fields=True):
    name: str
    public_key: str


class Shadeform(web.Api):
    vendor = "shadeform"

    def __init__(self, market: Market, hub: web.Hub, key: str) -> None:
        self._market, self._hub, self._key = market, hub, key
        self._ssh_keys: dict[str, dict[str, Any]] = {}
        self._default_key = ""
        cloud, region = volume_at(market.offers.values(), self.vendor)
        self._volume = {
            "id": VOLUME,
            "cloud": cloud,
            "cloud_assigned_id": "v-1",
            "region": region,
            "name": "rehearsal",
            "fixed_size": True,
            "size_in_gb": 1000,
            "cost_estimate": "0.00",
            "supports_multi_mount": False,
            "mounted_by": "",
        }
        one = r"/v1/instances/([^/]+)"
        key_route = r"/v1/sshkeys/([^/]+)"
        self.routes = (
            web.Route("GET", "/v1/instances/types", "offers", self._types),
            web.Route("GET", "/v1/instances", "list", self._list),
            web.Route("POST", "/v1/instances/create", "create", self._create),
            web.Route("GET", f"{one}/info", "find", self._info),
            web.Route("POST", f"{one}/update", "update", self._update),
            web.Route("POST", f"{one}/restart", "update", self._restart),
            web.Route("POST", f"{one}/delete", "delete", self._delete),
            web.Route("GET", "/v1/sshkeys", "keys", self._list_keys),
            web.Route("POST", "/v1/sshkeys/add", "keys", self._add_key),
            web.Route("GET", f"{key_route}/info", "keys", self._key_info),
            web.Route("POST", f"{key_route}/setdefault", "keys", self._set_default_key),
            web.Route("POST", f"{key_route}/delete", "keys", self._delete_key),
            web.Route("GET", "/v1/volumes", "volumes", lambda asked: web.Answer(200, {"volumes": [self._volume]})),
            web.Route("GET", "/v1/volumes/([^/]+)/info", "volumes", self._volume_info),
        )

    def authenticate(self, asked: web.WebRequest) -> web.Answer | bool:
        if asked.headers.get("x-api-key") != self._key:
            return web.Answer(401, {"message": "Invalid API key"})
        return True

    def error(self, status: int, words: str) -> web.Answer:
        return web.Answer(status, {"error": words})

    def refusal_answer(self, error: Exception, asked: web.WebRequest) -> web.Answer:
        reason = error.reason if isinstance(error, Refused) else ""
        if reason == "stock":
            return web.Answer(409, {"error_code": "OUT_OF_STOCK", "error": "The instance type is out of stock"})
        if reason == "funds":
            return web.Answer(400, {"error_code": "INSUFFICIENT_FUNDS", "error": f"Wallet balance too low: {error}"})
        return self.error(404, "not found")

    def _types(self, asked: web.WebRequest) -> web.Answer:
        groups: dict[tuple[str, str], list[Offer]] = {}
        for offer in self._market.offers.values():
            if offer.vendor == self.vendor:
                groups.setdefault((offer.cloud, offer.kind), []).append(offer)
        rows = [self._type(offers) for offers in groups.values()]
        for name, value in asked.query.items():
            if name == "num_gpus":
                rows = [row for row in rows if str(row["configuration"]["num_gpus"]) == value]
            elif name == "gpu_type":
                rows = [row for row in rows if row["configuration"]["gpu_type"] == value]
            elif name in ("cloud", "shade_instance_type"):
                rows = [row for row in rows if row[name] == value]
            elif name == "region":
                rows = [row for row in rows if any(place["region"] == value for place in row["availability"])]
            elif name == "available":
                wanted = value == "true"
                rows = [row for row in rows if any(place["available"] for place in row["availability"]) == wanted]
        if asked.query.get("sort") == "price":
            rows.sort(key=lambda row: row["hourly_price"])
        return web.Answer(200, {"instance_types": rows})

    def _type(self, offers: list[Offer]) -> dict[str, Any]:
        offer = offers[0]
        places = [
            {"region": one.region, "available": self._market.free(one.offer_id) > 0, "display_name": one.region}
            for one in offers
        ]
        return {
            "cloud": offer.cloud,
            "shade_instance_type": offer.kind,
            "cloud_instance_type": f"{offer.cloud}_{offer.kind}",
            "configuration": {**_configuration(offer), "os_options": [OS]},
            "hourly_price": _cents(offer.micro_usd_per_hour),
            "deployment_type": "vm",
            "availability": places,
            "boot_time": BOOT,
        }

    def _create(self, asked: web.WebRequest) -> web.Answer:
        wish = asked.decode(Create)
        key = self._ssh_keys.get(wish.ssh_key_id or self._default_key)
        if wish.ssh_key_id and key is None:
            raise web.Invalid(f"ssh key {wish.ssh_key_id} not found")
        if len(wish.volume_ids) > 1:
            raise web.Invalid("at most one volume")
        place = (self._volume["id"], self._volume["cloud"], self._volume["region"])
        if wish.volume_ids and (wish.volume_ids[0], wish.cloud, wish.region) != place:
            raise web.Invalid(f"volume {wish.volume_ids[0]} is not in {wish.cloud} {wish.region}")
        if wish.os not in (None, OS):
            raise web.Invalid(f"os {wish.os} is not offered by this instance type")
        order = Order(
            offer_id="/".join(("shadeform", wish.cloud, wish.shade_instance_type, wish.region)),
            name=wish.name,
            public_keys=(key["public_key"],) if key else (),
            script=_script(wish.launch_configuration),
            volume="".join(wish.volume_ids),
            **_limits(wish.auto_delete),
            about={"wish": wish, "key": key, "tags": wish.tags, "auto_delete": wish.auto_delete, "alert": wish.alert},
        )
        if order.offer_id not in self._market.offers:
            raise web.Invalid(f"{wish.cloud} has no {wish.shade_instance_type} in {wish.region}")
        machine = self._market.create(order, self._hub.faults.for_order(self.vendor, order.offer_id))
        if wish.auto_delete and machine.expires_at != order.expires_at:  # the response shows the armed time limit
            machine.about["auto_delete"] = msgspec.structs.replace(
                wish.auto_delete, date_threshold=iso(machine.expires_at)
            )
        return web.Answer(200, {"id": machine.machine_id})

    def _list(self, asked: web.WebRequest) -> web.Answer:
        rows = [self._instance(one) for one in self._list_machines()]
        return web.Answer(200, {"instances": [{k: v for k, v in row.items() if k not in INFO_ONLY} for row in rows]})

    def _info(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, self._instance(self._get(asked)))

    def _delete(self, asked: web.WebRequest) -> web.Answer:
        self._market.delete(self._get(asked).machine_id)
        return web.Answer(200)

    def _restart(self, asked: web.WebRequest) -> web.Answer:
        self._get(asked)
        return web.Answer(200)

    def _update(self, asked: web.WebRequest) -> web.Answer:
        """Change the given fields; null removes a value."""
        machine, wish = self._get(asked), asked.decode(Update)
        for name in ("tags", "auto_delete", "alert", "name"):
            value = getattr(wish, name)
            if value is not msgspec.UNSET:
                machine.about[name] = value
        if wish.auto_delete is not msgspec.UNSET:
            limits = _limits(wish.auto_delete)
            machine.expires_at, machine.spend_limit_micro_usd = limits["expires_at"], limits["spend_limit_micro_usd"]
        return web.Answer(200)

    def _volume_info(self, asked: web.WebRequest) -> web.Answer:
        if asked.words[0] != self._volume["id"]:
            return self.error(404, "not found")
        return web.Answer(200, self._volume)

    def _list_machines(self) -> list[Machine]:
        return self._market.list_machines(self.vendor, self._hub.faults.lag_s(self.vendor))

    def _get(self, asked: web.WebRequest) -> Machine:
        found = [one for one in self._list_machines() if one.machine_id == asked.words[0] and one.state != "gone"]
        if not found:
            raise Refused("unknown", "not found")
        return found[0]

    def _instance(self, machine: Machine) -> dict[str, Any]:
        offer, about, now = machine.offer, machine.about, self._market.now
        wish: Create = about["wish"]
        is_up = machine.state == "running" and machine.address is not None
        host = machine.address[0] if machine.address else None
        port = machine.reported_port(now)
        status = {"stopped": "error", "failed": "error", "gone": "deleting"}.get(machine.state, machine.state)
        if status == "booting":
            status = machine.stage(now)
        elif status == "running":
            status = "active" if is_up else "pending"
        bill = self._market.reported_bill_micro_usd(machine)
        shown = {
            "id": machine.machine_id,
            "cloud": offer.cloud,
            "region": offer.region,
            "shade_instance_type": offer.kind,
            "cloud_instance_type": f"{offer.cloud}_{offer.kind}",
            "cloud_assigned_id": f"c-{machine.machine_id}",
            "shade_cloud": wish.shade_cloud,
            "name": about.get("name") or wish.name,
            "configuration": {**_configuration(offer), "os": OS},
            "ip": host,
            "ssh_user": getpass.getuser(),
            "ssh_port": port,
            "status": status,
            "status_details": machine.ended_by or status,
            "cost_estimate": f"{bill / 1e6:.2f}" if bill else "0",
            "hourly_price": _cents(machine.micro_usd_per_hour),
            "active_at": iso(machine.active_at if is_up else None),
            "created_at": iso(machine.created_at),
            "deleted_at": None,
            "tags": about["tags"] or [],
            "envs": msgspec.to_builtins(wish.envs),
            "port_mappings": [],
            "volume_ids": wish.volume_ids,
            "boot_time": BOOT,
        }
        if about["key"]:
            shown["ssh_key_id"] = about["key"]["id"]
        for name in ("auto_delete", "alert"):
            if about[name] and (is_up or not machine.has("no end at boot")):
                shown[name] = _without_nulls(about[name])
        if wish.launch_configuration:
            shown["launch_configuration"] = _without_nulls(wish.launch_configuration)
        return shown

    def _list_keys(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, {"ssh_keys": [self._render_key(one) for one in self._ssh_keys.values()]})

    def _add_key(self, asked: web.WebRequest) -> web.Answer:
        wish = asked.decode(Key)
        if any(one["name"] == wish.name for one in self._ssh_keys.values()):
            raise web.Invalid("name must be unique")
        if len(wish.public_key.split()) < 2:
            raise web.Invalid("public_key is not a valid SSH public key")
        key_id = str(uuid.uuid4())
        self._ssh_keys[key_id] = {"id": key_id, "name": wish.name, "public_key": wish.public_key}
        return web.Answer(200, {"id": key_id})

    def _key_info(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, self._render_key(self._ssh_key(asked)))

    def _set_default_key(self, asked: web.WebRequest) -> web.Answer:
        self._default_key = self._ssh_key(asked)["id"]
        return web.Answer(200)

    def _delete_key(self, asked: web.WebRequest) -> web.Answer:
        del self._ssh_keys[self._ssh_key(asked)["id"]]
        return web.Answer(200)

    def _ssh_key(self, asked: web.WebRequest) -> dict[str, Any]:
        if asked.words[0] not in self._ssh_keys:
            raise Refused("unknown", "not found")
        return self._ssh_keys[asked.words[0]]

    def _render_key(self, key: dict[str, Any]) -> dict[str, Any]:
        return {**key, "is_default": key["id"] == self._default_key}


def _configuration(offer: Offer) -> dict[str, Any]:
    row = offer.about
    return {
        "memory_in_gb": row.memory_gb,
        "storage_in_gb": row.disk_gb,
        "vcpus": row.cpus,
        "num_gpus": row.num_gpus,
        "gpu_type": GPU_TYPES.get(row.gpu, row.gpu),
        "interconnect": "sxm" if row.nvlink else "pcie",
        "nvlink": row.nvlink,
        "vram_per_gpu_in_gb": row.vram_gb,
        "gpu_manufacturer": "nvidia",
    }


def _cents(amount_micro_usd: int) -> int:
    return round(amount_micro_usd / 10_000)


def _limits(wish: Threshold | None) -> dict[str, Any]:
    """Return the limits of an order. Raises Invalid."""
    try:
        date, spend = (wish.date_threshold, wish.spend_threshold) if wish else (None, None)
        return {
            "expires_at": parse_iso(date) if date else None,
            "spend_limit_micro_usd": micro_usd(spend) if spend else None,
        }
    except ValueError as error:
        raise web.Invalid(f"auto_delete: {error}") from None


def _script(launch: Launch | None) -> str:
    """Return the script to run on the machine. Containers are not run, because this machine may have no Docker."""
    if launch is None or launch.script_configuration is None:
        return ""
    try:
        return base64.b64decode(launch.script_configuration.base64_script, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise web.Invalid("base64_script is not base64") from None


def _without_nulls(record: msgspec.Struct) -> Any:
    def strip(value: Any) -> Any:
        return {key: strip(one) for key, one in value.items() if one is not None} if isinstance(value, dict) else value

    return strip(msgspec.to_builtins(record))
