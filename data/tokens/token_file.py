"""Memory-mapped token files: a header, the concatenated ids of all documents, and the offset of each document.

A file is an Arrow stream with a column `input_ids`, one list per document, so pyarrow and `datasets` can read the file
without Slipway. Slipway's reader needs no Arrow, because all offsets are fixed.

    schema   the schema message of the Arrow stream; its padding holds fields and digest:
             magic 8s | version u32 | bytes per id u32 | vocab u32 | id of <|bos|> u32 | tokens u64 | documents u64
             | sha256 of the tokenizer 32s | of the text shard 32s | of this file 32s
    batch    the record batch message with the lengths of ids and starts
    ids      little-endian uint16, or uint32 for a vocabulary over 65536; each document begins with <|bos|>, which
             occurs only there; zero padding to a multiple of eight bytes
    starts   u64 (documents + 1,): the offset of each document, and the number of tokens

The last sha256 covers ids and starts, then the fields before the digest. A file of version 2 begins with the fields,
and is not an Arrow stream. A folder of token files has a `manifest.json`, written last. The functions return headers
and manifests, or raise DataError for invalid files. `verify.py` reads token files without numpy.
"""

import hashlib
import os
import re
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.manifest import MANIFEST, MANIFEST_BYTES, SHA256
from data.tokens import arrow_messages
from store import untrusted_input

MAGIC, VERSION, PLAIN = b"SLIPWAYT", 3, 2
FIELDS = struct.Struct("<8sIIIIQQ32s32s")
DIGEST_BYTES = 32
FIELDS_AT = {PLAIN: 0, VERSION: arrow_messages.SCHEMA_BYTES}
"""Offset of the fields, by version."""
BODIES = {PLAIN: FIELDS.size + DIGEST_BYTES, VERSION: 576}
"""Offset of the ids, by version; a multiple of 64, as Arrow requires."""
BODY = BODIES[VERSION]
PLACE_BYTES = 8
WIDTHS = (2, 4)
KIND, SCHEMA = "token shards", 1
SUFFIX = ".arrow"
SUFFIXES = (SUFFIX, ".bin")  # .bin: version 2
_NAME = re.compile(r"(train|val)-[0-9]+\.(arrow|bin)")


@dataclass(frozen=True)
class Header:
    """Header of a token file."""

    width: int
    """Bytes per id."""
    vocab_size: int
    bos: int
    num_tokens: int
    num_documents: int
    tokenizer_sha256: str
    source_sha256: str
    sha256: str = ""
    version: int = VERSION

    @property
    def fields(self) -> bytes:
        """Return the packed fields, without the digest."""
        shape = (self.width, self.vocab_size, self.bos, self.num_tokens, self.num_documents)
        origin = bytes.fromhex(self.tokenizer_sha256), bytes.fromhex(self.source_sha256)
        return FIELDS.pack(MAGIC, self.version, *shape, *origin)

    @property
    def head(self) -> bytes:
        """Return all bytes before the ids."""
        ours = self.fields + bytes.fromhex(self.sha256)
        if self.version == PLAIN:
            return ours
        schema = arrow_messages.schema(8 * self.width, ours)
        ids = self.num_tokens * self.width
        batch = arrow_messages.batch(self.num_documents, self.num_tokens, ids, self.padding, BODY - len(schema))
        return schema + batch

    @property
    def body(self) -> int:
        """Return the offset of the ids."""
        return BODIES[self.version]

    @property
    def index(self) -> int:
        """Return the offset of `starts`."""
        return self.body + self.num_tokens * self.width + self.padding

    @property
    def padding(self) -> int:
        return -self.num_tokens * self.width % PLACE_BYTES

    @property
    def num_bytes(self) -> int:
        return self.index + (self.num_documents + 1) * PLACE_BYTES


