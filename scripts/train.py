"""Models by hand. What these do stands in `models.py`."""

from scripts.program import command


@command(
    "scripts.models",
    world="",
    help={
        "phase": "base, mid, sft, a sum such as mid+sft, or all",
        "profile": "recipe of model and training (smoke, tiny)",
        "source": "pydocs, fineweb, or a path of .txt, .jsonl, .parquet",
        "persona": "YAML file with name, maker, purpose",
        "seed": "of the training",
        "steps": "optimizer steps per phase instead of the profile's; the schedule is scaled to them",
        "tag": "name of the checkpoints in the store (default: the profile)",
        "save-every": "optimizer steps between checkpoints instead of the profile's",
        "keep": "newest checkpoints kept while training (5)",
        "ckpt-prefix": "in front of the name of the folder that holds the run's checkpoints",
        "out": "store for the artifacts (default var/artifacts)",
        "json": "one JSON document on stdout",
    },
)
def train(
    c,
    phase="base",
    profile="",
    source="",
    persona="",
    seed: int | None = None,
    steps: int | None = None,
    tag="",
    save_every: int | None = None,
    keep: int | None = None,
    ckpt_prefix="",
    out="",
    json=False,
):
    """Train in this very terminal, without a pod: the same steps as `launch`, in the foreground."""


@command(
    "scripts.models",
    world="",
    word="model",
    help={
        "model": "base, mid, sft, the name of an artifact, or a Hugging Face folder (default: the last phase there is)",
        "tag": "name of the checkpoints in the store",
        "prompt": "one question; without it, a conversation",
        "temperature": "0 = always the likeliest word",
        "max-tokens": "longest answer",
    },
)
def chat(c, model="", tag="", prompt: str | None = None, temperature=0.0, max_tokens=256):
    """Talk to a model."""


@command(
    "scripts.models",
    world="",
    word="model",
    help={
        "model": "base, mid, sft, the name of an artifact, or a Hugging Face folder (default: the last phase there is)",
        "tag": "name of the checkpoints in the store",
        "source": "whose held-out text and questions (default pydocs)",
        "persona": "YAML file with the name to look for (default: the one the conversations were made from)",
        "json": "one JSON document on stdout",
    },
)
def eval(c, model="", tag="", source="", persona="", json=False):
    """Measure a model: bits per byte beside gzip and xz, and its answers to held-out questions.

    Without MODEL: base on text, the last phase on questions.
    """


@command(
    "scripts.models",
    world="",
    word="model",
    help={
        "model": "base, mid, sft, the name of an artifact, or a folder (default: the last phase there is)",
        "tag": "name of the checkpoints in the store",
        "out": "folder to write",
        "dtype": "float32 or bfloat16",
    },
)
def export(c, model="", tag="", out="", dtype="float32"):
    """Write a Hugging Face folder that transformers and vLLM load."""
