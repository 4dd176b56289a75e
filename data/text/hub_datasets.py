"""Data sets loadable by the library `datasets`, resolved to the files or streams of a split.

`datasets` resolves a `SetReference` to a configuration, a split and files. This module returns `InputFile`s and the
origin for the manifest. Slipway reads Parquet, JSON lines and text lines directly, one file at a time; all other
formats become streams of `datasets`, one per shard. A slice selects the same rows as `datasets.load_dataset`.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from data.config import form_of, is_on_disk
from data.errors import DataError, HubSilent, InputError, NotThere
from data.events import emit
from data.references import HUB, SetReference
from data.text import fineweb
from data.text.documents import InputFile, RowStream
from data.text.remote import hub, open_remote, token_headers

OURS = {"parquet": ".parquet", "json": ".jsonl", "text": ".txt"}
"""Loaders of `datasets` replaced by Slipway's own reader, with the file suffix."""
PLAIN = {"columns": None, "filters": None, "field": None, "sample_by": "line", "keep_linebreaks": False}
"""Loader options, with the only value supported by Slipway's own reader."""
DISK_ROWS = 100_000  # rows of a `save_to_disk` folder read at once by a process
COUNT_ROWS = 4096
UNKNOWN_ROWS = 1 << 60
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE")
PATTERN = re.compile(r"[][*?{}:]")
_open: dict[SetReference, "OpenedSet"] = {}
_links: list[TemporaryDirectory[str]] = []  # kept until the process exits


def files(reference: SetReference) -> tuple[tuple[InputFile, ...], dict[str, Any]]:
    """Return the files and streams of a part of a data set in order, and a description of the origin.

    Raises InputError for an unknown or inaccessible data set, configuration or split, DataError if the hub is
    unreachable.
    """
    with convert_errors(reference):
        found = opened(replace(reference, split="", columns=()))
        split = reference.split or "train"
        parts = found.parts(split)
        listed = tuple(replace(one, names=reference.columns) for part in parts for one in found.files(*part))
    if not listed:
        raise InputError(f"source {reference.words}: {split} has no rows")
    about: dict[str, Any] = {"dataset": found.reference.place, "config": found.config, "split": split}
    # The number of streams depends on the local cache of `datasets`, so only files are counted.
    if not any(one.stream for one in listed):
        about["files"] = len(listed)
    if reference.is_hub:
        about |= {"revision": found.reference.revision, "license": found.license}
    if any(stop is not None for _, _, stop in parts):
        about["rows"] = [[name, start, stop] for name, start, stop in parts]
    if reference.columns:
        about["columns"] = dict(reference.columns)
    return listed, about


def revision(reference: SetReference) -> str:
    """Return the commit of a data set on the hub. Raises as `files` does."""
    with convert_errors(reference):
        return opened(replace(reference, split="", columns=())).reference.revision


def rows_of(reference: SetReference) -> Iterator[dict[str, Any]]:
    """Yield all rows in the form and order of `datasets`. Raises as `files` does."""
    with convert_errors(reference):
        found = opened(replace(reference, split="", columns=()))
        for name, start, stop in found.parts(reference.split or "train"):
            asked = RowStream(found.reference, name, None, start, stop, found.kept is not None)
            yield from found.stream(asked)


def opened(reference: SetReference) -> "OpenedSet":
    """Return an opened data set, cached for the lifetime of the process."""
    found = _open.get(reference)
    if found is None:
        found = _opened(reference)
        _open.update({reference: found, found.reference: found})
    return found


def _opened(reference: SetReference) -> "OpenedSet":
    import datasets

    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # the library logs errors that it also raises
    unpack_zstd()
    if not reference.is_hub:
        return _opened_here(reference)
    is_offline = any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in OFFLINE)
    license = ""
    if not is_offline:
        info = fineweb.info_of(reference.place, reference.revision)
        license = license_of(info)
        reference = replace(reference, revision=info.sha)
    builder = datasets.load_dataset_builder(
        reference.place,
        None if reference.config in ("", "default") else reference.config,
        revision=reference.revision,
        token=token_headers().get("authorization", "").removeprefix("Bearer ") or None,
    )
    found = OpenedSet(reference, builder=builder, license=license)
    if (Path(builder.cache_dir) / "dataset_info.json").is_file():  # cached by `load_dataset` (HF_DATASETS_CACHE)
        kept = replace(found, kept=dict(builder.as_dataset()))
        return kept if is_offline or not all(map(found.our_files, found.splits())) else found
    return found


def license_of(info: Any) -> str:
    """Return the license from the card of a data set, in the hub's words, or "" without a license."""
    said = getattr(info.card_data, "license", None) if info.card_data else None
    return ", ".join(said) if isinstance(said, list) else str(said or "")


def unpack_zstd() -> None:
    """Register a zstd decompressor from Arrow with fsspec, used by `datasets` for streaming, unless a package did."""
    import pyarrow
    from fsspec.compression import compr, register_compression

    if "zstd" not in compr:
        register_compression("zstd", lambda file, **_: pyarrow.CompressedInputStream(file, "zstd"), "zst")


