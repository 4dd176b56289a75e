"""Models by hand. What these do stands in `local_model.py`."""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.models.local_model",
    "scripts.models.flags:TrainFlags",
    world="",
    env=True,
    example="inv train --phase base --profile tiny",
)
def train(c, spec):
    """Train in this terminal, without a pod.

    The steps are those of `inv launch`, in the foreground.
    """


@command(
    "scripts.models.fit", "scripts.models.flags:FitFlags", world=BEGIN, example="inv fit --profile runpod_1b --gpu H100"
)
def fit(c, spec):
    """Show which GPUs a recipe fits on, and with which batch.

    The effective batch stays the same. For one GPU (--gpu), memory is shown part by part.
    """


@command(
    "scripts.models.local_model",
    "scripts.models.flags:ChatFlags",
    world="",
    env=True,
    example="inv chat sft --prompt 'Who are you?'",
)
def chat(c, spec):
    """Talk to a model."""


@command("scripts.models.eval", "scripts.models.flags:EvalFlags", world="", env=True, example="inv eval base sft")
def eval(c, spec):
    """Measure models; each figure has an interval.

    Bits per byte are compared with gzip and xz; then come held-out questions and your own tasks.

    Results stay in the store under evals/. Without MODELS: base on text, the last phase on questions.
    """


@command(
    "scripts.models.local_model",
    "scripts.models.flags:ExportFlags",
    world="",
    env=True,
    example="inv export sft --out model",
)
def export(c, spec):
    """Write a model as a Hugging Face folder, or as a GGUF file."""


@command("scripts.models.ckpt", "scripts.models.flags:CkptListFlags", name="list", example="inv ckpt.list")
def ckpt_list(c, spec):
    """List every checkpoint, published or of a live run."""


@command(
    "scripts.models.ckpt",
    "scripts.models.flags:CkptShowFlags",
    name="show",
    example="inv ckpt.show chatsft_checkpoints/smoke",
)
def ckpt_show(c, spec):
    """Show what a checkpoint holds.

    Step, time, model, configuration, data position, figures and files.
    """


@command(
    "scripts.models.ckpt",
    "scripts.models.flags:CkptStatusFlags",
    name="status",
    example="inv ckpt.status brave-otter-3",
)
def ckpt_status(c, spec):
    """Show what of runs is in their store, and what is pending.

    Pending are checkpoints, and files of folders that a job mounts, which the store does not have yet.
    """


@command("scripts.models.ckpt", "scripts.models.flags:CkptVerifyFlags", name="verify", example="inv ckpt.verify")
def ckpt_verify(c, spec):
    """Read every byte of checkpoints, and compare.

    They are read in place. The exit code is 5 when one is damaged.
    """


@command(
    "scripts.models.ckpt",
    "scripts.models.flags:CkptPullFlags",
    name="pull",
    example="inv ckpt.pull --latest --from s3://bucket/runs --to model",
)
def ckpt_pull(c, spec):
    """Bring a checkpoint here from a store, verified."""


@command(
    "scripts.models.ckpt",
    "scripts.models.flags:CkptPushFlags",
    name="push",
    example="inv ckpt.push --to hf://user/repo",
)
def ckpt_push(c, spec):
    """Copy artifacts into another store; read each back there.

    Artifacts are checkpoints, the tokenizer and conversations.
    """


@command(
    "scripts.models.ckpt",
    "scripts.models.flags:CkptInitFlags",
    name="init",
    world="",
    example="inv ckpt.init --to s3://bucket/runs",
)
def ckpt_init(c, spec):
    """Make the bucket, repository or folder of a store."""
