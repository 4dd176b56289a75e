"""vLLM as what answers: in a process and an environment of its own, with the weights of the model in training.

In: a model, prompts as ids. Out: answers with their log-probabilities, as the engine has them. Before each round the
weights are written as a folder, which the engine reads; that it has done so is checked, since an engine that keeps old
ones answers just as well. One that has ended, hangs or has other weights is started again, once for each question.
"""

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.events import emit
from trainer.errors import Refused, TrainerError
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.model.token_losses import token_logprobs
from trainer.rewards.worker import NoAnswer, Worker
from trainer.rollouts.generator import Answers
from trainer.rollouts.sampling import Sampling
from trainer.speed import uncompiled

START_S, OPEN_S, ANSWER_S = 1800.0, 900.0, 900.0  # its environment may have to be made first
PROBE, PROBED = 8, 8  # ids of the prompt that the weights are checked with, and of its answer
APART = {torch.float32: 1e-3, torch.bfloat16: 0.15}  # nats that an id of the probe may be worth more or less


@dataclass(frozen=True)
class Opening:
    """With what the engine is opened."""

    folder: Path
    """Of this run: weights go there."""
    tokenizer: Path
    room: int
    """Tokens that a prompt and its answer have together at most."""
    side_by_side: int
    temperature: float


class Vllm:
    """An engine that answers with the weights it was last given."""

    def __init__(self, stop: Sequence[int], opening: Opening, log: Path) -> None:
        self.stop, self.opening = list(stop), opening
        command = [sys.executable, "-m", "infra.agent.own_environment", "serve-cpu", "trainer.rollouts.vllm_child"]
        environ = {
            **{"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},  # nothing is fetched or told
            **{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        self.worker = Worker(command, ANSWER_S, START_S, environ, log, lambda line: emit("note", text=f"vllm: {line}"))
        self.log, self.number = log, 0
        self.model: Decoder | None = None
        self.weights: Path | None = None

    def take(self, model: Decoder) -> None:
        """Answer with these weights from now on. Raises TrainerError when the engine does not, or answers otherwise."""
        self.model = model
        self.number += 1
        before, self.weights = self.weights, self.opening.folder / f"weights-{self.number}"
        shutil.rmtree(self.weights, ignore_errors=True)
        if before is None:
            export.write(self.weights, model.config, model.state_dict(), self.opening.tokenizer, model.compute_dtype)
        else:
            shutil.copytree(before, self.weights, ignore=shutil.ignore_patterns("*.safetensors*"))
            export.write_weights(self.weights, model.state_dict(), model.compute_dtype)
        if self.worker.process is not None:
            self._asked({"load": str(self.weights)})
            if self._is_wrong():
                emit("note", text="vllm: it has not taken the new weights over, and is started again", alarm=True)
                self.worker.close()
        if self.worker.process is None:
            self._open()
        if before is not None:
            shutil.rmtree(before, ignore_errors=True)

    def answers(self, prompts: Sequence[Sequence[int]], each: int, how: Sampling, numbers: Tensor) -> Answers:
        """Return `each` answers to every prompt. Of `numbers`, (N, max_new) in [0, 1), seeds are made."""
        seeds = (numbers[::each, 0].double() * 2**31).long().tolist()
        found = self._asked({"prompts": [list(one) for one in prompts], "each": each, **asdict(how), "stop": self.stop,
                             "seeds": seeds})  # fmt: skip
        lengths = torch.tensor([len(ids) for ids, _, _ in found])
        ids = torch.zeros((len(found), int(lengths.max())), dtype=torch.int64)
        logprobs = torch.zeros(ids.shape)
        for row, (some, theirs, _) in enumerate(found):
            ids[row, : len(some)] = torch.tensor(some)
            logprobs[row, : len(some)] = torch.tensor(theirs)
        return Answers(ids, logprobs, lengths, torch.tensor([ended for _, _, ended in found]))

    def close(self) -> None:
        """End it, and remove the weights that it read."""
        self.worker.close()
        shutil.rmtree(self.opening.folder, ignore_errors=True)

    def _open(self) -> None:
        """Start it with the newest weights. Raises Refused, TrainerError."""
        opening, model = self.opening, self.model
        assert model is not None
        dtype = str(model.compute_dtype).removeprefix("torch.")
        asked = {"open": str(self.weights), "dtype": dtype, "room": opening.room,
                 "side_by_side": opening.side_by_side, "temperature": opening.temperature}  # fmt: skip
        try:
            self.worker.ask(asked)
        except NoAnswer as error:
            raise Refused(f"vllm does not start: {error}{self._last_words()}") from None
        if self._is_wrong():
            raise TrainerError(
                f"vllm gives other log-probabilities than the trainer for the same weights ({self.weights}); "
                "train with the embedded engine instead: --engine embedded"
            )

    def _asked(self, question: Mapping[str, Any]) -> Any:
        """Return what it says; where it has ended or hangs, what another one says. Raises Refused, TrainerError."""
        try:
            return self.worker.ask(question)
        except NoAnswer as error:
            emit("note", text=f"vllm: {error}; it is started again{self._last_words()}", alarm=True)
        self._open()
        if "load" in question:
            return {}
        try:
            return self.worker.ask(question)
        except NoAnswer as error:
            raise TrainerError(f"vllm: {error}, twice for the same question{self._last_words()}") from None

    @torch.no_grad()
    def _is_wrong(self) -> bool:
        """Tell whether its likeliest ids are worth something else to the model in training."""
        model = self.model
        assert model is not None
        prompt = [one % model.config.vocab_size for one in range(PROBE)]
        how = Sampling(max_new=PROBED, temperature=0.0)
        asked = {"prompts": [prompt], "each": 1, **asdict(how), "stop": [], "seeds": [0]}
        try:
            ((ids, theirs, _),) = self.worker.ask(asked)
        except NoAnswer:
            return True
        whole = torch.tensor([[*prompt, *ids[:-1]]], device=model.head.device)
        with uncompiled(model):
            hidden = model.hidden(whole)[0, len(prompt) - 1 :]
        ours = token_logprobs(hidden, model.head, torch.tensor(ids, device=whole.device), model.shape)
        apart = (ours.cpu() - torch.tensor(theirs)).abs().max()
        return not float(apart) <= APART.get(model.compute_dtype, APART[torch.bfloat16])

    def _last_words(self) -> str:
        """Return the last line of its log, and where the rest is."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return f": {lines[-1].strip()[-300:]} (all of it: {self.log})" if lines else ""
