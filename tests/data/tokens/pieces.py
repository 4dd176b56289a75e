"""Tokenizers of SentencePiece, made by the library's trainer."""

import io
import pydoc_data.topics
from functools import cache
from pathlib import Path
from typing import Any

MORE = [
    "日本語のテキスト",
    "caf\u00e9 \u043f\u0440\u0438\u0432\u0435\u0442",
    "    indented   code\tx = 1",
    "foo  bar   baz",
] * 40
LLAMA = (
    ("model_type", "bpe"), ("vocab_size", 900), ("byte_fallback", True), ("normalization_rule_name", "identity"),
    ("remove_extra_whitespaces", False), ("split_digits", True), ("allow_whitespace_only_pieces", True),
    ("character_coverage", 0.9995),
)  # fmt: skip
"""Training options of Llama 2's tokenizer."""


@cache
def text() -> str:
    return "\n".join([*pydoc_data.topics.topics.values(), *MORE])


def trained(**options: Any) -> bytes:
    """Return a `tokenizer.model` of 900 ids like Llama 2's, with these options changed."""
    return _trained(tuple(sorted({**dict(LLAMA), **options}.items())))


@cache
def _trained(options: tuple[tuple[str, Any], ...]) -> bytes:
    import sentencepiece

    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text()[:200_000].splitlines() + MORE),
        model_writer=made,
        num_threads=1,
        minloglevel=3,
        **dict(options),
    )
    return made.getvalue()


def write(folder: Path, raw: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.model").write_bytes(raw)
    return folder
