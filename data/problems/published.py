"""GSM8K, MATH and MBPP in their published form, from the hub or local files.

From a `ProblemsSpec`, `problems` returns training, validation and test problems. The parts match those of published
results: GSM8K 7,223 of the 7,473 for training, the other 250 for validation, and the 1,319 test problems; MATH 7,000 of
the 7,500, 500 held out evenly by subject and level, and 5,000; MBPP 374, 90 and 500.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from random import Random
from typing import Any

from data import references
from data.chat.imported import rows as jsonl_rows
from data.chat.imported import rows_of_datasets
from data.config import ProblemsSpec, form_of, is_of_datasets, source_files
from data.errors import DataError, InputError
from data.problems.problem import Problem, of_row
from data.text import fineweb
from data.text.remote import open_remote

THINK = (
    "Work the problem out step by step between <start_working_out> and </end_working_out>. Then give the answer alone, "
    "with nothing after it, between <SOLUTION> and </SOLUTION>."
)
CODE = f"{THINK} The answer is Python code that defines what the tests call."
SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
BOX = re.compile(r"\\f?box(?:ed)?(?![A-Za-z])")
CALCULATION = re.compile(r"<<[^<>]*>>")
Row = Mapping[str, Any]
Parts = tuple[list[Problem], list[Problem], list[Problem]]


@dataclass(frozen=True)
class PublishedProblems:
    """A data set on the hub, and the conversion of its rows to problems."""

    dataset: str
    configs: tuple[str, ...]
    parts: tuple[str, ...]
    """Splits for training, validation and test; two splits if validation is held out of the first."""
    held_out: int
    """Number of problems held out of the first split, if two splits exist."""
    problem: Callable[[Row], Problem]
    kind: Callable[[Row], str] = lambda row: ""
    """Function from a row to its kind; each kind keeps its share among held-out problems."""


def gsm8k(row: Row) -> Problem:
    """Return the problem of a row with `question`, and `answer` ending in `####` and a number."""
    return Problem(question=row["question"], answer=row["answer"], system=THINK)


def math(row: Row) -> Problem:
    """Return the problem of a row with `problem`, and `solution` with the answer in the last box."""
    return Problem(question=row["problem"], answer=row["solution"], system=THINK)


def mbpp(row: Row) -> Problem:
    """Return the problem of a row with `text` (or `prompt`), `code`, `test_list` and optional imports."""
    tests = tuple(row["test_list"])
    setup = "\n".join([*(row.get("test_imports") or ()), row.get("test_setup_code") or ""]).strip()
    words = row.get("text") or row["prompt"]
    question = f"{words}\nYour code should pass these tests:\n" + "\n".join(tests)
    return Problem(question=question, answer=row["code"], system=CODE, setup=setup, tests=tests)


PUBLISHED = {
    "gsm8k": PublishedProblems("openai/gsm8k", ("main",), ("train", "test"), 250, gsm8k),
    "math": PublishedProblems(
        "EleutherAI/hendrycks_math",
        SUBJECTS,
        ("train", "test"),
        500,
        math,
        lambda row: f"{row.get('type')} {row.get('level')}",
    ),
    "mbpp": PublishedProblems("google-research-datasets/mbpp", ("full",), ("train", "validation", "test"), 0, mbpp),
}


def problems(spec: ProblemsSpec) -> Parts:
    """Return (train, val, test). Raises InputError for invalid rows, DataError if the hub is unreachable."""
    one = PUBLISHED[spec.task]
    found = [list(_rows(spec, one, part)) for part in one.parts]
    if one.held_out:
        rest, held_out = hold_out(found[0], min(one.held_out, len(found[0]) // 4), spec.seed, one.kind)
        found = [rest, held_out, *found[1:]]
    train, val, test = ([_problem(spec, one, row) for row in rows] for rows in found)
    return train, val, test


def of_file(spec: ProblemsSpec) -> Parts:
    """Return (train, val, test) of a user's file: a tenth for validation and a tenth for test, at most 512 each."""
    reference = references.parse(spec.source)
    if is_of_datasets(reference) or reference.columns:
        rows: Iterator[Any] = rows_of_datasets(reference)
    else:
        rows = (row for path in source_files(spec.source) for row in table(str(path)))
    found = [_problem(spec, None, row, number) for number, row in enumerate(rows, 1)]
    if len(found) < 20:
        raise InputError(f"{spec.source}: {len(found)} problems; at least 20 are needed, because a tenth is held out")
    order = Random(f"problems {spec.seed}").sample(found, len(found))
    few = min(512, len(found) // 10)
    return order[2 * few :], order[few : 2 * few], order[:few]


def hold_out(rows: list[Row], count: int, seed: int, kind: Callable[[Row], str]) -> tuple[list[Row], list[Row]]:
    """Return the remaining rows, and `count` held-out rows with the original share of each kind."""
    order = Random(f"problems {seed}").sample(rows, len(rows))
    kinds = [list(some) for _, some in groupby(sorted(order, key=kind), kind)]
    turns = [(number / len(some), row) for some in kinds for number, row in enumerate(some)]
    # Sort key number / kind size spaces the rows of each kind evenly, wider for rarer kinds.
    turns.sort(key=lambda one: one[0])
    chosen = [row for _, row in turns]
    return chosen[count:], chosen[:count]


def _problem(spec: ProblemsSpec, one: PublishedProblems | None, row: Any, number: int = 0) -> Problem:
    where = f"{spec.source or spec.task}{f', row {number}' if number else ''}"
    try:
        return one.problem(row) if one else of_row(row)
    except (KeyError, TypeError, ValueError) as error:
        there = ", ".join(row) if isinstance(row, Mapping) else type(row).__name__
        why = error if isinstance(error, ValueError) else f"no {error}"
        raise InputError(f"{where}: {why}; there is: {there}") from None


def _rows(spec: ProblemsSpec, one: PublishedProblems, part: str) -> Iterator[Row]:
    if spec.source.startswith(references.HUB):
        yield from rows_of_datasets(replace(references.parse(spec.source), split=part))
        return
    if spec.source:
        yield from (row for path in of_part(spec.source, part) for row in table(str(path)))
        return
    for config in one.configs:
        try:
            _, uris = fineweb.files(one.dataset, config, part, spec.revision)
        except DataError as error:
            words = str(error).replace("source fineweb: ", "").replace(f"; {fineweb.INSTEAD}", "")
            raise type(error)(
                f"{spec.task} ({one.dataset}): {words}. Use a folder with the train and test files: --problems "
                "FOLDER; or the task sort, which needs no network"
            ) from None
        yield from (row for uri in uris for row in table(uri))


def of_part(source: str, part: str) -> list[Path]:
    """Return the files of a part in a folder, by a match of `part` in the file name or a parent folder."""
    root = Path(source).expanduser()
    if not root.is_dir():
        raise InputError(f"{source}: expected a folder with files for {part}")
    found = [one for one in source_files(source) if part in one.name or part in one.relative_to(root).parts]
    if not found:
        raise InputError(f"{source}: no file for {part!r}: neither a file name nor a folder name contains {part!r}")
    return found


def table(uri: str) -> Iterator[Any]:
    """Yield the rows of a local or remote .jsonl or .parquet file. Raises InputError."""
    suffix, _ = form_of(uri)
    if suffix != ".parquet":
        yield from jsonl_rows(uri)
        return
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(open_remote(uri) if "://" in uri else uri, pre_buffer=False)
        for batch in file.iter_batches(256):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{uri}: damaged or not a parquet file: {str(error).splitlines()[0]}") from None


def calculator_marks(task: str, found: list[Problem]) -> int:
    """Return the number of marks of a calculator in the answers, which `demonstrations` removes."""
    return sum(len(CALCULATION.findall(one.answer)) for one in found) if task == "gsm8k" else 0


def without_box(task: str, found: list[Problem]) -> int:
    """Return the number of solutions of math without a box: the whole text is the gold answer."""
    return sum(BOX.search(one.answer) is None for one in found) if task == "math" else 0


def demonstrations(task: str, found: list[Problem]) -> list[list[Mapping[str, str]]]:
    """Return conversations with the published solutions, in the form that earns a reward."""
    if task == "gsm8k":
        # The data set's marks of a calculator, <<48/2=24>>, repeat the calculation before them.
        pairs = [CALCULATION.sub("", one.answer).rpartition("####") for one in found]
        said = [(steps.strip(), answer.strip().replace(",", "")) for steps, _, answer in pairs]
    elif task == "mbpp":
        said = [("I write the code that the tests call.", f"\n{one.answer.strip()}\n") for one in found]
    else:
        return []
    shape = "<start_working_out>{}</end_working_out><SOLUTION>{}</SOLUTION>".format
    return [
        [*problem.messages, {"role": "assistant", "content": shape(*words)}]
        for problem, words in zip(found, said, strict=True)
    ]
