"""RunPod's REST v2, simulated. Prices are dollars per GPU-hour in the catalog, per pod-hour on a pod.

Source: the vendor's API document of 2026-08-20 (v2).
"""

import base64
import contextlib
import getpass
import re
import secrets
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import responses
from typing import Annotated, Any, Literal

import msgspec

from infra.rehearsal import web
from infra.rehearsal.clock import iso
from infra.rehearsal.market import ENDED, Market
from infra.rehearsal.offers import VOLUME, dollars, volume_at
from infra.rehearsal.records import Machine, Offer, Order, Refused, rate
from infra.rehearsal.vendors.graphql import QueryError

# disk of a running pod; a persistent disk costs twice as much while the pod is stopped
MICRO_USD_PER_GB_MONTH = 100_000
MONTH_H = 730
NO_CAPACITY = "There are no longer any instances available with the requested specifications."
MOST_GPUS = 8  # per machine
NEWEST_CUDA = (13, 0)
STARTS_SSHD = ("sshd", "service ssh", "/start.sh")
ACTIONS = {
    "PROVISIONING": ["stop", "terminate"],
    "STARTING": ["stop", "terminate"],
    "RUNNING": ["stop", "restart", "terminate"],
    "EXITED": ["start", "terminate"],
    "ERROR": ["start", "terminate"],
    "TERMINATED": [],
}
QUOTA = {
    "RateLimit": '"minute";r=599;t=60, "hour";r=29999;t=3600',
    "RateLimit-Policy": '"minute";q=600;w=60, "hour";q=30000;w=3600',
}
Version = Annotated[str, msgspec.Meta(pattern=r"^\d+\.\d+$")]
Word = Annotated[str, msgspec.Meta(min_length=1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


class Gpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    count: Positive | msgspec.UnsetType = msgspec.UNSET
    allowedCudaVersions: list[Version] = []
    minCudaVersion: Version = "0.0"
    minRamPerGpu: Positive | msgspec.UnsetType = msgspec.UNSET  # GB
    minVcpuCountPerGpu: Positive | msgspec.UnsetType = msgspec.UNSET


class Cpu(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    id: str
    vcpuCount: Positive = 2


class Persistent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    size: Annotated[int, msgspec.Meta(ge=10)]
    path: str


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    volumeId: str
    path: str


class Mounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    persistent: Persistent | msgspec.UnsetType = msgspec.UNSET
    network: Annotated[list[Network], msgspec.Meta(max_length=1)] = []


class Create(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Word
    image: str | msgspec.UnsetType = msgspec.UNSET
    templateId: Word | msgspec.UnsetType = msgspec.UNSET
    gpu: Gpu | msgspec.UnsetType = msgspec.UNSET
    cpu: Cpu | msgspec.UnsetType = msgspec.UNSET
    cloud: Literal["SECURE", "COMMUNITY"] = "SECURE"
    dataCenterIds: list[str] = []
    disk: Positive = 20
    mounts: Mounts = Mounts()
    ports: list[str] = []
    env: dict[str, str] = {}
    args: str = ""
    entrypoint: list[str] = []  # like `cmd`, a newer field of the API
    cmd: list[str] = []
    registry: str | None = None
    startSsh: bool = False
    startJupyter: bool = False
    globalNetworking: bool = False


class Action(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: Literal["start", "stop", "restart", "terminate"]


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    keys: list[Annotated[str, msgspec.Meta(pattern=r"^(ssh|ecdsa|sk)-[^\s]+ [^\s]+([ \t][^\n\r]*)?$")]]


@dataclass(frozen=True, kw_only=True)
class Host:
    """The minimum CPUs and memory of the host of a pod. Rows of offers are single GPUs."""

    cpus: int
    memory_gb: int


class Problem(Exception):
    """Raised to refuse a request with a status and the vendor's message."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Runpod(web.Api):
    vendor = "runpod"
    invalid_status = 422
    refusals = (Refused, Problem, QueryError)

    def __init__(self, market: Market, hub: web.Hub, key: str, read_key: str) -> None:
        self._market, self._hub, self._keys = market, hub, {f"Bearer {key}": True, f"Bearer {read_key}": False}
        self._ssh_keys: list[str] = []
        self._pod_keys: dict[str, str] = {}  # API key in the environment of each machine, by machine id
        _, center = volume_at(market.offers.values(), self.vendor)
        self._volume = {"id": VOLUME, "name": "rehearsal", "size": 500, "dataCenter": center, "type": "STANDARD"}
        one = r"/v2/pods/([^/]+)"
        self.routes = (
            web.Route("GET", "/v2/catalog/gpus", "offers", self._catalog),
            web.Route("GET", "/v2/catalog/gpus/([^/]+)", "offers", self._catalog_one),
            web.Route("POST", "/v2/pods", "create", self._create),
            web.Route("GET", "/v2/pods", "list", self._list),
            web.Route("GET", one, "find", self._find),
            web.Route("DELETE", one, "delete", self._delete),
            web.Route("POST", f"{one}/action", "update", self._act),
            web.Route("GET", "/v2/billing/pods", "billing", self._billing),
            web.Route("GET", "/v2/account/ssh-keys", "keys", self._list_keys),
            web.Route("PUT", "/v2/account/ssh-keys", "update", self._put_keys),
            web.Route(
                "GET", "/v2/network-volumes", "volumes", lambda _: web.Answer(200, {"networkVolumes": [self._volume]})
            ),
            web.Route("GET", "/v2/network-volumes/([^/]+)", "volumes", self._find_volume),
            web.Route("GET", "/v2/registries", "volumes", lambda _: web.Answer(200, {"registries": []})),
        )

    def authenticate(self, asked: web.WebRequest) -> web.Answer | bool:
        if asked.path.startswith("/v1/"):
            return web.Answer(410, {"error": "REST v1 is retired", "status": 410})
        if self.owner(asked):
            return True
        right = self._keys.get(asked.headers.get("authorization", ""))
        return self.error(401, "The API key is not valid.") if right is None else right

    def route(self, asked: web.WebRequest) -> web.Route | web.Answer:
        route, owner = super().route(asked), self.owner(asked)
        # As far as known, a pod's own key works only for GraphQL.
        if owner and not (owner.has("v2 pod key") and asked.path == f"/v2/pods/{owner.machine_id}"):
            return self.error(403, "this API key does not have the scope for that")
        return route

    def owner(self, asked: web.WebRequest) -> Machine | None:
        """Return the live machine that owns the request's API key, or None."""
        word = asked.headers.get("authorization", "")
        machines = [self._market.machines[one] for one, key in self._pod_keys.items() if word == f"Bearer {key}"]
        return next((one for one in machines if one.state not in ENDED and not one.has("no pod key")), None)

    def caller_kind(self, asked: web.WebRequest) -> str:
        """Return the caller for the record of the truth: "pod" or "client"."""
        return "pod" if self.owner(asked) else "client"

    def environ(self, machine: Machine) -> Mapping[str, str]:
        wish: Create = machine.about["wish"]
        key = self._pod_keys.setdefault(machine.machine_id, f"rpa_{secrets.token_hex(20)}")
        return {
            **wish.env,
            "RUNPOD_POD_ID": machine.machine_id,
            "RUNPOD_API_KEY": key,
            "RUNPOD_DC_ID": machine.offer.region,
            "RUNPOD_GPU_COUNT": str(machine.order.quantity),
            "PUBLIC_KEY": "\n".join(machine.order.public_keys),
        }

    def headers(self) -> dict[str, str]:
        return {**QUOTA, "x-request-id": secrets.token_hex(8)}

    def error(self, status: int, words: str) -> web.Answer:
        body: dict[str, Any] = {"title": responses.get(status, "Error"), "status": status, "detail": words}
        if status == 422:
            body |= {"detail": "Request validation failed.", "errors": [f"$: {words}"]}
        return web.Answer(status, body, {"Content-Type": "application/problem+json"})

    def refusal_answer(self, error: Exception, asked: web.WebRequest) -> web.Answer:
        if isinstance(error, Problem):
            return self.error(error.status, str(error))
        if isinstance(error, Refused):
            status = {"stock": 400, "funds": 402, "unknown": 404, "state": 409}[error.reason]
            return self.error(status, NO_CAPACITY if is_taken(error) else str(error))
        raise error

    # -- offers

    def _catalog(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, {"gpus": [row for row in self._rows(asked) if row]})

    def _catalog_one(self, asked: web.WebRequest) -> web.Answer:
        found = [row for row in self._rows(asked) if row["id"] == asked.words[0]]
        if not found:
            raise Problem(404, f"GPU type {asked.words[0]} not found")
        return web.Answer(200, found[0])

    def _rows(self, asked: web.WebRequest) -> list[dict[str, Any]]:
        query = asked.query
        with_stock = "AVAILABILITY" in query.get("include", "")
        only = {"count", "cloud", "countryCodes", "minCudaVersion", "cudaVersions"} & query.keys()
        if (with_stock or only) and query.get("product") != "POD":
            raise Problem(400, "product is required with include=AVAILABILITY and with filters")
        count = query.get("count", "1")
        if not count.isdigit() or int(count) < 1:
            raise Problem(400, "count is a positive integer")
        cloud, countries = (
            query.get("cloud", "SECURE"),
            [one for one in query.get("countryCodes", "").split(",") if one],
        )
        kinds: dict[str, list[Offer]] = {}
        for offer in self.offers():
            kinds.setdefault(offer.kind, []).append(offer)
        rows = []
        for offers in kinds.values():
            row = self._row(offers)
            there = [one for one in offers if cloud_of(one) == cloud and (not countries or one.region[:2] in countries)]
            if with_stock:
                row |= self._availability(there, int(count))
            rows.append(row)
        return rows

    def offers(self) -> list[Offer]:
        return [one for one in self._market.offers.values() if one.vendor == self.vendor]

    def _row(self, offers: list[Offer]) -> dict[str, Any]:
        prices = {cloud_of(one): dollars(one.micro_usd_per_hour) for one in offers}
        first = offers[0]
        return {
            "id": first.kind,
            "name": first.kind.removeprefix("NVIDIA "),
            "pool": None,
            "manufacturer": "NVIDIA",
            "memory": first.about.vram_gb,
            "secure": "SECURE" in prices,
            "community": "COMMUNITY" in prices,
            "price": {"secure": prices.get("SECURE", 0), "community": prices.get("COMMUNITY", 0)},
            "maxCount": {name.lower(): MOST_GPUS * (name in prices) for name in ("SECURE", "COMMUNITY")},
        }

    def _availability(self, offers: list[Offer], count: int) -> dict[str, Any]:
        levels = {one.region: level(self._market.free(one.offer_id), count) for one in offers}
        order = ("HIGH", "MEDIUM", "LOW", "NONE")
        return {
            "availability": min(levels.values(), key=order.index, default="NONE"),
            "dataCenters": [{"id": region, "name": region, "availability": one} for region, one in levels.items()],
            "cudaVersions": [{"version": "13.0", "available": True}, {"version": "12.8", "available": True}],
        }

    # -- pods

    def _create(self, asked: web.WebRequest) -> web.Answer:
        wish = asked.decode(Create)
        if wish.image is msgspec.UNSET and not wish.templateId:
            raise web.Invalid("missing property 'image'")
        if wish.templateId:
            raise Problem(404, f"template {wish.templateId} not found")
        if (wish.gpu is msgspec.UNSET) == (wish.cpu is msgspec.UNSET):
            raise Problem(400, "exactly one of gpu and cpu is required")
        if wish.mounts.persistent and wish.mounts.network:
            raise Problem(400, "mounts takes persistent or network, not both")
        # The vendor gives this misleading message also for a missing count. Pinning a data center excludes community
        # machines.
        gpu = wish.gpu or None
        if gpu is None or not gpu.count or (wish.cloud == "COMMUNITY" and wish.dataCenterIds):
            raise Problem(400, NO_CAPACITY)
        if gpu.allowedCudaVersions and gpu.minCudaVersion != "0.0":
            raise Problem(400, "allowedCudaVersions and minCudaVersion exclude each other")
        if tuple(map(int, gpu.minCudaVersion.split("."))) > NEWEST_CUDA:
            raise Problem(400, NO_CAPACITY)
        least = Host(cpus=(gpu.minVcpuCountPerGpu or 0) * gpu.count, memory_gb=(gpu.minRamPerGpu or 0) * gpu.count)
        machine = self.rent(wish, gpu.id, gpu.count, least)
        return web.Answer(201, self.render_pod(machine))

    def rent(self, wish: Create, gpu: str, count: int, least: Host, **terms: Any) -> Machine:
        """Rent the first available offer of a GPU on a host with at least `least`. Raises Refused, Problem."""
        places, volume = wish.dataCenterIds, wish.mounts.network[0].volumeId if wish.mounts.network else ""
        if volume and volume != self._volume["id"]:
            raise Problem(404, f"network volume {volume} not found")
        if volume and (wish.cloud != "SECURE" or places not in ([], [self._volume["dataCenter"]])):
            raise Problem(400, f"network volume {volume} is in {self._volume['dataCenter']}, Secure Cloud")
        places = [str(self._volume["dataCenter"])] if volume else places
        offers = [one for one in self.offers() if one.kind == gpu and cloud_of(one) == wish.cloud]
        offers = [one for one in offers if not places or one.region in places]
        offers = [one for one in offers if least.cpus <= one.about.cpus * count]
        offers = [one for one in offers if least.memory_gb <= one.about.memory_gb * count]
        command = wish.args or shlex.join([*wish.entrypoint, *wish.cmd])
        keys = [wish.env["PUBLIC_KEY"]] if wish.env.get("PUBLIC_KEY") else self._ssh_keys if wish.startSsh else []
        size_gb = wish.mounts.persistent.size if wish.mounts.persistent else 0
        for offer in offers if count <= MOST_GPUS else []:
            order = Order(
                offer_id=offer.offer_id,
                name=wish.name,
                quantity=count,
                public_keys=tuple(keys),
                # A start command replaces the image's start script, which starts sshd.
                has_sshd=not command or any(word in in_full(command) for word in STARTS_SSHD),
                command=command,
                disk_micro_usd_per_hour=-(-(wish.disk + size_gb) * MICRO_USD_PER_GB_MONTH // MONTH_H),
                stopped_micro_usd_per_hour=size_gb * 2 * MICRO_USD_PER_GB_MONTH // MONTH_H,
                volume=volume,
                about={"wish": wish},
                **terms,
            )
            try:
                return self._market.create(order, self._hub.faults.for_order(self.vendor, offer.offer_id))
            except Refused as error:
                if error.reason != "stock":
                    raise
        raise Refused("stock", NO_CAPACITY)

    @property
    def volume(self) -> dict[str, Any]:
        """Return the account's network volume in the format of GraphQL."""
        return {
            "id": self._volume["id"],
            "name": self._volume["name"],
            "size": self._volume["size"],
            "dataCenterId": self._volume["dataCenter"],
        }

    def list_machines(self) -> list[Machine]:
        return self._market.list_machines(self.vendor, self._hub.faults.lag_s(self.vendor))

    def get(self, pod_id: str) -> Machine:
        """Return a machine. Raises Refused."""
        found = [one for one in self.list_machines() if one.machine_id == pod_id and one.state != "gone"]
        if not found:
            raise Refused("unknown", f"pod {pod_id} not found")
        return found[0]

    def _get_v2(self, pod_id: str) -> Machine:
        """Return a machine visible in REST v2. Raises Refused."""
        machine = self.get(pod_id)
        if self._is_hidden(machine):
            raise Refused("unknown", f"pod {pod_id} not found")
        return machine

    def _is_hidden(self, machine: Machine) -> bool:
        return machine.order.spot and self._hub.faults.plan.hides_spot

    def _list(self, asked: web.WebRequest) -> web.Answer:
        pods = [self.render_pod(one) for one in self.list_machines() if one.is_listed and not self._is_hidden(one)]
        size, start = self._hub.faults.plan.page_size, asked.query.get("cursor", "0")
        if not size:
            return web.Answer(200, {"pods": pods})
        if not start.isdigit():
            raise Problem(400, "the cursor is not one of ours")
        end = int(start) + size
        return web.Answer(200, {"pods": pods[int(start) : end], "nextCursor": str(end) if end < len(pods) else None})

    def _find(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, self.render_pod(self._get_v2(asked.words[0])))

    def _delete(self, asked: web.WebRequest) -> web.Answer:
        self._market.delete(self._get_v2(asked.words[0]).machine_id, self.caller_kind(asked))
        return web.Answer(204)

    def _act(self, asked: web.WebRequest) -> web.Answer:
        machine, action = self._get_v2(asked.words[0]), asked.decode(Action).action
        if action not in ACTIONS[self.status(machine)]:
            raise Problem(409, f"{action} is not allowed while the pod is {self.status(machine)}")
        if action == "terminate":
            self._market.delete(machine.machine_id)
            return web.Answer(204)
        if action in ("stop", "restart"):
            self._market.stop(machine.machine_id)
        if action in ("start", "restart"):
            self.start(machine)
        return web.Answer(200, self.render_pod(machine))

    def start(self, machine: Machine) -> None:
        """Start a stopped machine. Raises Problem, Refused."""
        if machine.order.spot:
            raise Problem(400, "Cannot resume a spot pod as an on demand pod.")
        try:
            self._market.start(machine.machine_id)
        except Refused as error:
            if error.reason != "stock":
                raise
            raise Problem(400, "There are not enough free GPUs on the host machine to start this pod.") from None

    def status(self, machine: Machine) -> str:
        known = {
            "running": "RUNNING",
            "stopped": "EXITED",
            "failed": "ERROR",
            "deleting": "TERMINATED",
            "gone": "TERMINATED",
        }
        return known.get(machine.state) or machine.stage(self._market.now)

    def render_pod(self, machine: Machine) -> dict[str, Any]:
        wish: Create = machine.about["wish"]
        status, port, now = self.status(machine), machine.reported_port(self._market.now), self._market.now
        host, user = machine.address[0] if machine.address else "", getpass.getuser()
        is_reached = port is not None and "22/tcp" in wish.ports
        direct = {"host": host, "port": port, "username": user, "command": f"ssh {user}@{host} -p {port}"}
        proxy = {
            "host": "ssh.runpod.io",
            "port": 22,
            "username": f"{machine.machine_id}-0",
            "command": f"ssh {machine.machine_id}-0@ssh.runpod.io",
        }
        # It is unknown whether the real `cost` includes the disk.
        cost = rate(machine) - (0 if machine.has("disk in cost") else machine.order.disk_micro_usd_per_hour)
        runtime = {
            "uptime": int(now - (machine.active_at or now)),
            "gpus": [],
            "cpu": {"util": 5},
            "memory": {"util": 5},
            "ports": [{"private": 22, "public": port, "type": "tcp", "ip": host}] if is_reached else [],
        }
        return {
            "id": machine.machine_id,
            "name": wish.name,
            "image": wish.image,
            "args": wish.args,
            "disk": wish.disk,
            "ports": wish.ports,
            "env": wish.env,
            "registry": wish.registry,
            "status": status,
            "actions": ACTIONS[status],
            "mounts": msgspec.to_builtins(wish.mounts),
            "cloud": wish.cloud,
            "dataCenterId": machine.offer.region,
            "gpu": {"id": machine.offer.kind, "count": machine.order.quantity},
            "cudaVersion": "11.4" if machine.has("old driver") else "13.0",
            "ssh": {"proxy": proxy if status == "RUNNING" else None, "direct": direct if is_reached else None},
            "template": None,
            "cost": dollars(cost) if status not in ("EXITED", "TERMINATED") else 0.0,
            "locked": False,
            "globalNetworking": {"enabled": False},
            "runtime": runtime if status == "RUNNING" else None,
            "createdAt": iso(machine.created_at),
            "startedAt": iso(machine.active_at),
        }

    def _find_volume(self, asked: web.WebRequest) -> web.Answer:
        if asked.words[0] != self._volume["id"]:
            raise Problem(404, f"network volume {asked.words[0]} not found")
        return web.Answer(200, self._volume)

    # -- money and keys

    def _billing(self, asked: web.WebRequest) -> web.Answer:
        """Return one record per pod, for any bucket size."""
        machines = [one for one in self._market.machines.values() if one.offer.vendor == self.vendor]
        pod_id = asked.query.get("podId")
        records = [self._record(one) for one in machines if pod_id in (None, one.machine_id)]
        totals = {
            name: sum(record[name] for record in records)
            for name in ("totalAmount", "gpuAmount", "cpuAmount", "diskAmount")
        }
        now = iso(self._market.now)
        query = {
            "startTime": asked.query.get("startTime", now),
            "endTime": asked.query.get("endTime", now),
            "bucketSize": asked.query.get("bucketSize", "day"),
            "podId": pod_id,
        }
        metadata = {"query": query, "recordCount": len(records), "uniquePodCount": len(records), "totals": totals}
        return web.Answer(200, {"records": records, "metadata": metadata})

    def _record(self, machine: Machine) -> dict[str, Any]:
        total, disk = self._market.reported_bill_micro_usd(machine), self._market.reported_disk_micro_usd(machine)
        gpu, until = total - disk, iso(machine.ended_at or self._market.now)
        if machine.has("dear disk"):
            lived_s = (machine.ended_at or self._market.now) - machine.created_at
            disk += int(lived_s / 3600 * machine.factor("dear disk") * 1e6)
        return {
            "podId": machine.machine_id,
            "startTime": iso(machine.created_at),
            "endTime": until,
            "totalAmount": dollars(gpu + disk),
            "gpuAmount": dollars(gpu),
            "cpuAmount": 0.0,
            "diskAmount": dollars(disk),
        }

    def _list_keys(self, asked: web.WebRequest) -> web.Answer:
        return web.Answer(200, {"keys": self._ssh_keys})

    def _put_keys(self, asked: web.WebRequest) -> web.Answer:
        self._ssh_keys = asked.decode(Keys).keys
        return self._list_keys(asked)


def in_full(args: str) -> str:
    """Return a start command plus the decoded text of all base64 words, which clients use to avoid quoting."""
    decoded = []
    for word in re.findall(r"[A-Za-z0-9+/=]{40,}", args):
        with contextlib.suppress(ValueError):
            decoded.append(base64.b64decode(word, validate=True).decode(errors="replace"))
    return "\n".join([args, *decoded])


def cloud_of(offer: Offer) -> str:
    return offer.cloud or "SECURE"


def level(stock: int, count: int) -> str:
    return "NONE" if stock < count else "LOW" if stock < 4 else "MEDIUM" if stock < 12 else "HIGH"


def is_taken(error: Exception) -> bool:
    return isinstance(error, Refused) and error.reason == "stock"
