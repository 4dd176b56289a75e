"""RunPod's GraphQL, for what REST v2 lacks: the balance, spot pods, and an end that the vendor keeps.

Answers are 200 even when nothing was done; then there are `errors`.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from infra.rehearsal import web
from infra.rehearsal.clock import iso, parse_iso
from infra.rehearsal.market import Market
from infra.rehearsal.offers import dollars
from infra.rehearsal.records import Machine, Refused, rate
from infra.rehearsal.vendors.graphql import Selection, Wrong, parse, project
from infra.rehearsal.vendors.runpod import NO_CAPACITY, Create, Host, Mounts, Network, Persistent, Runpod, is_taken

CALLS = {
    "podFindAndDeployOnDemand": "create", "podRentInterruptable": "create", "podTerminate": "delete",
    "podStop": "update", "podResume": "update", "podBidResume": "update",
    "myself": "account", "pod": "find", "gpuTypes": "offers",
}  # fmt: skip
OF_A_POD = ("podTerminate", "podStop", "pod")  # requests that a pod's own key may make, about that pod
MUTATIONS = ("create", "delete", "update")
RICH_MICRO_USD = 1_000_000_000


class Query(msgspec.Struct, frozen=True):
    query: str
    variables: dict[str, Any] | None = None
    operationName: str | None = None


class Pair(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    value: str


class Deploy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The input of both ways to rent."""

    gpuTypeId: str
    gpuCount: int
    name: str
    imageName: str
    cloudType: Literal["ALL", "SECURE", "COMMUNITY"] = "ALL"
    containerDiskInGb: int = 20
    volumeInGb: int = 0
    volumeMountPath: str = ""
    networkVolumeId: str | None = None
    dataCenterId: str | None = None
    countryCode: str | None = None
    ports: str = ""
    env: list[Pair] = []
    dockerArgs: str = ""
    startSsh: bool = False
    startJupyter: bool = False
    supportPublicIp: bool = False
    templateId: str | None = None
    minVcpuCount: int | None = None
    minMemoryInGb: int | None = None
    minDownload: int | None = None
    minUpload: int | None = None
    allowedCudaVersions: list[str] = []
    minCudaVersion: str | None = None
    containerRegistryAuthId: str | None = None
    compliance: list[str] = []
    stopAfter: str | None = None
    terminateAfter: str | None = None


class Bid(Deploy, frozen=True, forbid_unknown_fields=True, kw_only=True):
    bidPerGpu: float


