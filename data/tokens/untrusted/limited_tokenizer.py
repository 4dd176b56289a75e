"""A tokenizer with components of unknown cost, run in a child process with limits.

The child gives the same results as `fastokens` and `tokenizers`, more slowly. `of_untrusted` returns None for a
tokenizer.json with components of known cost only, which needs no child. Failures of the child raise InputError.
"""

import json
from collections.abc import Iterator, Sequence

from data.errors import InputError
from data.tokens.untrusted.component_check import find_unknown_component
from store.untrusted.child import ChildFailed, ChildLimits, LimitedChild

CHARS = 1 << 20  # maximum characters of texts per request
# Memory limit of the child: a base, and a share per byte of the file, because merges become tables.
ROOM_BYTES, ROOM_PER_BYTE = 512 << 20, 16


class LimitedTokenizer:
    """A tokenizer that runs in a child process."""

    def __init__(self, raw: bytes, odd: str) -> None:
        """Start the child and open the tokenizer. Raises InputError."""
        limits = ChildLimits(
            room_bytes=ROOM_BYTES + ROOM_PER_BYTE * len(raw), cpu_s=8.0, answer_s=9.0, answer_bytes=64 << 20
        )
        self.odd = odd
        self._child = LimitedChild("data.tokens.untrusted.tokenizer_child", (), raw, limits)
        self._ask({"ids": []})

    def encode_batch_flat(
        self, texts: Sequence[str], add_special_tokens: bool, split_special_tokens: bool
    ) -> tuple[bytes, bytes]:
        """Return the concatenated ids (uint32) and the text offsets including the end (uint64), as fastokens does."""
        assert not add_special_tokens and split_special_tokens
        parts, ends, size = list[bytes](), [0], 0
        for some in _batches(texts):
            answer = self._ask({"texts": some})
            at = 8 + int.from_bytes(answer[:8], "big")
            found = [int.from_bytes(answer[one : one + 8], "little") for one in range(8, at, 8)]
            ends += [size + end for end in found[1:]]
            size += found[-1]
            parts.append(answer[at:])
        return b"".join(parts), b"".join(end.to_bytes(8, "little") for end in ends)

    def reference_ids(self, text: str, special: bool) -> list[int]:
        """Return the ids from the reference library; `special`: include the special tokens added around a text."""
        ids: list[int] = json.loads(self._ask({"text": text, "special": special}))
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._ask({"ids": list(map(int, ids))}).decode()

    def _ask(self, said: dict[str, object]) -> bytes:
        try:
            # An unpaired surrogate raises UnicodeEncodeError here, as in fastokens.
            return self._child.ask(json.dumps(said, ensure_ascii=False).encode())
        except ChildFailed as failed:
            raise InputError(f"the model's tokenizer {failed} ({self.odd})") from None


def of_untrusted(raw: bytes) -> LimitedTokenizer | None:
    """Return a tokenizer in a child, or None if all components have known cost. Raises InputError, ValueError."""
    said = json.loads(raw)
    if not isinstance(said, dict):
        raise ValueError("the file holds no object")
    odd = find_unknown_component(said)
    return LimitedTokenizer(raw, odd) if odd else None


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts in groups of about CHARS characters."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and size + len(text) > CHARS:
            yield some
            some, size = [], 0
        some.append(text)
        size += len(text)
    if some:
        yield some
