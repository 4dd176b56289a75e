"""Models by hand. What each does stands in the file of its name."""

from scripts.cli.command import BEGIN, command


@command(
    "scripts.models.train",
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
    "scripts.models.chat",
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
    "scripts.models.export",
    "scripts.models.flags:ExportFlags",
    world="",
    env=True,
    example="inv export sft --out model",
)
def export(c, spec):
    """Write a model as a Hugging Face folder, or as a GGUF file."""
