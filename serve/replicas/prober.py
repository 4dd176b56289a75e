"""Prober of a replica for life: the last result, and the kind and time of the next probe.

`suspect` takes the number of failed requests. A replica in doubt is probed carefully at once, until a careful probe
passes: `serve.policy.suspicion`.
"""

import asyncio
import contextlib
import math
import time

import aiohttp

from serve.gateway.routing import Target
from serve.loops import timeout
from serve.policy.suspicion import ReplicaDoubt, after_failures, after_probe
from serve.replicas.probe import CHAT, TOKEN, Counters, ProbeResult, answers, careful, probe
from serve.service import Probe

YOUNG_S = 0.5  # interval of probes of a replica that is not ready; the file may shorten the interval
DOUBT_S = 2.0  # interval of careful probes that pass; the file may shorten the interval
TOLD_EVERY_S = 60.0  # interval between reports of failed requests


class Prober:
    """Prober of a replica. Use within a single event loop."""

    def __init__(self) -> None:
        self.counters: Counters | None = None
        self.why = ""
        """Reason why the last probe failed."""
        self.doubt = ReplicaDoubt()
        self._is_due = asyncio.Event()
        self._chats: bool | None = None  # True if the engine has answered a chat request; None = not asked yet
        self._told_at = -math.inf

    async def probe(
        self, session: aiohttp.ClientSession, target: Target, model: str, asked: Probe, is_ready: bool
    ) -> ProbeResult:
        """Probe the replica once; ask for tokens only with a model. Raises OSError for a shortage on this machine."""
        before, doubt = self.counters if is_ready else None, self.doubt
        requests = () if not model else careful(self._chats) if doubt.is_open else (TOKEN,)
        found = await probe(session, target.url, target.key, model, asked, before, requests)
        if model and found.passed and is_ready and self._chats is None:
            self._chats = await answers(session, target.url, target.key, model, asked, CHAT)
        self.counters, self.why = found.counters, found.why
        if found.passed and doubt.is_open:
            self.doubt = after_probe(self.doubt, doubt.errors)
        return found

    def record_errors(self, errors: int) -> None:
        """Record the number of consecutive failed requests; a growing number makes a careful probe due."""
        self.doubt = after_failures(self.doubt, errors)
        if self.doubt.is_open:
            self._is_due.set()

    def doubt_message(self, before: ReplicaDoubt) -> str:
        """Return a message if the doubt `before` was open and is settled now; "" otherwise or soon after a message."""
        now = time.monotonic()
        if not before.is_open or self.doubt.settled < before.errors or now - self._told_at < TOLD_EVERY_S:
            return ""
        self._told_at = now
        return (
            f"{before.errors} requests failed in a row, but the replica's careful probe passes; the requests cause "
            "the failures, and the replica stays"
        )

    async def wait_due(self, asked: Probe, is_well: bool, was_doubted: bool) -> None:
        """Wait until the next probe is due."""
        most_s = asked.endpoint_probe_interval_seconds
        if not is_well:
            await asyncio.sleep(min(most_s, YOUNG_S))
            return
        least_s = min(most_s, DOUBT_S) if was_doubted else 0.0
        await asyncio.sleep(least_s)
        if not self.doubt.is_open:
            self._is_due.clear()
        with contextlib.suppress(asyncio.TimeoutError):
            async with timeout(most_s - least_s):
                await self._is_due.wait()
