"""Every number of the gateway in one record."""

from dataclasses import dataclass

from serve.request_bounds import Bounds


@dataclass(frozen=True, kw_only=True)
class GatewayLimits(Bounds):
    """The limits of a gateway. Durations in seconds; each holds for one request unless it says otherwise."""

    connect_s: float = 2.0
    """Time until an engine's port accepts the connection."""
    first_byte_s: float = 60.0
    """Time until the first byte of a streamed answer, including the queue of the engine."""
    idle_s: float = 60.0
    """Time between two chunks of an answer."""
    client_idle_s: float = 60.0
    """Time for which a client may send nothing of its body, or read nothing of its answer."""
    total_s: float = 1800.0
    """Time from the first byte of the request to the last of the answer."""
    handshake_s: float = 10.0
    """Time of a TLS handshake, where the gateway speaks TLS."""
    keepalive_s: float = 75.0
    """Time for which a connection may be open without a whole request, or until all headers of one are received."""
    queue_s: float = 30.0
    """Time for which a request waits for a replica with a free place."""
    hold_s: float = 0.0
    """Time for which a request waits while there is no replica at all, for services that scale to zero; 0 = it is
    refused at once."""

    max_connections: int = 4096
    """Connections of clients. At this number the longest idle one is closed for the next, first those that have shown
    no key. This and the counts below are lowered together where a process may not open as many files."""
    max_connections_per_key: int = 2048
    max_strangers_per_address: int = 1024
    """Connections per address that have not had a request let in yet; as many places are reserved for such
    connections."""
    max_in_flight: int = 2048
    """Requests in progress, including waiting ones."""
    max_in_flight_per_key: int = 1024
    max_in_flight_per_replica: int = 384
    """About 1.5 times what an engine computes at once (vLLM's max_num_seqs)."""
    max_queued: int = 512

    wrong_keys_per_s: float = 10.0
    """Answers per second to wrong keys of one address; the first few come at once, then each is delayed."""
    wrong_key_most_s: float = 10.0
    """Longest delay of such an answer."""

    charged_s: float = 4.0
    """Shortest time for which a body counts against its client, so that refused ones count too."""

    tries: int = 3
    """Replicas that one request may be sent to, as long as its client has received no byte."""
    retry_ratio: float = 0.1
    """Retries per request, over the recent ones."""
    retry_floor: int = 10
    """Retries that may be spent before any request has earned them; also the most that are saved up."""

    eject_after: int = 5
    """Failed requests in a row after which a replica gets no more for a while."""
    eject_s: float = 5.0
    """Length of the first such pause; each further one is twice as long, until a request in between has succeeded."""
    eject_most_s: float = 120.0
    stall_s: float = 10.0
    """A replica that has requests and has sent no byte for this long is chosen last."""
    slow_start_s: float = 10.0
    """Time in which a new replica reaches its full share."""
    affinity_chars: int = 0
    """Leading characters of a prompt that decide which replica is asked first (prefix caches); 0 = only load
    decides."""
    affinity_bound: float = 1.25
    """Load, as a multiple of the mean, above which a replica is not chosen by prefix."""
