"""Models by hand. What these do stands in `local_model.py`."""

from scripts.cli.flag_help import MIXTURE
from scripts.cli.invoke_patch import command
from trainer.records.phase_registry import phase_names


@command(
    "scripts.models.local_model",
    world="",
    help={
        "phase": f"{phase_names()}, a sum such as mid+sft, or all",
        "profile": "recipe of model and training: a name that inv config --profile takes, or a .yaml file",
        "config": "the same as --profile",
        "init": "go on from somebody else's model: a Hugging Face folder, or hf://user/repo[@revision]",
        "source": "pydocs, fineweb, or a path of .txt, .jsonl, .parquet",
        "mixture": MIXTURE,
        "persona": "YAML file with name, maker, purpose",
        "seed": "of the training",
        "steps": "optimizer steps per phase instead of the profile's; the schedule is rescaled to them",
        "block-size": "dlm: tokens that are decoded together (default: the profile's)",
        "tag": "name of the checkpoints in the store (default: the profile)",
        "save-every": "optimizer steps between checkpoints instead of the profile's",
        "keep": "newest checkpoints kept while training (5)",
        "ckpt-prefix": "in front of the name of the folder that holds the run's checkpoints",
        "out": "store for the artifacts (default var/artifacts)",
        "prepare": "only make what the phases read",
        "remake": "make the named phases again where other code than today's made them",
        "keep-made": "keep them as they are",
        "json": "one JSON document on stdout",
    },
)
def train(
    c,
    phase="base",
    profile="",
    config="",
    init="",
    source="",
    mixture="",
    persona="",
    seed: int | None = None,
    steps: int | None = None,
    block_size: int | None = None,
    tag="",
    save_every: int | None = None,
    keep: int | None = None,
    ckpt_prefix="",
    out="",
    prepare=False,
    remake=False,
    keep_made=False,
    json=False,
):
    """Train in this terminal, without a pod.

    The steps are those of `inv launch`, in the foreground.
    """


@command(
    "scripts.models.fit",
    world="begin",
    help={
        "profile": "recipe of model and training, or a .yaml file",
        "phase": "of the recipe",
        "gpu": "only this kind, part by part: H100, A100-80GB",
        "num-gpus": "of each machine: whether each holds the model whole (ddp), or it is cut (fsdp, hybrid)",
        "nodes": "machines",
        "json": "one JSON document on stdout",
    },
)
def fit(c, profile="", phase="base", gpu="", num_gpus=1, nodes=1, json=False):
    """Show which GPUs a recipe fits on, and with which batch.

    The effective batch stays the same. For one GPU (--gpu) the memory is shown part by part.
    """


@command(
    "scripts.models.local_model",
    world="",
    word="model",
    help={
        "model": f"{phase_names()}, the name of an artifact, or a Hugging Face folder (default: the last phase "
        "there is)",
        "tag": "name of the checkpoints in the store",
        "prompt": "one question; without it, a conversation",
        "temperature": "0 = always the likeliest word",
        "max-tokens": "longest answer",
        "endpoint": "a service (inv serve.status) or an address instead of a model; its key: SLIPWAY_ENDPOINT_KEY",
    },
)
def chat(c, model="", tag="", prompt: str | None = None, temperature=0.0, max_tokens=256, endpoint=""):
    """Talk to a model."""


@command(
    "scripts.models.eval",
    world="",
    word="models",
    iterable=["models", "task"],
    help={
        "models": f"{phase_names()}, names of artifacts, or Hugging Face folders (default: base on text, the last "
        "phase on questions)",
        "tag": "name of the checkpoints in the store",
        "source": "whose held-out text and questions (default pydocs)",
        "persona": "YAML file with the name to look for (default: the one the conversations were made from)",
        "task": ".jsonl of questions, multiple choice or with exact answers; repeatable",
        "as-text": "put the questions of tasks as text to go on with, as base models are asked anyway",
        "compare": "two models, by what was measured of them before: differences with intervals",
        "lm-eval": "tasks of EleutherAI's harness, comma-separated, asked of a server of the model",
        "endpoint": "--lm-eval: the server's address, http://127.0.0.1:8000",
        "served-name": "--lm-eval: what the server calls the model (default: its name in the store)",
        "json": "one JSON document on stdout",
    },
)
def eval(
    c, models=None, tag="", source="", persona="", task=None, as_text=False, compare=False, lm_eval="", endpoint="",
    served_name="", json=False,
):  # fmt: skip
    """Measure models; each figure has an interval.

    Bits per byte stand beside gzip and xz; then come held-out questions and tasks of yours.

    What was found stays in the store under evals/. Without MODELS: base on text, the last phase on questions.
    """


@command(
    "scripts.models.local_model",
    world="",
    word="model",
    help={
        "model": f"{phase_names()}, the name of an artifact, or a folder (default: the last phase there is)",
        "tag": "name of the checkpoints in the store",
        "out": "folder to write",
        "dtype": "float32 or bfloat16",
    },
)
def export(c, model="", tag="", out="", dtype="float32"):
    """Write a Hugging Face folder that transformers and vLLM load."""


FROM = "hf://, s3:// or a folder (default: the store of the settings, and this machine)"
NAME = "as inv ckpt.list shows it, or the beginning or the end of that"


@command(
    "scripts.models.ckpt",
    world="",
    name="list",
    help={"from": FROM, "job": "only where this stands in the name", "json": "one JSON document on stdout"},
)
def ckpt_list(c, from_="", job="", json=False):
    """List every checkpoint, of runs at work and published."""


@command(
    "scripts.models.ckpt",
    world="",
    name="show",
    word="model",
    help={"model": NAME, "from": FROM, "json": "one JSON document on stdout"},
)
def ckpt_show(c, model="", from_="", json=False):
    """Show what a checkpoint holds.

    Step, time, model, configuration, data position, figures and files.
    """


@command(
    "scripts.models.ckpt",
    world="",
    name="verify",
    word="model",
    help={"model": f"{NAME} (default: all)", "from": FROM, "json": "one JSON document on stdout"},
)
def ckpt_verify(c, model="", from_="", json=False):
    """Read every byte of checkpoints, and compare.

    They are read where they lie. The exit code is 5 when one is damaged.
    """


@command(
    "scripts.models.ckpt",
    world="",
    name="pull",
    word="model",
    help={
        "model": NAME,
        "from": FROM,
        "to": "folder in which it is put",
        "latest": "the one that was saved last",
        "json": "one JSON document on stdout",
    },
)
def ckpt_pull(c, model="", from_="", to="", latest=False, json=False):
    """Bring a checkpoint here from a store, verified."""


@command(
    "scripts.models.ckpt",
    world="",
    name="push",
    word="models",
    iterable=["models"],
    help={
        "models": "names of artifacts (default: all that are whole)",
        "to": "hf://user/repo, s3://bucket/folder or a folder",
        "from": "the store that has them (default: that of the settings)",
        "json": "one JSON document on stdout",
    },
)
def ckpt_push(c, models=None, to="", from_="", json=False):
    """Copy artifacts into another store; read each back there.

    Artifacts are checkpoints, the tokenizer and conversations.
    """


@command(
    "scripts.models.ckpt",
    world="",
    name="init",
    help={"to": "the store to make", "dry-run": "show the vendor's own command", "json": "one JSON document on stdout"},
)
def ckpt_init(c, to="", dry_run=False, json=False):
    """Make the bucket, repository or folder of a store."""
