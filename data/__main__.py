"""`python -m data STEP --config FILE`: make one artifact of text, tokens or conversations.

STEP is text, merge, report, tokenizer, adopt (a published tokenizer), compression, tokens, identity, questions, talk,
problems or push (a folder to the hub). FILE is JSON in one of two forms:

    {"making": {...}, "spec": {...}}                            read inputs from the store, publish the result
    {"out": DIR, "inputs": {"text": DIR}, "spec": {...}}        read and write plain folders

Drafts are written to $SLIPWAY_WORK. Exit 0: success; 2: invalid request; 1: failure; 69: the hub is unreachable; 130:
interrupted.
"""

import argparse
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from data import card
from data.config import (
    ConfigError,
    IdentitySpec,
    ProblemsSpec,
    QuestionsSpec,
    StepContext,
    TalkSpec,
    TextSpec,
    TokenizerSpec,
    TokensSpec,
    load,
)
from data.errors import DataError, InputError
from data.events import emit
from data.single_writer import PARENT, exit_with_parent
from store import extensions, packs, untrusted_input

Inputs = Mapping[str, Path]


def text(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.shards import pipeline
    from data.text.inputs import Share

    # A user's own shards hold out no documents by default, and then lie directly in the folder.
    raw = {"val_ratio": 0.0, **raw} if plain else dict(raw)
    how = load(
        pipeline.RunOptions,
        {one.name: raw.pop(one.name) for one in fields(pipeline.RunOptions) if one.name in raw},
        "spec",
    )
    engine, options = str(raw.pop("engine", "")), dict(raw.pop("engine_options", {}))
    share = load(Share, {one.name: raw.pop(one.name) for one in fields(Share) if one.name in raw}, "spec")
    spec = load(TextSpec, raw, "spec")
    if engine:
        found = packs.entries("shard_engines")
        if engine not in found:
            known = packs.missing_pack_message("shard_engines", engine) or f"known: {', '.join(found) or 'none'}"
            raise ConfigError(f"engine is {engine!r}; {known}")
        if extensions.all_used():
            raise InputError(
                "a single process must read the source of an extension from its beginning; leave out --engine"
            )
        if share.rank:
            raise InputError("--engine assigns the ranks; leave out --rank")
        summary: dict[str, Any] = packs.load(found[engine])(spec, folder.resolve(), how, share.world, options)
        return summary
    return pipeline.shard(spec, folder, not plain or spec.val_ratio > 0 or bool(spec.validation), how, share)


def merge(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data import merge as maker

    return maker.merge(folder)


def report(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.report import document, quality

    found = quality.measure(inputs["text"])
    path = document.write(found, folder)
    return {"documents": found.documents, "duplicate_share": found.repeated.share, "report": str(path)}


def tokenizer(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.tokens import bpe

    raw = dict(raw)
    retrain, others = raw.pop("retrain", False), [Path(one) for one in raw.pop("others", ())]
    partial = raw.pop("partial", False) is True
    return bpe.make(load(TokenizerSpec, raw, "spec"), inputs["text"], folder, retrain, others, partial)


def adopt(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.tokens import bpe

    return bpe.adopt(load(bpe.Published, raw, "spec"), folder)


def compression(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.tokens import compression as figures

    raw = dict(raw)
    partial = raw.pop("partial", False) is True
    return figures.measure(load(figures.CompressionSpec, raw, "spec"), inputs["tokenizer"], inputs["text"], partial)


def tokens(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.tokens import tokenize as maker

    raw = dict(raw)
    workers = raw.pop("workers", 0)  # does not change the result
    partial = raw.pop("partial", False) is True
    load(TokensSpec, raw, "spec")
    if not isinstance(workers, int):
        raise ConfigError(f"spec: workers is {workers!r}; it must be a number")
    return maker.make(inputs["text"], inputs["tokenizer"], folder, workers, partial)


def identity(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.chat import persona

    return persona.make(load(IdentitySpec, raw, "spec"), folder)


def questions(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.chat import questions as maker

    return maker.make(load(QuestionsSpec, raw, "spec"), inputs["text"], folder)


def talk(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.chat import imported as maker

    return maker.make(load(TalkSpec, raw, "spec"), folder)


def problems(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data.problems import make as maker

    return maker.make(load(ProblemsSpec, raw, "spec"), folder)


def push(raw: dict[str, Any], inputs: Inputs, folder: Path, plain: bool) -> dict[str, Any]:
    from data import push as sender

    return sender.push(load(sender.PushSpec, raw, "spec"), folder)


STEPS: dict[str, tuple[Callable[[dict[str, Any], Inputs, Path, bool], dict[str, Any]], tuple[str, ...]]] = {
    "text": (text, ()),
    "merge": (merge, ()),
    "report": (report, ("text",)),
    "tokenizer": (tokenizer, ("text",)),
    "adopt": (adopt, ()),
    "compression": (compression, ("text", "tokenizer")),
    "tokens": (tokens, ("text", "tokenizer")),
    "identity": (identity, ()),
    "questions": (questions, ("text",)),
    "talk": (talk, ()),
    "problems": (problems, ()),
    "push": (push, ()),
}
"""Functions that make artifacts, each with the roles of the required inputs."""
CARRIED = (text, merge, tokens, identity, questions, talk, problems)
"""Functions with a data set card for their output, for `datasets`."""


def main(words: list[str] | None = None) -> int:
    """Run one step; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m data", description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--config", required=True, type=Path, metavar="FILE")
    asked = parser.parse_args(words)
    # numpy is imported with pyarrow; no step multiplies matrices with numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    config: dict[str, Any] = {}
    try:
        config = _read(asked.config)
        emit("result", step=asked.step, **_run(asked.step, config))
        return 0
    except ConfigError as error:
        return _say(asked.step, error, 2)
    except DataError as error:
        stopped = "; to continue, run the same command again" if getattr(error, "goes_on", False) else ""
        return _say(asked.step, f"{error}{stopped}", error.exit_code)
    except OSError as error:  # for example a read-only folder or a full disk
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        room = "; saved results stay. Free disk space, then run the same command again to continue" if full else ""
        where = f"{config['out']}: " if not error.filename and "out" in config else ""
        return _say(asked.step, f"{where}{error}{room}", 1)
    except KeyboardInterrupt:
        kept = "saved shards stay" if asked.step == "text" and "out" in config else "nothing was published"
        return _say(asked.step, f"interrupted; {kept}", 130)


def _run(step: str, config: dict[str, Any]) -> dict[str, Any]:
    unknown = set(config) - {"making", "out", "inputs", "spec", "extensions"}
    if unknown or ("making" in config) == ("out" in config):
        raise ConfigError(f"config: keys are spec, and making or else out and inputs; available: {', '.join(config)}")
    extensions.receive(config.get("extensions", {}))
    make, roles = STEPS[step]
    spec, inputs = config.get("spec", {}), config.get("inputs", {})
    if not isinstance(spec, dict) or not isinstance(inputs, dict):
        raise ConfigError("config: spec and inputs are JSON objects")
    if "out" in config:
        given = {role: Path(folder) for role, folder in inputs.items()}
        _check_roles(given, roles)
        for role in roles:
            if not given[role].is_dir():
                raise InputError(f"{role}: no folder {given[role]}")
        out = Path(config["out"])
        try:
            out.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise InputError(f"{out} is a file; --out must name a folder") from None
        made = make(spec, given, out, True)
        if make in CARRIED:
            card.write(out)
        return {**made, "out": str(out)}
    return _publish(load(StepContext, config["making"], "making"), make, roles, spec)


def _publish(
    making: StepContext, make: Callable[..., dict[str, Any]], roles: tuple[str, ...], spec: Any
) -> dict[str, Any]:
    from store.artifacts.artifacts import Store
    from store.manifest import StoreError

    _check_roles(making.inputs, roles)
    try:
        store = Store(making.store)
        inputs = {role: store.path(making.inputs[role].name, making.inputs[role].fingerprint) for role in roles}
        with _draft(making, goes_on=make is tokens) as folder:
            about = make(spec, inputs, folder, False)
            flat = making.name == "identity_conversations"  # users look for this file at the root of the store
            if make in CARRIED and make is not identity:
                card.write(folder)
            store.publish(folder, making.name, making.fingerprint, {**about, **making.provenance}, flat=flat)
    except StoreError as error:
        raise DataError(str(error)) from error
    return {**about, "name": making.name}


def _check_roles(given: Mapping[str, Any], roles: tuple[str, ...]) -> None:
    missing = [role for role in roles if role not in given]
    if missing:
        raise ConfigError(f"inputs: {', '.join(missing)} missing")


@contextmanager
def _draft(making: StepContext, goes_on: bool) -> Iterator[Path]:
    """Yield a folder for an unpublished artifact, removed afterwards.

    The content left by a killed run is removed, or kept for a step that resumes (`goes_on`).
    """
    work = os.environ.get("SLIPWAY_WORK")
    if not work:
        with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
            yield Path(folder)
        return
    draft = Path(work) / "drafts" / f"{making.name.replace('/', '-')}-{making.fingerprint}"
    if not goes_on:
        shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True, exist_ok=True)
    try:
        yield draft
    except BaseException:
        if not goes_on:
            shutil.rmtree(draft, ignore_errors=True)
        raise
    shutil.rmtree(draft, ignore_errors=True)


def _read(path: Path) -> dict[str, Any]:
    try:
        config = untrusted_input.load(path, half_pairs="surrogateescape")  # file names may not be valid UTF-8
    except FileNotFoundError:
        raise InputError(f"--config {path}: no such file") from None
    except (ValueError, OSError) as error:
        raise InputError(f"--config {path}: {error}") from None
    return config


def _say(step: str, error: object, code: int) -> int:
    print(f"data {step}: {error}", file=sys.stderr)
    return code


def spare_numpy() -> None:
    """Make pyarrow work without numpy, whose import would take half of the startup time of a step."""
    if "numpy" not in sys.modules:
        sys.modules["numpy"] = None  # type: ignore[assignment]  # makes the import fail
        import pyarrow.parquet  # noqa: F401 pyarrow checks for numpy only once

        del sys.modules["numpy"]


def needs_datasets() -> bool:
    """Return True if this step reads with `datasets`, which needs numpy."""
    from data.text.inputs import needs_numpy

    try:
        config = _read(Path(sys.argv[sys.argv.index("--config") + 1]))
        if config.get("extensions"):
            return True
        spec = config.get("spec", {})
        return any(
            needs_numpy(str(spec.get(name) or "pydocs"), str(spec.get("split", "train")))
            for name in ("source", "validation")
        )
    except (ValueError, IndexError, AttributeError, DataError, OSError):
        return False  # `main` reports the error


if __name__ == "__main__":
    exit_with_parent(os.environ.pop(PARENT, ""))
    if sys.argv[1:2] == ["text"] and not needs_datasets():
        spare_numpy()
    sys.exit(main())
