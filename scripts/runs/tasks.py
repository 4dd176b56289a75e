"""Runs: launch them, watch them, read them, stop them, go on with them."""

from scripts.cli.flag_help import MACHINE, MIXTURE
from scripts.cli.invoke_patch import command
from trainer.records.phase_registry import phase_names


@command(
    "scripts.runs.launch",
    world="begin",
    word="file",
    flag_file="file",
    help={
        "file": "YAML of these flags, `gpu: H100`; what is typed outweighs it",
        "phase": f"{phase_names()}, a sum such as mid+sft, or all",
        "profile": "recipe of model and training (smoke, tiny)",
        "provider": "where: local, or what .env says",
        "source": "pydocs, fineweb, or a path of .txt, .jsonl, .parquet",
        "init": "go on from somebody else's model: a Hugging Face folder, or hf://user/repo[@revision]",
        "mixture": MIXTURE,
        "packages": "pydocs: installed packages to read too, comma-separated",
        "persona": "YAML file with name, maker, purpose",
        "seed": "of the training",
        "steps": "optimizer steps per phase instead of the profile's; the schedule is scaled to them",
        "block-size": "dlm: tokens that are decoded together (default: the profile's)",
        "tag": "name of the checkpoints in the store (default: the profile)",
        "save-every": "optimizer steps between checkpoints instead of the profile's",
        "keep": "newest checkpoints kept while training (5)",
        "ckpt-prefix": "in front of the name of the folder that holds the run's checkpoints",
        "store": "where artifacts go (default var/artifacts)",
        "pool": "ssh: only machines of this pool",
        "host": "ssh: only this machine",
        **MACHINE,
        "nodes": "machines that train as one (1)",
        "ttl": "end the run after this long: 90s, 30m, 2h",
        "spend-limit": "rented: end the run at so many US dollars (150 when neither this nor --ttl is given)",
        "idle-stop": "end the run when no GPU has worked for this long: 15m",
        "wait": "rented: look again every minute until something fits",
        "on-failure": "rented: end the pod when the work fails, or keep it (end)",
        "with-missing": "rented: make text, tokenizer and questions there, while it bills",
        "remake": "make the named phases again where other code than today's made them",
        "keep-made": "keep them as they are",
        "run-name": "name of the run instead of a generated one",
        "detach": "hand over and return",
        "no-accept": "take a machine as it is, without looking whether it works",
        "dry-run": "show the plan and stop",
        "yes": "ask nothing",
        "json": "one JSON document on stdout",
    },
)
def launch(
    c, file="", phase="sft", profile="", provider="", source="", packages="", persona="", seed: int | None = None,
    steps: int | None = None, tag="", store="", pool="", host="", gpu="", num_gpus=0, all_configs=False, cpus="",
    memory="", disk_size="", country="", city="", cloud="", region="", instance_type="", min_upload_mbps=0,
    min_download_mbps=0, use_spot=False, max_price="", network="", volume="", nodes: int | None = None, ttl="",
    spend_limit="", idle_stop="", wait=False, on_failure="", with_missing=False, run_name="", detach=False,
    no_accept=False, dry_run=False, yes=False, json=False, save_every: int | None = None, keep: int | None = None,
    ckpt_prefix="", init="", mixture="", remake=False, keep_made=False, block_size: int | None = None,
):  # fmt: skip
    """Train one or more phases, with all they need, to the end.

    What is there already is reused. Ctrl-C leaves the run at work; the same launch follows it again.
    """


@command(
    "scripts.runs.rehearse",
    world="",
    extends=launch,
    help={
        "preempt": "the market takes the run's pod away so many times, each time once it has made a checkpoint",
        "bad-host": "the first N machines have an old driver or a slow disk",
        "faults": "YAML: what else goes wrong (infra/rehearsal/faults.py)",
        "offers": "JSON: what can be rented, instead of what Slipway brings along",
        "speed": "simulated seconds per second (60, or fewer where a limit would be reached before work begins)",
        "stop": "end the rehearsal and all that runs in it",
    },
)
def rehearse(c, preempt=0, bad_host=0, faults="", offers="", speed: float | None = None, stop=False):
    """Launch in a simulated market that costs nothing.

    Its servers and its pods are real processes of this machine. At the end it says what the market saw.
    """


@command(
    "scripts.runs.status",
    word="run",
    help={"watch": "redraw every N seconds (60)", "json": "one JSON document on stdout"},
    optional=["watch"],
)
def status(c, run="", watch=None, json=False):
    """Show every run: its state, its step, its cost.

    Each figure says how old it is.
    """


@command(
    "scripts.runs.logs",
    word="run",
    help={
        "follow": "go on until the run ends, and exit with its code",
        "tail": "only the last N lines of each log",
        "since": "only what was written in the last 90s, 10m, 2h",
        "file": "log of one step, or guard, agent, environment",
        "errors": "only the error logs; with --file, of that step",
    },
)
def logs(c, run="", follow=False, tail=0, since="", file="", errors=False):
    """Print what a run has written, step by step."""


@command(
    "scripts.runs.report",
    word="run",
    help={
        "run": "a run, an artifact such as base_checkpoints/smoke, a folder, or foreground for inv train",
        "out": "folder for the page and its pictures (default: var/reports/RUN)",
        "json": "one JSON document on stdout",
    },
)
def report(c, run="", out="", json=False):
    """Write a page about a run: curves, cost, what the model said.

    The page is one HTML file; each curve lies beside it as a PNG.
    """


@command(
    "scripts.runs.launch",
    name="keep",
    word="run",
    help={"detach": "in the background; it writes to keep.log beside the run's logs", "json": "one JSON document"},
)
def keep_(c, run="", detach=False, json=False):
    """Follow a run, and bring it back when its pod dies.

    What the run makes is brought home meanwhile. One process at a time keeps a run.
    """


@command("scripts.runs.launch", word="run", help={"all": "every live run", "json": "one JSON document on stdout"})
def down(c, run="", all=False, json=False):
    """End a run; return when nothing of it is left or bills.

    Its work is saved first. That it is gone is said only when it is proven.
    """


@command(
    "scripts.runs.launch",
    word="run",
    help={
        "spend-limit": "rented: another limit, in US dollars, for the run from its beginning",
        "ttl": "rented: so much time from now on",
        "detach": "hand over and return",
        "json": "one JSON document on stdout",
    },
)
def resume(c, run="", spend_limit="", ttl="", detach=False, json=False):
    """Go on with a run from its newest whole checkpoint.

    It may have been stopped, killed or failed.
    """


@command("scripts.runs.launch", word="run")
def stop(c, run=""):
    """Refuse: a stopped pod goes on billing. See `down`.

    Such a pod may also find no GPU when it is to start again. The message says what to type instead.
    """


@command("scripts.runs.upgrade", help={"json": "one JSON document on stdout"})
def upgrade(c, json=False):
    """Replace keepers and controllers of older code.

    They are asked to leave, the journal is brought up to date, and processes of this code take over; runs go on.
    """
