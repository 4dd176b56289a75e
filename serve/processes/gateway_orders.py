"""Protocol between controller and gateway process, and the files in which both find each other.

    Order           complete desired state of the gateway   controller -> gateway, a line of JSON
    GatewayReport   state and counters of the gateway       gateway -> controller, a line per order

Both use a Unix socket in the service's folder, open to the owner only. At most one gateway lives per service: the
gateway locks a file in the folder and writes the process identity there. Imports only msgspec from the `serve`
environment.
"""

import fcntl
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from infra.agent.process import Identity, current_identity, is_alive, send
from infra.transport.unix_socket import short
from serve.gateway.http.certificate import Tls
from serve.gateway.http.limits import GatewayLimits
from serve.policy.suspicion import Failures
from serve.processes.service_paths import ServicePaths

LONGEST_LINE = 16 << 20  # a thousand replicas take a few hundred kilobytes


@dataclass(frozen=True, kw_only=True)
class ReplicaEndpoint:
    """A replica as known to the gateway, with the data to reach the engine on any machine."""

    replica_id: str
    """Name of the pod in the journal."""
    version: int
    key: str = field(repr=False)
    """API key of the engine."""
    port: int
    """Port of the engine on the replica's machine."""
    vendor: str
    pod_id: str
    token: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """Order of the controller with the complete desired state of the gateway."""

    epoch: int
    """Epoch of the controller's lease: the gateway refuses orders of a replaced controller."""
    host: str
    port: int
    """0 = any free port. The first order fixes host and port for the life of the process."""
    patience_s: float = 0.0
    """Seconds to wait for the port, which may be about to become free."""
    limits: GatewayLimits
    tls: Tls | None = None
    """Certificate for TLS; None = plain HTTP, for the life of the process."""
    endpoints: tuple[ReplicaEndpoint, ...] = ()
    model: str = ""
    """Name of the model for clients."""
    variants: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the replicas with each variant of the model; {} = the engine checks the name of the model."""
    is_last: bool = False
    """True if the gateway must end after draining requests for `drain_s` seconds."""
    drain_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GatewayReport:
    """Report of the gateway, the reply to an order."""

    pid: int
    code: str
    """Stamp of the running code."""
    age_s: float
    """Seconds since the gateway began to listen."""
    host: str = ""
    port: int = 0
    problem: str = ""
    """Reason why the gateway cannot work; the gateway then ends."""
    qps: float = 0.0
    """Requests per second over the last minute, refused requests included."""
    waiting: int = 0
    """Requests in the wait queue."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Requests in flight by replica name, removed replicas included; zero counts are omitted."""
    failures: Mapping[str, Failures] = field(default_factory=dict)
    """Consecutive failed requests by replica name; replicas without failures are omitted."""
    reached: tuple[str, ...] = ()
    """Replicas that receive requests."""


def listen(places: ServicePaths) -> socket.socket:
    """Return the listening socket for controllers; the caller must hold the gateway lock. Raises OSError."""
    places.gateway_socket.unlink(missing_ok=True)
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short(places.gateway_socket) as name:
            made.bind(name)
        places.gateway_socket.chmod(0o600)
        made.listen()
    except BaseException:
        made.close()
        raise
    return made


def call(places: ServicePaths) -> socket.socket | None:
    """Return a connection to the living gateway, or None without a gateway. Raises OSError for any other failure."""
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with short(places.gateway_socket) as name:
            made.connect(name)
    except (FileNotFoundError, ConnectionRefusedError):
        made.close()
        return None
    except BaseException:
        made.close()
        raise
    return made


def lock(places: ServicePaths) -> int | None:
    """Lock the gateway file until this process ends and return the descriptor; None if a gateway holds the lock."""
    places.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(places.gateway_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(asdict(current_identity())).encode(), 0)
    return file


def is_free(places: ServicePaths) -> bool:
    """Return whether no gateway lives or starts, by the lock."""
    places.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with places.gateway_lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def living(places: ServicePaths) -> Identity | None:
    """Return the identity of the living gateway; None without a gateway, or before the file has an identity."""
    try:
        said = json.loads(places.gateway_lock.read_text())
        found = Identity(said["boot_id"], said["pid"], said["started"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return found if is_alive(found) else None


def send_sigterm(places: ServicePaths) -> None:
    """Send SIGTERM to the living gateway, which drains open requests for a moment."""
    if gateway := living(places):
        send(gateway, signal.SIGTERM)
