"""Accounting of request body bytes per client: bodies occupy the gateway's time and memory.

A body counts against the key and the address of the client while the request is in progress, and for at least
`charged_s` seconds, because the gateway reads the bodies of refused requests too. Bodies up to FREE_BYTES are free, as
the number of requests bounds them.
"""

import asyncio
import time
from collections import Counter

from serve.gateway.http.limits import GatewayLimits
from serve.gateway.request_body import RequestRefused

FREE_BYTES = 64 << 10


class Charges:
    """Charged bytes of an event loop, by key and by address."""

    def __init__(self) -> None:
        self.held: Counter[tuple[str, str]] = Counter()


class Charge:
    """Charge of a body: opened when the request is admitted, given back once at the end of the request."""

    def __init__(self, charges: Charges, key: str, address: str) -> None:
        self._held, self._size, self._until = charges.held, 0, 0.0
        self._holders = (("key", key), ("address", address)) if key else (("address", address),)

    def grow_to(self, size: int, limits: GatewayLimits) -> None:
        """Charge for a body of `size` bytes, received or announced. Raises RequestRefused above the client's limit."""
        more = size - self._size
        if size <= FREE_BYTES or more <= 0:
            return
        if any(self._held[one] + more > limits.max_bytes_per_client for one in self._holders):
            raise RequestRefused(429, "Too Many Requests", "too many bytes at once; try again soon", 1)
        self._add(more)
        self._size = size
        self._until = time.monotonic() + limits.charged_s

    def release(self) -> None:
        if self._size:
            delay_s = max(0.0, self._until - time.monotonic())
            asyncio.get_running_loop().call_later(delay_s, self._add, -self._size)

    def _add(self, more: int) -> None:
        for one in self._holders:
            self._held[one] += more
            if not self._held[one]:
                del self._held[one]
