"""The gateway's process and its controller: what they say to each other, and where they find each other.

    Order           everything that the gateway is to do    controller -> gateway, a line of JSON
    GatewayReport   what it does, and what it counts        gateway -> controller, one for each order

They meet at a Unix socket in the service's folder, which only its owner may open. Of a service one gateway lives at
most: it holds a lock there, in which it says who it is. Imports nothing of the `serve` environment but msgspec.
"""

import fcntl
import json
import os
import signal
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from infra.agent.process import Identity, is_alive, myself, send
from infra.transport.unix_socket import short
from serve.gateway.http.certificate import Tls
from serve.gateway.http.limits import GatewayLimits
from serve.policy.doubt import Failures
from serve.processes.places import Places

LONGEST_LINE = 16 << 20  # a thousand replicas take a few hundred kilobytes


@dataclass(frozen=True, kw_only=True)
class ReplicaEndpoint:
    """A replica as the gateway knows it, with what is needed to reach its engine anywhere."""

    replica_id: str
    """Name of its pod in the journal."""
    version: int
    key: str = field(repr=False)
    """API key of its engine."""
    port: int
    """Port of its engine, on its machine."""
    vendor: str
    pod_id: str
    token: str
    address: str


@dataclass(frozen=True, kw_only=True)
class Order:
    """An order of the controller: the whole desired state of the gateway."""

    epoch: int
    """Epoch of the controller's lease: a controller that was replaced by another is not obeyed any more."""
    host: str
    port: int
    """0 = any free port. Host and port are those of the first order, for as long as the process lives."""
    patience_s: float = 0.0
    """Seconds for which the gateway waits for the port, which may be about to become free."""
    limits: GatewayLimits
    tls: Tls | None = None
    """Certificate for TLS; None = plain HTTP, for as long as the process lives."""
    endpoints: tuple[ReplicaEndpoint, ...] = ()
    is_last: bool = False
    """True if the gateway is to end; requests in progress may go on for `drain_s`."""
    drain_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GatewayReport:
    """The report of the gateway about an order."""

    pid: int
    code: str
    """Stamp of the code that it runs."""
    age_s: float
    """Seconds for which it has listened."""
    host: str = ""
    port: int = 0
    problem: str = ""
    """Reason why it cannot do its work; it ends then."""
    qps: float = 0.0
    """Requests that arrived in the last minute, per second, refused ones included."""
    waiting: int = 0
    """Requests in line."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Requests that a replica works on, by its name, also of those that are not wanted any more; 0 is left out."""
    failures: Mapping[str, Failures] = field(default_factory=dict)
    """Requests that failed in a row, by the name of the replica; a replica without any is left out."""
    reached: tuple[str, ...] = ()
    """The replicas that requests go to."""


def listen(places: Places) -> socket.socket:
    """Return the socket at which controllers call; for whoever holds the lock. Raises OSError."""
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


def call(places: Places) -> socket.socket | None:
    """Return a connection to the gateway that lives; None while there is none. Raises OSError for any other want."""
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


def lock(places: Places) -> int | None:
    """Return a file whose lock this process holds until it ends, as the one gateway; None when another one does."""
    places.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = os.open(places.gateway_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    os.ftruncate(file, 0)
    os.pwrite(file, json.dumps(asdict(myself())).encode(), 0)
    return file


def is_free(places: Places) -> bool:
    """Return whether no gateway lives, nor one is on its way up."""
    places.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with places.gateway_lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def living(places: Places) -> Identity | None:
    """Return the gateway that lives; None when there is none, or it has not said yet who it is."""
    try:
        said = json.loads(places.gateway_lock.read_text())
        found = Identity(said["boot_id"], said["pid"], said["started"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    return found if is_alive(found) else None


def tell_to_end(places: Places) -> None:
    """Tell the gateway that lives to end: requests under way have a moment."""
    if gateway := living(places):
        send(gateway, signal.SIGTERM)
