"""RunPod: containers ("pods") on the vendor's own and on other owners' machines. Sends requests, returns records.

The module uses REST v2 for all supported operations, and GraphQL, which ends early in 2027, for the operations missing
in v2: the balance and spot. The vendor accepts `terminateAfter`, but the field ends no pods (runpodctl pulls 330 and
331, runpod/docs pull 820), so a pod ends itself by a dead-man timer in the start command.

Prices are in dollars per GPU-hour in the catalog, and in dollars per hour of the whole pod in `cost`; the disk bills on
top, and it is unknown whether `cost` includes the disk. The vendor does not report the CPUs, memory or bandwidth of a
machine before the rental, but accepts a minimum number of CPUs and a minimum memory. Source: the API document of
2026-08-20, the vendor's page of `POST /v2/pods` of October 2026, and the vendor's GraphQL pages.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from infra.agent.job import Call, Limits
from infra.agent.limits import hard_limit_s
from infra.errors import AuthError, NoOffer, SlipwayError
from infra.machines.dead_man import deadline, one_line, start_command
from infra.machines.image_start import START_SSHD
from infra.market import gpus
from infra.providers import Abilities, SpotUnlisted, rows
from infra.providers.by_http import ByHttp
from infra.providers.json_api import USER_AGENT, JsonApi, VendorRefused, endpoint, epoch
from infra.providers.key_owners import KeyOwners
from infra.providers.pod_keys import PodKeys, is_token
from infra.providers.promises import DrillRecord
from infra.providers.rate_limit import Pace
from infra.providers.runpod.graph import (
    BID,
    INTERRUPTABLE,
    MYSELF,
    SPOT,
    SPOT_PODS,
    TERMINATE,
    Data,
    Deployed,
    Graph,
    SpotPod,
)
from infra.providers.runpod.rest import (
    GONE,
    GRAPH_REFUSALS,
    REFUSALS,
    STATES,
    Bill,
    CreatedPod,
    GpuType,
    GpuTypes,
    PodRow,
    PodRows,
    Volume,
)
from infra.records import Account, Offer, Pod, Request
from infra.settings import Settings
from infra.units import micro_usd, reported_micro_usd

URL = "https://api.runpod.io"
IMAGE = "runpod/pytorch:1.0.2-cu1281-torch280-ubuntu2404"  # starts sshd with the key in PUBLIC_KEY
VOLUME = "/workspace"  # mount point of volumes
LEAST_DISK_GB = 20
# The container disk is billed while the pod runs, beside the GPUs: 0.10 USD per GB and month, by the second. A month
# has 730 hours: a twelfth of 365 days. Source: the vendor's page of prices of pods, 2026-08-20.
DISK_MICRO_USD_PER_GB_MONTH = 100_000
MONTH_H = 730
CLOUDS = ("SECURE", "COMMUNITY")
COUNTS = (1, 2, 4, 8)
MOST_PAGES = 100
# Every process of the container inherits this variable, so it must differ from the agent's mark of job processes.
MARK = "SLIPWAY_POD"


@dataclass(frozen=True, kw_only=True)
class Container:
    """The container of a new pod. `start`: the start command, "" = the command of the image."""

    env: dict[str, str]
    disk_gb: int
    start: str


@dataclass(frozen=True)
class RunPod(ByHttp):
    """The account of the key in `api`. `cuda`: required CUDA version of a host's driver, such as `13.0`; "" = any."""

    api: JsonApi
    keys: PodKeys
    cuda: str = ""
    drills: DrillRecord = DrillRecord()
    owners: KeyOwners = KeyOwners()

    name = "runpod"
    one_path, gone_states = "/v2/pods/{}", GONE
    documented = Abilities(
        time_limit=True,
        start_timer=True,
        spot=True,
        stop=True,
        self_terminate="pod_credential",
        volumes=(VOLUME,),
        images=True,
    )

    @staticmethod
    def from_settings(settings: Settings) -> "RunPod":
        """Return the account of the settings. Raise UsageError for an address to which the key must not go."""
        url = endpoint(URL, settings.runpod_url, "SLIPWAY_RUNPOD_URL")
        pace = Pace.for_journal(settings.state_file, "runpod", settings.clock_scale)
        header = {"Authorization": f"Bearer {settings.runpod_api_key}"}
        api = JsonApi("runpod", url, header, clock_scale=settings.clock_scale, pace=pace)
        drills = DrillRecord.from_settings("runpod", settings)
        keys, owners = PodKeys.for_journal(settings.state_file), KeyOwners.for_journal(settings.state_file)
        return RunPod(api, keys, settings.accept_cuda, drills, owners)

    @property
    def self_terminate_calls(self) -> tuple[Call, ...]:
        """Return the requests with which a pod deletes itself.

        The pod's own key opens GraphQL; whether the key opens v2, which outlives GraphQL, is unknown.
        """
        headers = {"Authorization": "Bearer {RUNPOD_API_KEY}", "Accept": "application/json", "User-Agent": USER_AGENT}
        body = json.dumps({"query": TERMINATE, "variables": {"id": "{RUNPOD_POD_ID}"}})
        return (
            Call("DELETE", f"{self.api.base}/v2/pods/{{RUNPOD_POD_ID}}", headers),
            Call("POST", f"{self.api.base}/graphql", {**headers, "Content-Type": "application/json"}, body),
        )

    def account(self) -> Account:
        """Return owner and balance. If GraphQL does not answer, check the key by REST.

        The owner is then the last owner reported by GraphQL for this key, so that REST alone can prove an absence.
        """
        try:
            me = self._query(MYSELF, {}).myself
        except AuthError:
            raise
        except SlipwayError:
            self.api.read("/v2/pods", PodRows)
            return Account(provider=self.name, owner=self.owners.get(self.api.owner), key=self.api.owner)
        if me is None:
            raise AuthError("runpod: the key belongs to no account; see https://console.runpod.io/user/settings")
        balance = None if me.clientBalance is None else micro_usd(max(me.clientBalance, Decimal(0)))
        owner = me.email or me.id
        self.owners.save(self.api.owner, owner)
        return Account(provider=self.name, owner=owner, balance_micro_usd=balance, key=self.api.owner)

    def catalog(self, request: Request) -> list[Offer]:
        """Return kinds of GPU by count, tier and data center, as far as in stock; a hint, not a reservation."""
        volume = self._volume(request.volume) if request.volume else None
        kinds = [gpu for gpu, _ in gpus.read_set(request.gpu)]
        counts = {count for _, count in gpus.read_set(request.gpu, request.num_gpus)} or {request.num_gpus}
        found: list[Offer] = []
        for count in COUNTS if 0 in counts else sorted(counts):
            for cloud in CLOUDS:
                params = {"include": "AVAILABILITY", "product": "POD", "count": str(count), "cloud": cloud}
                params |= {"minCudaVersion": self.cuda} if self.cuda else {}
                for row in self.api.read("/v2/catalog/gpus", GpuTypes, **params).gpus:
                    one = rows.offered(GpuType, row)
                    if one is None:
                        continue
                    if request.spot:  # a price takes one query per kind
                        if not kinds or any(gpus.is_asked(kind, gpus.name(one.id)) for kind in kinds):
                            found += self._spot(one, cloud, count, request)
                    else:
                        found += self._on_demand(one, cloud, count, request)
        if volume:  # only the vendor's own machines in the same data center can mount the volume
            center, size = volume.dataCenter, volume.size * 10**9
            found = [
                replace(one, volume=request.volume, volume_bytes=size, region=center)
                if one.cloud == "SECURE" and one.region in ("", center)
                else one
                for one in found
            ]
        return found

    def _volume(self, volume: str) -> Volume:
        """Return a volume. Raise NoOffer for a volume not in the account."""
        try:
            return self.api.read(f"/v2/network-volumes/{quote(volume, safe='')}", Volume)
        except VendorRefused as refused:
            if refused.reply.status == 404:
                raise NoOffer(f"this account has no volume {volume}") from None
            raise

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        """Rent as `Provider` specifies: a spot pod through GraphQL, any other pod by REST.

        The limits, with a spend limit as the time paid for at this price, arm the dead-man timer of the container. The
        deadline is by the container's clock, which runs in real time.
        """
        limit_s = hard_limit_s(limits)
        env = {MARK: token, "SLIPWAY_RUN": request.run, "PUBLIC_KEY": self.keys.ensure_public_key(token)}
        # A vendor's clock applies to the vendor's timers; a rehearsal's clock runs faster than the containers' clock.
        begins_at = self.api.now() if self.clock_scale == 1.0 else time.time()
        begin = START_SSHD if request.image else ""
        start = one_line(begin) if begin else ""
        if limit_s is not None:
            ends_at, calls = deadline(begins_at, limit_s, self.clock_scale), self.self_terminate_calls
            start = start_command(ends_at, limit_s, calls, begin=begin)
        container = Container(env=env, disk_gb=offer.disk_bytes // 10**9, start=start)
        create = self._create_by_graph if offer.spot else self._create_by_rest
        made = create(request, offer, token, container)
        rate = reported_micro_usd(made.costPerHr) or offer.micro_usd_per_hour
        return Pod(
            provider=self.name,
            pod_id=made.id,
            token=token,
            run=request.run,
            address="",
            name=token,
            micro_usd_per_hour=rate,
            disk_micro_usd_per_hour=offer.disk_micro_usd_per_hour,
            state="booting",
        )

    def list(self) -> "list[Pod]":
        """Return all pods except terminated pods, with the pods of clusters, oldest first.

        Whether v2 lists spot pods is unknown, until drills have seen spot pods listed at each of the vendor's clouds.
        Raise SpotUnlisted when GraphQL, which lists spot pods, does not answer.
        """
        there = rows.complete_listing(self.name, self._pods(), GONE)
        known = {pod.pod_id for pod in there}
        spot = [pod for pod in self._spot_pods(there) if pod.pod_id not in known]
        return rows.complete_listing(self.name, [*there, *spot], GONE)

    def lists_spot_pod(self, pod_id: str) -> bool:
        return any(pod.pod_id == pod_id for pod in self._pods())

    def find(self, pod: str) -> Pod | None:
        found = super().find(pod)
        if found is not None or is_token(pod):
            return found
        spot = [one for one in self._spot_pods(()) if one.pod_id == pod]
        return next((one for one in spot if one.state not in GONE), None)

    def delete(self, pod_id: str) -> None:
        try:
            self.api.send_change("DELETE", self.format_path("/v2/pods/{}", pod_id))
        except VendorRefused as refused:
            if refused.reply.status != 404:
                raise
            # A pod unknown to v2 may be a spot pod; the next look proves the end.
            with contextlib.suppress(SlipwayError):
                self.api.send_change("POST", "/graphql", {"query": TERMINATE, "variables": {"id": pod_id}})

    def billed(self, pod_id: str) -> int | None:
        """Return the bill as `Provider` specifies, over the last 12 months, the limit of the lookback."""
        bill = self.api.read("/v2/billing/pods", Bill, podId=pod_id, bucketSize="month", lastN="12")
        amounts = [reported_micro_usd(one.totalAmount) for one in bill.records if one.podId in (None, pod_id)]
        told = [one for one in amounts if one is not None]
        return sum(told) if told and len(told) == len(amounts) else None

    def _pods(self) -> "Sequence[Pod]":
        """Return the pods of all pages. Raise SlipwayError for an incomplete listing."""
        found: list[Pod] = []
        params = {"includeClusterPods": "true"}
        for _ in range(MOST_PAGES):
            page = self.api.read("/v2/pods", PodRows, **params)
            found += map(self._pod, page.pods)
            rows.check_once(self.name, [pod.pod_id for pod in found])  # repeated pages may never end
            if not page.nextCursor:
                return found
            params["cursor"] = page.nextCursor
        raise SlipwayError(f"runpod: the listing does not end after {MOST_PAGES} pages")

    def _spot_pods(self, others: Iterable[Pod]) -> "Sequence[Pod]":
        """Return the spot pods. `others`: the pods listed by v2. Raise SpotUnlisted."""
        try:
            me = self._query(SPOT_PODS, {}).myself
        except SlipwayError as error:
            if all(self.can_at(f"{cloud} spot").lists_spot for cloud in CLOUDS):
                return []
            words = f"runpod: spot pods are listed only by the GraphQL API, which does not answer: {error}"
            raise SpotUnlisted(words, tuple(others)) from None
        read = [rows.read(SpotPod, row) for row in (me.pods if me else ())]
        return [self._spot_pod(one, odd) for one, odd in read if one.podType == INTERRUPTABLE or odd]

    def _spot_pod(self, one: SpotPod, odd: Mapping[str, str]) -> Pod:
        env = one.variables
        return self.pod(
            odd,
            marks=("name", "env"),
            pod_id=one.id,
            token=_token_of(env, one.name),
            run=env.get("SLIPWAY_RUN", ""),
            way=one.ssh_endpoint if one.state == "RUNNING" else None,
            rate=reported_micro_usd(one.costPerHr),
            disk_micro_usd_per_hour=_disk_rate(one.containerDiskInGb),
            state=STATES.get(one.state, one.state),
            name=one.name,
            created_at=int(epoch(one.createdAt) or 0),
        )

    def _create_by_rest(self, request: Request, offer: Offer, token: str, container: Container) -> Deployed:
        mounts = {"network": [{"volumeId": request.volume, "path": VOLUME}]}
        body = {
            "name": token,
            "image": request.image or IMAGE,
            # Without a count, the vendor reports no capacity.
            "gpu": {"id": offer.instance_type, "count": offer.num_gpus, **self._min_cuda(), **_least_host(offer)},
            "cloud": offer.cloud,
            "disk": container.disk_gb,
            "ports": ["22/tcp"],
            "env": container.env,
            "startSsh": True,
            **({"args": container.start} if container.start else {}),
            **({"mounts": mounts} if request.volume else {}),
            **({"dataCenterIds": [offer.region]} if offer.region else {}),
        }
        try:
            made = self.api.decode(self.api.send_change("POST", "/v2/pods", body), CreatedPod)
        except VendorRefused as refused:
            raise REFUSALS.to_error(refused) from None
        return Deployed(made.id, made.cost)

    def _create_by_graph(self, request: Request, offer: Offer, token: str, container: Container) -> Deployed:
        body: dict[str, Any] = {
            "name": token,
            "imageName": request.image or IMAGE,
            "gpuTypeId": offer.instance_type,
            "gpuCount": offer.num_gpus,
            "cloudType": offer.cloud,
            "containerDiskInGb": container.disk_gb,
            "volumeInGb": 0,
            "ports": "22/tcp",
            "env": [{"key": key, "value": value} for key, value in container.env.items()],
            "startSsh": True,
            "supportPublicIp": True,
            **self._min_cuda(),
            **({"minVcpuCount": offer.cpus} if offer.cpus else {}),
            **({"minMemoryInGb": -(-offer.memory_bytes // 10**9)} if offer.memory_bytes else {}),
            **({"networkVolumeId": request.volume, "volumeMountPath": VOLUME} if request.volume else {}),
            **({"dataCenterId": offer.region} if offer.region else {}),
            **({"dockerArgs": container.start} if container.start else {}),
            # The bid covers the GPUs only: the disk has a separate price.
            "bidPerGpu": Decimal(offer.micro_usd_per_hour - offer.disk_micro_usd_per_hour) / offer.num_gpus / 1_000_000,
        }
        try:
            reply = self.api.send_change("POST", "/graphql", {"query": SPOT, "variables": {"input": body}})
        except VendorRefused as refused:
            raise GRAPH_REFUSALS.to_error(refused) from None
        graph = self.api.decode(reply, Graph)
        made = graph.data and graph.data.podRentInterruptable
        if made:
            return made
        if not graph.errors and reply.content.get("data", {}) in (None, {"podRentInterruptable": None}):
            raise NoOffer("runpod: POST /graphql: null without a reason, the answer of RunPod when no machine is free")
        raise GRAPH_REFUSALS.error_for_reply(reply, f"runpod: POST /graphql: {reply.summary}")

    def _min_cuda(self) -> dict[str, str]:
        return {"minCudaVersion": self.cuda} if self.cuda else {}

    def _query(self, query: str, variables: dict[str, Any]) -> Data:
        """Return the data of a query. Raise SlipwayError for errors, which come with status 200."""
        graph = self.api.query("/graphql", {"query": query, "variables": variables}, Graph)
        if graph.errors or graph.data is None:
            raise SlipwayError(f"runpod: graphql: {'; '.join(one.message for one in graph.errors or ())}")
        return graph.data

    def _on_demand(self, one: GpuType, cloud: str, count: int, request: Request) -> Iterator[Offer]:
        most, price = _of_tier(one, cloud)
        rate = reported_micro_usd(price, Decimal(count))
        if not rate or count > most or one.availability == "NONE":
            return
        centers = [center.id for center in one.dataCenters if center.availability != "NONE"]
        if cloud == "COMMUNITY" or not one.dataCenters:
            centers = [""]  # naming a data center there makes creates fail that could succeed
        for center in centers:
            yield self._offer(one, cloud, center, count, rate, request)

    def _spot(self, one: GpuType, cloud: str, count: int, request: Request) -> Iterator[Offer]:
        most, price = _of_tier(one, cloud)
        if not price or count > most:
            return
        asked = {"id": one.id, "count": count, "secure": cloud == "SECURE"}
        try:
            bids = self._query(BID, asked).gpuTypes or ()
        except AuthError:
            raise
        except SlipwayError as error:
            raise NoOffer(f"runpod: spot is unavailable, because the GraphQL API does not answer: {error}") from None
        for bid in bids:
            rate = reported_micro_usd(bid.lowestPrice and bid.lowestPrice.minimumBidPrice, Decimal(count))
            if rate and bid.lowestPrice and bid.lowestPrice.stockStatus:
                yield self._offer(one, cloud, "", count, rate, request)

    def _offer(self, one: GpuType, cloud: str, center: str, count: int, rate: int, request: Request) -> Offer:
        """Return the offer of these GPUs, at the GPU price plus the price of the disk for the request."""
        disk_gb = max(LEAST_DISK_GB, -(-max(request.disk_bytes, request.work_disk_bytes) // 10**9))
        disk_rate = _disk_rate(disk_gb)
        return Offer(
            provider=self.name,
            offer_id="/".join([cloud, center or "any", one.id, str(count), *(["spot"] if request.spot else [])]),
            cloud=cloud,
            region=center,
            instance_type=one.id,
            country=_country(center),
            gpu=gpus.name(one.id, one.memory),
            num_gpus=count,
            gpu_memory_bytes=one.memory * 10**9,
            cpus=request.cpus,  # this and the memory: as requested
            memory_bytes=request.memory_bytes,
            disk_bytes=disk_gb * 10**9,
            micro_usd_per_hour=rate + disk_rate,
            disk_micro_usd_per_hour=disk_rate,
            spot=request.spot,
            seen_at=self.api.now(),
        )

    def _pod(self, row: Any, pod_id: str = "") -> Pod:
        """Return the pod of any row. `pod_id`: the id of the lookup."""
        one, odd = rows.read(PodRow, row)
        env = {name: value for name, value in (one.env or {}).items() if isinstance(value, str)}
        direct = one.ssh and one.ssh.direct
        return self.pod(
            odd,
            marks=("name", "env"),
            pod_id=pod_id or one.id,
            token=_token_of(env, one.name),
            run=env.get("SLIPWAY_RUN", ""),
            way=(direct.username, direct.host, direct.port) if direct and one.status == "RUNNING" else None,
            rate=reported_micro_usd(one.cost),
            disk_micro_usd_per_hour=_disk_rate(one.disk),
            state=STATES.get(one.status, one.status),
            name=one.name,
            created_at=int(epoch(one.createdAt) or 0),
        )


def _disk_rate(disk_gb: int) -> int:
    """Return the price of a container disk in micro-USD per hour, rounded up."""
    return -(-disk_gb * DISK_MICRO_USD_PER_GB_MONTH // MONTH_H)


def _of_tier(one: GpuType, cloud: str) -> tuple[int, Decimal]:
    """Return the largest count per machine, and the price per GPU-hour."""
    secure = cloud == "SECURE"
    return (one.maxCount.secure, one.price.secure) if secure else (one.maxCount.community, one.price.community)


def _token_of(env: Mapping[str, str], name: str) -> str:
    return next((word for word in (env.get(MARK, ""), name) if is_token(word)), "")


def _least_host(offer: Offer) -> dict[str, int]:
    """Return the minimum CPUs and memory of the host for each GPU, in the vendor's format."""
    least = {
        "minVcpuCountPerGpu": -(-offer.cpus // offer.num_gpus),
        "minRamPerGpu": -(-offer.memory_bytes // (offer.num_gpus * 10**9)),
    }
    return {name: number for name, number in least.items() if number}


def _country(center: str) -> str:
    """Return the country of a data center.

    `US-KS-2` is in the US; `EU-RO-1` and `AP-JP-1` begin with a continent.
    """
    parts = center.split("-")
    named = [part for part in parts[:2] if len(part) == 2 and part not in ("EU", "AP", "OC", "SA", "AF")]
    return named[0] if named else ""
