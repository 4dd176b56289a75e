"""What `shard` does: text shards in a folder of the user's choice."""

import os
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError, Unsound, UsageError
from scripts.cli import context, local_step
from scripts.cli.invoke_patch import print_json

MODES = {"smoke": 2_000, "prod": None, "split": None}  # documents; None = all
SPLIT_RATIO = 0.01


def shard(
    mode, source, packages, take, lines_per_shard, val_ratio, validation, gzip, compression, out, verify, partial,
    report, merge, json, **spec,
):  # fmt: skip
    asked = (("merge", merge), ("verify", verify), ("report", report))
    if len(named := [f"--{name}" for name, folder in asked if folder]) > 1:
        raise UsageError(f"{' and '.join(named)} each do one thing and nothing else; type them one after another")
    if merge:
        return unite(Path(merge).expanduser().absolute(), json)
    if partial and not verify:
        raise UsageError("--partial is a word of --verify; the command that made the shards goes on without it")
    if verify:
        return check(Path(verify).expanduser(), json, partial)
    if report:
        return describe(Path(report).expanduser().absolute(), json)
    from data.text.inputs import STDIN

    settings = context.settings(source="" if source in STDIN else source)
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; known: {', '.join(MODES)}")
    if gzip and compression not in ("", "gzip"):
        raise UsageError(f"--gzip and --compression {compression} are two compressions; choose one")
    if val_ratio is None:
        val_ratio = SPLIT_RATIO if mode == "split" and not validation else 0.0
    spec |= {
        "source": source if source in STDIN else settings.source,
        "validation": context.settings(source=validation).source if validation else "",
        "stdin": f"/proc/{os.getpid()}/fd/0" if source in STDIN else "",  # a step has no standard input of its own
        "packages": list(filter(None, packages.split(","))),
        "take": MODES[mode] if take is None else take,
        "lines_per_shard": settings.shard_lines if lines_per_shard is None else lines_per_shard,
        "val_ratio": val_ratio,
        "compression": "gzip" if gzip else compression,
        "ray_python": settings.ray_python,
    }
    folder = Path(out or f"var/datasets/{mode}").absolute()
    tell(local_step.run("shard", ("-m", "data", "text"), {"out": str(folder), "spec": spec}, settings, json), json)


def check(folder: Path, as_json: bool, partial: bool = False) -> None:
    """Say what is wrong with the shards in `folder` and its parts. Raises Unsound when anything is."""
    from data.verify import parts, verify

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
    from data.errors import DataError
    from data.merge import merge

    try:
        tell(merge(folder), as_json)
    except DataError as error:
        raise (UsageError if error.exit_code == 2 else SlipwayError)(under(str(folder), str(error))) from None


def under(folder: str, problem: str) -> str:
    return problem if problem.startswith(folder) else f"{folder}: {problem}"


def tell(result: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        print(result["out"])
