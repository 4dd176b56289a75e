"""Compress held-out text with plain compressors: a baseline for a model's bits per byte."""

import lzma
import math
import zlib
from collections.abc import Sequence
from pathlib import Path

from data.shards.shards import read

LARGEST_DICTIONARY = 64 << 20  # dictionary of xz -9


def anchors(paths: Sequence[Path], most_bytes: float = math.inf) -> dict[str, float]:
    """Return the bits per byte of `gzip -9` and `xz -9e` on the concatenated documents of text shards; {} without text.

    Memory use does not grow with the text beyond xz's dictionary. most_bytes: leave out the documents after this many
    bytes of text; `compressed_bytes` of the result then has the number of bytes.
    """
    size = sum(Path(path).stat().st_size for path in paths)
    # A dictionary larger than the text would waste memory.
    dictionary = min(LARGEST_DICTIONARY, max(1 << 16, size))
    squeezer = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": dictionary}
    gzip, xz = zlib.compressobj(9, wbits=31), lzma.LZMACompressor(filters=[squeezer])
    plain = gzip_bytes = xz_bytes = 0
    is_cut = False
    for text in read([Path(path) for path in paths]):
        if is_cut := plain >= most_bytes:
            break
        raw = text.encode()
        plain += len(raw)
        gzip_bytes += len(gzip.compress(raw))
        xz_bytes += len(xz.compress(raw))
    gzip_bytes += len(gzip.flush())
    xz_bytes += len(xz.flush())
    if not plain:
        return {}
    cut = {"compressed_bytes": plain} if is_cut else {}
    return {"gzip": 8 * gzip_bytes / plain, "xz": 8 * xz_bytes / plain, **cut}
