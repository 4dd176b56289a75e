"""The common part of all vendors with an HTTP API and one SSH key per pod."""

import abc
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from infra.errors import SlipwayError, UsageError
from infra.market.filters import satisfying
from infra.names import check_name
from infra.providers import Abilities, Market, SpotUnlisted, promises
from infra.providers.json_api import JsonApi, VendorRefused
from infra.providers.pod_keys import PodKeys, is_token
from infra.providers.promises import DrillRecord
from infra.records import Offer, Pod, Request
from infra.transport.ssh import Ssh


class ByHttp(Market):
    """The part of a `Market` answered by the vendor's API and the pod keys."""

    is_here, is_rented = False, True
    pod_store = ""
    name: str
    documented: Abilities
    api: JsonApi
    keys: PodKeys
    drills: DrillRecord
    one_path: str
    """Path of a pod at the vendor, with {} for the id."""
    gone_states: tuple[str, ...]
    """States of a pod that no longer exists."""

    @property
    def clock_scale(self) -> float:
        return self.api.clock_scale

    @property
    def can(self) -> Abilities:
        return self.can_at("")

    def can_at(self, api: str) -> Abilities:
        faults = promises.REPORTED.get(self.name, ())
        return promises.abilities(self.documented, faults, self.drills.verdicts(), api, time.time())

    @property
    def settle_s(self) -> float:
        return self.documented.settle_s / self.clock_scale

    @property
    def skew_problem(self) -> str:
        return self.api.skew_problem

    def now(self) -> float:
        return self.api.now()

    def latest_now(self) -> float:
        return self.api.latest_now()

    def offers(self, request: Request) -> list[Offer]:
        return satisfying(request, self.catalog(request))

    def reach(self, pod: Pod) -> Ssh:
        return self.keys.transport_to(pod)

    def delete_local_files(self, token: str) -> None:
        self.keys.delete(token)

    @abc.abstractmethod
    def _pod(self, row: Any, pod_id: str = "") -> Pod:
        """Return the pod of any row, even a malformed row; `pod_id`: the id of the lookup, if any."""

    def find(self, pod: str) -> Pod | None:
        """Return the pod with this id, or the oldest pod with this token."""
        if is_token(pod):
            try:
                return next((one for one in self.list() if one.token == pod), None)
            except SpotUnlisted as error:
                if shown := next((one for one in error.pods if one.token == pod), None):
                    return shown
                raise
        try:
            row = self.api.read(self.format_path(self.one_path, pod), dict[str, Any])
        except VendorRefused as refused:
            if refused.reply.status == 404:
                return None
            raise
        found = self._pod(row, pod)
        return found if found.state not in self.gone_states else None

    def format_path(self, form: str, pod_id: str) -> str:
        """Return `form` with the id inserted. Raise SlipwayError for an id such as "", which would address all pods."""
        if pod_id in ("", ".", ".."):
            raise SlipwayError(
                f"{self.name}: {pod_id!r} is not the id of a machine; end the machine in the vendor's console"
            )
        return form.format(quote(pod_id, safe="", errors="replace"))

    def pod(
        self,
        odd: Mapping[str, str],
        *,
        marks: tuple[str, ...],
        token: str,
        run: str,
        rate: int | None,
        way: tuple[str, str, int] | None,
        **facts: Any,
    ) -> Pod:
        """Return the pod of a row.

        `odd`: the unreadable fields. `marks`: the fields with the owner's mark. `way`: user, host and port of a
        reachable pod. `rate`: None for an invalid price.
        """
        doubts, address = list(odd.values()), ""
        if rate is None:
            doubts.append("the price is invalid")
        if way and token:
            try:
                address = self.keys.address(token, *way)
            except SlipwayError as error:
                doubts.append(str(error))
        try:
            run = run and check_name(run)
        except UsageError as error:
            run, doubts = "", [*doubts, f"invalid run name: {error}"]
        is_legible = bool(token) or not odd.keys() & {*marks, "row"}
        return Pod(
            provider=self.name,
            token=token,
            run=run,
            address=address,
            micro_usd_per_hour=rate or 0,
            odd="; ".join(doubts),
            is_legible=is_legible,
            **facts,
        )
