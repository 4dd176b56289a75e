"""Limit of open files of this process, and gateway limits that fit the limit.

A connection takes a file descriptor, and a request in progress takes two more: the connection to the engine, and the
forwarded port of an engine on a different machine.
"""

import contextlib
import resource
from dataclasses import replace

from serve.gateway.http.limits import GatewayLimits

WANTED = 1 << 16  # more is useless, and started programs iterate over all descriptors
RESERVE = 256  # descriptors for journals, logs, probes, and starting or ending pods
PER_REQUEST = 2


def raise_limit() -> None:
    """Raise the soft limit to WANTED, as far as permitted. Call at startup: many systems begin with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(hard, WANTED)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a lower limit than reported
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def fitted(limits: GatewayLimits, files: int | None = None) -> GatewayLimits:
    """Return limits that fit `files` descriptors, with all counts scaled down if needed; None = the process limit."""
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