def read_header(path: Path, tokenizer_sha256: str | None = None) -> Header:
    """Return the header of a file.

    Raises DataError if the file is incomplete or damaged, has an unsupported version, or is from a different tokenizer.
    """
    try:
        with untrusted_input.opened(path) as file:
            raw = file.read(BODY)
            num_bytes = os.fstat(file.fileno()).st_size
        at = FIELDS_AT[PLAIN if raw.startswith(MAGIC) else VERSION]
        magic, version, *shape, tokenizer, source = FIELDS.unpack_from(raw, at)
    except FileNotFoundError:
        raise DataError(f"{path}: no such token shard") from None
    except (OSError, struct.error, untrusted_input.UnusableDocument) as error:
        raise DataError(f"{path}: not a token shard: {error}") from None
    if magic != MAGIC:
        raise DataError(f"{path}: not a token shard")
    width, vocab_size, bos, num_tokens, num_documents = shape
    origin = tokenizer.hex(), source.hex(), raw[at + FIELDS.size : at + FIELDS.size + DIGEST_BYTES].hex()
    header = Header(width, vocab_size, bos, num_tokens, num_documents, *origin, version)
    if FIELDS_AT.get(version) != at or header.width not in WIDTHS:
        raise DataError(
            f"{path}: a token shard of version {version}, but this Slipway reads {PLAIN} and {VERSION}; make the "
            "tokens again"
        )
    if not bos < vocab_size <= 1 << 8 * width:
        raise DataError(f"{path}: <|bos|> is {bos} of {vocab_size} ids in {width} bytes; make the tokens again")
    if num_bytes != header.num_bytes:
        raise DataError(
            f"{path}: wrong size: {num_bytes} bytes, but {header.num_bytes} bytes in the header; make the tokens again"
        )
    if not raw.startswith(header.head):
        raise DataError(f"{path}: the header is damaged; make the tokens again")
    if tokenizer_sha256 and header.tokenizer_sha256 != tokenizer_sha256:
        made = header.tokenizer_sha256[:12]
        raise DataError(f"{path}: made by tokenizer {made}, not by {tokenizer_sha256[:12]}; make the tokens again")
    return header


def is_intact(path: Path, header: Header) -> bool:
    """Return True if the digest of the file matches the header. Reads the whole file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        file.seek(header.body)
        while block := file.read(1 << 20):
            digest.update(block)
    digest.update(header.fields)
    return digest.hexdigest() == header.sha256


def token_files(folder: Path, *parts: str) -> list[Path]:
    """Return the token shards of the given parts of a folder in order; default parts: `train` and `val`."""
    wanted = [f"{part}-[0-9]*{suffix}" for part in parts or ("train", "val") for suffix in SUFFIXES]
    return sorted(path for pattern in wanted for path in folder.glob(pattern))


def is_token_folder(folder: Path) -> bool:
    """Return True if `folder` holds token shards, finished or not."""
    with suppress(OSError, ValueError):
        return untrusted_input.load(folder / MANIFEST, MANIFEST_BYTES, MANIFEST_BYTES // 16).get("kind") == KIND
    return not (folder / MANIFEST).exists() and any(token_files(folder))


def read_token_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder of token shards. Raises DataError for a missing or invalid manifest."""
    path = folder / MANIFEST
    try:
        manifest = untrusted_input.load(path, MANIFEST_BYTES, MANIFEST_BYTES // 16)
        known = (manifest.get("kind"), manifest.get("schema")) == (KIND, SCHEMA)
        shards = untrusted_input.typed(manifest, "shards", list)
        whole = bool(SHA256.fullmatch(untrusted_input.typed(manifest, "tokenizer_sha256", str)))
        for one in shards:
            whole &= type(one) is dict and bool(_NAME.fullmatch(untrusted_input.typed(one, "name", str)))
            whole &= type(one) is dict and bool(SHA256.fullmatch(untrusted_input.typed(one, "sha256", str)))
    except FileNotFoundError:
        raise DataError(f"{folder}: no {MANIFEST}; the token shards were not finished") from None
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: not a manifest of {KIND}: {error}") from None
    if not known or not whole:
        raise DataError(f"{path}: not a manifest of {KIND}, schema {SCHEMA}")
    return manifest
