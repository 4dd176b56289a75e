"""`python -m data.tokens.untrusted.tokenizer_child`: the child process of `limited_tokenizer`.

The first request is the tokenizer.json. Later requests are JSON: `{"texts"}`, `{"text", "special"}` or `{"ids"}`. The
responses are ids and offsets as in fastokens, after eight bytes with the length of the offsets; ids of the reference
library as JSON; and decoded text.
"""

import json
from typing import Any

import fastokens
import tokenizers

from store.untrusted.limited import ChildRefusal, answer_all


class HeldTokenizer:
    """The tokenizer opened by this child."""

    def __init__(self) -> None:
        self.inner: tokenizers.Tokenizer | None = None

    def answer(self, question: bytes) -> bytes:
        if self.inner is None:
            self.open(question.decode())
            return b""
        return self.run_request(json.loads(question))

    def open(self, raw: str) -> None:
        """Open the tokenizer with both libraries. Raises ChildRefusal."""
        try:
            self.fast = fastokens.Tokenizer.from_json_str(raw)
            self.inner = tokenizers.Tokenizer.from_str(raw)
        except Exception as error:  # the libraries raise a bare Exception for an unreadable file
            raise ChildRefusal(f"cannot be read: {error}") from None

    def run_request(self, said: dict[str, Any]) -> bytes:
        assert self.inner is not None
        if "texts" in said:
            ids, ends = self.fast.encode_batch_flat(said["texts"], add_special_tokens=False, split_special_tokens=True)
            return len(bytes(ends)).to_bytes(8, "big") + bytes(ends) + bytes(ids)
        if "text" in said:
            self.inner.encode_special_tokens = not said["special"]
            return json.dumps(self.inner.encode(said["text"], add_special_tokens=said["special"]).ids).encode()
        return self.inner.decode(said["ids"], skip_special_tokens=False).encode()


if __name__ == "__main__":
    answer_all(HeldTokenizer().answer)
