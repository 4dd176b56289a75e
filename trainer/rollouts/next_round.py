"""Answers for the next step, generated while the model learns from the answers of the current step (`lag` = 1).

`NextRound` takes the number of the next round and uses the engine's current weights; `take` returns the answers in the
next step. The weights behind the answers no longer exist at that time, so a checkpoint contains the answers.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from trainer.rollouts.policy import Round


class NextRound:
    """Next round of answers."""

    def __init__(self, make: Callable[[int], Round], beside: bool) -> None:
        """Store the function for making the answers of a round by number.

        beside: run the function in a thread, parallel to other work.
        """
        self.make = make
        self.thread = ThreadPoolExecutor(1, "rollouts") if beside else None
        self.next: tuple[int, Future[Round]] | None = None

    def start(self, number: int) -> None:
        """Start generating the answers of a round with the engine's current weights."""
        if self.thread is not None:
            self.next = (number, self.thread.submit(self.make, number))
            return
        done: Future[Round] = Future()
        done.set_result(self.make(number))
        self.next = (number, done)

    def is_started(self, number: int) -> bool:
        """Return True if the answers of this round were started."""
        return self.next is not None and self.next[0] == number

    def get_round(self, number: int) -> Round:
        """Return the answers of a round, generated now unless already started. Raises errors of the generation."""
        begun, self.next = self.next, None
        return begun[1].result() if begun is not None and begun[0] == number else self.make(number)

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, after waiting for the answers. Raises errors of the generation."""
        if self.next is None:
            return {}
        number, found = self.next
        words = json.dumps([number, found.result().to_json()]).encode()
        return {"ahead": torch.frombuffer(bytearray(words), dtype=torch.uint8)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`."""
        if "ahead" in tensors:
            number, said = json.loads(tensors["ahead"].numpy().tobytes())
            found: Future[Round] = Future()
            found.set_result(Round.from_json(said))
            self.next = (number, found)
