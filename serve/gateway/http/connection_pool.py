"""Client connections, and the choice of a connection to close when the gateway is full. Pure: no input or output.

A stranger, a connection without an admitted request so far, counts against the client's address; strangers are closed
first, the oldest before the others. A known connection counts against the client's key and is closed only while idle.
Neither kind can take the room of the other. Every step takes constant time, except for the choice of a known connection
to close.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

from serve.gateway.http.limits import GatewayLimits


class PoolMember(Protocol):
    """Interface of a client connection."""

    @property
    def is_idle(self) -> bool:
        """Return whether the connection has no request in progress."""

    @property
    def idle_until(self) -> float:
        """Return the time at which the idle limit expires."""


M = TypeVar("M", bound=PoolMember)


class ConnectionPool(Generic[M]):
    """All client connections. `give_up` must close the given connection, which counts no longer."""

    def __init__(self, limits: GatewayLimits, give_up: Callable[[M], None]) -> None:
        self.limits = limits
        self._give_up = give_up
        self._strangers: OrderedDict[M, str] = OrderedDict()  # oldest first, with addresses
        self._known: OrderedDict[M, str] = OrderedDict()  # with keys
        self._by_address: dict[str, OrderedDict[M, None]] = {}
        self._by_key: dict[str, OrderedDict[M, None]] = {}

    def __len__(self) -> int:
        return len(self._strangers) + len(self._known)

    def add(self, one: M, address: str) -> bool:
        """Add a stranger and return True, closing a connection to make room; return False if the gateway is full."""
        there = self._by_address.get(address, ())
        if len(there) >= self.limits.max_strangers_per_address:
            self._close(next(iter(there)))
        elif len(self) >= self.limits.max_connections and not self.close_oldest(1):
            longest = _longest_idle(self._known)
            if longest is None:
                return False
            self._close(longest)
        _put(self._strangers, self._by_address, one, address)
        return True

    def admit(self, one: M, key: str) -> None:
        """Count a stranger against `key` from now on; close the longest idle connection if keys have no room left."""
        if not _take(self._strangers, self._by_address, one):
            return  # closed meanwhile
        limits, alike = self.limits, self._by_key.get(key, ())
        longest = None
        if len(alike) >= limits.max_connections_per_key:
            longest = _longest_idle(alike)
        elif len(self._known) >= limits.max_connections - min(
            limits.max_strangers_per_address, limits.max_connections // 4
        ):
            longest = _longest_idle(self._known)
        if longest is not None:  # otherwise all are busy, and there cannot be many more
            self._close(longest)
        _put(self._known, self._by_key, one, key)

    def remove(self, one: M) -> None:
        """Forget a closed connection; a connection already forgotten is ignored."""
        if not _take(self._strangers, self._by_address, one):
            _take(self._known, self._by_key, one)

    def close_oldest(self, count: int) -> int:
        """Close up to `count` of the oldest strangers; return the number of closed connections."""
        count = min(count, len(self._strangers))
        for _ in range(count):
            self._close(next(iter(self._strangers)))
        return count

    def _close(self, one: M) -> None:
        self.remove(one)
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
    """Return the accounting address of a connection: IPv4, or the /64 network of an IPv6 customer."""
    host: str = peer[0]
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
