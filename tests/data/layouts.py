"""Small data sets in the layouts of well-known published ones, as folders for a hub to serve.

Input: a folder and the number of rows. Output: a folder per layout in it. The texts are made here; the names of files,
columns and configurations, and the file formats, equal the namesake data sets.
"""

import csv
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet

HEAD = "---\nlicense: odc-by\nconfigs:\n"


def text_of(number: int) -> str:
    return f"Document {number}, größer.\nIts second line, with a \\ and \u2028; " + "more words " * (number % 13)


def split(rows: int, files: int) -> list[range]:
    ends = [rows * n // files for n in range(files + 1)]
    return [range(a, b) for a, b in zip(ends, ends[1:], strict=False)]


def fineweb_edu(folder: Path, rows: int) -> None:
    """Write parquet by dump and by sample, with a card that names both."""
    for config in ("sample/10BT", "data/CC-MAIN-2024-10"):
        (folder / config).mkdir(parents=True)
        for file, some in enumerate(split(rows, 3)):
            columns = {
                "text": [text_of(n) for n in some],
                "id": [f"<urn:uuid:{n}>" for n in some],
                "language": ["en"] * len(some),
                "language_score": [n % 10 / 10 for n in some],
                "score": [n % 50 / 10 for n in some],
            }
            name = folder / config / f"{file:03d}_00000.parquet"
            pyarrow.parquet.write_table(pyarrow.table(columns), name, row_group_size=max(1, rows // 7))
    (folder / "README.md").write_text(
        f"{HEAD}- config_name: default\n  data_files:\n  - split: train\n    path: data/*/*\n"
        "- config_name: sample-10BT\n  data_files:\n  - split: train\n    path: sample/10BT/*\n---\n"
    )


def dclm(folder: Path, rows: int) -> None:
    """Write lines of JSON packed by zstd, in folders by shard, without a card."""
    for file, some in enumerate(split(rows, 2)):
        place = folder / f"global-shard_{file:02d}_of_10" / "local-shard_0_of_10"
        place.mkdir(parents=True)
        rows_here = [{"url": f"u{n}", "text": text_of(n), "fasttext_score": n % 10 / 10} for n in some]
        content = "".join(json.dumps(row) + "\n" for row in rows_here).encode()
        packed = pyarrow.Codec("zstd").compress(content, asbytes=True)
        (place / "shard_00000000_processed.jsonl.zst").write_bytes(packed)


def smoltalk(folder: Path, rows: int) -> None:
    """Write conversations in parquet, in folders by configuration."""
    for config in ("all", "everyday-conversations"):
        (folder / "data" / config).mkdir(parents=True)
        for part in ("train", "test"):
            talks = [
                [{"content": f"Question {n} of {part}?", "role": "user"}, {"content": text_of(n), "role": "assistant"}]
                for n in range(rows if part == "train" else rows // 10)
            ]
            table = pyarrow.table({"messages": talks, "source": [config] * len(talks)})
            pyarrow.parquet.write_table(table, folder / "data" / config / f"{part}-00000-of-00001.parquet")
    configs = [
        f"- config_name: {config}\n  data_files:\n  - split: train\n    path: data/{config}/train-*\n"
        f"  - split: test\n    path: data/{config}/test-*\n"
        for config in ("all", "everyday-conversations")
    ]
    (folder / "README.md").write_text(f"{HEAD}{''.join(configs)}---\n")


def gsm8k(folder: Path, rows: int) -> None:
    """Write questions and answers in parquet, in folders by configuration; the card has their number."""
    (folder / "main").mkdir(parents=True)
    for part, count in (("train", rows), ("test", rows // 5)):
        columns = {
            "question": [f"What is {n} + {n}, of {part}?" for n in range(count)],
            "answer": [f"It is twice {n}.\n#### {2 * n}" for n in range(count)],
        }
        pyarrow.parquet.write_table(pyarrow.table(columns), folder / "main" / f"{part}-00000-of-00001.parquet")
    (folder / "README.md").write_text(
        f"{HEAD}- config_name: main\n  data_files:\n  - split: train\n    path: main/train-*\n"
        "  - split: test\n    path: main/test-*\n---\n"
    )


def comma(folder: Path, rows: int) -> None:
    """Write three files of comma-separated values, without a card."""
    folder.mkdir(parents=True)
    for file, some in enumerate(split(rows, 3)):
        with open(folder / f"train-{file}.csv", "w", newline="", encoding="utf-8") as out:
            writer = csv.writer(out)
            writer.writerow(["id", "text", "score"])
            writer.writerows([n, text_of(n), n % 10] for n in some)


def objects(folder: Path, rows: int) -> None:
    """Write one JSON array with the texts under `content`."""
    folder.mkdir(parents=True)
    (folder / "train.json").write_text(json.dumps([{"content": text_of(n), "id": str(n)} for n in range(rows)]))


def webdataset(folder: Path, rows: int) -> None:
    """Write tar files of pictures (unused here), captions and metadata."""
    folder.mkdir(parents=True)
    for file, some in enumerate(split(rows, 2)):
        with tarfile.open(folder / f"{file:05d}.tar", "w") as tar:
            for n in some:
                about = json.dumps({"caption": f"A picture of {n}", "width": n}).encode()
                for suffix, content in (("bin", b"\0" * 300), ("json", about), ("txt", text_of(n).encode())):
                    entry = tarfile.TarInfo(f"{n:08d}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


def pictures(folder: Path, rows: int) -> None:
    """Write parquet of pages with pictures: passages as a list with gaps, and a caption."""
    folder.mkdir(parents=True)
    columns: dict[str, Any] = {
        "images": [[{"bytes": b"\0" * 200, "path": f"{n}.jpg"}] for n in range(rows)],
        "texts": [[f"Before {n}", None, text_of(n)] for n in range(rows)],
        "caption": [text_of(n) for n in range(rows)],
    }
    pyarrow.parquet.write_table(pyarrow.table(columns), folder / "train.parquet")


def arrow(folder: Path, rows: int) -> None:
    """Write Arrow's own stream format."""
    folder.mkdir(parents=True)
    for file, some in enumerate(split(rows, 2)):
        table = pyarrow.table({"text": [text_of(n) for n in some]})
        name = str(folder / f"train-{file:05d}.arrow")
        with pyarrow.OSFile(name, "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=100)


def text_lines(folder: Path, rows: int) -> None:
    """Write lines of text, some of them empty."""
    folder.mkdir(parents=True)
    lines = ["" if n % 7 == 3 else text_of(n).replace("\n", " ") for n in range(rows)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def featured(folder: Path, rows: int) -> None:
    """Write lines of JSON; the card declares the numbers in `text` as strings."""
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": n, "id": n}) + "\n" for n in range(rows)))
    (folder / "README.md").write_text(
        "---\ndataset_info:\n  features:\n  - name: text\n    dtype: string\n  - name: id\n    dtype: int64\n---\n"
    )


def odd_names(folder: Path, rows: int) -> None:
    """Write parquet under names that need care in addresses and patterns."""
    (folder / "größer set").mkdir(parents=True)
    table = pyarrow.table({"text": [text_of(n) for n in range(rows)]})
    pyarrow.parquet.write_table(table, folder / "größer set" / "täst #1 [x] 100%.parquet")
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: größer set\n  data_files:\n  - split: train\n    path: größer set/*\n---\n",
        encoding="utf-8",
    )


LAYOUTS: dict[str, Callable[[Path, int], None]] = {
    "fineweb-edu": fineweb_edu, "dclm": dclm, "smoltalk": smoltalk, "gsm8k": gsm8k, "csv-set": comma,
    "objects": objects, "webdataset": webdataset, "pictures": pictures, "arrow": arrow, "plain": text_lines,
    "featured": featured, "odd-names": odd_names,
}  # fmt: skip


def write_all(folder: Path, rows: int) -> None:
    for name, write in LAYOUTS.items():
        write(folder / name, rows)
