"""`python -m data.tokens.untrusted.sentencepiece_child`: the child that reads a `tokenizer.model`. See `converted`.

First question: the file. Answer to any other: the tokenizer.json with its ids.
"""

import json

from store.artifacts import sentencepiece
from store.untrusted.limited import ChildRefusal, answer_all


class HeldModel:
    """The file of this child."""

    def __init__(self) -> None:
        self.raw: bytes | None = None

    def answer(self, question: bytes) -> bytes:
        if self.raw is None:
            self.raw = question
            return b""
        try:
            return json.dumps(sentencepiece.as_json(self.raw)).encode()
        except sentencepiece.UnknownKind as error:
            raise ChildRefusal(str(error)) from None


if __name__ == "__main__":
    answer_all(HeldModel().answer)
