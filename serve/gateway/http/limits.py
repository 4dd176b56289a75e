"""Every number of the gateway in one record."""

from dataclasses import dataclass

from serve.request_bounds import Bounds


@dataclass(frozen=True, kw_only=True)
class GatewayLimits(Bounds):
    """The limits of a gateway. Durations in seconds; each holds for one request unless it says otherwise."""

    connect_s: float = 2.0
    """Until an engine's port takes the connection."""
    first_byte_s: float = 60.0
    """Until the first byte of a streamed answer, queue of the engine included."""
    idle_s: float = 60.0
    """Between two chunks of an answer."""
    client_idle_s: float = 60.0
    """For which a client may send nothing of its body, or take nothing of its answer."""
    total_s: float = 1800.0
    """From the first byte of the request to the last of the answer."""
    handshake_s: float = 10.0
    """Until a client has agreed on TLS, where that is spoken."""
    keepalive_s: float = 75.0
    """For which a connection may stand without a whole request, so also: until all its headers are here."""
    queue_s: float = 30.0
    """For which a request waits for a replica that has room."""
    hold_s: float = 0.0
    """For which it waits while there is no replica at all; 0 = it is refused at once. For services that sleep."""

    max_connections: int = 4096
    """Of clients. With this many, the longest idle one is closed for the next, those first that showed no key yet. This
    and the counts below are lowered together where a process may not open as many files."""
    max_connections_per_key: int = 2048
    max_strangers_per_address: int = 1024
    """Connections of which no request was let in yet; so much room is also kept for strangers."""
    max_in_flight: int = 2048
    """Requests that are inside, waiting ones included."""
    max_in_flight_per_key: int = 1024
    max_in_flight_per_replica: int = 384
    """About 1.5 times what an engine computes at once (vLLM's max_num_seqs)."""
    max_queued: int = 512

    wrong_keys_per_s: float = 10.0
    """That an address is told of; it may make as many at once, then its answers are late."""
    wrong_key_most_s: float = 10.0
    """How late at most."""

    charged_s: float = 4.0
    """For which a body counts for its client at least, so that refused ones do."""

    tries: int = 3
    """Replicas that one request may be sent to, as long as its client has not got a byte."""
    retry_ratio: float = 0.1
    """Retries per request, over the recent ones."""
    retry_floor: int = 10
    """Retries that may be spent before any request has earned them; also the most that are saved up."""

    eject_after: int = 5
    """Failed requests in a row that take a replica out."""
    eject_s: float = 5.0
    """How long, the first time; twice as long each time after, until one request in between has gone well."""
    eject_most_s: float = 120.0
    stall_s: float = 10.0
    """A replica that has requests and has sent no byte for so long is chosen last."""
    slow_start_s: float = 10.0
    """In which a new replica comes to its full share."""
    affinity_chars: int = 0
    """So much of a prompt's beginning decides which replica is asked first (prefix caches); 0 = only load decides."""
    affinity_bound: float = 1.25
    """But none that has more than this times the mean load."""
