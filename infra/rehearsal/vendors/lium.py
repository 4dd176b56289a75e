"""Lium's API, simulated: single hosts ("executors"), each rented whole.

Prices are dollars per GPU-hour on offers, and per hour on pods. Rent requests support idempotency keys. Source:
requests and responses of the vendor's own client of 2026; no API document exists.
"""

import getpass
import secrets
import uuid
from datetime import datetime, timezone
from typing import Annotated, Any

import msgspec

from infra.rehearsal import web
from infra.rehearsal.clock import iso, parse_iso
from infra.rehearsal.market import Market
from infra.rehearsal.offers import VOLUME, dollars
from infra.rehearsal.records import Machine, Offer, Order, Refused, rate

STRANGERS = {
    "id": "b2c1a0de-0000-4000-a000-000000000002",
    "name": "PyTorch, and a miner",
    "docker_image": "daturaai/pytorch",
    "docker_image_tag": "2.9.1-py3.12-cuda12.8-ubuntu24.04",
    "status": "VERIFY_SUCCESS",
    "volumes": ["/root"],
    "internal_ports": [22],
    "environment": {},
    "startup_commands": "touch strangers-command",
    "is_private": False,
    "user_id": "somebody",
}
TEMPLATE = {
    "id": "b2c1a0de-0000-4000-a000-000000000001",
    "name": "PyTorch",
    "docker_image": "daturaai/pytorch",
    "docker_image_tag": "2.9.1-py3.12-cuda12.8-ubuntu24.04",
    "status": "VERIFY_SUCCESS",
    "volumes": ["/root"],
    "internal_ports": [22],
    "environment": {},
    "startup_commands": "",
    "is_private": False,
}
FEATURES = ["rent_by_spec", "rent_idempotency", "run_record"]
RICH_MICRO_USD = 1_000_000_000
LONGEST_H = 720
CODES = {
    400: "bad_request",
    401: "unauthorized",
    402: "API_KEY_BUDGET_EXCEEDED",
    403: "forbidden",
    404: "not_found",
    409: "conflict",
    422: "validation_error",
    429: "rate_limited",
}
Word = Annotated[str, msgspec.Meta(min_length=1)]


class Rent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pod_name: Word
    user_public_key: Annotated[list[Word], msgspec.Meta(min_length=1)]
    template_id: str | None = None
    dockerfile_content: str | None = None
    gpu_count: int | None = None
    initial_port_count: int | None = None
    volume_id: str | None = None
    termination_hours: Annotated[int, msgspec.Meta(ge=1, le=LONGEST_H)] | None = None
    enable_backups: bool = True
    enable_volume_encryption: bool = False
    backup_log_id: str | None = None
    restore_path: str | None = None


