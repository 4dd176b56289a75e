"""Byte-level BPE with nine chat tokens, as a Hugging Face folder that `transformers` and vLLM read.

Text is split with GPT-4's pattern, numbers by at most two digits; the nine specials are the last nine ids.
Source: nanochat (its tokenizer and chat format).
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.config import TokenizerSpec
from data.errors import DataError, InputError
from data.report import emit
from data.shards import read, shard_paths

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

SPECIALS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
BOS, END = "<|bos|>", "<|assistant_end|>"
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
CHAT_TEMPLATE = """\
{%- set ns = namespace(lead='', turn=0) -%}
{{- '<|bos|>' -}}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set ns.lead = message.content + '\\n\\n' -%}
{%- elif message.role != ('user', 'assistant')[ns.turn % 2] -%}
{{- raise_exception('roles must alternate user/assistant, after at most one system message') -}}
{%- elif message.role == 'user' -%}
{{- '<|user_start|>' + ns.lead -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}
{{- '<|user_end|>' -}}
{%- set ns.lead = '' -%}{%- set ns.turn = ns.turn + 1 -%}
{%- else -%}
{{- '<|assistant_start|>' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'python' -%}{{- '<|python_start|>' + part.text + '<|python_end|>' -}}
{%- elif part.type == 'python_output' -%}{{- '<|output_start|>' + part.text + '<|output_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|assistant_end|>' -}}
{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""


class Tokenizer:
    """Text to ids and back. Words that look like a special token are words: only `special` gives its id."""

    def __init__(self, folder: Path):
        """Raises DataError when `folder` holds no tokenizer of ours."""
        import tokenizers

        path = folder / "tokenizer.json"
        try:
            raw = path.read_bytes()
            self.inner: tokenizers.Tokenizer = tokenizers.Tokenizer.from_str(raw.decode())
        except FileNotFoundError:
            raise DataError(f"{folder}: no tokenizer.json") from None
        except Exception as error:  # the library raises bare Exception for a file that it cannot read
            raise DataError(f"{path}: not a tokenizer: {error}") from None
        self.inner.encode_special_tokens = True
        self.sha256 = hashlib.sha256(raw).hexdigest()
        self.vocab_size = self.inner.get_vocab_size()
        last = tuple(self.inner.id_to_token(self.vocab_size - len(SPECIALS) + n) for n in range(len(SPECIALS)))
        if last != SPECIALS:
            raise DataError(f"{path}: its last {len(SPECIALS)} ids are not the chat tokens")

    def encode(self, text: str) -> list[int]:
        return self.inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [one.ids for one in self.inner.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of `ids`, specials spelt out; bytes that are no UTF-8 become U+FFFD."""
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def special(self, name: str) -> int:
        """The id of one of SPECIALS."""
        return self.vocab_size - len(SPECIALS) + SPECIALS.index(name)

    def token_bytes(self) -> "np.ndarray":
        """Bytes of text behind each id, int32 (vocab_size,); 0 for the specials."""
        return self._token_bytes

    @cached_property
    def _token_bytes(self) -> "np.ndarray":
        import numpy as np

        # one character of a byte-level token stands for one byte, whatever it decodes to
        widths = {number: len(word) for word, number in self.inner.get_vocab(with_added_tokens=False).items()}
        return np.array([widths.get(number, 0) for number in range(self.vocab_size)], dtype=np.int32)


def load(folder: Path) -> Tokenizer:
    """The tokenizer of a folder that `save` or an export wrote. Raises DataError."""
    return Tokenizer(Path(folder))


def train(texts: Iterable[str], vocab_size: int) -> "tokenizers.Tokenizer":
    """A tokenizer of exactly `vocab_size` ids. Raises InputError when the texts do not yield that many."""
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

    alphabet = pre_tokenizers.ByteLevel.alphabet()
    least = len(alphabet) + len(SPECIALS)
    if vocab_size < least:
        raise InputError(f"vocab_size is {vocab_size}; the bytes and the chat tokens alone are {least}")
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size - len(SPECIALS), initial_alphabet=sorted(alphabet), show_progress=False
        ),
    )
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    if made.get_vocab_size() != vocab_size:
        raise InputError(
            f"vocab_size is {vocab_size}, this text yields {made.get_vocab_size()}: give more text, or ask for fewer"
        )
    return made


def save(made: "tokenizers.Tokenizer", folder: Path) -> None:
    """Write the three files that `transformers` and vLLM look for."""
    folder.mkdir(parents=True, exist_ok=True)
    roles = {"bos_token": BOS, "eos_token": END, "pad_token": END}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "add_bos_token": False,  # the template emits it
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(made.token_to_id(name)): {"content": name, **flags} for name in SPECIALS},
        "additional_special_tokens": [name for name in SPECIALS if name not in roles.values()],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer.json").write_text(made.to_str(pretty=True), encoding="utf-8")
    for name, values in (("tokenizer_config.json", config), ("special_tokens_map.json", roles)):
        (folder / name).write_text(json.dumps(values, indent=1), encoding="utf-8")


def make(spec: TokenizerSpec, text: Path, folder: Path) -> dict[str, Any]:
    """Train on the training shards of `text`, save into `folder`; its size and sha256."""
    paths = shard_paths(text)
    save(train(_reported(read(paths)), spec.vocab_size), folder)
    made = load(folder)
    return {"vocab_size": made.vocab_size, "tokenizer_sha256": made.sha256}


def _reported(texts: Iterator[str]) -> Iterator[str]:
    for done, text in enumerate(texts, 1):
        yield text
        if done % 2000 == 0:
            emit("progress", done=done, unit="documents")
