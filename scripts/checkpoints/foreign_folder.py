"""Import of external folders into a store: a model, as for `--init`, or a tokenizer.

The input is a Hugging Face folder, a folder in a pack's format, or a folder with a tokenizer. The output is
`imported/NAME`, the same artifact that a plan with `--init FOLDER` makes first, so that later plans reuse the artifact;
or `tokenizer`. `inv ckpt.push FOLDER` uses this module before a first run on rented machines.
"""

import shutil
import tempfile
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from flows.planning.training_plan import PlannedWork, plan_for
from flows.specs.work import WorkSpec
from infra import train_env
from infra.agent.job import Limits
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings
from scripts.cli import local_step, render
from store import untrusted_input
from store.artifacts import vocabulary
from store.artifacts.artifacts import Store
from trainer.records import model_formats
from trainer.records.phase_registry import INIT

WORDS = (vocabulary.TOKENIZER, "tokenizer_config.json", vocabulary.NAMED)
BEGINS = "mid"  # the first phase that continues from an external model


def folder_of(word: str) -> Path | None:
    """Return the folder named by a word of `ckpt.push`, or None for an artifact name. Raises UsageError for a file."""
    path = Path(word).expanduser()
    if path.is_file():
        words = f"ckpt.push takes artifacts and folders, but {word} is a file; nothing was sent"
        if path.suffix == ".jsonl":
            words += f"; to train on conversations: inv launch --identity {word}, or --mixture {word}=1"
        raise UsageError(words)
    return path.absolute() if path.is_dir() else None


def push(folder: Path, to: str, settings: Settings, quiet: bool) -> str:
    """Publish a folder's model or tokenizer; return the name of the artifact. Raises UsageError, StoreError."""
    formats = model_formats.installed().values()
    names = (vocabulary.TOKENIZER, *(one.tokenizer_file for one in formats))
    if model_formats.detect(folder)[0] or any(
        (one / "config.json").is_file() for one in (folder, folder / vocabulary.HF)
    ):
        return push_model(folder, replace(settings, store=to), quiet)
    if any((folder / name).is_file() for name in names):
        return push_tokenizer(folder, to, settings)
    kinds = [one.about for one in formats]
    kinds += ["a Hugging Face folder (config.json and .safetensors)", f"a tokenizer ({' or '.join(names)})"]
    words = f"is neither {', nor '.join(kinds)}"
    raise UsageError(f"{folder} {'; '.join([words, *model_formats.absent(), 'nothing was sent'])}")


def push_model(folder: Path, settings: Settings, quiet: bool) -> str:
    """Run the import step of a plan with `--init FOLDER` into the store of the settings; return the artifact name."""
    work = PlannedWork.from_spec(WorkSpec(phase=BEGINS, init=str(folder)), settings)
    assert work.init is not None, "--init names a model"
    if not work.init.has_tokenizer:
        name = work.init.format
        places = model_formats.find_format(name).tokenizer_places if name else f"{vocabulary.TOKENIZER} in the folder"
        raise UsageError(
            f"{folder} has no tokenizer ({places}); nothing was sent. A model cannot be used without the "
            "tokenizer of its training"
        )
    here = registry.provider(settings, "local")
    plan = plan_for(work, settings, Request(run="foreground"), here, Limits(reserve_bytes=settings.reserve_bytes))
    for step in plan.job.steps if plan.job else ():
        if step.name == INIT:
            name = str(step.config["making"]["name"])
            local_step.run(step.name, step.words, step.config, settings, quiet)
            render.say(
                f"{name} was copied to {settings.store} and verified. Continue training: inv launch "
                f"--phase {BEGINS} --init {name} --store {settings.store}"
            )
            return name
    (name,) = (one.name for one in plan.artifacts if one.name.startswith("imported/"))
    render.say(f"{settings.store} already holds {name}")
    return name


def push_tokenizer(folder: Path, to: str, settings: Settings) -> str:
    """Publish a tokenizer as `tokenizer`, with a fingerprint of the content. Raises UsageError, StoreError."""
    with tempfile.TemporaryDirectory(prefix="slipway-") as scratch:
        draft = Path(scratch, "tokenizer")
        if (folder / vocabulary.TOKENIZER).is_file():
            draft.mkdir()
            for name in filter(lambda one: (folder / one).is_file(), WORDS):
                shutil.copyfile(folder / name, draft / name)
        else:
            name, one = next(
                (name, one)
                for name, one in model_formats.installed().items()
                if (folder / one.tokenizer_file).is_file()
            )
            words = ["-m", "trainer", "tokenizer", "--format", name, "--file", str(folder / one.tokenizer_file)]
            words += ["--out", str(draft)]
            for _ in train_env.run(words, None, root=ROOT, python=local_step.python(settings)):
                pass
        raw = untrusted_input.content(draft / vocabulary.TOKENIZER, vocabulary.MOST_BYTES)
        if problem := vocabulary.import_problem(raw, (), keeps_ids=True):
            raise UsageError(f"{folder}/{vocabulary.TOKENIZER}: {problem}; nothing was sent")
        digest = sha256(raw).hexdigest()
        about = {"source": folder.name, "tokenizer_sha256": digest}
        Store(to).publish(draft, "tokenizer", digest[:12], about)
    render.say(f"the tokenizer was copied to {to} and verified")
    return "tokenizer"
