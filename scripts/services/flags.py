"""The flags of the commands of this room, each declared once."""

from dataclasses import dataclass

from flows.specs.service import ServeSpec
from infra.flags import flag
from scripts.cli.flags import TALK, Output, Questions

NAME = "of the service (default: the only one there is)"
REPLICA = "its number, as serve.status shows it"


@dataclass(frozen=True, kw_only=True)
class ServeUpFlags(Output, Questions, ServeSpec):
    dry_run: bool = flag(False, "show where replicas would be placed, in which order, for what price", group=TALK)
    detach: bool = flag(False, "do not wait until they are ready", group=TALK)


@dataclass(frozen=True, kw_only=True)
class ScaleFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    min_replicas: int | None = flag(None, "so many at least")
    max_replicas: int | None = flag(None, "upper bound (default: unchanged, or --min-replicas if larger)")
    detach: bool = flag(False, "do not wait until they are ready")


@dataclass(frozen=True, kw_only=True)
class ServeDownFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    all: bool = flag(False, "every service")


@dataclass(frozen=True, kw_only=True)
class KeyFlags(Output):
    name: str = flag("", NAME, word=True, also=("n",))
    for_: str = flag("", "whose key it is; --drop takes it away again")
    drop: bool = flag(False, "make that key void")


@dataclass(frozen=True, kw_only=True)
class ServeStatusFlags(Output):
    name: str = flag("", "of the service (default: all of them)", word=True, also=("n",))
    all: bool = flag(False, "a line for each replica")
    metrics: bool = flag(False, "requests per second, latencies, replicas over time, from the gateway's own log")
    watch: str | bool | None = flag(None, "redraw every N seconds (60)", unit="SECONDS", bare=True)


@dataclass(frozen=True, kw_only=True)
class ServeLogsFlags:
    name: str = flag("", NAME, word=True, also=("n",))
    replica_id: int | None = flag(None, REPLICA)
    controller: bool = flag(False, "what the controller has written")
    tail: int = flag(0, "only the last N lines")
    follow: bool = flag(False, "go on until Ctrl-C")
    json: bool = flag(False, "requests as the gateway wrote them: one JSON object a line", group=TALK)


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
    rate: float = flag(2.0, "requests per second that are sent, whether answers come or not (2)", unit="PER_S")
    duration: str = flag("20s", "for so long: 30s, 5m", unit="DURATION")
    max_tokens: int = flag(32, "of each answer")
    prompt: str = flag("Who are you?", "what is asked")
    target_ttft: float | None = flag(
        None,
        "seconds to the first token, 95th percentile: raises the rate until that is missed, and says which "
        "target_qps_per_replica would keep it",
        unit="SECONDS",
    )


@dataclass(frozen=True, kw_only=True)
class ServeExportFlags:
    config: str = flag(
        "", "a service file, or the name of a service that runs (default serve/service.yaml)", unit="FILE", word=True
    )
    engine: str = flag("skyserve", "skyserve")
    model: str = flag(
        "", "where its machines find the weights: hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder"
    )
    out: str = flag("", "file to write (default: stdout)", unit="FILE")
