"""A model behind one address that stays up. What each command does stands in the file of its name."""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.services.up",
    "scripts.services.flags:ServeUpFlags",
    world=BEGIN,
    env=True,
    example="inv serve.up --name demo --model sft --replicas 2",
    file_word="config",
    rents=True,
)
def up(c, spec):
    """Serve a model behind one address, or update a service.

    An update drops no request.

    min_replicas are always on and always paid; max_replicas is the budget for bursts. A lower target_qps_per_replica
    gives faster answers, a longer downscale_delay_seconds a steadier service; both cost more.
    """


@command(
    "scripts.services.scale",
    "scripts.services.flags:ScaleFlags",
    example="inv serve.scale demo --min-replicas 1 --max-replicas 3",
    rents=True,
)
def scale(c, spec):
    """Change how many replicas a service has.

    It sets the lower and the upper bound; no replica is restarted.
    """


@command("scripts.services.down", "scripts.services.flags:ServeDownFlags", example="inv serve.down demo")
def down(c, spec):
    """End a service; return when nothing of it runs.

    Requests in progress are answered first. A service is reported as gone only when that is proven.
    """


@command("scripts.services.key", "scripts.services.flags:KeyFlags", example="inv serve.key demo --for ada")
def key(c, spec):
    """Make an API key, or list whose keys there are.

    A key is made with --for. It is shown once and kept as a hash.
    """


@command(
    "scripts.services.status", "scripts.services.flags:ServeStatusFlags", example="inv serve.status demo --metrics"
)
def status(c, spec):
    """Show services: address, ready replicas, state of each."""


@command("scripts.services.logs", "scripts.services.flags:ServeLogsFlags", example="inv serve.logs demo --follow")
def logs(c, spec):
    """Print the requests, or an engine's or the controller's log.

    A request is one line, without its prompt.
    """


@command("scripts.services.ssh", "scripts.services.flags:ServeSshFlags", example="inv serve.ssh demo --replica-id 1")
def ssh(c, spec):
    """Open a shell in a replica's folder, on its machine.

    `inv serve.ssh NAME --replica-id N -- COMMAND` runs a command there.
    """


@command("scripts.services.doctor", "scripts.services.flags:ServeDoctorFlags", example="inv serve.doctor demo")
def doctor(c, spec):
    """Say what is wrong with a service, and what to do."""


@command(
    "scripts.services.bench",
    "scripts.services.flags:BenchFlags",
    example="inv serve.bench demo --rate 4 --duration 1m",
)
def bench(c, spec):
    """Put load on a service at a given rate, and measure.

    It shows requests and tokens per second, time to first token, percentiles.
    """


@command(
    "scripts.services.export",
    "scripts.services.flags:ServeExportFlags",
    name="export",
    world="",
    example="inv serve.export demo --model hf://user/repo --out service.yaml",
)
def export(c, spec):
    """Write a service file for `sky serve up`.

    It is for services that need more than this one offers.
    """
