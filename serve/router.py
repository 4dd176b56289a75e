"""vllm-router as a child: it listens on loopback, and ends when whoever started it does, however that went.

    python -m serve.router PORT POLICY        in the serve-router environment, its standard input held open

In: a port and a policy. Out: a router without workers, which is told of them through its own API. Imports nothing else
of serve: its environment has vllm-router and nothing of ours.
"""

import os
import sys
import threading

HEALTH_S = 5  # between its own looks at a worker; 60 if it is not told


def words(port: int, policy: str) -> list[str]:
    """Return the words of its command line."""
    return [
        *("--host", "127.0.0.1", "--port", str(port), "--policy", policy, "--log-level", "warning"),
        *("--health-check-interval-secs", str(HEALTH_S), "--worker-startup-check-interval", "1"),
        *("--request-timeout-secs", "86400"),  # the gateway's limits are shorter
        "--disable-circuit-breaker",  # it counts answers of 5xx, which one client can cause as often as it likes
    ]


def end_with_parent() -> None:
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


def main() -> None:
    from vllm_router.launch_router import launch_router, parse_router_args

    threading.Thread(target=end_with_parent, daemon=True).start()
    said = parse_router_args(words(int(sys.argv[1]), sys.argv[2]))
    said.prometheus_port = None  # the gateway's metrics are the service's
    launch_router(said)


if __name__ == "__main__":
    main()
