"""The command `shard`: text shards with a manifest, in a folder chosen by the user."""

import os
import shlex
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flows.planning.extensions import use_source
from infra.errors import CheckFailed, HubUnreachable, SlipwayError, UsageError
from infra.flags import Typed, flag, flags_of
from infra.job_environment import secrets
from infra.settings import Settings, pack_settings, table
from scripts.cli import context, local_step, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from store import credentials, packs

MODES = {"smoke": 2_000, "prod": None, "split": None}  # document limit; None = all documents
SPLIT_RATIO = 0.01
FINEWEB, FALLBACK = "fineweb", "pydocs"
DATASET = "HuggingFaceFW/fineweb"
HUB = ("dataset", "config", "split", "revision")  # a typed flag of these selects the hub, for any value
AS_TYPED = (
    *(*HUB, "seed", "min_score", "language", "dedup", "format", "workers"),
    *("reuse_shards", "engine", "rank", "world", "text_column", "filter", "exhausted", "skip_invalid"),
)


@dataclass(frozen=True, kw_only=True)
class ShardFlags(Output, Typed):
    mode: str = flag(
        "smoke",
        "smoke (a small sample; of pydocs if the hub cannot be reached), prod (all documents, until "
        "interrupted) or split (OUT/train and OUT/val)",
    )
    source: str = flag(
        "",
        "source instead of FineWeb or SLIPWAY_SOURCE: pydocs (Python's documentation, needs no network), "
        "fineweb, stdin (lines), stdin.jsonl, a path or an address of .txt, .jsonl, .parquet, a data set "
        "as hf://user/name[@revision][/config][:split], or several sources by weight: "
        "hf://a/b=0.7,corpus.jsonl=0.3",
        group="What is read",
    )
    dataset: str = flag(
        "HuggingFaceFW/fineweb",
        "user/name of the data set on the hub; with any of these four flags the source is on the hub, "
        "and smoke never falls back to pydocs",
        group="What is read",
    )
    config: str = flag("sample-10BT", "hub: configuration of the data set", group="What is read")
    split: str = flag("train", "hub: split of the data set, or a part of a split: train[:10%]", group="What is read")
    revision: str = flag("main", "hub: branch, tag or commit of the data set", group="What is read")
    text_column: str = flag(
        "",
        "name of the text column (default: `text`); json.caption means a field inside a column",
        group="What is read",
    )
    text_unit: str = flag(
        "",
        "document of .txt files: line or file (default: file for a folder, line for a single file)",
        group="What is read",
    )
    skip_invalid: bool = flag(
        False,
        "skip invalid lines and damaged files; manifest.json counts and lists them",
        group="What is read",
    )
    exhausted: str = flag(
        "first",
        "end of a mixture: when the first source is exhausted (first), or when all sources were read once (all)",
        group="What is read",
    )
    packages: str = flag("", "pydocs: additional installed packages to read, comma-separated", group="What is read")
    take: int | None = flag(None, "stop after this many documents", group="What is kept")
    lines_per_shard: int | None = flag(None, "documents per shard (SHARD_LINES, else 250000)", group="What is written")
    val_ratio: float | None = flag(
        None, "share of documents held out in OUT/val, the rest in OUT/train (split: 0.01)", group="What is kept"
    )
    validation: str = flag("", "hold out the documents of this source instead of a share", group="What is read")
    seed: int = flag(1337, "seed of the choice of held-out documents", group="What is kept")
    min_score: float | None = flag(
        None,
        "leave out documents with a score (or language_score, if the documents have no score) below this value",
        group="What is kept",
    )
    language: str = flag("", "leave out documents in all other languages", group="What is kept")
    filter: str = flag(
        "",
        "keep only rows that satisfy this expression, such as 'language_score > 0.9 and len(text) > 200'",
        group="What is kept",
    )
    dedup: str = flag("", "exact: leave out exact duplicates of earlier documents", group="What is kept")
    format: str = flag("txt", "txt, jsonl or parquet", group="What is written")
    gzip: bool = flag(False, "the same as --compression gzip", group="What is written")
    compression: str = flag("", "gzip or zstd", group="What is written")
    workers: int = flag(
        0, "worker processes (0: one per CPU core); the result is the same with any number", group="What is written"
    )
    reuse_shards: bool = flag(False, "keep finished shards in OUT", group="What is written")
    engine: str = flag(
        "",
        f"{' or '.join(packs.words('shard_engines'))}: spread the source over WORLD tasks of a cluster, "
        "then merge; Ctrl-C cancels the tasks",
        group="Several machines",
    )
    rank: int = flag(
        0,
        "rank of this machine, from 0 to WORLD - 1; each machine reads a share of the source's files",
        group="Several machines",
    )
    world: int = flag(
        1, "number of machines that read the source; afterwards run --merge OUT once", group="Several machines"
    )
    out: str = flag("", "folder for the shards and manifest.json", group="What is written", unit="FOLDER")
    push: str = flag(
        "",
        "push OUT to the hub as a data set with a card; without a source, push the present content of "
        "OUT: shards, token shards, conversations",
        group="What is written",
        unit="hf://user/name",
    )
    license: str = flag("", "--push: license of the data set, instead of the source's license", group="What is written")
    report: str = flag(
        "",
        "write report.json about this folder of shards into the folder, and stop",
        group="Instead of making shards",
        unit="FOLDER",
    )
    verify: str = flag(
        "",
        "check this folder of shards against the manifest, and stop",
        group="Instead of making shards",
        unit="FOLDER",
    )
    partial: bool = flag(
        False,
        "--verify: accept the complete shards of an interrupted command",
        group="Instead of making shards",
    )
    merge: str = flag(
        "",
        "merge the shares of all ranks in this folder into a single set of shards, and stop",
        group="Instead of making shards",
        unit="FOLDER",
    )


