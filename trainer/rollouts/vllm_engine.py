"""Rollout engine with vLLM, in separate processes and a separate environment, with the weights in training.

The engine takes a model and prompts as ids, and returns answers with log-probabilities from vLLM. Before each round,
the trainer writes the weights to a folder, and vLLM reads the folder. The trainer verifies the update, because an
engine with old weights answers just as well. A process that exits, hangs or has wrong weights is restarted, once per
question. Several processes, each on a GPU, share the prompts of a round.
"""

import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from threading import RLock
from typing import Any

import torch
from torch import Tensor

from data.events import emit
from trainer.errors import Refused, TrainerError
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.model.token_losses import token_logprobs
from trainer.rewards.worker import RewardWorker, WorkerGone
from trainer.rollouts.generator import BatchedAnswers
from trainer.rollouts.sampling import Sampling
from trainer.speed import uncompiled

START_S, OPEN_S, ANSWER_S = 1800.0, 900.0, 900.0  # START_S may include building the environment
PROBE, PROBED = 8, 8  # prompt length and answer length, in ids, for checking the weights
APART = {torch.float32: 1e-3, torch.bfloat16: 0.15}  # tolerance in nats per id of the probe
FULL = re.compile(r"out of memory|No available memory for the cache|GPU memory utilization|KV cache is needed", re.I)
Probed = tuple[list[int], Tensor]  # greedy answer to the probe, and ln p of the ids


@dataclass(frozen=True)
class ChangeFiles:
    """The files of a change of a frozen model: vLLM reads the model once, and the change before each round."""

    rank: int
    write: Callable[[Path, Decoder], None]
    """Write the change of a model to a folder."""


@dataclass(frozen=True)
class Weights:
    """The weights of a round on the disk."""

    model: Path
    """Hugging Face folder."""
    change: Path | None = None
    """Folder of a change of this model."""

    @property
    def newest(self) -> Path:
        """Return the folder that was written for this round."""
        return self.change or self.model


@dataclass(frozen=True)
class EngineSettings:
    """Settings for creating the engine."""

    folder: Path
    """Folder of this run for new weights."""
    tokenizer: Path
    room: int
    """Maximum tokens of a prompt and an answer together."""
    side_by_side: int
    temperature: float
    memory_share: float = 0.9
    """Share of a GPU's memory for weights and cache."""
    devices: tuple[str, ...] = ("",)
    """An entry per process: the GPUs for the model, in the form of CUDA_VISIBLE_DEVICES; "" = CPU."""
    change: ChangeFiles | None = None
    """None if the training changes all weights."""


