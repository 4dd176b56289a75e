"""Shard data sets, and compare the documents with the rows of the library `datasets`.

`python -m tests.programs.compare_with_datasets FOLDER` reads cases from standard input, a list of `{"spec": {...},
"load": [...], "column": "text"}`: the input of `inv shard`, and the arguments of `load_dataset`; or `{"talk":
"hf://..."}`, `{"problems": {...}}` or `{"text": {...}}` for the output of a single step. Prints a list of results. A
separate program, because the library reads HF_ENDPOINT at import time.
"""

import io
import json
import sys
from contextlib import redirect_stderr
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import datasets

from data.__main__ import main
from data.config import TextSpec, conversation_spec
from data.config import load as load_spec
from data.manifest import read_manifest
from data.shards.shards import read, shard_paths
from data.text import streams
from data.text.batches import open_pieces
from data.text.documents import InputFile
from data.text.inputs import list_inputs


def rows(load: list[Any], column: str) -> list[str]:
    """Return the non-blank texts of a column: null is blank, and a list is one text."""
    if load[0] == "disk":
        found: Any = datasets.load_from_disk(load[1])
        found = found[load[2]] if len(load) > 2 else found
    else:
        place, config, split = load
        try:
            found = datasets.load_dataset(place, config, split=split)
        except datasets.exceptions.DatasetsError:  # writing .zst needs a package that may be missing
            name, _, part = split.partition("[")
            start, end = (int(one) if one else None for one in (part or ":")[:-1].split(":")) if part else (0, None)
            stream = datasets.load_dataset(place, config, split=name, streaming=True)
            found = datasets.Dataset.from_list(list(islice(stream, start, end)))
    texts = []
    for row in found.select_columns([column.split(".")[0]]).with_format(None):
        value = row
        for field in column.split("."):
            value = value[field]
        texts.append("\n\n".join(filter(None, value)) if isinstance(value, list) else value or "")
    return [text for text in texts if text.strip()]


def goes_on_anywhere(file: InputFile) -> bool:
    """Return true if a stream, resumed after each batch from a written state, yields exactly the rest."""
    streams.ROWS = 40
    batches = [(list(one.texts), json.dumps(one.state)) for one in open_pieces(file).read(0)]
    for number, (_, state) in enumerate(batches):
        rest = [list(one.texts) for one in open_pieces(file).read(0, json.loads(state))]
        if sum(rest, []) != sum((texts for texts, _ in batches[number + 1 :]), []):
            return False
    return True


def made(case: dict[str, Any], folder: Path, number: int) -> dict[str, Any]:
    """Return the output of a step other than `text` by file, and the message of a failure."""
    out = folder / f"made-{number}"
    (step,) = case
    spec = asdict(conversation_spec(case["talk"])) if step == "talk" else case[step]
    (folder / "config.json").write_text(json.dumps({"out": str(out), "spec": spec}))
    with redirect_stderr(io.StringIO()) as said:
        code = main([step, "--config", str(folder / "config.json")])
    files = {one.name: one.read_text().rstrip("\n").split("\n") for one in out.glob("*.jsonl")}
    return {"code": code, "files": files, "said": said.getvalue()}


def compared(number: int, case: dict[str, Any], folder: Path) -> dict[str, Any]:
    if "load" not in case:
        return made(case, folder, number)
    out = folder / f"out-{number}"
    how = case.get("how", {})
    (folder / "config.json").write_text(json.dumps({"out": str(out), "spec": {**case["spec"], **how}}))
    code = main(["text", "--config", str(folder / "config.json")])
    if code:
        return {"code": code}
    ours, theirs = list(read(shard_paths(out))), rows(case["load"], case.get("column", "text"))
    differ = next((n for n, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), None)
    told = [] if differ is None else [ours[differ], theirs[differ]]
    resumed = all(goes_on_anywhere(one) for one in list_inputs(load_spec(TextSpec, case["spec"])).files if one.stream)
    manifest = read_manifest(out)
    hashes = [one["sha256"] for one in manifest["shards"]]
    return {"code": 0, "counts": [len(ours), len(theirs)], "differ": told, "hashes": hashes, "resumed": resumed}


if __name__ == "__main__":
    datasets.disable_progress_bars()
    cases = json.load(sys.stdin)
    print(json.dumps([compared(number, case, Path(sys.argv[1])) for number, case in enumerate(cases)]))
