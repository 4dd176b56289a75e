"""Loading of variants of a model into the running engine of a replica, over the engine's route `serve.variants.ROUTE`.

    wanted variants -> difference to the variants of the engine -> DELETE, POST -> record of the result

The gateway stops sending requests to a variant before the engine unloads the variant.
"""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass

import aiohttp

from serve.gateway.routing import Target
from serve.variants import ROUTE, LoadRequest, Variant
from store.backoff import Backoff

LOAD_S = 900.0  # timeout of a load: the engine may download the variant
ASK_S = 15.0
RETRY_S = 5.0
BACKOFF = Backoff(first_s=5.0, longest_s=300.0)  # between two loads of a variant that fails
MOST_EQUAL = 3  # equal failures of the engine in a row; then the variant is refused
GRACE_S = 0.5  # time for requests on the way from the gateway to the engine


@dataclass(frozen=True)
class Failure:
    """The failed loads of a variant, in a row."""

    error: str
    loads: int
    equal: int
    """Number of the last loads with this error of the engine; 0 for an error outside of the engine."""
    not_before: float


class VariantLoader:
    """Variants of one engine. `record` receives loaded, refused and failed variants after each change."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        replica: Target,
        record: Callable[[Mapping[str, str], Mapping[str, str], Mapping[str, str]], None],
        say: Callable[[str], None],
        has_some: bool = False,
    ) -> None:
        """has_some: an earlier controller may have loaded variants into the engine."""
        self.session, self.replica, self.record, self.say = session, replica, record, say
        self.loaded: dict[str, str] | None = None
        """Identity of each loaded variant by name; None = unknown."""
        self.refused: dict[str, str] = {}
        """Error of each refused variant by identity."""
        self.failures: dict[str, Failure] = {}
        """Failures of each variant that is tried again, by identity."""
        self.has_some = has_some
        """True if the engine may have variants while `loaded` is unknown."""
        self.not_before = 0.0
        self.told = ""

    def is_due(self, wanted: Mapping[str, Variant]) -> bool:
        """Return whether the engine may lack a wanted variant, or may have other variants."""
        if time.monotonic() < self.not_before or (not wanted and self.loaded is None and not self.has_some):
            return False
        if self.loaded is None:
            return True
        return bool(self._extra(wanted)) or any(self._is_lacking(name, one) for name, one in wanted.items())

    def _extra(self, wanted: Mapping[str, Variant]) -> list[str]:
        """Return the names of the engine's variants that are not wanted, or not with this identity."""
        loaded = self.loaded or {}
        return [name for name, one in loaded.items() if name not in wanted or wanted[name].identity != one]

    def _is_lacking(self, name: str, variant: Variant) -> bool:
        """Return whether the engine lacks a variant that may be loaded now."""
        one, failure = variant.identity, self.failures.get(variant.identity)
        is_waiting = failure is not None and time.monotonic() < failure.not_before
        return (self.loaded or {}).get(name) != one and one not in self.refused and not is_waiting

    @property
    def failed(self) -> dict[str, str]:
        """The last error of each variant that is tried again, by identity."""
        return {one: failure.error for one, failure in self.failures.items()}

    async def reconcile(self, wanted: Mapping[str, Variant], leave: Callable[[], Awaitable[None]]) -> None:
        """Unload and load variants until the engine has the wanted variants; on an error, wait before the next try.

        leave: waits until the gateway sends no request to unloaded variants of the record.
        """
        try:
            self.has_some = True  # unless the pass ends without an error
            if self.loaded is None:
                self.loaded = await self._ask("GET", {}, ASK_S)
            gone, known = self._extra(wanted), {one.identity for one in wanted.values()}
            lacking = {one.identity for name, one in wanted.items() if self.loaded.get(name) != one.identity}
            self.refused = {one: why for one, why in self.refused.items() if one in known}
            self.failures = {one: failure for one, failure in self.failures.items() if one in lacking}
            if gone:
                kept = {name: one for name, one in self.loaded.items() if name not in gone}
                self.record(kept, self.refused, self.failed)
                await leave()
                await asyncio.sleep(GRACE_S)
            for name in gone:
                await self._ask("DELETE", {"name": name}, ASK_S)
                del self.loaded[name]
                self.say(f"unloaded {name}")
            failed: list[str] = []
            for name, one in wanted.items():
                if self._is_lacking(name, one):
                    try:
                        await self._load(name, one)
                    except ValueError as error:  # of this variant, such as a failed download
                        self._note_failure(name, one, error)
                        failed.append(f"{name}: {error}")
            # Also after a failure, because the engine may have loaded a variant whose answer was lost.
            self.record(self.loaded, self.refused, self.failed)
            if failed:
                raise ValueError("; ".join(failed))
            self.has_some = bool(self.loaded)
            self.told = self.told if self.failures else ""
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError, ValueError, VariantRefused) as error:
            self.not_before, self.loaded = time.monotonic() + RETRY_S, None
            if (said := f"the variants cannot be changed now: {error or type(error).__name__}") != self.told:
                self.told = said
                self.say(said)

    def _note_failure(self, name: str, variant: Variant, error: ValueError) -> None:
        """Let a variant wait before the next load, or refuse a variant that the engine itself never loads."""
        said, before = str(error), self.failures.pop(variant.identity, None)
        loads = before.loads + 1 if before else 1
        equal = 0
        if isinstance(error, EngineFailed):
            equal = before.equal + 1 if before and before.error == said else 1
        if equal >= MOST_EQUAL:
            self.refused[variant.identity] = f"{said}, {equal} times in a row"
            self.say(f"{name} is not loaded: {self.refused[variant.identity]}")
            return
        self.failures[variant.identity] = Failure(said, loads, equal, time.monotonic() + BACKOFF.wait_s(loads))

    async def _load(self, name: str, variant: Variant) -> None:
        assert self.loaded is not None
        began = time.monotonic()
        ask = LoadRequest(name=name, source=variant.source, identity=variant.identity)
        try:
            await self._ask("POST", asdict(ask), LOAD_S)
        except VariantRefused as refused:
            self.refused[variant.identity] = str(refused)
            self.say(f"{name} is not loaded: {refused}")
        else:
            self.loaded[name] = variant.identity
            self.say(f"loaded {name} in {time.monotonic() - began:.1f} s")
        self.failures.pop(variant.identity, None)
        self.record(self.loaded, self.refused, self.failed)

    async def _ask(self, method: str, body: Mapping[str, str], timeout_s: float) -> dict[str, str]:
        """Return the variants of the engine after a request.

        Raises VariantRefused, EngineFailed, ValueError, ClientError, TimeoutError.
        """
        headers = {"Authorization": f"Bearer {self.replica.key}"} if self.replica.key else {}
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        url = f"{self.replica.url}{ROUTE}"
        async with self.session.request(method, url, json=dict(body), headers=headers, timeout=timeout) as reply:
            text = await reply.text()
            try:
                said = json.loads(text)
            except ValueError:
                said = text
            error = said.get("error") if isinstance(said, dict) else None
            message = str(error.get("message") if isinstance(error, dict) else said)[:500]
            if reply.status == 500:
                raise EngineFailed(message)
            if reply.status >= 500 or not isinstance(said, dict):
                raise ValueError(f"status {reply.status}: {message}")
            if reply.status >= 400:
                raise VariantRefused(message)
            found = said.get("variants")
            return {str(one): str(identity) for one, identity in found.items()} if isinstance(found, dict) else {}


class EngineFailed(ValueError):
    """The engine fails to load a variant; the message gives the reason."""


class VariantRefused(Exception):
    """The engine refuses a variant; the message gives the reason."""
