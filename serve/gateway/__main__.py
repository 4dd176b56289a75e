"""python -m serve.gateway FILE: a standalone gateway that reads the list of replicas from a file.

    {"host": "127.0.0.1", "port": 8000, "keys": "keys.txt", "access_log": "access.jsonl", "limits": {"queue_s": 10},
     "tls": {"keyfile": "key.pem", "certfile": "chain.pem"},
     "replicas": [{"replica_id": "demo-1", "url": "http://127.0.0.1:8101"}]}

Prints `listening on PORT` once the port is open. SIGHUP reloads the replicas, all or none, and the certificate files;
SIGTERM drains requests for `drain_s` seconds and ends.
"""

import asyncio
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infra.errors import SlipwayError, UsageError
from serve.gateway import keys
from serve.gateway.access import AccessLog
from serve.gateway.http.certificate import Certificate, Tls
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.open_files import raise_limit
from serve.gateway.routing import Target
from serve.gateway.server import Gateway
from serve.loops import run


@dataclass(frozen=True, kw_only=True)
class Setup:
    host: str = "127.0.0.1"
    port: int = 0  # 0 = any free port
    keys: str = ""  # key file; "" = requests need no key, loopback only
    access_log: str = ""
    tls: Tls | None = None  # None = plain HTTP
    drain_s: float = 60.0
    limits: GatewayLimits = field(default_factory=GatewayLimits)
    replicas: tuple[Target, ...] = ()


def read(path: Path) -> Setup:
    """Return the setup in a JSON file. Raises UsageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Setup)
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(f"{path}: {error}") from None


async def serve(path: Path) -> None:
    setup = read(path)
    known = keys.load(Path(setup.keys)) if setup.keys else keys.Keys({})
    access = AccessLog(Path(setup.access_log)) if setup.access_log else None
    gateway = Gateway(setup.limits, known, access)
    gateway.replace(setup.replicas)
    certificate = Certificate(setup.tls) if setup.tls else None
    if certificate is not None:
        gateway.set_tls(certificate.context)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def reread() -> None:
        try:
            gateway.replace(read(path).replicas)
            if certificate is not None and certificate.renew():
                gateway.set_tls(certificate.context)
        except (UsageError, ValueError) as error:  # keep the current replicas and certificate
            print(f"serve.gateway: {error}", file=sys.stderr, flush=True)

    loop.add_signal_handler(signal.SIGHUP, reread)
    for end in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(end, ended.set)
    port = await gateway.start(setup.host, setup.port)
    print(f"listening on {port}", flush=True)
    await ended.wait()
    await gateway.stop(setup.drain_s)


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m serve.gateway FILE")
    raise_limit()
    try:
        run(serve(Path(sys.argv[1])))
    except (SlipwayError, OSError) as error:
        print(f"serve.gateway: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 1))


if __name__ == "__main__":
    main()
