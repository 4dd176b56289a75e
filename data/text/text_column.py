"""Read the text column of documents: strings, lists of strings, or a field of a record.

From an Arrow table or a row, and a column name such as `text` or `json.caption`, the functions return UTF-8 texts. A
list, such as the passages of a page between pictures, is joined to a single text; null is an empty text. A column of
nulls alone has no type of its own and counts as text, as in `datasets`.
"""

from typing import Any

from data.text.document_batch import TextList, Texts, of_arrow

KINDS = ("null", "string", "large_string", "string_view", "binary", "large_binary")
BETWEEN = "\n\n"  # separator of the passages of a list


def type_problem(kind: Any, path: str) -> str:
    """Return "" if the field `path` of an Arrow type is text or a list of texts, else its type."""
    for name in filter(None, path.split(".")):
        if not hasattr(kind, "get_field_index") or kind.get_field_index(name) < 0:
            return f"{kind} without {name!r}"
        kind = kind.field(name).type
    told = str(kind)
    kind = getattr(kind, "value_type", kind)
    return "" if str(kind) in KINDS else told


def texts_of(table: Any, name: str) -> tuple[Texts, int, list[int]]:
    """Return the texts of a table's column, the number of invalid UTF-8 texts, and the rows with null."""
    import pyarrow

    path = [name] if name in table.schema.names else name.split(".")
    column = table.column(path[0])
    for field in path[1:]:
        import pyarrow.compute  # the import takes longer than reading many a sample

        column = pyarrow.compute.struct_field(column, field)
    if isinstance(column, pyarrow.ChunkedArray):
        column = column.combine_chunks()
    nulls = [at for at, is_null in enumerate(column.is_null().to_pylist()) if is_null] if column.null_count else []
    if pyarrow.types.is_list(column.type) or pyarrow.types.is_large_list(column.type):
        return TextList(joined(row).encode("utf-8", "replace") for row in column.to_pylist()), 0, nulls
    return *of_arrow(column), nulls


def value_at(row: dict[str, Any], name: str) -> Any:
    """Return the text in a row given as a dictionary; "" for null, None for a missing field, other values unchanged."""
    value: Any = row
    for field in _fields(row, name):
        if not isinstance(value, dict) or field not in value:
            return None
        value = value[field]
    if isinstance(value, list) and all(one is None or isinstance(one, str) for one in value):
        return joined(value)
    return "" if value is None else value


def is_null(row: dict[str, Any], name: str) -> bool:
    """Return True if a field that the row has is null."""
    value: Any = row
    for field in _fields(row, name):
        value = value[field]
    return value is None


def _fields(row: dict[str, Any], name: str) -> list[str]:
    return [name] if name in row else name.split(".")


def joined(passages: list[str | None] | None) -> str:
    return BETWEEN.join(one for one in passages or () if one)
