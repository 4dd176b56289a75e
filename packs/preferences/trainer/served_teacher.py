"""A teacher behind an address: ln p of each token of an answer, from a server with vLLM.

The server computes `prompt_logprobs`, an addition of vLLM to the OpenAI API, at temperature 1. The answers of the
server are untrusted input.
"""

import json
import math
import os
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from data.events import emit
from data.tokens.tokenizer import Tokenizer
from packs.preferences.records.opd_config import Teacher
from store.untrusted_input import printable_line
from trainer.errors import Refused, TrainerError

KEY = "SLIPWAY_TEACHER_KEY"  # variable with the key of the server, if the server asks for a key
AT_ONCE = 16  # requests in flight
TIMEOUT_S, PATIENCE_S = 300.0, 900.0  # of one request; of a server that refuses connections or is overloaded
MOST_BYTES = 64 << 20  # of an answer; a token takes about 100 bytes
BUSY = (408, 425, 429, 500, 502, 503, 504)


class ServedTeacher:
    """The teacher of one training process."""

    def __init__(self, teacher: Teacher, tokenizer: Tokenizer) -> None:
        self.address, self.model, self.tokenizer = teacher.source.rstrip("/"), teacher.model, tokenizer
        self.is_checked = False

    def check_length(self, longest: int) -> None:
        """Raise Refused for a server without the model, or without room for rows of `longest` ids.

        Each request also draws one token.
        """
        said = self._ask("/models")
        models = {one.get("id"): one for one in said.get("data", ()) if isinstance(one, dict)}
        if self.model not in models:
            names = ", ".join(printable_line(str(one)) for one in sorted(map(str, models)))
            raise Refused(f"the teacher {self.address} has no model {self.model!r}; it serves: {names}")
        room = models[self.model].get("max_model_len")
        if isinstance(room, int) and room <= longest:
            raise Refused(
                f"the teacher {self.address} has {room} positions; the rows of this phase have {longest}, and each "
                f"request draws one token more. Start the server with --max-model-len {longest + 1}"
            )

    def logprobs(self, prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return ln p of each id of each answer after its prompt. Raises Refused, TrainerError."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(self._of_answer, prompts, answers))

    def _of_answer(self, prompt: Sequence[int], answer: Sequence[int]) -> list[float]:
        ids = [*prompt, *answer]
        said = self._ask(
            "/completions",
            {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 0},
        )
        try:
            each = said["choices"][0]["prompt_logprobs"]
            entries = [each[place][str(ids[place])] for place in range(len(prompt), len(ids))]
            found = [float(one["logprob"]) for one in entries]
            if not all(math.isfinite(one) and one <= 0 for one in found):
                raise ValueError("a log-probability is not a number of at most 0")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refused(
                f"the teacher {self.address} does not give prompt_logprobs as vLLM does ({printable_line(repr(error))})"
            ) from None
        if not self.is_checked:
            self._check_words(answer, [one.get("decoded_token") for one in entries])
        return found

    def _check_words(self, ids: Sequence[int], words: Sequence[Any]) -> None:
        """Raise Refused unless the ids have the same meaning at the server."""
        for one, theirs in zip(ids, words, strict=True):
            ours = self.tokenizer.decode([one])
            # A part of a character has no text of its own.
            if isinstance(theirs, str) and "\ufffd" not in ours + theirs and ours.strip() != theirs.strip():
                raise Refused(
                    f"the teacher {self.address} has another tokenizer than the model in training: id {one} is "
                    f"{printable_line(theirs)} there and {printable_line(ours)} here. Use a teacher of the same "
                    "family"
                )
        self.is_checked = True

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the JSON object of an answer; repeat while the server is away or busy.

        Raises Refused, TrainerError.
        """
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(
            self.address + path, None if body is None else json.dumps(body).encode(), headers
        )
        until, wait_s = time.monotonic() + PATIENCE_S, 1.0
        while True:
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                    text = answer.read(MOST_BYTES + 1)
                found = json.loads(text) if len(text) <= MOST_BYTES else None
                if isinstance(found, dict):
                    return found
                raise Refused(f"the teacher {self.address}{path} did not answer with a JSON object")
            except urllib.error.HTTPError as error:
                problem = f"HTTP {error.code}: {printable_line(error.read(300).decode(errors='replace'))}"
                if error.code not in BUSY:
                    raise Refused(f"the teacher {self.address}{path} refused: {problem}") from None
            except json.JSONDecodeError as error:
                raise Refused(f"the teacher {self.address}{path} did not answer with JSON: {error}") from None
            except OSError as error:  # no connection, a reset, a timeout
                problem = str(error)
            if time.monotonic() + wait_s > until:
                raise TrainerError(
                    f"the teacher {self.address} has not answered for {PATIENCE_S:.0f} s ({problem}). Start the "
                    "server, then resume the run"
                )
            if wait_s == 1.0:
                emit("note", text=f"waiting for the teacher {self.address}: {problem}")
            time.sleep(wait_s)
            wait_s = min(30.0, 2 * wait_s)
