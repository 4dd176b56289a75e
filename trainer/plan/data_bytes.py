"""Estimates of the data size of steps on the machine of the run, from the settings of the steps.

The functions only read the sizes of local source files and have no side effects.
"""

from collections.abc import Sequence
from typing import Any

from data.config import ConfigError, TextSpec, TokenizerSpec, TokensSpec, form_of, source_files
from trainer.config import ImportSpec, PhaseConfig

GB = 10**9
DOCUMENT_BYTES = 5_000  # a FineWeb document has 3 to 5 kB
# FineWeb's sample of ten billion GPT-2 tokens has 4.6 bytes per token.
FINEWEB_BYTES = {"sample-10BT": 46 * GB, "sample-100BT": 460 * GB, "sample-350BT": 1_610 * GB}
PYDOCS_BYTES = GB // 5  # docstrings of the standard library and of some packages
UNKNOWN_BYTES = 10 * GB  # a source of unknown size
UNPACKED = 4  # bytes of text per compressed byte
TOKEN_CHARS = 4  # bytes of text per token
NARROW_VOCAB = 65_536  # ids of a larger vocabulary take four bytes instead of two
IMPORT_COPIES = 2  # float32 copies: the download and the converted model


def made(specs: Sequence[Any], fetched_bytes: int) -> int:
    """Return the bytes written by steps with these specs.

    fetched_bytes: size of the inputs made elsewhere, which stands in for the text if no step makes text.
    """
    text = sum(_text(one) for one in specs if isinstance(one, TextSpec))
    vocabs = [one.vocab_size for one in specs if isinstance(one, TokenizerSpec)]
    vocabs += [one.model.vocab_size for one in specs if isinstance(one, PhaseConfig | ImportSpec)]
    width = 2 if max(vocabs, default=NARROW_VOCAB) <= NARROW_VOCAB else 4
    tokens = (text or fetched_bytes) * width // TOKEN_CHARS if any(isinstance(one, TokensSpec) for one in specs) else 0
    imported = sum(4 * IMPORT_COPIES * one.model.num_params for one in specs if isinstance(one, ImportSpec))
    return text + tokens + imported


def _text(spec: TextSpec) -> int:
    """Return the estimated bytes of text shards; UNKNOWN_BYTES if the size is unknown before the run.

    The size is unknown for a mixture or a remote data set other than fineweb, unless `take` limits the documents.
    """
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
