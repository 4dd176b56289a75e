"""Pods: the stages of a launch one by one (`stages.py`), and being on the machine of a run (`shell.py`).

They chain: inv pod.create --gpu H100 pod.sync pod.setup pod.run --phase sft pod.down
"""

from scripts.cli.flag_help import MACHINE
from scripts.cli.invoke_patch import command
from trainer.records.phase_registry import phase_names

WHICH = "the pod (default: that of this line, or the only one)"


@command(
    "scripts.pods.stages",
    world="begin",
    help={
        "provider": "where: local, ssh, runpod, lium, shadeform, or market for all vendors",
        "pool": "ssh: only machines of this pool",
        "host": "ssh: only this machine",
        **MACHINE,
        "ttl": "end the pod after this long: 90s, 30m, 2h",
        "spend-limit": "rented: end the pod at so many US dollars (150 when neither this nor --ttl is given)",
        "idle-stop": "end the pod when no GPU has worked for this long: 15m; setting up counts too",
        "wait": "rented: look again every minute until something fits",
        "run-name": "name of the pod instead of a generated one",
        "no-accept": "take a machine as it is, without looking whether it works",
        "dry-run": "show offers, prices and what would end the pod, and stop",
        "yes": "ask nothing",
        "json": "one JSON document on stdout",
    },
)
def create(
    c, provider="", pool="", host="", gpu="", num_gpus=0, all_configs=False, cpus="", memory="", disk_size="",
    country="", city="", cloud="", region="", instance_type="", min_upload_mbps=0, min_download_mbps=0,
    use_spot=False, max_price="", network="", volume="", ttl="", spend_limit="", idle_stop="", wait=False,
    run_name="", no_accept=False, dry_run=False, yes=False, json=False,
):  # fmt: skip
    """Make a pod that has no work yet.

    Its guard ends it at its limits, whatever else happens. Elsewhere this is called --deploy-only.
    """


@command("scripts.pods.stages", word="run", help={"run": WHICH, "json": "one JSON document on stdout"})
def setup(c, run="", json=False):
    """Make the train environment on a pod.

    Its first run then begins at once. It may be repeated.
    """


@command(
    "scripts.pods.stages",
    word="run",
    help={
        "run": WHICH,
        "phase": f"{phase_names()}, a sum such as mid+sft, or all",
        "profile": "recipe of model and training (smoke, tiny)",
        "source": "pydocs, fineweb, or a path of .txt, .jsonl, .parquet",
        "packages": "pydocs: installed packages to read too, comma-separated",
        "persona": "YAML file with name, maker, purpose",
        "seed": "of the training",
        "steps": "optimizer steps per phase instead of the profile's; the schedule is scaled to them",
        "tag": "name of the checkpoints in the store (default: the profile)",
        "store": "where artifacts go (default var/artifacts)",
        "with-missing": "rented: make text, tokenizer and questions there, while it bills",
        "remake": "make the named phases again where other code than today's made them",
        "keep-made": "keep them as they are",
        "detach": "hand over and return",
        "dry-run": "show the plan and stop",
        "json": "one JSON document on stdout",
    },
)
def run(
    c, run="", phase="sft", profile="", source="", packages="", persona="", seed: int | None = None,
    steps: int | None = None, tag="", store="", with_missing=False, detach=False, dry_run=False, json=False,
    remake=False, keep_made=False,
):  # fmt: skip
    """Train on a pod that is there, to the end; the pod stays.

    Its limits go on. Elsewhere this is called --no-deploy.
    """


@command("scripts.pods.stages", word="run", help={"run": WHICH, "json": "one JSON document on stdout"})
def down(c, run="", json=False):
    """End a pod; return when it is proven to be gone.

    It is ended whatever it does.
    """


@command("scripts.pods.stages", name="list", help={"json": "one JSON document on stdout"})
def list_(c, json=False):
    """List every pod, also of launches: price, age, what for."""


@command("scripts.pods.shell", word="run")
def ssh(c, run=""):
    """Open a shell in a run's folder, on its machine.

    `inv ssh RUN -- words` runs words there and leaves with their exit code.
    """


@command(
    "scripts.pods.shell",
    word="what",
    iterable=["what"],
    help={"what": "RUN, and LOCAL:REMOTE ports, such as 8000:8000, or tensorboard, or LOCAL:tensorboard"},
)
def forward(c, what=None):
    """Bring a port of a run's machine to this one, on loopback.

    It lasts until Ctrl-C. `inv forward RUN tensorboard` runs TensorBoard there.
    """


@command(
    "scripts.pods.shell",
    word="run",
    help={"plan": "show what would be sent, and send nothing", "json": "one JSON document on stdout"},
)
def sync(c, run="", plan=False, json=False):
    """Send the code to a run's machine again.

    `--plan` shows files and sizes, and what is new, refused and ignored.
    """


@command("scripts.pods.shell", word="run", help={"json": "one JSON document on stdout"})
def pull(c, run="", json=False):
    """Bring home what a run has made so far.

    That is artifacts, logs and last words.
    """
