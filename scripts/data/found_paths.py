"""The command `inv config --config`: whether each path exists that a recipe or a file of flags names.

In: the name of a recipe, or a YAML file: a recipe, a job, flags. Out: a row for each path, and one for each folder of
the experiment that `inv pipeline` would read.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra import strict_yaml
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.data.workspace import Workspace, content, manifest
from trainer import plan as planning

SUFFIXES = (".txt", ".gz", ".json", ".jsonl", ".parquet", ".csv", ".yaml", ".toml", ".py", ".safetensors", ".gguf")
FOLDERS = ("workdir", "problems", "init")


def show(name: str, as_json: bool) -> None:
    settings = context.settings()
    found = [(what, path, _is_there(path)) for what, path in dict.fromkeys(_named(name))]
    found += list(_of_experiment(settings))
    if as_json:
        print_json([{"name": what, "path": path, "found": there == "found"} for what, path, there in found])
    else:
        print(render.clean(columns([(what, there, str(path)) for what, path, there in found])))


def _named(name: str) -> Iterator[tuple[str, Path]]:
    """Yield what names a path, and the path. Raises UsageError for what is neither a recipe nor a file."""
    path = Path(name).expanduser()
    said: Any
    if path.suffix in (".yaml", ".yml") or path.is_file():
        if not path.is_file():
            raise UsageError(f"there is no file {name}")
        yield "config", path.absolute()
        said = [one.said for one in strict_yaml.documents(path)]
    else:
        said = dataclasses.asdict(planning.profile_named(name))
    for place, text in _texts(said, ""):
        here = Path(text).expanduser()
        yield place, here if here.is_absolute() or here.exists() or not (ROOT / here).exists() else ROOT / here


def _texts(said: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield each text that is a path, and where it stands; addresses of other machines and commands are none."""
    if isinstance(said, dict):
        for key, value in said.items():
            yield from _texts(value, f"{place}.{key}".lstrip("."))
    elif isinstance(said, (list, tuple)):
        for one in said:
            yield from _texts(one, place)
    elif isinstance(said, str) and "://" not in said and len(said.split()) == 1:
        is_path = said.endswith(SUFFIXES) or said.startswith(("/", "./", "../", "~/"))
        if is_path or place.rpartition(".")[2] in FOLDERS:
            yield place, said


def _is_there(path: Path) -> str:
    if path.is_file() and not path.stat().st_size:
        return "empty"
    return "found" if path.exists() else "missing"


def _of_experiment(settings: Settings) -> Iterator[tuple[str, Path, str]]:
    """Yield the folders that a training in the workspace reads: shards that are not finished count as missing."""
    space = Workspace(settings.workspace, settings.experiment)
    for name, folder in (("train shards", space.train), ("val shards", space.val)):
        yield name, folder, "found" if manifest(folder) else content(folder, space.root).partition(";")[0]
    yield "tokenizer", space.tokenizer, _is_there(space.tokenizer / "tokenizer.json")
