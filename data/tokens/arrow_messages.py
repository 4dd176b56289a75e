"""The two Arrow stream messages before the ids of a token shard, as reproducible bytes.

From the number of ids and documents, `schema` builds a schema with one column, `input_ids`, of lists of unsigned
integers, and `batch` the message of the single record batch. Both are flatbuffers, laid out by hand: a shard is then
byte-identical with every version of pyarrow, and can be written and verified without pyarrow. `token_file.py` calls
both. Source: Arrow's `format/Message.fbs` and `Schema.fbs`, metadata version V5.
"""

import struct

COLUMN = b"input_ids"
V5, SCHEMA, RECORD_BATCH = 4, 1, 3  # MetadataVersion, MessageHeader
INT, LARGE_LIST = 2, 21  # Type
GOES_ON = 0xFFFFFFFF  # marker before the length of a message
PREFIX = struct.Struct("<II")

# A table starts with the distance to its vtable, followed by fields; the vtable stores both lengths and the field
# offsets. The comment of each row below gives the row's offset in the flatbuffer.
_MESSAGE = "I6H iIqhBx"  # 0 root, 4 vtable, 16 table: header at 20, length of the body at 24, version, kind of header
_FIELD = "8H iIIIBB2x"  # vtable, then table: name, type, children, nullable, kind of type
_SCHEMA = struct.Struct(
    "<"
    + _MESSAGE
    + "4H iI"  # 36 vtable, 44 table: fields at 48
    + "II"  # 52 fields
    + _FIELD  # 60, 76
    + "I12s"  # 96 name
    + "2H i"  # 112 vtable, 116 table of LargeList, without fields
    + "II"  # 120 children
    + _FIELD  # 128, 144
    + "I8s"  # 164 name
    + "3H2x ii"  # 176 vtable, 184 table of Int: bits
    + "I4x"  # 192 children: none
)
_BATCH = struct.Struct(
    "<"
    + _MESSAGE
    + "5H2x iIqI"  # 36 vtable, 48 table: nodes at 52, rows at 56, buffers at 64
    + "I4q"  # 68 nodes: length and nulls of the lists, then of their items
    + "4xI8q"  # 108 buffers: begin and length of validity and offsets, validity and items
)
SCHEMA_BYTES = PREFIX.size + _SCHEMA.size
"""Length of the schema without padding."""


def schema(bits: int, padding: bytes) -> bytes:
    """Return the schema message, with `padding` (a multiple of eight bytes) as message padding."""
    field = (16, 20, 4, 16, 17, 8, 0, 12)
    made = _SCHEMA.pack(
        *_message(SCHEMA, 44, 0),
        *(8, 8, 0, 4),
        *(8, 4),
        *(1, 76 - 56),
        *field,
        *(16, 96 - 80, 116 - 84, 120 - 88, True, LARGE_LIST),
        *(len(COLUMN), COLUMN),
        *(4, 4),
        4,
        *(1, 144 - 124),
        *field,
        *(16, 164 - 148, 184 - 152, 192 - 156, True, INT),
        *(len(b"item"), b"item"),
        *(6, 8, 4),
        *(8, bits),
        0,
    )
    return PREFIX.pack(GOES_ON, len(made) + len(padding)) + made + padding


def batch(num_lists: int, num_items: int, item_bytes: int, gap: int, num_bytes: int) -> bytes:
    """Return the message of a record batch, `num_bytes` long.

    After the message, a file holds the items, a gap of `gap` bytes, and num_lists + 1 list offsets of eight bytes each.
    """
    offsets = (num_lists + 1) * 8
    made = _BATCH.pack(
        *_message(RECORD_BATCH, 48, item_bytes + gap + offsets),
        *(10, 20, 8, 4, 16),
        *(12, 68 - 52, num_lists, 108 - 64),
        2,
        *(num_lists, 0),
        *(num_items, 0),
        4,
        *(0, 0),
        *(item_bytes + gap, offsets),
        *(0, 0),
        *(0, item_bytes),
    )
    rest = num_bytes - PREFIX.size - len(made)
    return PREFIX.pack(GOES_ON, len(made) + rest) + made + bytes(rest)


def _message(kind: int, header_at: int, body_bytes: int) -> tuple[int, ...]:
    return (16, 12, 20, 16, 18, 4, 8, 12, header_at - 20, body_bytes, V5, kind)
