"""Rewards by a function of the user's: `reward(question, answer, completion)`, which gives a number or numbers by name.

It runs in a process of its own with a time limit. What it raises for one answer, or does not say in time, is told and
worth nothing; what it gives that is no number, or raises for every answer, ends the run with its words.
"""

from collections.abc import Sequence

from data.events import emit
from trainer.errors import Refused
from trainer.rewards.reward import Reward, Said
from trainer.rewards.worker import NoAnswer, of_answers

LIMIT_S = 10.0
RIGHT = 0.999  # total reward from which an answer counts as right; a component `right` decides it itself
HANGS = 3  # in a row that end a run


class Own:
    """The judge of a user's file."""

    def __init__(self, code: str, limit_s: float = LIMIT_S) -> None:
        self.code, self.worker, self.hangs = code, of_answers("own", limit_s), 0
        self.is_loaded = False

    def __call__(self, some: Sequence[Said]) -> list[Reward]:
        found, failed = [], ""
        for one in some:
            parts, problem = self._ask(one)
            failed = problem or failed
            right = parts["right"] > 0 if "right" in parts else sum(parts.values()) >= RIGHT
            found.append(Reward(parts, bool(parts) and right))
        if failed and not any(one.parts for one in found):
            raise Refused(f"the reward function failed for every one of {len(some)} answers: {failed}")
        if failed:
            emit("note", text=f"the reward function failed for an answer, which is worth 0: {failed}", alarm=True)
        return found

    def close(self) -> None:
        """End its process."""
        self.worker.close()

    def _ask(self, said: Said) -> tuple[dict[str, float], str]:
        """Return its components and "", or none and why. Raises Refused."""
        try:
            if self.worker.process is None:
                self._load()
            asked = {"question": said.problem.question, "answer": said.problem.answer, "completion": said.text}
            heard = self.worker.ask(asked)
        except NoAnswer as error:
            self.hangs += 1
            if self.hangs >= HANGS:
                raise Refused(f"the reward function: {error}, {HANGS} times in a row") from None
            return {}, str(error)
        self.hangs = 0
        if "parts" in heard:
            return heard["parts"], ""
        if not heard.get("raised"):
            raise Refused(f"the reward function: {heard['error']}")
        return {}, heard["error"]

    def _load(self) -> None:
        heard = self.worker.ask(self.code)
        if "error" in heard:
            raise Refused(f"the reward file: {heard['error']}")
