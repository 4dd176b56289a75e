"""`python -m data.tokens.untrusted.tokenizer_child`: the child that holds a tokenizer. See `limited_tokenizer`.

First question: the tokenizer.json. Others: JSON, one of `{"texts"}`, `{"text", "special"}`, `{"ids"}`. Answers: ids and
ends as fastokens has them, behind eight bytes with the length of the ends; ids of the reference library as JSON; text.
"""

import json
from typing import Any

import fastokens
import tokenizers

from store.untrusted.limited import ChildRefusal, answer_all


class HeldTokenizer:
    """The tokenizer of this child."""

    def __init__(self) -> None:
        self.inner: tokenizers.Tokenizer | None = None

    def answer(self, question: bytes) -> bytes:
        if self.inner is None:
            self.open(question.decode())
            return b""
        return self.asked(json.loads(question))

    def open(self, raw: str) -> None:
        """Open it by both libraries. Raises ChildRefusal."""
        try:
            self.fast = fastokens.Tokenizer.from_json_str(raw)
            self.inner = tokenizers.Tokenizer.from_str(raw)
        except Exception as error:  # the libraries raise bare Exception for a file that they cannot read
            raise ChildRefusal(f"cannot be read: {error}") from None

    def asked(self, said: dict[str, Any]) -> bytes:
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
