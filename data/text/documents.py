"""Where text comes from: documents, one after another, from Python's own docs, from files, or from the hub.

`documents(source)` is the one door for who wants them one by one. Files are read as they stand, never all at once:

    .txt      one document per line, empty lines skipped. Where the file is a shard of ours (the manifest beside
              it lists it) the escapes are undone; in any other file a line is taken as it stands
    .jsonl    one object per line with a `text`
    .parquet  the column `text`, row group by row group

.txt and .jsonl may be packed as .gz or .zst.
"""

from collections.abc import Iterator

from data.config import TextSpec
from data.text.batches import documents_of, open_pieces
from data.text.document import COLUMNS, Document
from data.text.inputs import list_inputs


def documents(source: str, packages: tuple[str, ...] = ()) -> Iterator[Document]:
    """The documents of `source`: `pydocs`, `fineweb`, `stdin`, a file, a folder, a glob or an address.

    Raises ConfigError when there is no such file, InputError for a package, a row or a column that is not there,
    DataError when what lies elsewhere cannot be reached.
    """
    for file in list_inputs(TextSpec(source=source, packages=packages)).files:
        pieces, row = open_pieces(file, COLUMNS), 0
        for piece in range(pieces.count):
            for batch in pieces.read(piece):
                yield from documents_of(batch, file.uri, row)
                row += batch.rows
