"""The command `inv config --config`: check the existence of every path in a recipe or flag file.

The input is the name of a recipe, or a YAML file: a recipe, flags, or a kind of work of a pack. The output is a row per
path. For the file of a kind of work, rows of the file's variables come first; for a recipe or flag file, rows of the
packs come last.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template
from typing import Any

from flows.runs import work_kinds
from infra import strict_yaml
from infra.checkout import ROOT
from infra.errors import UsageError
from scripts.cli import context, render
from scripts.cli.render import columns, print_json
from store import packs
from trainer import plan as planning

SUFFIXES = (".txt", ".gz", ".json", ".jsonl", ".parquet", ".csv", ".yaml", ".toml", ".py", ".safetensors", ".gguf")
FOLDERS = ("workdir", "problems", "init")
PUBLISHED = "hub"  # the `init` value that names the profile's published model


def show(name: str, as_json: bool) -> None:
    kind = work_kinds.of_file(Path(name))
    variables = kind.file_variables(Path(name)) if kind else {}
    found = [(what, path, _is_there(path)) for what, path in dict.fromkeys(_named(name, variables))]
    if not kind:
        settings = context.settings()
        found += [row for where in packs.entries("config_paths").values() for row in packs.load(where)(settings)]
    if as_json:
        rows = [{"name": f"envs.{one}", "value": value, "given": value is not None} for one, value in variables.items()]
        print_json([*rows, *({"name": what, "path": path, "found": there == "found"} for what, path, there in found)])
        return
    given = [(f"envs.{one}", "no value" if value is None else "value", value or "") for one, value in variables.items()]
    print(render.clean(columns([*given, *((what, there, str(path)) for what, path, there in found)])))


def _named(name: str, variables: Mapping[str, str | None]) -> Iterator[tuple[str, Path]]:
    """Yield (key, path) pairs. Raises UsageError if `name` is neither a recipe nor a file.

    variables: values that replace `$NAME` in the other keys of the file.
    """
    path = Path(name).expanduser()
    said: Any
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no file {name}")
        yield "config", path.absolute()
        said = [one.value for one in strict_yaml.documents(path)]
    else:
        said = dataclasses.asdict(planning.profile_named(name))
    known = {one: value for one, value in variables.items() if value is not None}
    for place, text in _texts(said, "", known):
        section, _, key = place.partition(".")
        if section == "secrets" or section == "envs" and known.get(key) == work_kinds.HIDDEN:
            continue
        here = Path(text).expanduser()
        yield place, here if here.is_absolute() or here.exists() or not (ROOT / here).exists() else ROOT / here


def _texts(said: Any, place: str, variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield (key, text) for each path among the texts; URLs, remote addresses and commands are skipped."""
    if isinstance(said, dict):
        for key, value in said.items():
            yield from _texts(value, f"{place}.{key}".lstrip("."), variables)
    elif isinstance(said, (list, tuple)):
        for one in said:
            yield from _texts(one, place, variables)
    elif isinstance(said, str):
        text = Template(said).safe_substitute(variables)
        is_path = text.endswith(SUFFIXES) or text.startswith(("/", "./", "../", "~/"))
        is_path |= place.rpartition(".")[2] in FOLDERS and text != PUBLISHED
        if is_path and "://" not in text and len(text.split()) == 1:
            yield place, text


def _is_there(path: Path) -> str:
    if path.is_file() and not path.stat().st_size:
        return "empty"
    return "found" if path.exists() else "missing"
