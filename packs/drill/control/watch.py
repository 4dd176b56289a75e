"""A recording proxy around a provider: forwards every call and records arguments and results for the drill.

For built-in clients the proxy counts create requests on the wire; an extension's traffic is not visible. The proxy can
discard the reply to a create request after sending the request.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from infra.agent.job import Limits
from infra.errors import Ambiguous, SlipwayError
from infra.market import gpus
from infra.providers import Market, find_pod, list_pods
from infra.providers.json_api import Exchange, JsonApi, UnclearOutcome
from infra.records import Offer, Pod, Request
from infra.transport.protocol import Result, Transport
from infra.units import reported_micro_usd
from packs.drill.control.evidence import Slice, VerbCall

CREATES = ("/instances/create", "/rent", "/v2/pods", "/graphql")  # path suffixes of the vendors' create requests
THROTTLED = 429  # Vendors check the rate before they act, so 429 means no machine.


class AnswerLost(Exception):
    """Raised in place of a create reply that the drill discards."""


class Watch:
    """A recording proxy around a `Market`. Unrecorded attributes are forwarded to the provider."""

    def __init__(self, market: Market) -> None:
        self._market = market
        self._ids: set[str] = set()
        self._is_renting = False
        self.discards_next_reply = False
        """True to discard the reply to the next create request."""
        self.calls: list[VerbCall] = []
        self._last: tuple[int, Exchange] | None = None  # last HTTP exchange with the index of its verb in `calls`
        self.tokens: set[str] = set()
        self.creates = 0
        self.throttled = 0
        self.unknown_refusals: list[str] = []
        self.slices: dict[str, Slice] = {}

    if not TYPE_CHECKING:  # mypy would accept any name

        def __getattr__(self, name: str) -> Any:
            return getattr(self._market, name)

    @property
    def as_market(self) -> Market:
        return cast(Market, self)

    @property
    def _api(self) -> JsonApi | None:
        """Return the client's JSON API connection, or None for an extension with its own connection."""
        return getattr(self._market, "api", None)

    @contextlib.contextmanager
    def record_traffic(self) -> Iterator[None]:
        """Record the client's HTTP traffic within this block."""
        api = self._api
        if api is None:
            yield
            return
        api.listener = self._on_exchange
        try:
            yield
        finally:
            api.listener = None

    def offers(self, request: Request) -> "Sequence[Offer]":
        return self._market.offers(request)

    def read_price(self, offer: Offer, request: Request) -> int | None:
        """Return the current price of the offer in micro-USD per hour, or None if the offer is gone."""
        found = self._noting("catalog", offer.offer_id, lambda: self._market.catalog(request))
        for kind, ours in dict.fromkeys((one.instance_type or one.gpu, one.gpu) for one in found):
            if gpus.is_slice(kind):
                wholes = (one.name for one in gpus.GPUS if not gpus.is_slice(one.name))
                whole = next((name for name in wholes if gpus.is_asked(name, ours)), "")
                self.slices[kind] = Slice(kind=kind, whole=whole)
        price = next((one.micro_usd_per_hour for one in found if one.offer_id == offer.offer_id), None)
        self.calls[-1] = replace(self.calls[-1], micro_usd=price)
        return price

    def create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        self.tokens.add(token)
        self._is_renting = True
        about = {"time_s": limits.time_s, "spend_micro_usd": limits.spend_micro_usd}
        try:
            pod = self._noting("create", token, lambda: self._create(request, offer, token, limits), **about)
        except UnclearOutcome as error:
            # A rejection in unknown words, which does not tell whether a machine was rented.
            if error.reply is not None and 400 <= error.reply.status < 500:
                self.unknown_refusals.append(f"{error.reply.status}: {error.reply.summary}")
            raise
        finally:
            self._is_renting = False
        self._ids.add(pod.pod_id)
        self._keep([pod])
        return pod

    def _create(self, request: Request, offer: Offer, token: str, limits: Limits) -> Pod:
        pod = self._market.create(request, offer, token, limits)
        if self._api is None:  # Built-in clients count and discard the reply on the wire.
            self.creates += 1
            if self.discards_next_reply:
                self.discards_next_reply = False
                raise Ambiguous("the drill discarded the answer")
        return pod

    def find(self, pod: str) -> Pod | None:
        """Find a pod by id and record a listing at the same time; the listing does not affect the result."""
        seen = self._noting("find", pod, lambda: find_pod(self._market, pod, spot=False))
        if seen:
            self._ids.add(seen.pod_id)
            self._keep([seen])
        with contextlib.suppress(SlipwayError):  # `list` records the failure; the find result stays valid.
            self.list()
        return seen

    def list(self) -> "list[Pod]":
        pods = self._noting("list", "", lambda: list_pods(self._market, spot=False))
        self._ids |= {pod.pod_id for pod in pods if pod.token in self.tokens and pod.pod_id}
        self._keep([pod for pod in pods if pod.pod_id in self._ids or pod.token in self.tokens])
        return pods

    def delete(self, pod_id: str) -> None:
        self._noting("delete", pod_id, lambda: self._market.delete(pod_id))

    def arm_timer(self, pod_id: str, ends_at: float) -> None:
        self._noting("arm", pod_id, lambda: self._market.arm_timer(pod_id, ends_at), time_s=ends_at)

    def billed(self, pod_id: str) -> int | None:
        amount = self._noting("billed", pod_id, lambda: self._market.billed(pod_id))
        disks = [reported_micro_usd(one) for one in self._bill_fields("diskAmount")]
        disk = sum(one or 0 for one in disks) if disks else None
        self.calls[-1] = replace(self.calls[-1], micro_usd=amount, disk_micro_usd=disk)
        return amount

    def _bill_fields(self, name: str) -> "Sequence[Any]":
        """Return the values of a field in the records of the last bill, beside the total."""
        verb, exchange = self._last or (-1, None)
        body = exchange.reply.content if exchange and verb == len(self.calls) - 1 else None
        records = body.get("records") if isinstance(body, dict) else None
        return [one[name] for one in records if isinstance(one, dict) and name in one] if records else []

    def reach(self, pod: Pod) -> Transport:
        return cast(Transport, WatchedTransport(self._market.reach(pod), self, pod.pod_id))

    def note(self, verb: str, word: str, error: str, began_at: float) -> None:
        """Record a call about a pod; record only the first success per verb and pod."""
        if error or not any((one.verb, one.word, one.error) == (verb, word, "") for one in self.calls):
            self.calls.append(
                VerbCall(verb=verb, word=word, error=error, began_at=began_at, ended_at=self._market.now())
            )

    def _noting(self, verb: str, word: str, ask: Callable[[], Any], **about: Any) -> Any:
        began_at, error = self._market.now(), ""
        try:
            return ask()
        except BaseException as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            ended_at = self._market.now()
            self.calls.append(
                VerbCall(verb=verb, word=word, began_at=began_at, ended_at=ended_at, error=error, **about)
            )

    def _keep(self, pods: "Sequence[Pod]") -> "Sequence[Pod]":
        self.calls[-1] = replace(self.calls[-1], pods=tuple(pods))
        return pods

    def _on_exchange(self, exchange: Exchange) -> None:
        path = exchange.path.partition("?")[0]
        is_create = self._is_renting and exchange.method == "POST" and path.endswith(CREATES)
        is_throttled = is_create and exchange.reply.status == THROTTLED
        self._last = len(self.calls), exchange
        self.throttled += is_throttled
        self.creates += is_create and not is_throttled
        if is_create and self.discards_next_reply and not is_throttled:
            self.discards_next_reply = False
            raise AnswerLost("the drill discarded the answer")


class WatchedTransport:
    """A recording proxy around the transport to a pod: records successful and failed connections."""

    def __init__(self, way: Transport, watch: Watch, pod_id: str) -> None:
        self._transport, self._watch, self._pod_id = way, watch, pod_id

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            return getattr(self._transport, name)

    def run(self, words: Sequence[str], **options: Any) -> Result:
        began_at, error = self._watch.as_market.now(), ""
        try:
            return self._transport.run(words, **options)
        except SlipwayError as raised:
            error = f"{type(raised).__name__}: {raised}"
            raise
        finally:
            self._watch.note("reach", self._pod_id, error, began_at)
