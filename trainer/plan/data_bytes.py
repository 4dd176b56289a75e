"""The size of the data that steps make on the machine where they run. Estimates by what their settings say; pure.

Files of this machine are looked at for their size only.
"""

from collections.abc import Sequence
from typing import Any

from data.config import ConfigError, TextSpec, TokenizerSpec, TokensSpec, form_of, source_files
from trainer.config import ImportSpec, PhaseConfig

GB = 10**9
DOCUMENT_BYTES = 5_000  # a document of FineWeb has 3 to 5 kB
# Ten billion tokens of GPT-2 in FineWeb's sample are 4.6 bytes each.
FINEWEB_BYTES = {"sample-10BT": 46 * GB, "sample-100BT": 460 * GB, "sample-350BT": 1_610 * GB}
PYDOCS_BYTES = GB // 5  # the docstrings of the standard library, and of some packages
UNKNOWN_BYTES = 10 * GB  # a source of which nothing tells its size before it is read
UNPACKED = 4  # bytes of text in a byte that is compressed
TOKEN_CHARS = 4  # bytes of text that one token stands for
NARROW_VOCAB = 65_536  # ids of a larger vocabulary take four bytes, not two
IMPORT_COPIES = 2  # of float32: what is downloaded, and what is made of it


def made(specs: Sequence[Any], fetched_bytes: int) -> int:
    """Return the size of what steps with these specs make; `fetched_bytes`: of what they read and others made."""
    text = sum(_text(one) for one in specs if isinstance(one, TextSpec))
    vocabs = [one.vocab_size for one in specs if isinstance(one, TokenizerSpec)]
    vocabs += [one.model.vocab_size for one in specs if isinstance(one, PhaseConfig | ImportSpec)]
    width = 2 if max(vocabs, default=NARROW_VOCAB) <= NARROW_VOCAB else 4
    tokens = (text or fetched_bytes) * width // TOKEN_CHARS if any(isinstance(one, TokensSpec) for one in specs) else 0
    imported = sum(4 * IMPORT_COPIES * one.model.num_params for one in specs if isinstance(one, ImportSpec))
    return text + tokens + imported


def _text(spec: TextSpec) -> int:
    """Return the size of text shards. Those of a mixture or a data set elsewhere are not known before they are read."""
    if spec.take:
        return spec.take * DOCUMENT_BYTES
    if spec.source == "fineweb":
        return FINEWEB_BYTES.get(spec.config, UNKNOWN_BYTES)
    if spec.source == "pydocs":
        return PYDOCS_BYTES
    try:
        files = source_files(spec.source)
    except (ConfigError, OSError, ValueError):
        return UNKNOWN_BYTES
    forms = [(one, form_of(one.name)) for one in files]
    return sum(one.stat().st_size * (UNPACKED if packed or form == ".parquet" else 1) for one, (form, packed) in forms)
