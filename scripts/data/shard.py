"""The command `shard`: text shards in a folder of the user's choice."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.extensions import use_source
from infra.errors import SlipwayError, Unsound, UsageError
from infra.job_environment import secrets
from infra.settings import Settings
from scripts.cli import context, local_step
from scripts.cli.invoke_patch import print_json
from scripts.data.flags import ShardFlags
from store import credentials

MODES = {"smoke": 2_000, "prod": None, "split": None}  # documents; None = all
SPLIT_RATIO = 0.01
DATASET, CONFIG = "HuggingFaceFW/fineweb", "sample-10BT"
AS_TYPED = (
    *("dataset", "config", "split", "revision", "seed", "min_score", "language", "dedup", "format", "workers"),
    *("reuse_shards", "engine", "rank", "world", "text_column", "filter", "exhausted", "skip_invalid"),
)


def shard(spec: ShardFlags) -> None:
    asked = (("merge", spec.merge), ("verify", spec.verify), ("report", spec.report))
    if len(named := [f"--{name}" for name, folder in asked if folder]) > 1:
        raise UsageError(f"{' and '.join(named)} each do one thing and nothing else; type them one after another")
    if spec.merge:
        return unite(Path(spec.merge).expanduser().absolute(), spec.json)
    if spec.partial and not spec.verify:
        raise UsageError("--partial goes with --verify; the command that made the shards continues without it")
    if spec.verify:
        return check(Path(spec.verify).expanduser(), spec.json, spec.partial)
    if spec.report:
        return describe(Path(spec.report).expanduser().absolute(), spec.json)
    if spec.license and not spec.push:
        raise UsageError("--license goes with --push")
    if spec.push:
        check_push(spec)
        if not spec.source and spec.dataset == DATASET and has_something(folder_of(spec)):
            return send(spec)
    from data.text.inputs import STDIN

    if not spec.source and spec.dataset != DATASET:
        spec = of_hub(spec)
    settings = context.settings(source="" if spec.source in STDIN else spec.source)
    if spec.mode not in MODES:
        raise UsageError(f"unknown mode {spec.mode!r}; known: {', '.join(MODES)}")
    if spec.gzip and spec.compression not in ("", "gzip"):
        raise UsageError(f"--gzip and --compression {spec.compression} are two compressions; choose one")
    own = {**use_source(settings.source, settings), **use_source(spec.validation, settings)}
    config = {"out": str(folder_of(spec)), "spec": as_asked(spec, settings, spec.source in STDIN)}
    config |= {"extensions": own} if own else {}
    made = local_step.run("shard", ("-m", "data", "text"), config, settings, spec.json)
    if spec.push:
        return send(spec)
    tell(made, spec.json)


def folder_of(spec: ShardFlags) -> Path:
    return Path(spec.out or f"var/datasets/{spec.mode}").expanduser().absolute()


def check_push(spec: ShardFlags) -> None:
    """Raise UsageError for what would only fail when the shards are made."""
    from data.push import ADDRESS

    if not ADDRESS.fullmatch(spec.push):
        raise UsageError(f"--push {spec.push}: expected hf://user/name")
    if not any(secrets(context.settings()).get(name) for name in credentials.HUB):
        raise UsageError(f"--push {spec.push}: set HF_TOKEN to a token that may write there")


def has_something(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("manifest.json", "train/manifest.json", "README.md"))


def send(spec: ShardFlags) -> None:
    """Upload the folder to the hub."""
    config = {"out": str(folder_of(spec)), "spec": {"to": spec.push, "license": spec.license}}
    made = local_step.run("push", ("-m", "data", "push"), config, context.settings(), spec.json)
    print_json(made) if spec.json else print(made["pushed"])


def of_hub(spec: ShardFlags) -> ShardFlags:
    """Return the same flags with the data set, which was typed in parts, as a source."""
    at = f"@{spec.revision}" if spec.revision != "main" else ""
    config = f"/{spec.config}" if spec.config != CONFIG or spec.dataset.startswith("HuggingFaceFW/fineweb") else ""
    source = f"hf://{spec.dataset.removeprefix('hf://')}{at}{config}:{spec.split}"
    return replace(spec, source=source, dataset=DATASET, config=CONFIG, split="train", revision="main")


def as_asked(spec: ShardFlags, settings: Settings, is_stdin: bool) -> dict[str, Any]:
    """Return the flags as `data` takes them (`data.config.TextSpec`)."""
    val_ratio = spec.val_ratio
    if val_ratio is None:
        val_ratio = SPLIT_RATIO if spec.mode == "split" and not spec.validation else 0.0
    return {name: getattr(spec, name) for name in AS_TYPED} | {
        "source": spec.source if is_stdin else settings.source,
        "validation": context.settings(source=spec.validation).source if spec.validation else "",
        "stdin": f"/proc/{os.getpid()}/fd/0" if is_stdin else "",  # a step has no standard input of its own
        "packages": list(filter(None, spec.packages.split(","))),
        "take": MODES[spec.mode] if spec.take is None else spec.take,
        "lines_per_shard": settings.shard_lines if spec.lines_per_shard is None else spec.lines_per_shard,
        "val_ratio": val_ratio,
        "compression": "gzip" if spec.gzip else spec.compression,
        "ray_python": settings.ray_python,
    }


def check(folder: Path, as_json: bool, partial: bool = False) -> None:
    """Print what is wrong with the shards in `folder` and its parts. Raises Unsound when anything is."""
    from data.manifest import parts
    from data.verify import verify

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    found = {str(part): verify(part, partial) for part in parts(folder)}
    problems = [under(part, problem) for part, some in found.items() for problem in some]
    if as_json:
        print_json({"folder": str(folder), "problems": problems})
    if problems:
        raise Unsound("\n".join(problems))
    if not as_json:
        print(f"{folder}: every {'whole ' if partial else ''}shard is what was written")


def describe(folder: Path, as_json: bool) -> None:
    """Write what is in the shards of `folder` as a page beside them."""
    config = {"out": str(folder), "inputs": {"text": str(folder)}}
    result = local_step.run("report", ("-m", "data", "report"), config, context.settings(), as_json)
    print_json(result) if as_json else print(result["page"])


def unite(folder: Path, as_json: bool) -> None:
    """Make the shares of all ranks in `folder` one set of shards."""
    from data import card
    from data.errors import DataError
    from data.merge import merge

    try:
        made = merge(folder)
        card.write(folder)
        tell(made, as_json)
    except DataError as error:
        raise (UsageError if error.exit_code == 2 else SlipwayError)(under(str(folder), str(error))) from None


def under(folder: str, problem: str) -> str:
    return problem if problem.startswith(folder) else f"{folder}: {problem}"


def tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print(result["out"])
