"""Rewards from the user's function `reward(question, answer, completion)`: a number, or numbers by component name.

The function runs in a child process with a time limit. An exception or a timeout emits a note and gives the answer 0.
Any result other than finite numbers, or an exception for every answer of a batch, ends the run with the message of the
error.
"""

from collections.abc import Sequence

from data.events import emit
from trainer.errors import Refused
from trainer.rewards.reward import JudgedAnswer, Reward
from trainer.rewards.worker import WorkerGone, of_answers

LIMIT_S = 10.0
RIGHT = 0.999  # minimum total reward of a right answer, unless the function returns a component `right`
HANGS = 3  # consecutive timeouts or exits of the child process before the run ends


class ExtensionJudge:
    """Judge that calls the reward function of a user's file."""

    def __init__(self, code: str, limit_s: float = LIMIT_S) -> None:
        self.code, self.worker, self.hangs = code, of_answers("own", limit_s), 0
        self.is_loaded = False

    def __call__(self, some: Sequence[JudgedAnswer]) -> list[Reward]:
        found, failed = [], ""
        for one in some:
            parts, problem = self._score(one)
            failed = problem or failed
            right = parts["right"] > 0 if "right" in parts else sum(parts.values()) >= RIGHT
            found.append(Reward(parts, bool(parts) and right))
        if failed and not any(one.parts for one in found):
            raise Refused(f"the reward function failed for all {len(some)} answers: {failed}")
        if failed:
            emit(
                "note",
                text=f"the reward function failed for an answer, and the answer gets the reward 0: {failed}",
                alarm=True,
            )
        return found

    def close(self) -> None:
        """Terminate the child process."""
        self.worker.close()

    def _score(self, said: JudgedAnswer) -> tuple[dict[str, float], str]:
        """Return (components, "") for an answer, or ({}, reason) after a failure. Raises Refused."""
        try:
            if self.worker.process is None:
                self._load()
            asked = {"question": said.problem.question, "answer": said.problem.answer, "completion": said.text}
            heard = self.worker.ask(asked)
        except WorkerGone as error:
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
