"""The gateway with vllm-router behind it, which chooses the replica: prefix caches, sticky sessions.

    client -> Gateway (keys, allow-list, limits, queue, log, numbers) -> vllm-router -> engines

The router asks for no key of its clients, passes every path on and lets its list of workers be changed by whoever
reaches its port; so it listens on loopback only and the gateway stays in front (dev/decisions/0025). It is told of
workers through its API (/list_workers, /add_worker, /remove_worker), again and again: one that was started anew knows
none. In: `replace`, as the plain gateway. Out: a list of workers that is the same. A worker that was taken off is asked
itself whether it still works, as the router forgets it.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from urllib.parse import quote

import aiohttp
import msgspec

from infra.agent.shortage import is_shortage
from infra.errors import SlipwayError
from infra.units import duration
from serve.gateway.access import AccessLog
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from serve.gateway.routing import Target
from serve.gateway.server import Gateway
from serve.loops import timeout
from serve.replicas.probe import body_of, counters

ROOT = Path(__file__).resolve().parents[2]
NAME = "vllm-router"
LOOK_S = 0.25  # between comparisons of its workers with ours
START_S = 120.0
ASK_S = 10.0  # it adds a worker once it has seen that it is well
AGAIN_S = 2.0  # between starts of one that ends by itself
IDLE_LOOKS = 2  # at a worker that was taken off: a request may be on its way to it


class Routed(Gateway):
    """A gateway that routes by vllm-router; `python` is of the serve-router environment."""

    def __init__(
        self,
        limits: GatewayLimits,
        keys: Keys,
        access: AccessLog | None,
        *,
        python: Path,
        policy: str,
        key: str,
        log: Path,
        say: Callable[[str], None],
    ) -> None:
        super().__init__(limits, keys, access)
        self._python, self._policy, self._key, self._log, self._say = python, policy, key, log, say
        self._wanted: list[Target] = []
        self._leaving: dict[Target, int] = {}  # number of times it was seen idle since
        self._changed, self._told = asyncio.Event(), asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> list[Target]:
        return list(self._wanted)

    async def start(self, host: str, port: int) -> int:
        """Start, once the router knows its workers.

        Raises SlipwayError when it does not come up, and as the plain gateway.
        """
        self._told.clear()
        self._keeper = asyncio.create_task(self._keep())
        try:
            async with timeout(START_S):
                await self._told.wait()
        except asyncio.TimeoutError:
            await self.stop(0)
            raise SlipwayError(f"{NAME} did not come up in {duration(START_S)}; its log: {self._log}") from None
        return await super().start(host, port)

    def replace(self, replicas: Iterable[Target]) -> None:
        wanted = list(dict.fromkeys(replicas))
        for gone in [one for one in self._wanted if one not in wanted]:
            self._leaving[gone] = 0
        for back in wanted:
            self._leaving.pop(back, None)
        self._wanted = wanted
        self._changed.set()

    def in_flight(self, replica: Target) -> int:
        """Return 1 until it is known to have none: the router does not report on a worker that it forgot."""
        return int(replica in self._leaving or replica in self._wanted)

    async def stop(self, drain_s: float) -> None:
        await super().stop(drain_s)
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def _keep(self) -> None:
        """Run a router that knows its workers; restart it when it has ended."""
        while True:
            try:
                port = _free_port()
                with self._log.open("ab") as log:
                    process = subprocess.Popen(
                        [str(self._python), "-m", "serve.router", str(port), self._policy],
                        cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                        env={**os.environ, "PYTHONPATH": str(ROOT)},
                    )  # fmt: skip
            except OSError as error:  # no file descriptor or memory is free just now
                self._say(f"{NAME} was not started: {error}; tried again in {AGAIN_S:g} s")
                await asyncio.sleep(AGAIN_S)
                continue
            try:
                await self._follow(process, f"http://127.0.0.1:{port}")
            finally:
                super().replace(())
                process.kill()
                process.wait()
                assert process.stdin is not None
                process.stdin.close()
            self._say(f"{NAME} has ended with {process.returncode}; it is started again; its log: {self._log}")
            await asyncio.sleep(AGAIN_S)

    async def _follow(self, process: "subprocess.Popen[bytes]", url: str) -> None:
        """Tell a router of its workers until it ends."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(ASK_S)) as session:
            while process.poll() is None:
                self._changed.clear()
                # One that is starting, or busy, is asked again.
                with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError, msgspec.DecodeError):
                    await self._tell(session, url)
                await self._look_at_leaving(session)
                with contextlib.suppress(asyncio.TimeoutError):
                    async with timeout(LOOK_S):
                        await self._changed.wait()

    async def _tell(self, session: aiohttp.ClientSession, url: str) -> None:
        """Tell it what it does not know yet. It is asked for answers only while it knows a worker."""
        async with session.get(f"{url}/list_workers") as reply:
            known = set(msgspec.json.decode(await body_of(reply))["urls"])
        wanted = {one.url for one in self._wanted}
        if not wanted:
            super().replace(())
        for one in known - wanted:
            await self._call(session, f"{url}/remove_worker", one)
        added = await asyncio.gather(*(self._call(session, f"{url}/add_worker", one) for one in wanted - known))
        if wanted and (known & wanted or any(added)):
            # One seat for each try of a request: the router may choose another worker the next time.
            seats = range(self.limits.tries)
            mine = [Target(replica_id=f"{NAME}-{number}", url=url, key=self._key) for number in seats]
            if super().replicas != mine:
                super().replace(mine)
        self._told.set()

    async def _call(self, session: aiohttp.ClientSession, verb: str, worker: str) -> bool:
        async with session.post(f"{verb}?url={quote(worker, safe='')}") as reply:
            said = (await reply.read()).decode(errors="replace")
        if reply.status != 200:
            self._say(f"{NAME}: {verb.rpartition('/')[2]} {worker}: {reply.status} {said[:200]}")
        return reply.status == 200

    async def _look_at_leaving(self, session: aiohttp.ClientSession) -> None:
        for one in list(self._leaving):
            found = await counters(session, one.url)
            if one not in self._leaving:
                continue  # it is wanted again
            is_idle = not found.running and not found.waiting
            if found.running is None:
                is_idle = await _is_gone(one.url)
            self._leaving[one] = self._leaving[one] + 1 if is_idle else 0
            if self._leaving[one] >= IDLE_LOOKS:
                del self._leaving[one]


async def _is_gone(url: str) -> bool:
    """Return whether nothing listens there any more."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    try:
        async with timeout(ASK_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except asyncio.TimeoutError:
        return False
    except OSError as error:
        return not is_shortage(error)  # otherwise it was not asked
    writer.close()
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])
