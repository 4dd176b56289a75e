"""The limit of open files of this process, and limits of the gateway that stay below it.

A connection is one, and a request inside takes two more: one to its engine, one behind the port by which an engine on
another machine is reached. In: a process' limit, its GatewayLimits. Out: a raised limit, GatewayLimits that fit.
"""

import contextlib
import resource
from dataclasses import replace

from serve.gateway.http.limits import GatewayLimits

WANTED = 1 << 16  # more is no use, and programs that are started go through all of them
RESERVE = 256  # files for journals, logs, probes, and pods that are started or ended
PER_REQUEST = 2


def raise_limit() -> None:
    """Raise the limit as far as this process may, and is of use. Call it at the start: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitted(limits: GatewayLimits, files: int | None = None) -> GatewayLimits:
    """Return limits that fit so many files: the same, or all counts scaled down; None = those of this process."""
    if files is None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        files = WANTED if soft == resource.RLIM_INFINITY else soft
    room = max(files - RESERVE, files // 2)
    share = room / (limits.max_connections + PER_REQUEST * limits.max_in_flight)
    if share >= 1:
        return limits

    def part(count: int) -> int:
        return max(1, int(count * share))

    return replace(
        limits,
        max_connections=part(limits.max_connections),
        max_connections_per_key=part(limits.max_connections_per_key),
        max_strangers_per_address=part(limits.max_strangers_per_address),
        max_in_flight=part(limits.max_in_flight),
        max_in_flight_per_key=part(limits.max_in_flight_per_key),
    )
