"""The flags of the commands about services, each declared once."""

from dataclasses import dataclass

from flows.specs.service import ServeSpec
from infra.flags import flag
from scripts.cli.flags import TALK, Output, Questions

NAME = "name of the service (default: the only one)"
REPLICA = "number of the replica, as serve.status shows it"


@dataclass(frozen=True, kw_only=True)
class ServeUpFlags(Output, Questions, ServeSpec):
    dry_run: bool = flag(False, "show where replicas would be placed, in which order, for what price", group=TALK)
    detach: bool = flag(False, "do not wait until they are ready", group=TALK)


@dataclass(frozen=True, kw_only=True)
class ScaleFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    min_replicas: int | None = flag(None, "lower bound")
    max_replicas: int | None = flag(None, "upper bound (default: unchanged, or --min-replicas if larger)")
    detach: bool = flag(False, "do not wait until they are ready")


@dataclass(frozen=True, kw_only=True)
class ServeDownFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    all: bool = flag(False, "every service")


@dataclass(frozen=True, kw_only=True)
class KeyFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    for_: str = flag("", "name of whoever uses the key")
    drop: bool = flag(False, "revoke that key")


@dataclass(frozen=True, kw_only=True)
class ServeStatusFlags(Output):
    name: str = flag("", "name of the service (default: all)", word=True, also=("n",))
    all: bool = flag(False, "one line per replica")
    metrics: bool = flag(False, "requests per second, latencies, replicas over time, from the gateway's own log")
    watch: str | bool | None = flag(None, "redraw every N seconds (5)", unit="SECONDS", bare=True)


@dataclass(frozen=True, kw_only=True)
class ServeLogsFlags:
    name: str = flag("", NAME, word=True, also=("n",))
    replica_id: int | None = flag(None, REPLICA)
    controller: bool = flag(False, "show the controller's log")
    tail: int | None = flag(None, "only the last N lines")
    follow: bool = flag(False, "keep printing until Ctrl-C")
    json: bool = flag(False, "print requests as the gateway wrote them: one JSON object per line", group=TALK)


@dataclass(frozen=True, kw_only=True)
class ServeSshFlags:
    name: str = flag("", NAME, word=True, also=("n",))
    replica_id: int | None = flag(None, REPLICA)


@dataclass(frozen=True, kw_only=True)
class ServeDoctorFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))


@dataclass(frozen=True, kw_only=True)
class BenchFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    rate: float = flag(2.0, "requests sent per second, whether or not answers arrive (2)", unit="PER_S")
    duration: str = flag("20s", "how long to send requests: 30s, 5m", unit="DURATION")
    max_tokens: int = flag(32, "maximum tokens of each answer")
    prompt: str = flag("Who are you?", "the prompt to send")
    target_ttft: float | None = flag(
        None,
        "target for the time to first token (95th percentile): the rate rises until it is missed, and the "
        "target_qps_per_replica that keeps it is shown",
        unit="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class ServeExportFlags:
    config: str = flag(
        "", "a service file, or the name of a running service (default serve/service.yaml)", unit="FILE", word=True
    )
    engine: str = flag("skyserve", "format of the file; only skyserve")
    model: str = flag(
        "", "where its machines find the weights: hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder"
    )
    out: str = flag("", "file to write (default: stdout)", unit="FILE")
