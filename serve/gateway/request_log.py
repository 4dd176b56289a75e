"""Record of a request for log and metrics, without a word of the prompt or the answer."""


class RequestRecord:
    """Record of a request, filled in on the way. Durations count from the first byte, by `time.monotonic`."""

    key = ""  # name of the key
    route = "other"
    status = 0  # 499: the client left
    variant = ""  # of the model; "" = the whole model
    replica = ""  # last replica tried
    tries = 0
    streams = False
    bytes_in = 0
    bytes_out = 0
    queue_s: float | None = None
    first_byte_s: float | None = None
    total_s = 0.0
    note = ""  # reason of a failed try or a refusal; only our words and names of errors

    def __init__(self, began_at: float, request_id: bytes) -> None:
        self.began_at, self.request_id = began_at, request_id
        self.failures: list[str] = []
