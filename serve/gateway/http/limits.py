"""Record of all limits of the gateway."""

from dataclasses import dataclass

from serve.request_bounds import Bounds


@dataclass(frozen=True, kw_only=True)
class GatewayLimits(Bounds):
    """Limits of a gateway. Durations in seconds; each limit applies to a single request unless stated otherwise."""

    any_route: bool = False
    """Forward every path and body as they are: the replicas run a program of the user."""
    connect_s: float = 2.0
    """Time until an engine's port accepts the connection."""
    first_byte_s: float = 60.0
    """Time until the first byte of a streamed answer, including the engine's queue."""
    idle_s: float = 60.0
    """Time between two chunks of an answer."""
    client_idle_s: float = 60.0
    """Time in which a client sends no part of the body, or reads no part of the answer."""
    total_s: float = 1800.0
    """Time from the first byte of the request to the last byte of the answer."""
    handshake_s: float = 10.0
    """Time of a TLS handshake."""
    keepalive_s: float = 75.0
    """Time of an open connection without a complete request, or until all headers of a request are received."""
    queue_s: float = 30.0
    """Wait in the queue for a replica with a free place."""
    hold_s: float = 0.0
    """Wait without any replica, for services that scale to zero; 0 = refuse at once."""

    max_connections: int = 4096
    """Connections of clients. At this number a new connection closes the longest idle connection, first connections
    without a key. This and the counts below are scaled down together if the process may open fewer files."""
    max_connections_per_key: int = 2048
    max_strangers_per_address: int = 1024
    """Connections per address without an admitted request so far; the same number of places is reserved for such
    connections."""
    max_in_flight: int = 2048
    """Requests in progress, including waiting ones."""
    max_in_flight_per_key: int = 1024
    max_in_flight_per_replica: int = 384
    """About 1.5 times an engine's simultaneous requests (vLLM's max_num_seqs)."""
    max_queued: int = 512

    wrong_keys_per_s: float = 10.0
    """Answers per second to wrong keys from one address; the first few are immediate, later answers are delayed."""
    wrong_key_most_s: float = 10.0
    """Maximum delay of such an answer."""

    charged_s: float = 4.0
    """Minimum time for which a body counts against the client, so refused bodies count too."""

    tries: int = 3
    """Replicas tried for a request, as long as the client has received no byte."""
    retry_ratio: float = 0.1
    """Retries per request, over recent requests."""
    retry_floor: int = 10
    """Retries available before any request has earned retries; also the maximum of saved retries."""

    eject_after: int = 5
    """Consecutive failed requests after which a replica receives no requests for a while."""
    eject_s: float = 5.0
    """Duration of the first ejection; each further ejection lasts twice as long, until a request in between
    succeeds."""
    eject_most_s: float = 120.0
    stall_s: float = 10.0
    """Silence after which a replica with requests in flight is chosen last."""
    slow_start_s: float = 10.0
    """Time in which a new replica ramps up to a full share."""
    affinity_chars: int = 0
    """Leading characters of a prompt to select the preferred replica (prefix caches); 0 = only load decides."""
    affinity_bound: float = 1.25
    """Load, as a multiple of the mean, above which a replica is not chosen by prefix."""
