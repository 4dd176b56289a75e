"""Answers for the step after this one, made while the model learns from those of this one (`lag` = 1).

In: which problems come next, and an engine with the weights of now. Out: the same answers when their step comes. They
are of weights that no longer exist then, so a checkpoint keeps them.
"""

import json
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from trainer.rollouts.policy import Round


class NextRound:
    """The round of answers that comes next."""

    def __init__(self, make: Callable[[int], Round], beside: bool) -> None:
        """Take what makes the answers of a round, by its number. beside: in a thread, while other work goes on."""
        self.make = make
        self.thread = ThreadPoolExecutor(1, "rollouts") if beside else None
        self.next: tuple[int, Future[Round]] | None = None

    def begin(self, number: int) -> None:
        """Have the answers of a round made with the weights that the engine has now."""
        if self.thread is not None:
            self.next = (number, self.thread.submit(self.make, number))
            return
        done: Future[Round] = Future()
        done.set_result(self.make(number))
        self.next = (number, done)

    def holds(self, number: int) -> bool:
        """Return whether the answers of a round were begun."""
        return self.next is not None and self.next[0] == number

    def take(self, number: int) -> Round:
        """Return the answers of a round; where none were begun, they are made now. Raises what making them raises."""
        begun, self.next = self.next, None
        return begun[1].result() if begun is not None and begun[0] == number else self.make(number)

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint, once the answers are there. Raises errors of making them."""
        if self.next is None:
            return {}
        number, found = self.next
        words = json.dumps([number, found.result().said()]).encode()
        return {"ahead": torch.frombuffer(bytearray(words), dtype=torch.uint8)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave."""
        if "ahead" in tensors:
            number, said = json.loads(tensors["ahead"].numpy().tobytes())
            found: Future[Round] = Future()
            found.set_result(Round.heard(said))
            self.next = (number, found)
