"""`python -m data.tokens.untrusted.sentencepiece_child`: reads a `tokenizer.model` in a child. See `converted`.

The first request is the file. The response to any later request is the tokenizer.json with the model's ids.
"""

import json

from store.artifacts import sentencepiece
from store.untrusted.limited import ChildRefusal, answer_all


class HeldModel:
    """The file held by this child."""

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
