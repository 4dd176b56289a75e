"""A model behind one address that stays up. It stands in `change.py` (what changes) and `inspect.py` (what looks)."""

from scripts.cli.invoke_patch import command
from trainer.records.phase_registry import phase_names

NAME = "of the service (default: the only one there is)"
REPLICA = "its number, as serve.status shows it"


@command(
    "scripts.services.change",
    world="begin",
    word="name",
    help={
        "name": "of the service; one that is there already is updated",
        "model": f"{phase_names()}, an artifact or run of ours, a folder, hf://user/repo, s3://bucket/folder "
        "(default: what --config says, else the last phase there is)",
        "tag": "name of the checkpoints in the store",
        "replicas": "so many, always; more in --config: least, most and requests per second for each",
        "provider": "where: local, ssh, runpod, lium, shadeform, market; any: own machines, then spot, then on-demand",
        "config": "a service file (SkyServe's words and ours; default serve/service.yaml)",
        "engine": "vllm, vllm-cpu, torch (our own), fake (default: what model and machine take)",
        "mode": "rolling: old and new ones answer while they are replaced; blue_green: all change at once",
        "host": "address to listen on; one that others can reach needs a key first: inv serve.key",
        "port": "to listen on (default: any that is free, and that one from then on)",
        "dry-run": "show where replicas would be placed, in which order, for what price",
        "yes": "rent what is shown without asking",
        "detach": "do not wait until they are ready",
        "json": "one JSON document on stdout",
    },
)
def up(
    c, name="", model="", tag="", replicas: int | None = None, provider="", config="", engine="", mode="", host="",
    port: int | None = None, dry_run=False, yes=False, detach=False, json=False,
):  # fmt: skip
    """Serve a model behind one address, or update a service.

    An update drops no request.

    More replicas at least: always on, always paid. More at most: the budget for bursts. A lower
    target_qps_per_replica: faster answers, dearer. A longer downscale_delay_seconds: steadier, dearer.
    """


@command(
    "scripts.services.change",
    word="name",
    help={
        "name": NAME,
        "min-replicas": "so many at least",
        "max-replicas": "and at most (default: as it is, or as many as at least)",
        "detach": "do not wait until they are ready",
        "json": "one JSON document on stdout",
    },
)
def scale(c, name="", min_replicas: int | None = None, max_replicas: int | None = None, detach=False, json=False):
    """Change how many replicas a service has.

    That is at least and at most; none is started anew for that.
    """


@command(
    "scripts.services.change",
    word="name",
    help={"name": NAME, "all": "every service", "json": "one JSON document on stdout"},
)
def down(c, name="", all=False, json=False):
    """End a service; return when nothing of it runs.

    Requests under way are answered first. That it is gone is said only when it is proven.
    """


@command(
    "scripts.services.change",
    word="name",
    help={
        "name": NAME,
        "for": "whose key it is; --drop takes it away again",
        "drop": "make that key void",
        "json": "one JSON document on stdout",
    },
)
def key(c, name="", for_="", drop=False, json=False):
    """Make an API key, or list whose keys there are.

    A key is made with --for. It is shown once and kept as a hash.
    """


@command(
    "scripts.services.inspect",
    word="name",
    help={
        "name": "of the service (default: all of them)",
        "all": "a line for each replica",
        "metrics": "requests per second, latencies, replicas over time, from the gateway's own log",
        "watch": "redraw every N seconds (60)",
        "json": "one JSON document on stdout",
    },
    optional=["watch"],
)
def status(c, name="", all=False, metrics=False, watch=None, json=False):
    """Show services: address, ready replicas, what each is at."""


@command(
    "scripts.services.inspect",
    word="name",
    help={
        "name": NAME,
        "replica-id": REPLICA,
        "controller": "what the controller has written",
        "tail": "only the last N lines",
        "follow": "go on until Ctrl-C",
    },
)
def logs(c, name="", replica_id: int | None = None, controller=False, tail=0, follow=False):
    """Print the requests, or an engine's or the controller's log.

    A request is one line, without its prompt.
    """


@command("scripts.services.inspect", word="name", help={"name": NAME, "replica-id": REPLICA})
def ssh(c, name="", replica_id: int | None = None):
    """Open a shell in a replica's folder, on its machine.

    `inv serve.ssh NAME --replica-id N -- words` runs words there.
    """


@command("scripts.services.inspect", word="name", help={"name": NAME, "json": "one JSON document on stdout"})
def doctor(c, name="", json=False):
    """Say what is wrong with a service, and what to do."""


@command(
    "scripts.services.inspect",
    word="name",
    help={
        "name": NAME,
        "rate": "requests per second that are sent, whether answers come or not (2)",
        "duration": "for so long: 30s, 5m",
        "max-tokens": "of each answer",
        "prompt": "what is asked",
        "target-ttft": "seconds to the first token, 95th percentile: raises the rate until that is missed, and says "
        "which target_qps_per_replica would keep it",
        "json": "one JSON document on stdout",
    },
)
def bench(
    c, name="", rate=2.0, duration="20s", max_tokens=32, prompt="Who are you?", target_ttft: float | None = None,
    json=False,
):  # fmt: skip
    """Put load on a service at a given rate, and measure.

    Requests and tokens per second, time to first token, percentiles.
    """


@command(
    "scripts.services.change",
    world="",
    name="export",
    word="config",
    help={
        "config": "a service file, or the name of a service that runs (default serve/service.yaml)",
        "engine": "skyserve",
        "model": "where its machines find the weights: hf://user/repo, s3://bucket/folder or a folder",
        "out": "file to write (default: stdout)",
    },
)
def export(c, config="", engine="skyserve", model="", out=""):
    """Write a service file for `sky serve up`.

    It is for whoever outgrows this one.
    """
