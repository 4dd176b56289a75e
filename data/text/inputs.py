"""List a source as files in a fixed order, each readable independently.

This module reads only names and sizes; `batches.py` reads the content.
"""

import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from data.config import TextSpec, form_of, is_of_datasets, source_files
from data.errors import ConfigError, InputError
from data.manifest import shards_among
from data.references import NAME, SetReference, parse, parse_mixture
from data.text.documents import InputFile
from data.text.remote import list_remote
from store import extensions

STDIN = {"stdin": ".txt", "stdin.jsonl": ".jsonl"}
HUB_ONLY = ("dataset", "config", "split", "revision")


@dataclass(frozen=True, kw_only=True)
class Share:
    """The share of a machine in a distributed run: rank r of w reads the r-th of w consecutive groups of files.

    The shards of all ranks, in rank order, hold the same text as the shards of a single machine.
    """

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise ConfigError(
                f"rank {self.rank} of world {self.world}; a rank must be at least 0 and below the world size"
            )

    @property
    def folder(self) -> str:
        """Return the subfolder of the rank's shards, or "" outside a distributed run."""
        return f"rank-{self.rank:05d}-of-{self.world:05d}" if self.world > 1 else ""

    def select_inputs(self, spec: TextSpec, inputs: "Inputs") -> "Inputs":
        """Return this rank's inputs.

        Raises InputError for options that would make the combined result differ from a run on a single machine.
        """
        if self.world == 1:
            return inputs
        for name, value in (("take", spec.take), ("dedup", spec.dedup), ("a mixture", inputs.mixture)):
            if value:
                why = f"{name} looks at all documents, but a rank reads only a share"
                raise InputError(f"{why}; leave out the option (--mode prod reads everything)")
        if len(inputs.files) < self.world:
            files = f"{len(inputs.files)} file" + "s" * (len(inputs.files) > 1)
            raise InputError(f"source {spec.source}: {files} for a world of {self.world}; a rank reads whole files")
        first, end = (rank * len(inputs.files) // self.world for rank in (self.rank, self.rank + 1))
        return replace(inputs, files=inputs.files[first:end])


ALONE = Share()


@dataclass(frozen=True)
class Inputs:
    """The files to read, and their description for the manifest."""

    files: tuple[InputFile, ...]
    about: dict[str, Any] = field(default_factory=dict)
    mixture: tuple[tuple[str, float], ...] = ()
    """Sources of a mixture, with weights; `InputFile.source` is an index into `mixture`."""


def list_inputs(spec: TextSpec) -> Inputs:
    """Return the files of `spec`; files of `validation` come last.

    Raises ConfigError for a path without readable files, InputError for an unknown data set, configuration, split or
    package, DataError if the hub is unreachable.
    """
    if spec.packages and spec.source != "pydocs":
        raise InputError(f"packages are read with the source pydocs, not with {spec.source!r}")
    others = [one for one in fields(spec) if one.name in HUB_ONLY and getattr(spec, one.name) != one.default]
    if others and "fineweb" not in (spec.source, spec.validation):
        named = ", ".join(f"{one.name} {getattr(spec, one.name)}" for one in others)
        instead = "; a data set is written hf://user/name@revision/config:split"
        raise InputError(f"{named}: read with the source fineweb, not with {spec.source!r}{instead}")
    mixture = parse_mixture(spec.source)
    if mixture and spec.validation:
        raise InputError(f"validation {spec.validation}: a mixture holds out a share; set val_ratio instead")
    main = _mixed(mixture, spec) if mixture else _list(spec.source, spec)
    held_out = _list(spec.validation, spec) if spec.validation else Inputs(())
    files = (*main.files, *(replace(one, part="val") for one in held_out.files))
    if spec.text_column:
        files = tuple(one if dict(one.names).get("text") else with_text(one, spec.text_column) for one in files)
    if spec.skip_invalid:
        files = tuple(replace(one, skips_invalid=True) for one in files)
    about = main.about | ({"validation": held_out.about} if spec.validation else {})
    return Inputs(files, about, tuple(mixture))


def with_text(file: InputFile, column: str) -> InputFile:
    return replace(file, names=(*file.names, ("text", column)))


def _mixed(mixture: list[tuple[str, float]], spec: TextSpec) -> Inputs:
    found = [_list(words, spec) for words, _ in mixture]
    if alone := next((words for words, _ in mixture if words in STDIN), ""):
        raise InputError(f"source {alone}: a source that cannot be read twice cannot be mixed")
    files = tuple(replace(one, source=number) for number, some in enumerate(found) for one in some.files)
    both = zip(mixture, found, strict=True)
    return Inputs(files, {"mixture": [{"source": words, "weight": part, **one.about} for (words, part), one in both]})


def needs_numpy(source: str, split: str) -> bool:
    """Return True if the source needs `datasets`, which requires numpy."""
    if source == "fineweb":
        return not re.fullmatch(NAME, split)
    if parse_mixture(source) or extensions.used(source):  # a user's extension may import numpy
        return True
    return source not in ("pydocs", *STDIN) and is_of_datasets(parse(source))


def _list(source: str, spec: TextSpec) -> Inputs:
    if own := extensions.used(source):
        return Inputs((InputFile(f"extension://{source}", code=own.text),), {"extension": own.label})
    if source == "pydocs":
        return Inputs((InputFile("pydocs", packages=spec.packages),))
    if source in STDIN:
        return Inputs((_text_file(source, STDIN[source], spec.text_unit == "file"),))
    if source == "fineweb" and not re.fullmatch(NAME, spec.split):
        reference = SetReference(
            place=spec.dataset, is_hub=True, config=spec.config, split=spec.split, revision=spec.revision
        )
        return _of_datasets(reference)
    if source == "fineweb":
        from data.text import fineweb

        revision, uris = fineweb.files(spec.dataset, spec.config, spec.split, spec.revision)
        about = {"dataset": spec.dataset, "config": spec.config, "split": spec.split, "revision": revision}
        return Inputs(tuple(InputFile(uri) for uri in uris), {**about, "files": len(uris)})
    reference = parse(source)
    if is_of_datasets(reference):
        return _of_datasets(reference)
    if "://" in source:
        uris = _remote(source)
        files = tuple(_text_file(uri, form_of(uri)[0], spec.text_unit == "file") for uri in uris)
        return Inputs(files, {"files": len(uris)})
    paths = source_files(reference.place)
    named = [{"name": path.name, "bytes": path.stat().st_size} for path in paths]
    told: dict[str, Any] = {"files": named, **({"columns": dict(reference.columns)} if reference.columns else {})}
    is_whole = spec.text_unit == "file" or spec.text_unit == "folder" and Path(reference.place).expanduser().is_dir()
    shards = shards_among(paths) if is_whole else set()
    found = (_text_file(str(path), form_of(path.name)[0], is_whole and path not in shards) for path in paths)
    return Inputs(tuple(replace(one, names=reference.columns) for one in found), told)


def _text_file(uri: str, suffix: str, is_document: bool) -> InputFile:
    return InputFile(uri, is_document=is_document and suffix == ".txt")


def _of_datasets(reference: SetReference) -> Inputs:
    from data.text import hub_datasets  # the import takes seconds

    return Inputs(*hub_datasets.files(reference))


def _remote(source: str) -> list[str]:
    uris = list_remote(source)
    uris = [uri for uri in uris if form_of(uri)[0]] if len(uris) > 1 else uris
    if not uris:
        raise InputError(f"source {source}: no readable file")
    for uri in uris:
        if not form_of(uri)[0]:
            raise InputError(f"source {uri}: the name does not end in .txt, .jsonl (.gz, .zst) or .parquet")
    return uris