class Which(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    podId: str
    gpuCount: int | None = None
    bidPerGpu: float | None = None


class Graph:
    def __init__(self, market: Market, runpod: Runpod) -> None:
        self._market, self._runpod = market, runpod
        self._fields: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "podFindAndDeployOnDemand": lambda words: self._pod(self._deploy(_input(words, Deploy))),
            "podRentInterruptable": lambda words: self._pod(self._deploy(_input(words, Bid))),
            "podResume": self._resume,
            "podBidResume": self._resume,
            "myself": self._myself,
            "pod": lambda words: self._pod(self._runpod.get(_input(words, Which).podId)),
            "gpuTypes": self._gpu_types,
        }

    def route(self, asked: web.Asked) -> web.Route | web.Answer:
        """Route by what is asked for, so that faults find a create however it is spelt."""
        if asked.method != "POST":
            return self._runpod.error(405, "GraphQL is asked by POST")
        try:
            query = msgspec.json.decode(asked.body, type=Query)
            kind, selections = parse(query.query, query.variables or {})
            calls = [CALLS.get(one.name, "") for one in selections]
            if any((call in MUTATIONS) != (kind == "mutation") for call in calls) or not all(calls):
                raise Wrong(f'Cannot query field "{selections[0].name}" on type "{kind.title()}".')
        except (msgspec.DecodeError, Wrong) as error:
            return self.refused(str(error))
        return web.Route("POST", "/graphql", calls[0], lambda asked: self._answer(selections, asked))

    def refused(self, words: str) -> web.Answer:
        return web.Answer(200, {"errors": [{"message": words, "extensions": {"code": "BAD_USER_INPUT"}}], "data": None})

    def _answer(self, selections: tuple[Selection, ...], asked: web.Asked) -> web.Answer:
        owner, by = self._runpod.owner(asked), self._runpod.by(asked)
        for one in selections:
            if owner and (one.name not in OF_A_POD or _input(one.arguments, Which).podId != owner.machine_id):
                raise Wrong("Unauthorized: this key is of one pod only")
        fields: dict[str, Any] = {
            **self._fields,
            "podTerminate": lambda words: self._terminate(words, by),
            "podStop": lambda words: self._stop(words, by),
        }
        return web.Answer(200, {"data": project(fields, selections, "Query")})

    def _deploy(self, wish: Deploy) -> Machine:
        """Rent a machine. Raises Wrong, Refused."""
        for moment in filter(None, (wish.terminateAfter, wish.stopAfter)):
            try:
                parse_iso(moment)  # accepted, and acted upon by nothing: runpodctl pulls 330 and 331
            except ValueError as error:
                raise Wrong(str(error)) from None
        if isinstance(wish, Bid):
            offers = [one for one in self._runpod.offers() if one.kind == wish.gpuTypeId]
            least = min((one.spot_micro_usd_per_hour for one in offers if one.spot_micro_usd_per_hour), default=0)
            if not least or round(wish.bidPerGpu * 1e6) < least:
                raise Wrong(
                    f"The bid is below the minimum of {dollars(least)}" if least else "There is no such spot GPU"
                )
        clouds: tuple[Literal["SECURE", "COMMUNITY"], ...] = ("SECURE", "COMMUNITY")
        there = [cloud for cloud in clouds if wish.cloudType in ("ALL", cloud)]
        mounts = Mounts(Persistent(wish.volumeInGb, wish.volumeMountPath)) if wish.volumeInGb else Mounts()
        if wish.networkVolumeId:
            mounts = Mounts(network=[Network(wish.networkVolumeId, wish.volumeMountPath)])
        for cloud in there:
            body = Create(
                name=wish.name, image=wish.imageName, cloud=cloud, disk=wish.containerDiskInGb, args=wish.dockerArgs,
                dataCenterIds=[wish.dataCenterId] if wish.dataCenterId else [],
                mounts=mounts,
                ports=[one for one in wish.ports.split(",") if one], env={one.key: one.value for one in wish.env},
                startSsh=wish.startSsh, startJupyter=wish.startJupyter,
            )  # fmt: skip
            try:
                return self._runpod.rent(
                    body,
                    wish.gpuTypeId,
                    wish.gpuCount,
                    Host(cpus=wish.minVcpuCount or 0, memory_gb=wish.minMemoryInGb or 0),
                    spot=isinstance(wish, Bid),
                )
            except Refused as error:
                if error.reason != "stock" or cloud == there[-1]:
                    raise
        raise AssertionError("one cloud at least was asked")

    def _terminate(self, words: Mapping[str, Any], by: str) -> None:
        self._market.delete(self._runpod.get(_input(words, Which).podId).machine_id, by)

    def _stop(self, words: Mapping[str, Any], by: str) -> dict[str, Any]:
        machine = self._runpod.get(_input(words, Which).podId)
        self._market.stop(machine.machine_id, by)
        return self._pod(machine)

    def _resume(self, words: Mapping[str, Any]) -> dict[str, Any]:
        wish = _input(words, Which)
        machine = self._runpod.get(wish.podId)
        if wish.bidPerGpu is not None:
            self._market.start(machine.machine_id)
        else:
            self._runpod.start(machine)
        return self._pod(machine)

    def _myself(self, words: Mapping[str, Any]) -> dict[str, Any]:
        balance = self._market.balance_micro_usd.get("runpod", RICH_MICRO_USD) - self._market.spent_micro_usd("runpod")
        hourly = sum(rate(one) for one in self._runpod.listed())
        return {
            "id": "user_rehearsal", "email": "rehearsal@localhost", "clientBalance": dollars(balance),
            "currentSpendPerHr": dollars(hourly), "spendLimit": 80, "notifyLowBalance": False,
            "pods": [self._pod(one) for one in self._runpod.listed()],
        }  # fmt: skip

    def _pod(self, machine: Machine) -> dict[str, Any]:
        shown = self._runpod.shown(machine)
        ports = [
            {
                "ip": one["ip"],
                "isIpPublic": True,
                "privatePort": one["private"],
                "publicPort": one["public"],
                "type": "tcp",
            }
            for one in (shown["runtime"] or {}).get("ports", [])
        ]
        runtime = {"uptimeInSeconds": shown["runtime"]["uptime"], "ports": ports} if shown["runtime"] else None
        status = shown["status"] if shown["status"] in ("EXITED", "TERMINATED") else "RUNNING"
        return {
            "id": shown["id"], "name": shown["name"], "imageName": shown["image"], "desiredStatus": status,
            "costPerHr": shown["cost"], "machineId": machine.offer.offer_id, "gpuCount": machine.order.quantity,
            "env": [f"{key}={value}" for key, value in shown["env"].items()],
            "podType": "INTERRUPTABLE" if machine.order.spot else "RESERVED",
            "createdAt": iso(machine.created_at), "runtime": runtime,
            "lastStatusChange": iso(machine.ended_at or machine.created_at),
        }  # fmt: skip

    def _gpu_types(self, words: Mapping[str, Any]) -> list[dict[str, Any]]:
        wanted = (words.get("input") or {}).get("id")
        kinds = dict.fromkeys(one.kind for one in self._runpod.offers())
        return [self._gpu_type(kind) for kind in kinds if wanted in (None, kind)]

    def _gpu_type(self, kind: str) -> dict[str, Any]:
        offers = [one for one in self._runpod.offers() if one.kind == kind]

        def price(cloud: str, spot: bool) -> float | None:
            prices = [
                one.spot_micro_usd_per_hour if spot else one.micro_usd_per_hour
                for one in offers if (one.cloud or "SECURE") == cloud
            ]  # fmt: skip
            lowest_micro_usd = min(prices, default=0)
            return dollars(lowest_micro_usd) if lowest_micro_usd else None

        def lowest(words: Mapping[str, Any]) -> dict[str, Any]:
            wish = words.get("input") or {}
            count, is_secure = wish.get("gpuCount", 1), wish.get("secureCloud")
            clouds = ["SECURE"] if is_secure else ["COMMUNITY"] if is_secure is False else ["SECURE", "COMMUNITY"]
            there = [one for one in offers if (one.cloud or "SECURE") in clouds]
            bids, asks = ([one for cloud in clouds if (one := price(cloud, spot))] for spot in (True, False))
            most = max((self._market.free(one.offer_id) for one in there), default=0)
            return {
                "minimumBidPrice": min(bids, default=None),
                "uninterruptablePrice": min(asks, default=None),
                "stockStatus": None if most < count else "Low" if most < 4 else "Medium" if most < 12 else "High",
                "availableGpuCounts": [n for n in (1, 2, 4, 8) if n <= most],
            }

        return {
            "id": kind, "displayName": kind.removeprefix("NVIDIA "), "memoryInGb": offers[0].about.vram_gb,
            "securePrice": price("SECURE", False), "communityPrice": price("COMMUNITY", False),
            "secureSpotPrice": price("SECURE", True), "communitySpotPrice": price("COMMUNITY", True),
            "lowestPrice": lowest,
        }  # fmt: skip


def _input(words: Mapping[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(words.get("input"), kind)
    except msgspec.ValidationError as error:
        raise Wrong(f'Variable "$input" got invalid value; {error}') from None


class BothApis(Runpod):
    """REST v2 and GraphQL over one market."""

    def __init__(self, market: Market, hub: web.Hub, key: str, read_key: str) -> None:
        super().__init__(market, hub, key, read_key)
        self._graph = Graph(market, self)

    def route(self, asked: web.Asked) -> web.Route | web.Answer:
        return self._graph.route(asked) if asked.path == "/graphql" else super().route(asked)

    def refused(self, error: Exception, asked: web.Asked) -> web.Answer:
        if asked.path == "/graphql":
            return self._graph.refused(str(NO_CAPACITY if is_taken(error) else error))
        return super().refused(error, asked)
