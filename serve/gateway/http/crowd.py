"""The connections of clients, and which of them is closed when there is no room. Pure: no input or output.

In: connections that come, are let in, and go. Out: those to be given up for others. A stranger, of which no request was
let in yet, counts for its address and is given up first, the oldest before the others. One that was let in counts for
its key, and is given up only while it has no request. Neither kind can take the room of the other. A step takes as long
among thousands as among few, but for the giving up of one that was let in.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from serve.gateway.http.limits import GatewayLimits


class CrowdMember(Protocol):
    """The interface of a connection that was let in."""

    @property
    def is_idle(self) -> bool:
        """Return whether it has no request."""

    @property
    def idle_until(self) -> float:
        """Return the time at which it will have been idle for too long."""


M = TypeVar("M", bound=CrowdMember)


class Crowd(Generic[M]):
    """The connections. `give_up` is told which has to leave; that one is counted no more."""

    def __init__(self, limits: GatewayLimits, give_up: Callable[[M], None]) -> None:
        self.limits = limits
        self._give_up = give_up
        self._strangers: OrderedDict[M, str] = OrderedDict()  # the oldest first, and their addresses
        self._known: OrderedDict[M, str] = OrderedDict()  # and their keys
        self._by_address: dict[str, OrderedDict[M, None]] = {}
        self._by_key: dict[str, OrderedDict[M, None]] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def come(self, one: M, address: str) -> bool:
        """Return whether there is room for this stranger, also when another one had to leave for it."""
        there = self._by_address.get(address, ())
        if len(there) >= self.limits.max_strangers_per_address:
            self._dismiss(next(iter(there)))
        elif len(self) >= self.limits.max_connections and not self.thin(1):
            longest = _longest_idle(self._known)
            if longest is None:
                return False
            self._dismiss(longest)
        _put(self._strangers, self._by_address, one, address)
        return True

    def let_in(self, one: M, key: str) -> None:
        """Count a stranger for its key; another one may have to leave, so that strangers keep their room."""
        if not _take(self._strangers, self._by_address, one):
            return  # it was given up meanwhile
        limits, alike = self.limits, self._by_key.get(key, ())
        longest = None
        if len(alike) >= limits.max_connections_per_key:
            longest = _longest_idle(alike)
        elif len(self._known) >= limits.max_connections - min(
            limits.max_strangers_per_address, limits.max_connections // 4
        ):
            longest = _longest_idle(self._known)
        if longest is not None:  # otherwise all are at work, and there cannot be many more
            self._dismiss(longest)
        _put(self._known, self._by_key, one, key)

    def leave(self, one: M) -> None:
        """Forget a connection that has left by itself, or was forgotten before."""
        if not _take(self._strangers, self._by_address, one):
            _take(self._known, self._by_key, one)

    def thin(self, count: int) -> int:
        """Close so many of the oldest strangers, or as many as there are; return how many."""
        count = min(count, len(self._strangers))
        for _ in range(count):
            self._dismiss(next(iter(self._strangers)))
        return count

    def _dismiss(self, one: M) -> None:
        self.leave(one)
        self._give_up(one)


def _longest_idle(members: Iterable[M]) -> M | None:
    return min((one for one in members if one.is_idle), key=lambda one: one.idle_until, default=None)


def _put(all: OrderedDict[M, str], groups: dict[str, OrderedDict[M, None]], one: M, name: str) -> None:
    all[one] = name
    groups.setdefault(name, OrderedDict())[one] = None


def _take(all: OrderedDict[M, str], groups: dict[str, OrderedDict[M, None]], one: M) -> bool:
    name = all.pop(one, None)
    if name is None:
        return False
    del groups[name][one]
    if not groups[name]:
        del groups[name]
    return True


def address_of(peer: Any) -> str:
    """Return for whom a connection counts: an IPv4 address, or the /64 network that one customer has of IPv6."""
    host: str = peer[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