@command(record=ShardFlags, world="", env=True, example="inv shard --mode smoke --split train --take 1000")
def shard(spec: ShardFlags) -> None:
    """Write FineWeb, or other text, as shards with a manifest.

    A shard has one document per line. After an interruption, run the same command again to continue.
    """
    asked = (("merge", spec.merge), ("verify", spec.verify), ("report", spec.report))
    if len(named := [f"--{name}" for name, folder in asked if folder]) > 1:
        raise UsageError(f"{' and '.join(named)} exclude each other; run a command for each flag")
    if spec.merge:
        return merge_ranks(Path(spec.merge).expanduser().absolute(), spec.json)
    if spec.partial and not spec.verify:
        raise UsageError(
            "--partial needs --verify. To continue an interrupted command, run the same command again without --partial"
        )
    if spec.verify:
        return check(Path(spec.verify).expanduser(), spec.json, spec.partial)
    if spec.report:
        return describe(Path(spec.report).expanduser().absolute(), spec.json)
    if spec.license and not spec.push:
        raise UsageError("--license needs --push")
    if spec.push:
        check_push(spec)
        if not spec.source and not hub_flags(spec) and has_something(folder_of(spec)):
            return send(spec)
    if spec.mode not in MODES:
        raise UsageError(f"unknown mode {spec.mode!r}; known: {', '.join(MODES)}")
    if spec.gzip and spec.compression not in ("", "gzip"):
        raise UsageError(f"--gzip and --compression {spec.compression} contradict each other; choose one")
    chosen = source_of(spec)
    render.say(f"source: {chosen.description}")
    try:
        made = write(chosen)
    except HubUnreachable as error:
        made = write(fallback_source(chosen, error))
    if spec.push:
        return send(spec)
    tell(made, spec.json)


@dataclass(frozen=True, kw_only=True)
class ChosenSource:
    """The flags and the resolved source, with a description of the source."""

    spec: ShardFlags
    settings: Settings
    description: str
    is_stdin: bool = False
    may_fall_back: bool = False
    """True if a smoke test may fall back to pydocs: no source was named, and no push, engine or multi-machine flag."""
    is_fallback: bool = False


def hub_flags(spec: ShardFlags) -> list[str]:
    """Return the typed hub flags."""
    return [name for name in HUB if name in spec.typed]


