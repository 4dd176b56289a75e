"""The record of one request, for the log and the metrics. It holds no word of the prompt or of the answer."""


class Visit:
    """The record of one request, filled in as it goes on. Durations count from its first byte, by `time.monotonic`."""

    key = ""  # name of the key
    route = "other"
    status = 0  # 499: the client left
    replica = ""  # the last one that was asked
    tries = 0
    streams = False
    bytes_in = 0
    bytes_out = 0
    queue_s: float | None = None
    first_byte_s: float | None = None
    total_s = 0.0
    note = ""  # reason why a try failed, or why it was refused; our words and names of errors

    def __init__(self, began_at: float, request_id: bytes) -> None:
        self.began_at, self.request_id = began_at, request_id
        self.failures: list[str] = []