class Template(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Word
    docker_image: Word
    docker_image_tag: str = ""
    docker_image_digest: str = ""
    internal_ports: list[int] = []
    startup_commands: str = ""
    category: str = "UBUNTU"
    container_start_immediately: bool = True
    description: str = ""
    entrypoint: str = ""
    environment: dict[str, str] = {}
    is_private: bool = True
    one_time_template: bool = False
    is_temporary: bool = False
    readme: str = ""
    volumes: list[str] = []


class Removal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    removal_scheduled_at: str


class Key(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    public_key: str


class Problem(Exception):
    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


class Lium(web.Api):
    vendor = "lium"
    invalid_status = 422
    refusals = (Refused, Problem)

    def __init__(self, market: Market, hub: web.Hub, key: str, read_key: str, end_key: str = "") -> None:
        self._market, self._hub = market, hub
        self._keys: dict[str, bool | frozenset[str]] = {key: True, read_key: False}
        if end_key:
            self._keys[end_key] = frozenset({"manage"})
        self._ssh_keys: list[dict[str, str]] = []
        self._volume = {"id": VOLUME, "name": "rehearsal", "description": ""}
        # A listing includes public templates of other users, in any order.
        self._templates: dict[str, dict[str, Any]] = {str(one["id"]): one for one in (STRANGERS, TEMPLATE)}
        self._executors = {
            _executor_id(one): one.offer_id for one in market.offers.values() if one.vendor == self.vendor
        }
        one = r"/api/pods/([^/]+)"
        self.routes = (
            web.Route("GET", "/api/version", "version", lambda asked: web.Answer(200, {"features": FEATURES})),
            web.Route("GET", "/api/public/v1/nodes", "offers", self._nodes),
            web.Route("GET", "/api/executors", "offers", self._list_executors),
            web.Route("GET", "/api/executors/default-docker-image", "offers", self._default_images),
            web.Route("GET", "/api/machines", "offers", self._machines),
            web.Route("GET", "/api/executors/([^/]+)/quote", "offers", self._quote),
            web.Route("POST", "/api/executors/([^/]+)/rent", "create", self._rent),
            web.Route("GET", "/api/pods", "list", self._list),
            web.Route("GET", one, "find", self._find),
            web.Route("DELETE", one, "delete", self._delete),
            web.Route("GET", f"{one}/events", "events", self._events),
            web.Route("GET", f"{one}/record", "billing", self._record),
            web.Route("POST", f"{one}/schedule-removal", "update", self._schedule),
            web.Route("DELETE", f"{one}/schedule-removal", "update", self._unschedule),
            web.Route("POST", f"{one}/reboot", "update", self._reboot),
            web.Route("GET", "/api/ssh-keys", "keys", lambda asked: web.Answer(200, self._ssh_keys)),
            web.Route("POST", "/api/ssh-keys", "keys", self._add_key),
            web.Route("GET", "/api/templates", "templates", lambda asked: web.Answer(200, [*self._templates.values()])),
            web.Route("POST", "/api/templates", "templates", self._add_template),
            web.Route("GET", "/api/templates/([^/]+)", "templates", self._template),
            web.Route("GET", "/api/volumes", "volumes", lambda asked: web.Answer(200, [self._volume])),
            web.Route("GET", "/api/volumes/([^/]+)", "volumes", self._find_volume),
            web.Route("GET", "/api/users/me", "account", self._me),
            web.Route("GET", "/api/users/me/events", "events", self._account_events),
            web.Route("GET", "/api/billing/statement", "billing", self._statement),
        )

    def authenticate(self, asked: web.WebRequest) -> web.Answer | bool | frozenset[str]:
        if asked.path.startswith("/api/public/"):
            return False
        right = self._keys.get(asked.headers.get("x-api-key", ""))
        return self.error(401, "Invalid API key") if right is None else right

    def headers(self) -> dict[str, str]:
        return {"X-Request-Id": secrets.token_hex(8)}

    def error(self, status: int, words: str) -> web.Answer:
        error = {
            "code": CODES.get(status, "internal"),
            "message": words,
            "hint": "",
            "request_id": secrets.token_hex(8),
        }
        return web.Answer(status, {"error": error, "detail": words})

    def refusal_answer(self, error: Exception, asked: web.WebRequest) -> web.Answer:
        if isinstance(error, Refused):
            if error.reason == "funds":
                return self.error(403, f"Insufficient balance: this rental {error}")
            status = {"unknown": 404, "budget": 402}.get(error.reason, 409)
            return self.error(status, str(error))
        return self.error(error.status if isinstance(error, Problem) else 400, str(error))

    # -- offers

    def _free(self) -> list[tuple[str, Offer]]:
        pairs = [(key, self._market.offers[offer_id]) for key, offer_id in self._executors.items()]
        return [(key, offer) for key, offer in pairs if self._market.free(offer.offer_id)]

    def _list_executors(self, asked: web.WebRequest) -> web.Answer:
        rows = [self._executor(key, offer) for key, offer in self._free()]
        query = asked.query
        if query.get("view", "full") not in ("summary", "full"):
            raise Problem(422, "view is summary or full")
        names = [one for one in query.get("machine_names", "").split(",") if one]
        rows = [row for row in rows if not names or row["machine_name"] in names]
        try:
            least, most = int(query.get("gpu_count_gte", "0")), int(query.get("gpu_count_lte", "1000"))
            fast = float(query.get("min_download_mbps", "0"))
        except ValueError as error:
            raise Problem(422, str(error)) from None
        rows = [row for row in rows if least <= row["gpu_count"] <= most]
        rows = [row for row in rows if not fast or (row["effective_download_speed_mbps"] or 0) >= fast]
        if query.get("nvlink") == "true":
            rows = [row for row in rows if row["nvlink"]]
        return web.Answer(200, rows)

    def _executor(self, key: str, offer: Offer) -> dict[str, Any]:
        row = offer.about
        gpu = {
            "count": row.num_gpus,
            "driver": "580.65",
            "details": [{"name": row.chip, "capacity": row.vram_gb << 10}],  # in MiB; a "GB" has 1024 MiB
        }
        return {
            "id": key,
            "machine_name": row.kind,
            "executor_ip_address": "127.0.0.1",
            "gpu_count": row.num_gpus,
            "available_gpu_count": row.num_gpus,
            "min_gpu_count_for_rental": None,
            "price_per_gpu": _per_gpu(offer),
            "status": "AVAILABLE",
            "tier": "spot" if row.spot else "secure",
            "location": _location(offer),
            "effective_upload_speed_mbps": row.up_mbps,
            "effective_download_speed_mbps": row.down_mbps,
            "max_cuda_version": 13.0,
            "nvlink": row.nvlink,
            "interconnect": {"gpu_count": row.num_gpus, "nvlink": row.nvlink, "p2p": True},
            "gpu_power_limited": False,
            "frequent_rent_failures": False,
            "reliability_score": 97.2,
            "last_verified_at": iso(self._market.now),
            "specs": {
                "gpu": gpu,
                "cpu": {"count": row.cpus, "model": "EPYC"},
                "available_port_count": 40,
                "sysbox_runtime": False,
                "ram": {"total": row.memory_gb << 20, "pod_reserve": 10 << 20},
                "hard_disk": {"total": row.disk_gb << 20, "free": row.disk_gb << 20},
                "network": {"upload_speed": row.up_mbps, "download_speed": row.down_mbps},
            },
        }

    def _nodes(self, asked: web.WebRequest) -> web.Answer:
        nodes = []
        for key, offer in self._free():
            row = offer.about
            nodes.append(
                {
                    "id": key,
                    "gpu_model": row.kind,
                    "gpu_count": row.num_gpus,
                    "available_gpu_count": row.num_gpus,
                    "min_rentable_gpu_count": row.num_gpus,
                    "price_per_gpu_hour": _per_gpu(offer),
                    "gpu_memory_gb": row.vram_gb,
                    "cpu_count": row.cpus,
                    "ram_gb": row.memory_gb,
                    "disk_free_gb": row.disk_gb,
                    "country_code": offer.region,
                    "region": row.city,
                    "tier": "spot" if row.spot else "secure",
                    "rent_url": f"/nodes/{key}",
                }
            )
        return web.Answer(200, {"nodes": nodes})

    def _machines(self, asked: web.WebRequest) -> web.Answer:
        kinds = dict.fromkeys(self._market.offers[offer_id].kind for offer_id in self._executors.values())
        return web.Answer(200, [{"name": kind} for kind in kinds])

    def _default_images(self, asked: web.WebRequest) -> web.Answer:
        images = [{name: TEMPLATE[name] for name in ("docker_image", "docker_image_tag")}]
        return web.Answer(200, [{"docker_image": "ubuntu", "docker_image_tag": "24.04"}, *images])

    def _quote(self, asked: web.WebRequest) -> web.Answer:
        offer = self._offer(asked)
        try:
            hours = float(asked.query.get("hours", "1"))
        except ValueError as error:
            raise Problem(422, str(error)) from None
        hourly = dollars(offer.micro_usd_per_hour)
        return web.Answer(200, {"price_per_hour": hourly, "hours": hours, "total": hourly * hours})

    def _offer(self, asked: web.WebRequest) -> Offer:
        if asked.words[0] not in self._executors:
            raise Problem(404, "Invalid executor id")
        return self._market.offers[self._executors[asked.words[0]]]

    # -- pods

    def _rent(self, asked: web.WebRequest) -> web.Answer:
        offer, wish = self._offer(asked), asked.decode(Rent)
        if (wish.template_id is None) == (wish.dockerfile_content is None):
            raise Problem(400, "exactly one of template_id and dockerfile_content is needed")
        if wish.template_id is not None and wish.template_id not in self._templates:
            raise Problem(404, "Template not found")
        if wish.gpu_count not in (None, offer.num_gpus):
            raise Problem(400, "this node is rented whole")
        if wish.volume_id not in (None, self._volume["id"]):
            raise Problem(404, "Volume not found")
        key = asked.headers.get("idempotency-key", "")
        hours = wish.termination_hours
        order = Order(
            offer_id=offer.offer_id,
            name=wish.pod_name,
            spot=offer.about.spot,
            replay_key=key,
            expires_after_boot_s=hours * 3600.0 if hours else None,
            public_keys=tuple(wish.user_public_key),
            volume=wish.volume_id or "",
            script=self._templates.get(wish.template_id or "", TEMPLATE)["startup_commands"],
            about={"wish": wish},
        )
        # A repeated rent request is not a new order, and so uses up no fault of the plan.
        known = self._market.find_replayed(self.vendor, key)
        machine = known or self._market.create(order, self._hub.faults.for_order(self.vendor, order.offer_id))
        headers = {"Idempotent-Replayed": "true"} if known else {}
        return web.Answer(200, {"success": True, "pod_id": machine.machine_id}, headers)

    def _list_machines(self) -> list[Machine]:
        return self._market.list_machines(self.vendor, self._hub.faults.lag_s(self.vendor))

    def _get(self, asked: web.WebRequest) -> Machine:
        found = [one for one in self._list_machines() if one.machine_id == asked.words[0] and one.state != "gone"]
        if not found:
            raise Problem(404, "Pod not found")
        return found[0]

    def _list(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, [self._pod(one) for one in self._list_machines() if one.is_listed])

    def _find(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, self._pod(self._get(asked)))

    def _delete(self, asked: web.WebRequest) -> web.Answer:
        if not self._market.delete(self._get(asked).machine_id):
            raise Problem(404, "Pod not found")
        return web.Answer(200, {"success": True})

    def _events(self, asked: web.WebRequest) -> web.Answer:
        """Return the events of a pod, including gone pods."""
        machine = self._get_including_ended(asked)
        rows = []
        for at, what in machine.history:
            state, _, reason = what.partition(": ")
            rows.append({"created_at": iso(at), "event": state, "reason": reason or None})
        return web.Answer(200, rows)

    def _account_events(self, asked: web.WebRequest) -> web.Answer:
        """Return the events of the account, newest first; events keep ids and names of gone pods."""
        pod_id, since = asked.query.get("pod_id"), asked.query.get("since", "")
        told = [
            (at, what, machine)
            for machine in self._market.machines.values()
            if machine.offer.vendor == self.vendor and pod_id in (None, machine.machine_id)
            for at, what in machine.history
            if (iso(at) or "") >= since
        ]
        rows = [
            {
                "created_at": iso(at),
                "pod_id": machine.machine_id,
                "pod_name": machine.order.name,
                "to_status": "DELETED" if what.startswith("gone") else what.partition(": ")[0].upper(),
            }
            for at, what, machine in sorted(told, key=lambda one: one[0], reverse=True)
        ]
        limit = asked.query.get("limit", "200")
        return web.Answer(200, rows[: int(limit) if limit.isdigit() else 200])

    def _record(self, asked: web.WebRequest) -> web.Answer:
        machine = self._get_including_ended(asked)
        return web.Answer(
            200,
            {
                "pod_id": machine.machine_id,
                "pod_name": machine.order.name,
                "status": self._status(machine),
                "created_at": iso(machine.created_at),
                "removed_at": iso(machine.ended_at),
                "billed_seconds": round((machine.ended_at or self._market.now) - machine.created_at),
                "total": dollars(self._market.reported_bill_micro_usd(machine)),
            },
        )

    def _get_including_ended(self, asked: web.WebRequest) -> Machine:
        machine = self._market.get(asked.words[0])
        if machine.offer.vendor != self.vendor:
            raise Problem(404, "Pod not found")
        return machine

    def _schedule(self, asked: web.WebRequest) -> web.Answer:
        machine, wish = self._get(asked), asked.decode(Removal)
        try:
            at = parse_iso(wish.removal_scheduled_at)
        except ValueError as error:
            raise Problem(422, str(error)) from None
        if at <= self._market.now:
            raise Problem(400, "removal_scheduled_at is in the past")
        if not machine.has("whole hours"):
            self._market.arm_timer(machine, at)
        return web.Answer(200, self._pod(machine))

    def _unschedule(self, asked: web.WebRequest) -> web.Answer:
        machine = self._get(asked)
        machine.expires_at = None
        return web.Answer(200, self._pod(machine))

    def _reboot(self, asked: web.WebRequest) -> web.Answer:
        machine = self._get(asked)
        self._market.stop(machine.machine_id, "reboot")
        self._market.start(machine.machine_id)
        return web.Answer(200, self._pod(machine))

    def _status(self, machine: Machine) -> str:
        if machine.state == "running":
            return "RUNNING" if machine.address else "PENDING"
        known = {"booting": "PENDING", "failed": "CREATION_FAILED", "stopped": "STOPPED", "deleting": "DELETING"}
        return known.get(machine.state, "DELETED")

    def _pod(self, machine: Machine) -> dict[str, Any]:
        offer, row, port = machine.offer, machine.offer.about, machine.reported_port(self._market.now)
        status = self._status(machine)
        ready_s = machine.stages[-1][1] - self._market.now if status == "PENDING" else 0
        host = machine.address[0] if machine.address else ""
        is_silent = status == "PENDING" and machine.has("no end at boot")
        return {
            "id": machine.machine_id,
            "pod_name": machine.order.name,
            "status": status,
            "ssh_connect_cmd": f"ssh {getpass.getuser()}@{host} -p {port}" if port else None,
            "ports_mapping": {"22": port} if port else {},
            "gpu_name": row.kind,
            "gpu_count": str(row.num_gpus),
            "cpu_name": "EPYC",
            "ram_total": row.memory_gb << 20,
            "price": dollars(rate(machine)),
            "created_at": _zoneless(machine.created_at),
            "updated_at": _zoneless(self._market.now),
            "removal_scheduled_at": None if is_silent else iso(machine.expires_at),
            "local_volume_path": "/root",
            "phase": (machine.stage(self._market.now) or "configuring ssh") if status == "PENDING" else None,
            "estimated_ready_seconds": max(0, round(ready_s)) if status == "PENDING" else None,
            "eta_basis": None,
            "workspace_id": None,
            "api_key_id": "k1",
            "api_key_name": "rehearsal",
            "cluster_id": None,
            "executor": {"id": _executor_id(offer), "machine_name": row.kind, "location": _location(offer)},
            "template": self._templates.get(machine.about["wish"].template_id or "", TEMPLATE),
        }

    # -- keys, templates, money

    def _add_key(self, asked: web.WebRequest) -> web.Answer:
        self._ssh_keys.append({"id": str(uuid.uuid4()), **msgspec.to_builtins(asked.decode(Key))})
        return web.Answer(200, self._ssh_keys[-1])

    def _add_template(self, asked: web.WebRequest) -> web.Answer:
        key = str(uuid.uuid4())
        self._templates[key] = {"id": key, "status": "CREATED", **msgspec.to_builtins(asked.decode(Template))}
        return web.Answer(200, self._templates[key])

    def _template(self, asked: web.WebRequest) -> web.Answer:
        if asked.words[0] not in self._templates:
            raise Problem(404, "Template not found")
        return web.Answer(200, self._templates[asked.words[0]])

    def _find_volume(self, asked: web.WebRequest) -> web.Answer:
        if asked.words[0] != self._volume["id"]:
            raise Problem(404, "Volume not found")
        return web.Answer(200, self._volume)

    def _me(self, asked: web.WebRequest) -> web.Answer:
        balance = self._market.balance_micro_usd.get(self.vendor, RICH_MICRO_USD) - self._market.spent_micro_usd(
            self.vendor
        )
        return web.Answer(200, {"id": "u1", "email": "rehearsal@localhost", "balance": dollars(balance)})

    def _statement(self, asked: web.WebRequest) -> web.Answer:
        machines = [one for one in self._market.machines.values() if one.offer.vendor == self.vendor]
        pods = [
            {
                "pod_id": one.machine_id,
                "pod_name": one.order.name,
                "days": [],
                "total": dollars(self._market.reported_bill_micro_usd(one)),
            }
            for one in machines
        ]
        return web.Answer(200, {"total": sum(pod["total"] for pod in pods), "pods": pods})


def _executor_id(offer: Offer) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, offer.offer_id))


def _per_gpu(offer: Offer) -> float:
    return dollars(round(offer.micro_usd_per_hour / offer.num_gpus))


def _location(offer: Offer) -> dict[str, Any]:
    return {
        "country": offer.region,
        "country_code": offer.region,
        "region_name": offer.about.city,
        "city": offer.about.city,
    }


def _zoneless(at: float) -> str:
    """Return a UTC time as text without a time zone."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")