def _opened_here(reference: SetReference) -> "OpenedSet":
    """Open a `save_to_disk` folder, a folder in data set layout, or files."""
    import datasets

    place = Path(reference.place).expanduser().absolute()
    if is_on_disk(place):
        kept = datasets.load_from_disk(str(place))
        return OpenedSet(reference, kept=dict(kept) if isinstance(kept, dict) else {"": kept})
    if place.is_dir():
        return OpenedSet(reference, builder=datasets.load_dataset_builder(str(_plain(place)), reference.config or None))
    if place.exists():
        folder, pattern = _plain(place).parent, _plain(place).name
    else:
        folder = next(one for one in place.parents if one.exists())
        pattern = str(place.relative_to(folder))
    return OpenedSet(reference, builder=datasets.load_dataset_builder(str(folder), data_files=pattern))


@cache
def _plain(path: Path) -> Path:
    """Return a path without characters that `datasets` reads as a pattern or protocol: `path` or a symbolic link."""
    inner = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
    if not any(PATTERN.search(str(one)) for one in (path, *inner)):
        return path
    folder = TemporaryDirectory(prefix="slipway-set-")
    _links.append(folder)
    for number, one in enumerate(inner):
        name = PATTERN.sub("_", str(one.relative_to(path) if path.is_dir() else one.name))
        link = Path(folder.name, "set", name)
        link = link.with_name(f"{link.stem}-{number}{link.suffix}") if link.exists() else link
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(one)
    return Path(folder.name, "set") if path.is_dir() else link


@dataclass(frozen=True)
class OpenedSet:
    """A data set opened with `datasets`: a builder, or rows loaded from disk."""

    reference: SetReference
    builder: Any = None
    kept: dict[str, Any] | None = None
    """Rows on disk by split; the only key is "" for a Dataset without splits."""
    license: str = ""
    streams: dict[str, Any] = field(default_factory=dict)
    """Streams created so far, by split."""

    @property
    def config(self) -> str:
        return self.builder.config.name if self.builder else ""

    def parts(self, split: str) -> list[tuple[str, int, int | None]]:
        """Return the parts of `split` as (split name, first row, row after the last).

        The end is None for the end of the split. A percentage or a negative offset requires a row count.
        """
        import datasets

        if self.kept is not None and "" in self.kept:
            split = re.sub(r"(^|\+)train\b", r"\1_", split)  # a Dataset without splits: its rows are `train`
        names = [re.split(r"\[", one)[0] for one in split.split("+")]
        for name in names:
            fineweb.require_known("split", name, self.splits(), self.reference.words)
        needed = {
            name for name, one in zip(names, split.split("+"), strict=True) if re.search(r"[-%]", one[len(name) :])
        }
        rows = {name: self.rows(name) if name in needed or self.kept is not None else UNKNOWN_ROWS for name in names}
        found = datasets.ReadInstruction.from_spec(split).to_absolute(rows)
        ends = [None if one.to in (UNKNOWN_ROWS, rows[one.splitname]) and not one.from_ else one.to for one in found]
        both = zip(found, ends, strict=True)
        return [(one.splitname, one.from_, None if end == UNKNOWN_ROWS else end) for one, end in both]

    def splits(self) -> list[str]:
        if self.kept is not None:
            return [name or "_" for name in self.kept]
        return [str(name) for name in self.builder.config.data_files or {}]

    def files(self, split: str, start: int, stop: int | None) -> Iterator[InputFile]:
        """Yield the files or streams that contain rows `start` to `stop` of a split."""
        ours = self.our_files(split)
        is_whole = not start and stop is None
        if ours and (is_whole or form_of(ours[0])[0] == ".parquet"):
            if is_whole:
                yield from map(InputFile, ours)
            else:
                yield from _ranged(ours, start, UNKNOWN_ROWS if stop is None else stop)
            return
        name = f"datasets://{self.reference.words}:{split}"
        if self.kept is not None:
            stop = self.rows(split) if stop is None else stop
            for first in range(start, stop, DISK_ROWS):
                last = min(stop, first + DISK_ROWS)
                yield InputFile(
                    f"{name}[{first}:{last}]", stream=RowStream(self.reference, split, None, first, last, True)
                )
        elif is_whole:
            for shard in range(self.stream(RowStream(self.reference, split)).num_shards):
                yield InputFile(f"{name}#{shard}", stream=RowStream(self.reference, split, shard))
        else:
            end = "" if stop is None else stop
            yield InputFile(f"{name}[{start}:{end}]", stream=RowStream(self.reference, split, None, start, stop))

    def our_files(self, split: str) -> list[str]:
        """Return the files of a split if Slipway's reader gives the same rows as `datasets` for all files, else []."""
        if self.builder is None or self.kept is not None:
            return []
        loaders = (one.__module__.rpartition(".")[2] for one in type(self.builder).__mro__)
        suffix = next((OURS[name] for name in loaders if name in OURS), "")
        config = self.builder.config
        is_plain = all(getattr(config, name, value) == value for name, value in PLAIN.items())
        is_plain &= (getattr(config, "encoding", None) or "utf-8").lower() in ("utf-8", "utf8")
        names = [str(one) for one in config.data_files[split]]
        # With named features, `datasets` converts values to the declared types.
        is_plain &= suffix != ".jsonl" or self.builder.info.features is None
        is_ours = bool(suffix) and is_plain and all(form_of(one)[0] == suffix for one in names)
        return list(map(address, names)) if is_ours else []

    def rows(self, split: str) -> int:
        """Return the number of rows of a split: from disk, Parquet metadata or the data set card, else by counting."""
        if self.kept is not None:
            return len(self.kept["" if split == "_" else split])
        ours = self.our_files(split)
        if ours and form_of(ours[0])[0] == ".parquet":
            return sum(map(_parquet_rows, ours))
        told = (self.builder.info.splits or {}).get(split)
        if told is not None and told.num_examples:
            return int(told.num_examples)
        emit("note", text=f"{self.reference.words}: counting the rows of {split} to find the size of the share")
        stream = self.stream(RowStream(self.reference, split)).with_format("arrow")
        return sum(len(one) for one in stream.iter(COUNT_ROWS))

    def stream(self, asked: RowStream) -> Any:
        """Return the `IterableDataset` of a stream. Raises DataError if rows cached by `datasets` are gone."""
        if asked.is_kept:
            if self.kept is None:
                raise DataError("the cache of datasets is gone; run the same command again")
            whole = self.kept["" if asked.split == "_" else asked.split]
            stop = len(whole) if asked.stop is None else asked.stop
            return whole.select(range(asked.start, stop)).to_iterable_dataset()
        whole = self.streams.get(asked.split)
        # Some loaders read the beginning of the files to create a stream.
        if whole is None:
            whole = self.streams[asked.split] = self.builder.as_streaming_dataset(split=asked.split)
        if asked.shard is not None:
            return whole.shard(num_shards=whole.num_shards, index=asked.shard)
        stream = whole.skip(asked.start) if asked.start else whole
        return stream if asked.stop is None else stream.take(asked.stop - asked.start)


