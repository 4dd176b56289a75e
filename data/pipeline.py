"""Documents -> text shards: the whole of `inv shard`, and the first step on a pod."""

from dataclasses import asdict
from itertools import chain, islice
from pathlib import Path
from typing import Any

from data.config import TextSpec
from data.documents import documents
from data.errors import InputError
from data.report import emit
from data.shards import MANIFEST, Writer, in_val

REPORT_EVERY = 2000


def shard(spec: TextSpec, folder: Path, split: bool = True) -> dict[str, Any]:
    """Write the shards of `spec` into `folder`; the summary of both parts.

    `split`: into `train/` and `val/` (no `val/` when val_ratio is 0); else straight into `folder`.
    Memory does not grow with the source. Raises InputError when the source yields nothing.
    """
    if not split and spec.val_ratio:
        raise InputError("shards that are held out need a folder of their own")
    found = islice(documents(spec.source, spec.packages), spec.take)
    first = next(found, None)
    if first is None:
        raise InputError(f"source {spec.source}: no document in it")
    train = Writer(folder / "train" if split else folder, spec.lines_per_shard)
    val = Writer(folder / "val", spec.lines_per_shard) if spec.val_ratio else None
    for done, document in enumerate(chain([first], found), 1):
        part = val if val and in_val(document.text, spec.val_ratio, spec.seed) else train
        part.add(document.text)
        if done % REPORT_EVERY == 0:
            emit("progress", done=done, total=spec.take, unit="documents")
    writers = {"train": train, "val": val} if val else {"train": train}
    for writer in writers.values():  # an old part must not stand beside a new one
        (writer.folder / MANIFEST).unlink(missing_ok=True)
    parts = {name: writer.finish(spec.source, asdict(spec)) for name, writer in writers.items()}
    return {
        "source": spec.source,
        "documents": sum(part["total_lines"] for part in parts.values()),
        "bytes": sum(part["total_bytes"] for part in parts.values()),
        "shards": sum(len(part["shards"]) for part in parts.values()),
        "held_out": parts["val"]["total_lines"] if val else 0,
    }
