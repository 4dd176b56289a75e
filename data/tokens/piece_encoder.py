"""Encode texts for SentencePiece tokenizers, which add a leading space to texts in some positions only.

From a SentencePiece tokenizer.json, texts, and a flag per text for continued text, `flat` returns the ids of Hugging
Face's `tokenizers`. `fastokens` computes the ids. It does not support Metaspace, so both forms of the space rule are
converted to normalizers. The exception is Metaspace with added non-special tokens, which uses the slower library.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from store.artifacts.sentencepiece import LEADS, NOTHING, SPACE, WRITES, SpaceRule, crosses

if TYPE_CHECKING:
    import numpy as np
    import tokenizers


class PieceEncoder:
    """A tokenizer on characters with byte fallback."""

    def __init__(self, said: Mapping[str, Any], spaces: SpaceRule) -> None:
        """Open the tokenizer with the tokenizer.json `said`. Raises the errors of the libraries."""
        import fastokens
        import tokenizers

        self.spaces = spaces
        plain = {**said, "pre_tokenizer": None, "post_processor": None, "decoder": None}
        bare = {**plain, "normalizer": {"type": "Sequence", "normalizers": [WRITES]}}
        has_texts = not all(one.get("special") for one in said.get("added_tokens") or ())
        # With Metaspace, only the library knows if a text after an added non-special token gets a space.
        self.is_fast = spaces.doubles or not has_texts
        self.has_borders = not has_texts and not crosses(said["model"]["vocab"])
        """True if a text may be cut before a space between letters."""
        if self.is_fast:
            led = {**plain, "normalizer": {"type": "Sequence", "normalizers": [LEADS, WRITES]}}
            self._led, self._bare = (fastokens.Tokenizer.from_json_str(json.dumps(one)) for one in (led, bare))
        else:
            self._library_led, self._library_bare = (
                tokenizers.Tokenizer.from_str(json.dumps(one)) for one in (dict(said), bare)
            )
            self._library_led.encode_special_tokens = self._library_bare.encode_special_tokens = True

    def encode_flat(self, texts: Sequence[str], go_on: Sequence[bool]) -> tuple["np.ndarray", list[int]]:
        """Return the concatenated ids of all texts, uint32 (tokens,), and the text offsets including the end."""
        import numpy as np

        bare = [on or self._keeps_start(text) for text, on in zip(texts, go_on, strict=True)]
        if all(bare) or not any(bare):
            return self._ids(texts, all(bare))
        halves = {
            is_bare: self._ids([one for one, on in zip(texts, bare, strict=True) if on is is_bare], is_bare)
            for is_bare in (False, True)
        }
        at, parts, ends = {False: 0, True: 0}, [], [0]
        for is_bare in bare:
            ids, of_half = halves[is_bare]
            parts.append(ids[of_half[at[is_bare]] : of_half[at[is_bare] + 1]])
            at[is_bare] += 1
            ends.append(ends[-1] + len(parts[-1]))
        return np.concatenate(parts), ends

    def _keeps_start(self, text: str) -> bool:
        """Return True if a text at the start of a document gets no leading space."""
        if not self.is_fast:
            return False
        return self.spaces.lead == NOTHING or not self.spaces.doubles and text.startswith((" ", SPACE))

    def _ids(self, texts: Sequence[str], is_bare: bool) -> tuple["np.ndarray", list[int]]:
        import numpy as np

        if self.is_fast:
            encoder = self._bare if is_bare else self._led
            ids, ends = encoder.encode_batch_flat(list(texts), add_special_tokens=False, split_special_tokens=True)
            return np.frombuffer(ids, np.uint32), np.frombuffer(ends, np.uint64).tolist()
        library = self._library_bare if is_bare else self._library_led
        found = [one.ids for one in library.encode_batch_fast(list(texts), add_special_tokens=False)]
        firsts = np.cumsum([0, *map(len, found)]).tolist()
        return np.array([number for one in found for number in one], np.uint32), firsts


def decoder_behind() -> "tokenizers.decoders.Decoder":
    """Return a decoder for ids of continued text: the SentencePiece decoder without removal of a leading space."""
    from tokenizers import decoders

    return decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])


def widths(said: Mapping[str, Any]) -> dict[int, int]:
    """Return the number of text bytes per id, for ids of the model and added tokens; 0 for special tokens."""
    words = {number: word.replace(SPACE, " ") for word, number in said["model"]["vocab"].items()}
    from_bytes = {said["model"]["vocab"][f"<0x{byte:02X}>"] for byte in range(256)}
    found = {number: 1 if number in from_bytes else len(word.encode()) for number, word in words.items()}
    for one in said.get("added_tokens") or ():
        found[one["id"]] = 0 if one.get("special") else len(one["content"].encode())
    return found
