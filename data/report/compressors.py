"""The compression of held-out text by plain compressors: the baseline for a model's bits per byte."""

import lzma
import zlib
from collections.abc import Sequence
from pathlib import Path

from data.shards.shards import read

LARGEST_DICTIONARY = 64 << 20  # xz -9's own


def anchors(paths: Sequence[Path]) -> dict[str, float]:
    """Return the bits per byte of `gzip -9` and `xz -9e` on the documents of these text shards, one after the other.

    Memory does not grow with the text beyond xz's dictionary.
    """
    size = sum(Path(path).stat().st_size for path in paths)
    # a dictionary larger than the text would be memory for nothing
    dictionary = min(LARGEST_DICTIONARY, max(1 << 16, size))
    squeezer = {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": dictionary}
    gzip, xz = zlib.compressobj(9, wbits=31), lzma.LZMACompressor(filters=[squeezer])
    plain = gzip_bytes = xz_bytes = 0
    for text in read([Path(path) for path in paths]):
        raw = text.encode()
        plain += len(raw)
        gzip_bytes += len(gzip.compress(raw))
        xz_bytes += len(xz.compress(raw))
    gzip_bytes += len(gzip.flush())
    xz_bytes += len(xz.flush())
    if not plain:
        return {}
    return {"gzip": 8 * gzip_bytes / plain, "xz": 8 * xz_bytes / plain}
