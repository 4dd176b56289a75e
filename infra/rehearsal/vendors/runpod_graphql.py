"""RunPod's GraphQL API, simulated: the functions missing in REST v2, such as balance, spot pods, and timed ends.

Failed requests answer 200 with `errors`; only queries rejected before execution answer 400.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec

from infra.rehearsal import web
from infra.rehearsal.clock import iso, parse_iso
from infra.rehearsal.market import Market
from infra.rehearsal.offers import dollars
from infra.rehearsal.records import Machine, Refused, rate
from infra.rehearsal.vendors.graphql import BAD_INPUT, Malformed, QueryError, Selection, given, parse, project
from infra.rehearsal.vendors.runpod import (
    MOST_GPUS,
    NO_CAPACITY,
    Create,
    Host,
    Mounts,
    Network,
    Persistent,
    Runpod,
    is_taken,
)
from infra.rehearsal.vendors.runpod_schema import SCHEMA, Bid, Deploy, Which

CALLS = {
    "podFindAndDeployOnDemand": "create",
    "podRentInterruptable": "create",
    "podTerminate": "delete",
    "podStop": "update",
    "podResume": "update",
    "podBidResume": "update",
    "myself": "account",
    "pod": "find",
    "gpuTypes": "offers",
}
OF_A_POD = ("podTerminate", "podStop", "pod")  # requests permitted to the pod's own key, for this pod only
RICH_MICRO_USD = 1_000_000_000


class Query(msgspec.Struct, frozen=True):
    query: str
    variables: dict[str, Any] | None = None
    operationName: str | None = None


class Graph:
    def __init__(self, market: Market, runpod: Runpod) -> None:
        self._market, self._runpod = market, runpod
        self._fields: dict[str, Callable[[Mapping[str, Any]], Any]] = {
            "podFindAndDeployOnDemand": lambda words: self._pod(self._deploy(given(words, Deploy))),
            "podRentInterruptable": lambda words: self._pod(self._deploy(given(words, Bid))),
            "podResume": self._resume,
            "podBidResume": self._resume,
            "myself": self._myself,
            "pod": lambda words: self._pod(self._runpod.get(given(words, Which).podId)),
            "gpuTypes": self._gpu_types,
        }

    def route(self, asked: web.WebRequest) -> web.Route | web.Answer:
        """Choose the route by the selected field, so that faults match a create in any spelling."""
        if asked.method != "POST":
            return self._runpod.error(405, "GraphQL is asked by POST")
        try:
            query = msgspec.json.decode(asked.body, type=Query)
            kind, selections = parse(query.query, query.variables or {})
            SCHEMA.validate(kind, selections)
        except msgspec.DecodeError as error:
            return malformed(Malformed(str(error), BAD_INPUT))
        except Malformed as error:
            return malformed(error)
        call = CALLS.get(selections[0].name, "account")  # a query for the type name alone belongs to no call
        return web.Route("POST", "/graphql", call, lambda asked: self._answer(kind, selections, asked))

    def refusal_answer(self, words: str) -> web.Answer:
        return web.Answer(200, {"errors": [{"message": words, "extensions": {"code": "BAD_USER_INPUT"}}], "data": None})

    def _answer(self, kind: str, selections: tuple[Selection, ...], asked: web.WebRequest) -> web.Answer:
        owner, by = self._runpod.owner(asked), self._runpod.caller_kind(asked)
        for one in selections:
            if owner and (one.name not in OF_A_POD or given(one.arguments, Which).podId != owner.machine_id):
                raise QueryError("Unauthorized: this key is of one pod only")
        fields: dict[str, Any] = {
            **self._fields,
            "podTerminate": lambda words: self._terminate(words, by),
            "podStop": lambda words: self._stop(words, by),
        }
        return web.Answer(200, {"data": project(fields, selections, SCHEMA, kind.title())})

    def _deploy(self, wish: Deploy) -> Machine:
        """Rent a machine. Raises QueryError, Refused."""
        for moment in filter(None, (wish.terminateAfter, wish.stopAfter)):
            try:
                parse_iso(moment)  # accepted without effect: runpodctl pull requests 330 and 331
            except ValueError as error:
                raise QueryError(str(error)) from None
        if isinstance(wish, Bid):
            offers = [one for one in self._runpod.offers() if one.kind == wish.gpuTypeId]
            least = min((one.spot_micro_usd_per_hour for one in offers if one.spot_micro_usd_per_hour), default=0)
            if not least or round(wish.bidPerGpu * 1e6) < least:
                raise QueryError(
                    f"The bid is below the minimum of {dollars(least)}" if least else "There is no such spot GPU"
                )
        clouds: tuple[Literal["SECURE", "COMMUNITY"], ...] = ("SECURE", "COMMUNITY")
        there = [cloud for cloud in clouds if wish.cloudType in ("ALL", cloud)]
        mounts = Mounts(Persistent(wish.volumeInGb, wish.volumeMountPath)) if wish.volumeInGb else Mounts()
        if wish.networkVolumeId:
            mounts = Mounts(network=[Network(wish.networkVolumeId, wish.volumeMountPath)])
        for cloud in there:
            body = Create(
                name=wish.name,
                image=wish.imageName,
                cloud=cloud,
                disk=wish.containerDiskInGb,
                args=wish.dockerArgs,
                dataCenterIds=[wish.dataCenterId] if wish.dataCenterId else [],
                mounts=mounts,
                ports=[one for one in wish.ports.split(",") if one],
                env={one.key: one.value for one in wish.env},
                startSsh=wish.startSsh,
                startJupyter=wish.startJupyter,
            )
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
        self._market.delete(self._runpod.get(given(words, Which).podId).machine_id, by)

    def _stop(self, words: Mapping[str, Any], by: str) -> dict[str, Any]:
        machine = self._runpod.get(given(words, Which).podId)
        self._market.stop(machine.machine_id, by)
        return self._pod(machine)

    def _resume(self, words: Mapping[str, Any]) -> dict[str, Any]:
        wish = given(words, Which)
        machine = self._runpod.get(wish.podId)
        if wish.bidPerGpu is not None:
            self._market.start(machine.machine_id)
        else:
            self._runpod.start(machine)
        return self._pod(machine)

    def _myself(self, words: Mapping[str, Any]) -> dict[str, Any]:
        balance = self._market.balance_micro_usd.get("runpod", RICH_MICRO_USD) - self._market.spent_micro_usd("runpod")
        hourly = sum(rate(one) for one in self._runpod.list_machines())
        return {
            "id": "user_rehearsal",
            "email": "rehearsal@localhost",
            "clientBalance": dollars(balance),
            "currentSpendPerHr": dollars(hourly),
            "spendLimit": 80,
            "notifyLowBalance": False,
            "pods": [self._pod(one) for one in self._runpod.list_machines() if one.is_listed],
            "networkVolumes": [self._runpod.volume],
            "podTemplates": [],
            "containerRegistryCreds": [],
        }

    def _pod(self, machine: Machine) -> dict[str, Any]:
        shown = self._runpod.render_pod(machine)
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
            "id": shown["id"],
            "name": shown["name"],
            "imageName": shown["image"],
            "desiredStatus": status,
            "costPerHr": shown["cost"],
            "machineId": machine.offer.offer_id,
            "gpuCount": machine.order.quantity,
            "env": [f"{key}={value}" for key, value in shown["env"].items()],
            "containerDiskInGb": shown["disk"],
            "dockerArgs": shown["args"],
            "ports": ",".join(shown["ports"]),
            "volumeInGb": 0,
            "memoryInGb": machine.offer.about.memory_gb,
            "vcpuCount": machine.offer.about.cpus,
            "machine": {
                "podHostId": f"{shown['id']}-0",
                "gpuTypeId": machine.offer.kind,
                "gpuDisplayName": machine.offer.kind.removeprefix("NVIDIA "),
            },
            "podType": "INTERRUPTABLE" if machine.order.spot else "RESERVED",
            "createdAt": iso(machine.created_at),
            "runtime": runtime,
            "lastStatusChange": iso(machine.ended_at or machine.created_at),
        }

    def _gpu_types(self, words: Mapping[str, Any]) -> list[dict[str, Any]]:
        wanted = (words.get("input") or {}).get("id")
        kinds = dict.fromkeys(one.kind for one in self._runpod.offers())
        return [self._gpu_type(kind) for kind in kinds if wanted in (None, kind)]

    def _gpu_type(self, kind: str) -> dict[str, Any]:
        offers = [one for one in self._runpod.offers() if one.kind == kind]

        def price(cloud: str, spot: bool) -> float | None:
            prices = [
                one.spot_micro_usd_per_hour if spot else one.micro_usd_per_hour
                for one in offers
                if (one.cloud or "SECURE") == cloud
            ]
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
            "id": kind,
            "displayName": kind.removeprefix("NVIDIA "),
            "memoryInGb": offers[0].about.vram_gb,
            "maxGpuCount": MOST_GPUS,
            "manufacturer": "Nvidia",
            "secureCloud": price("SECURE", False) is not None,
            "communityCloud": price("COMMUNITY", False) is not None,
            "securePrice": price("SECURE", False),
            "communityPrice": price("COMMUNITY", False),
            "secureSpotPrice": price("SECURE", True),
            "communitySpotPrice": price("COMMUNITY", True),
            "lowestPrice": lowest,
        }


def malformed(error: Malformed) -> web.Answer:
    """Return the response to a query rejected before execution: without data, as Apollo servers do."""
    return web.Answer(400, {"errors": [{"message": str(error), "extensions": {"code": error.code}}]})


class BothApis(Runpod):
    """REST v2 and GraphQL on the same market."""

    def __init__(self, market: Market, hub: web.Hub, key: str, read_key: str) -> None:
        super().__init__(market, hub, key, read_key)
        self._graph = Graph(market, self)

    def route(self, asked: web.WebRequest) -> web.Route | web.Answer:
        if asked.path != "/graphql":
            return super().route(asked)
        return (
            self.error(410, "GraphQL is retired") if self._hub.faults.plan.retires_graphql else self._graph.route(asked)
        )

    def refusal_answer(self, error: Exception, asked: web.WebRequest) -> web.Answer:
        if asked.path == "/graphql":
            return self._graph.refusal_answer(str(NO_CAPACITY if is_taken(error) else error))
        return super().refusal_answer(error, asked)
