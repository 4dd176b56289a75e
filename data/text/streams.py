"""Read a stream of `datasets` as resumable batches of documents.

From an `InputFile` with a `RowStream`, `read` yields batches, each with the `state_dict` after the batch for a later
resume. Rows are read as Arrow tables if the loader supports Arrow, so texts are copied only once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from data.errors import InputError
from data.text.document_batch import TextList
from data.text.documents import Batch, InputFile
from data.text.hub_datasets import convert_errors, opened
from data.text.text_column import texts_of, type_problem, value_at

ROWS = 512  # number of rows per batch


class Streamed:
    """A stream as a single piece."""

    count = 1

    def __init__(self, file: InputFile, columns: Sequence[str], required: Sequence[str]):
        assert file.stream is not None
        self.asked, self.text = file.stream, file.source_column("text")
        self.columns, self.required = list(dict.fromkeys([*required, *columns])), required

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        import datasets

        with convert_errors(self.asked.reference):
            found = opened(self.asked.reference)
            stream = found.stream(self.asked)
            is_made_by_python = isinstance(found.builder, datasets.GeneratorBasedBuilder)
            names = stream.column_names or list(next(iter(stream.take(1)), ()))
            if not names:  # the stream has no columns
                return
            stream = stream.select_columns(self._wanted(names))
            if not is_made_by_python:
                stream = stream.with_format("arrow")
            if state is not None:
                stream.load_state_dict(state)
            for one in stream.iter(ROWS):
                batch = self._of_python(one) if is_made_by_python else self._of_arrow(one)
                yield replace(batch, state=stream.state_dict(), available=tuple(names))
                del one, batch  # free a large document before the next read

    def _wanted(self, names: Sequence[str]) -> list[str]:
        """Return the columns to read. Raises InputError for a missing column."""
        there = ", ".join(names)
        top = self.text if self.text in names else self.text.split(".")[0]
        if top not in names:
            raise InputError(
                f"no text column {self.text!r}; available: {there}; to name the text column: --text-column"
            )
        if missing := [name for name in self.required if name not in names]:
            raise InputError(f"no column {', '.join(missing)}; available: {there}")
        return list(dict.fromkeys([top, *(name for name in self.columns if name in names)]))

    def _of_arrow(self, table: Any) -> Batch:
        top = self.text if self.text in table.column_names else self.text.split(".")[0]
        if wrong := type_problem(table.schema.field(top).type, self.text.removeprefix(top)):
            raise InputError(f"column {self.text!r} is {wrong}, not text; name a different column with --text-column")
        texts, invalid, nulls = texts_of(table, self.text)
        there = [name for name in self.columns if name in table.column_names]
        columns = {name: table.column(name).to_pylist() for name in there}
        return Batch(len(table), texts, columns, invalid, null_rows=nulls)

    def _of_python(self, rows: dict[str, list[Any]]) -> Batch:
        if self.text in rows:
            texts = [value_at({"": value}, "") for value in rows[self.text]]
        else:
            top, _, rest = self.text.partition(".")
            texts = [value_at(value, rest) if isinstance(value, dict) else None for value in rows[top]]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(
                f"column {self.text!r} does not hold text in every row; name a different column with --text-column"
            )
        encoded = TextList(text.encode("utf-8", "replace") for text in texts)
        return Batch(len(encoded), encoded, {name: rows[name] for name in self.columns if name in rows})