class Vllm:
    """Engine that answers with the last weights given."""

    is_external = True

    def __init__(self, stop: Sequence[int], opening: EngineSettings, log: Path, answer_s: float = ANSWER_S) -> None:
        """Store the settings. answer_s: a process without output for this many seconds counts as hung."""
        self.stop, self.opening = list(stop), opening
        log.parent.mkdir(parents=True, exist_ok=True)
        self.processes = [EngineProcess(opening, device, log, answer_s) for device in opening.devices]
        self.threads = ThreadPoolExecutor(len(self.processes), "vllm")
        self.turn = RLock()  # a thread may generate answers while a second thread brings weights
        self.number = 0
        self.weights: Weights | None = None
        self.num_rows = 0  # of the model's head
        self.transfer: Mapping[str, float] = {}

    def load_weights(self, model: Decoder) -> None:
        """Load the weights of this model.

        Raises Refused if a process does not start, TrainerError if vLLM's log-probabilities differ from the model's.
        """
        with self.turn:
            began = time.perf_counter()
            self.number += 1
            self.num_rows = model.config.vocab_size
            before, weights = self.weights, self._write(model)
            self.weights = weights
            with uncompiled(model):
                self._run_parallel([partial(one.load_weights, model, weights) for one in self.processes])
            if before is not None:
                shutil.rmtree(before.newest, ignore_errors=True)
            size = sum(one.stat().st_size for one in weights.newest.iterdir() if one.is_file())
            took_s = time.perf_counter() - began
            self.transfer = {"weights_mb": round(size / 1e6, 3), "weights_s": round(took_s, 3)}

    def _write(self, model: Decoder) -> Weights:
        """Write the weights of a round to a new folder."""
        opening, before = self.opening, self.weights
        folder = opening.folder / f"weights-{self.number}"
        shutil.rmtree(folder, ignore_errors=True)
        if opening.change is not None:
            whole = before.model if before else opening.folder / "model"
            if before is None:
                learning = model.learning_state()
                frozen = {name: one for name, one in model.state_dict().items() if name not in learning}
                shutil.rmtree(whole, ignore_errors=True)
                export.write(whole, model.config, frozen, opening.tokenizer, model.compute_dtype)
            folder.mkdir(parents=True)
            opening.change.write(folder, model)
            return Weights(whole, folder)
        if before is None:
            export.write(folder, model.config, model.state_dict(), opening.tokenizer, model.compute_dtype)
        else:
            shutil.copytree(before.model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
            export.write_weights(folder, model.state_dict(), model.compute_dtype)
        return Weights(folder)

    def generate(self, prompts: Sequence[Sequence[int]], each: int, how: Sampling, numbers: Tensor) -> BatchedAnswers:
        """Return `each` answers per prompt. `numbers`, (N, max_new) in [0, 1), determine the seeds."""
        seeds = (numbers[::each, 0].double() * 2**31).long().tolist()
        share = -(-len(prompts) // len(self.processes))
        asked = [
            {
                "prompts": [list(one) for one in prompts[first : first + share]],
                "each": each,
                **asdict(how),
                "unused_ids": list(range(how.num_ids or self.num_rows, self.num_rows)),
                "stop": self.stop,
                "seeds": seeds[first : first + share],
            }
            for first in range(0, len(prompts), share)
        ]
        with self.turn:
            said = self._run_parallel([partial(one.ask, its) for one, its in zip(self.processes, asked, strict=False)])
        found = [answer for its in said for answer in its]
        lengths = torch.tensor([len(ids) for ids, _, _ in found])
        ids = torch.zeros((len(found), int(lengths.max())), dtype=torch.int64)
        logprobs = torch.zeros(ids.shape)
        for row, (some, theirs, _) in enumerate(found):
            ids[row, : len(some)] = torch.tensor(some)
            logprobs[row, : len(some)] = torch.tensor(theirs)
        return BatchedAnswers(ids, logprobs, lengths, torch.tensor([ended for _, _, ended in found]))

    def close(self) -> None:
        """Kill the processes, even during an answer, and delete the weights folder."""
        for one in self.processes:
            one.close()
        self.threads.shutdown()
        shutil.rmtree(self.opening.folder, ignore_errors=True)

    def _run_parallel(self, work: Sequence[Callable[[], Any]]) -> list[Any]:
        """Return the results of all functions, run in parallel. Raises errors of any function."""
        return [one.result() for one in [self.threads.submit(one) for one in work]]


class EngineProcess:
    """A vLLM process, started with the first weights."""

    def __init__(self, opening: EngineSettings, device: str, log: Path, answer_s: float) -> None:
        self.opening, self.log, self.is_closed = opening, log, False
        self.tensor_parallel = len(device.split(","))
        on = "serve-cuda" if device else "serve-cpu"
        command = [sys.executable, "-m", "infra.agent.own_environment", on, "trainer.rollouts.vllm_child"]
        environ = {
            **{"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"},  # no downloads, no telemetry
            **{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
            **({"CUDA_VISIBLE_DEVICES": device} if device else {}),
            # The engine runs in the process itself. With several GPUs, the workers are spawned, without the engine's
            # threads.
            **{"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"},
        }
        self.worker = RewardWorker(
            command, answer_s, START_S, environ, log, lambda line: emit("note", text=f"vllm: {line}")
        )
        self.weights, self.dtype = Weights(Path()), torch.float32
        self.probed: Probed | None = None  # probe of these weights, after the check succeeded

    def load_weights(self, model: Decoder, weights: Weights) -> None:
        """Load the weights of a round, which are the model's. Raises Refused, TrainerError."""
        self.weights, self.dtype, self.probed = weights, model.compute_dtype, None
        if self.worker.process is not None:
            self.ask({"load": str(weights.newest)})
        if self.worker.process is not None and not self._matches_model(model):
            emit(
                "note",
                text="vllm: the engine did not load the new weights; the trainer restarts the engine",
                alarm=True,
            )
            self.worker.close()
        if self.worker.process is None:
            self._open(model)

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Return the reply to a question, from a restarted process if the process exits or hangs.

        A failed "load" returns {} without a restart: `take` starts the new process with the weights. Raises Refused if
        the restart fails, TrainerError after a second failure or after `close`.
        """
        try:
            return self.worker.ask(question)
        except WorkerGone as error:
            if self.is_closed:
                raise TrainerError("vllm: the engine was closed during an answer") from None
            emit("note", text=f"vllm: {error}; the trainer restarts the engine{self._last_log_line()}", alarm=True)
        if "load" in question:  # the new process starts with these weights
            return {}
        self._open(None)
        try:
            return self.worker.ask(question)
        except WorkerGone as error:
            raise TrainerError(f"vllm: {error}, twice for the same question{self._last_log_line()}") from None

    def close(self) -> None:
        """Kill the process and refuse restarts."""
        self.is_closed = True
        self.worker.close()

    def _open(self, model: Decoder | None) -> None:
        """Start the process with the newest weights.

        model: source of the weights; None = the model may have changed since. Raises Refused, TrainerError.
        """
        opening = self.opening
        asked = {
            "open": str(self.weights.model),
            "change": str(self.weights.change or ""),
            "rank": opening.change.rank if opening.change else 0,
            "dtype": str(self.dtype).removeprefix("torch."),
            "room": opening.room,
            "side_by_side": opening.side_by_side,
            "temperature": opening.temperature,
            "memory_share": opening.memory_share,
            "tensor_parallel": self.tensor_parallel,
        }
        try:
            self.worker.ask(asked, OPEN_S)
        except WorkerGone as error:
            raise Refused(f"vllm does not start: {error}{self._last_log_line()}") from None
        if not self._matches_model(model):
            raise TrainerError(
                "vllm and the trainer compute different log-probabilities for the same weights "
                f"({self.weights.newest}). Use the embedded engine: --engine embedded"
            )

    @torch.no_grad()
    def _matches_model(self, model: Decoder | None) -> bool:
        """Return True if the log-probabilities of a greedy probe agree with the model, or with the previous process."""
        prompt = [one % 64 for one in range(PROBE)]
        how = Sampling(max_new=PROBED, temperature=0.0)
        asked = {"prompts": [prompt], "each": 1, **asdict(how), "unused_ids": [], "stop": [], "seeds": [0]}
        try:
            ((ids, said, _),) = self.worker.ask(asked)
        except WorkerGone:
            return False
        theirs = torch.tensor(said)
        if model is not None:
            whole = torch.tensor([[*prompt, *ids[:-1]]], device=model.head.device)
            hidden = model.hidden(whole)[0, len(prompt) - 1 :]
            right = token_logprobs(hidden, model.head, torch.tensor(ids, device=whole.device), model.shape).cpu()
        elif self.probed is not None and self.probed[0] == ids:
            right = self.probed[1]
        else:
            return False
        most = APART.get(self.dtype, APART[torch.bfloat16])
        if not float((right - theirs).abs().max()) <= most:
            return False
        self.probed = (ids, theirs)
        return True

    def _last_log_line(self) -> str:
        """Return the last line of the process's log and the log's path; "" without a log.

        Advice follows if the log shows exhausted memory.
        """
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        said = f": {lines[-1].strip()[-300:]} (full log: {self.log})" if lines else ""
        return said + (advice(self.opening) if FULL.search("\n".join(lines[-50:])) else "")


def advice(opening: EngineSettings) -> str:
    """Return the flags to try after running out of engine memory, with numbers."""
    share, rows, room = opening.memory_share, opening.side_by_side, opening.room
    return (
        f". vLLM ran out of memory: {share:g} of each GPU holds the weights and the cache of {rows} parallel answers "
        f"of up to {room} tokens. Use --set rl.rl.side_by_side={max(1, rows // 2)}, a smaller rl.rl.max_new, --set "
        f"rl.rl.engine_memory={min(0.95, share + 0.05):g} if the cache is too small or {max(0.1, share - 0.2):g} "
        "if a second process uses the same GPU, or a smaller model"
    )