def source_of(spec: ShardFlags) -> ChosenSource:
    """Return the source: the typed source, the hub flags, SLIPWAY_SOURCE, else FineWeb. Raises UsageError."""
    from data.text.inputs import STDIN

    asked = hub_flags(spec)
    if asked and spec.source and FINEWEB not in (spec.source, spec.validation):
        raise UsageError(
            f"--{asked[0]} names a data set of the hub, but --source {spec.source} names a different "
            "source. Leave out one of the two flags, or name the data set as --source "
            "hf://user/name@revision/config:split"
        )
    if spec.source in STDIN:
        return ChosenSource(spec=spec, settings=context.settings(), description=spec.source, is_stdin=True)
    settings = context.settings(source=spec.source)
    is_named = bool(spec.source or asked) or settings.sources["source"] != "default"
    if not spec.source and (asked or not is_named):
        spec = of_hub(spec)
        settings = context.settings(source=spec.source)
    may_fall_back = not is_named and spec.mode == "smoke" and not (spec.push or spec.engine or spec.world > 1)
    return ChosenSource(
        spec=spec, settings=settings, description=describe_source(spec, settings), may_fall_back=may_fall_back
    )


def of_hub(spec: ShardFlags) -> ShardFlags:
    """Return the flags with `source` set to the data set given by the hub flags."""
    dataset = spec.dataset.removeprefix("hf://")
    if dataset == DATASET:
        return replace(spec, source=FINEWEB, dataset=dataset)
    at = f"@{spec.revision}" if "revision" in spec.typed else ""
    config = f"/{spec.config}" if "config" in spec.typed or dataset.startswith(DATASET) else ""
    default = {one.name: one.default for one in flags_of(ShardFlags) if one.name in HUB}
    return replace(spec, source=f"hf://{dataset}{at}{config}:{spec.split}", **default)


def describe_source(spec: ShardFlags, settings: Settings) -> str:
    """Return a description of the source for the first line of the output."""
    if settings.source == FINEWEB:
        from data.text.remote import hub

        parts = f"configuration {spec.config}, split {spec.split}, revision {spec.revision}"
        return f"FineWeb: {spec.dataset}, {parts}, of {hub()}"
    words = "pydocs: Python's own documentation" if settings.source == FALLBACK else settings.source
    words = "; ".join(filter(None, (words, unit_of(spec, settings)[1])))
    where = settings.sources["source"]
    return words if where == "--source" else f"{words} (SLIPWAY_SOURCE, {where})"


def fallback_source(chosen: ChosenSource, error: HubUnreachable) -> ChosenSource:
    """Return the fallback source for a smoke test without network access to FineWeb.

    Raises HubUnreachable if the user named a source, or if the fallback would replace shards of other text.
    """
    from data.manifest import MANIFEST, read_manifest, shard_folders
    from data.text.fineweb import INSTEAD

    seen = str(error).removesuffix(f"; {INSTEAD}")
    if not chosen.may_fall_back:
        typed = " and ".join(f"--{name}" for name in hub_flags(chosen.spec))
        raise HubUnreachable(f"{seen}; {INSTEAD}{f', and leave out {typed}' if typed else ''}") from None
    if not chosen.spec.out:
        with suppress(OSError):  # the folder may hold earlier FineWeb shards
            folder_of(chosen.spec).rmdir()
    spec = replace(chosen.spec, source=FALLBACK, out=chosen.spec.out or f"var/datasets/smoke-{FALLBACK}")
    folder = folder_of(spec)
    there = [one for one in shard_folders(folder) if (one / MANIFEST).exists()]
    if not all(read_manifest(one, finished=False).get("fallback") for one in there):
        raise HubUnreachable(
            f"{seen}; no fallback to pydocs, because {folder} holds other shards; {INSTEAD} and --out FOLDER"
        )
    render.say(
        f"{seen}; falling back to pydocs (Python's own documentation), which is NOT FineWeb. Output folder: {folder}"
    )
    settings = context.settings(source=FALLBACK)
    return replace(chosen, spec=spec, settings=settings, may_fall_back=False, is_fallback=True)


def write(chosen: ChosenSource) -> dict[str, Any]:
    """Write the shards and return the result of the step. Raises SlipwayError."""
    spec, settings = chosen.spec, chosen.settings
    own = {**use_source(settings.source, settings), **use_source(spec.validation, settings)}
    asked = text_spec_fields(spec, settings, chosen.is_stdin) | ({"fallback": True} if chosen.is_fallback else {})
    config = {"out": str(folder_of(spec)), "spec": asked}
    config |= {"extensions": own} if own else {}
    return local_step.run("shard", ("-m", "data", "text"), config, settings, spec.json)


