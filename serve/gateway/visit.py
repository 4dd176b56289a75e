"""What is known of one request: what the log and the metrics are told. No word of the prompt or of the answer."""

from dataclasses import dataclass, field


@dataclass
class Visit:
    """Filled in as the request goes on. Durations count from its first byte, by `time.monotonic`."""

    began_at: float
    request_id: str = ""
    key: str = ""  # its name
    route: str = "other"
    status: int = 0  # 499: the client left
    replica: str = ""  # the last one that was asked
    tries: int = 0
    streams: bool = False
    bytes_in: int = 0
    bytes_out: int = 0
    queue_s: float | None = None
    first_byte_s: float | None = None
    total_s: float = 0.0
    note: str = ""  # why a try failed, or why it was refused; our words and names of errors
    failures: list[str] = field(default_factory=list)