def address(name: str) -> str:
    """Return the URL of a file named `hf://datasets/user/name@commit/path` by `datasets`; other names are unchanged."""
    found = re.fullmatch(r"hf://datasets/([^/]+/[^/@]+)@([^/]+)/(.+)", name)
    return f"{hub()}/datasets/{found[1]}/resolve/{found[2]}/{quote(found[3])}" if found else name


@lru_cache(maxsize=1 << 16)
def _parquet_rows(uri: str) -> int:
    import pyarrow.parquet

    return int(pyarrow.parquet.ParquetFile(open_remote(uri) if "://" in uri else uri).metadata.num_rows)


def _ranged(uris: list[str], start: int, stop: int) -> Iterator[InputFile]:
    """Yield the Parquet files that contain rows `start` to `stop`, each with its row range."""
    first = 0
    for uri in uris:
        rows = _parquet_rows(uri)
        least, most = max(start - first, 0), min(stop - first, rows)
        if least < most:
            yield InputFile(uri, rows=None if (least, most) == (0, rows) else (least, most))
        first += rows
        if first >= stop:
            return


@contextmanager
def convert_errors(reference: SetReference) -> Iterator[None]:
    """Convert errors of `datasets` to Slipway's errors."""
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    where = f"source {reference.words}"
    try:
        yield
    except (InputError, DataError) as error:
        said = str(error).removeprefix("source fineweb: ").removesuffix(f"; {fineweb.INSTEAD}")
        raise type(error)(said if said.startswith("source ") else f"{where}: {said}") from None
    except DatasetNotFoundError as error:
        if "gated" in str(error):
            raise NotThere(f"{where}: {gated(reference)}") from None
        raise NotThere(f"{where}: {first_line(error)}") from None
    except (DatasetsError, ValueError, FileNotFoundError, NotImplementedError) as error:
        raise InputError(f"{where}: {first_line(error)}") from None
    except (OSError, RuntimeError) as error:
        code = getattr(getattr(error, "response", None), "status_code", 0)
        if code in (401, 403):
            raise NotThere(f"{where}: {gated(reference)}") from None
        kind = HubSilent if isinstance(error, ConnectionError) else DataError
        raise kind(f"{where}: {type(error).__name__}: {first_line(error)}") from None


def gated(reference: SetReference) -> str:
    """Return advice for a data set with restricted access."""
    page = f"{hub()}/datasets/{reference.place}"
    who = "the account of the token has no access" if token_headers() else "it asks for a token"
    return f"{who}; accept its terms at {page}, then set HF_TOKEN to a token of that account"


def first_line(error: Exception) -> str:
    """Return the first line of an error of `datasets`, with the available names from the second line."""
    lines = (str(error) or type(error).__name__).splitlines()
    choice = [line for line in lines[1:2] if line.startswith("Please pick one")]
    return " ".join([lines[0], *choice]).removeprefix(HUB)