def folder_of(spec: ShardFlags) -> Path:
    return Path(spec.out or f"var/datasets/{spec.mode}").expanduser().absolute()


def check_push(spec: ShardFlags) -> None:
    """Raise UsageError for a bad address or a missing token, before the shards are made."""
    from data.push import ADDRESS

    if not ADDRESS.fullmatch(spec.push):
        raise UsageError(f"--push {spec.push}: expected hf://user/name")
    if not any(secrets(context.settings()).get(name) for name in credentials.HUB):
        raise UsageError(
            f"--push {spec.push}: no token is set. Set HF_TOKEN to a token with write access to this repository"
        )


def has_something(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("manifest.json", "train/manifest.json", "README.md"))


def send(spec: ShardFlags) -> None:
    """Upload the folder to the hub."""
    config = {"out": str(folder_of(spec)), "spec": {"to": spec.push, "license": spec.license}}
    made = local_step.run("push", ("-m", "data", "push"), config, context.settings(), spec.json)
    print_json(made) if spec.json else print(made["pushed"])


def text_spec_fields(spec: ShardFlags, settings: Settings, is_stdin: bool) -> dict[str, Any]:
    """Return the flags as fields of `data.config.TextSpec`."""
    val_ratio = spec.val_ratio
    if val_ratio is None:
        val_ratio = SPLIT_RATIO if spec.mode == "split" and not spec.validation else 0.0
    return {name: getattr(spec, name) for name in AS_TYPED} | {
        "source": spec.source if is_stdin else settings.source,
        "validation": context.settings(source=spec.validation).source if spec.validation else "",
        "stdin": f"/proc/{os.getpid()}/fd/0" if is_stdin else "",  # a step has no standard input
        "packages": list(filter(None, spec.packages.split(","))),
        "take": MODES[spec.mode] if spec.take is None else spec.take,
        "lines_per_shard": settings.shard_lines if spec.lines_per_shard is None else spec.lines_per_shard,
        "text_unit": unit_of(spec, settings)[0],
        "val_ratio": val_ratio,
        "compression": "gzip" if spec.gzip else spec.compression,
        "engine_options": engine_options(spec.engine, settings),
    }


def unit_of(spec: ShardFlags, settings: Settings) -> tuple[str, str]:
    """Return `text_unit` of the sources, and the meaning as text. Raises UsageError."""
    from data.config import text_unit

    found = [text_unit(source, spec.text_unit) for source in (settings.source, spec.validation) if source]
    return max(found, key=lambda one: one[0] == "folder")


def engine_options(engine: str, settings: Settings) -> dict[str, str]:
    """Return the settings of the engine's pack by name, or {} without an engine."""
    record = pack_settings("shard_engines", engine, settings) if engine else None
    return {one.name: str(getattr(record, one.name)) for one in table(type(record))} if record else {}


def check(folder: Path, as_json: bool, partial: bool = False) -> None:
    """Verify the shards in `folder` and its parts. Raises CheckFailed with all problems."""
    from data.manifest import shard_folders
    from data.verify import verify

    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder")
    found = {str(part): verify(part, partial) for part in shard_folders(folder)}
    problems = [under(part, problem) for part, some in found.items() for problem in some]
    if as_json:
        print_json({"folder": str(folder), "problems": problems})
    if problems:
        raise CheckFailed("\n".join(problems))
    if not as_json:
        print(f"{folder}: every {'whole ' if partial else ''}shard matches the manifest")


def describe(folder: Path, as_json: bool) -> None:
    """Write the figures of the shards in `folder` as JSON beside the shards."""
    config = {"out": str(folder), "inputs": {"text": str(folder)}}
    result = local_step.run("report", ("-m", "data", "report"), config, context.settings(), as_json)
    print_json(result) if as_json else print(result["report"])
    render.say(f"see it as a page: {packs.typed(f'inv report {shlex.quote(str(folder))}')}")


def merge_ranks(folder: Path, as_json: bool) -> None:
    """Merge the shares of all ranks in `folder` into a single set of shards."""
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
