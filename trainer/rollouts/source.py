"""Training batches from the model's own answers to problems, with an advantage for each answer.

Before a step, the source takes the current model and returns rows for `PolicyLoss` and metrics of the answers. A batch
is a function of the seed, the step and the model, so that a resumed run generates the same answers again; if answers
serve several updates, or come from older weights (`next_round`), the checkpoint contains the answers.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from data.events import emit
from trainer.config import PhaseConfig
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.token_losses import token_logprobs
from trainer.objectives.rl import advantages, has_signal, row_weights, worth
from trainer.objectives.shared_rows import Spots, hidden_of, pack_answers, scatter_to_targets
from trainer.objectives.source import Source
from trainer.parallel.process_group import Ranks
from trainer.records.rl_config import RlConfig, soft_overlong
from trainer.rollouts.next_round import NextRound
from trainer.rollouts.policy import Policy, Round, shares
from trainer.rollouts.problem_sampler import Drawn, Problems
from trainer.speed import uncompiled

ALONE = Ranks()
ROOM = 160  # tokens per row on a CPU: fewer leave more padding, more make attention slower
FEW, LONG = 0.05, 5  # alarm below this share of groups with a signal for this many steps in a row
OF_ANSWERS = ("ids", "logprobs", "ended", "rewards", "texts")  # fields of a round
Batch = dict[str, np.ndarray]


class Rollouts(Source):
    """Source of batches for the phase rl."""

    sees_model = True
    learns_from_all = False  # True: train on answers with advantage 0, too

    def __init__(
        self,
        config: PhaseConfig,
        rl: RlConfig,
        policy: Policy,
        problems: Problems,
        watched: Sequence[Drawn],
        reference: Decoder | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Store the policy, the problems and the settings of the batches.

        watched: problems for regular measurements; reference: the model at the start of the phase, for the KL
        divergence.
        """
        self.config, self.rl, self.policy, self.problems = config, rl, policy, problems
        self.watched, self.reference, self.ranks = watched, reference, ranks
        self.groups = config.rows // rl.group
        self.last_metrics: dict[str, float] = {}
        self.quiet = 0  # consecutive steps with hardly any signal
        self.round_batch: tuple[int, Batch, dict[str, float]] | None = None  # step, batch, metrics of the answers
        self.last_batch: tuple[float, int] | None = None  # time and number of tokens
        self.next_round = NextRound(lambda place: self._share(place, 0), policy.engine.is_external)

    def batch(self, step: int, *models: Decoder) -> Batch:
        """Return the rows of a step. Raises InputError, Refused, PeerLost."""
        (model,), now = models, time.perf_counter()
        first = step // self.rl.num_iterations * self.rl.num_iterations
        figures = self._update_speed(now)
        if self.round_batch is None or self.round_batch[0] != first:
            place = first // self.rl.num_iterations
            made = self._make_batch(place, model) if self.next_round.is_started(place) else None
            self.policy.engine.load_weights(model)
            figures |= self.policy.engine.transfer
            if self.rl.eval_every and step % self.rl.eval_every == 0:
                figures |= self._measure_policy()
            made = made or self._make_batch(place, model)
            if self.rl.lag and first + self.rl.num_iterations < self.config.steps:
                self.next_round.start(place + 1)
            self.round_batch = (first, *made[:2])
            figures |= made[2]
        _, batch, of_answers = self.round_batch
        self.last_metrics = figures | of_answers  # all updates of a round share the answers
        counted = batch["targets"] != IGNORED
        ends = np.where(counted.any(axis=1), counted.shape[1] - counted[:, ::-1].argmax(axis=1), 0)
        self.last_batch = (time.perf_counter(), int(ends.sum()))  # without padding, as in all token counts
        return batch

    def metrics(self) -> dict[str, float]:
        """Return metrics of the answers in the last batch."""
        return self.last_metrics

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint: the count of quiet steps, and the answers needed by further updates."""
        found = {"quiet": torch.tensor(self.quiet)}
        if self.rl.num_iterations > 1 and self.round_batch is not None:
            found["first"] = torch.tensor(self.round_batch[0])
            found |= {f"held.{name}": torch.from_numpy(one) for name, one in self.round_batch[1].items()}
            found["told"] = torch.frombuffer(bytearray(json.dumps(self.round_batch[2]).encode()), dtype=torch.uint8)
        return found | self.next_round.state()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of `state`."""
        self.quiet = int(tensors["quiet"])
        self.next_round.load(tensors)
        if "first" in tensors:
            held = {name.removeprefix("held."): one.numpy() for name, one in tensors.items() if name[:5] == "held."}
            told = json.loads(tensors["told"].numpy().tobytes())
            self.round_batch = (int(tensors["first"]), held, told)

    def _update_speed(self, now: float) -> dict[str, float]:
        """Return the speed of the previous update; {} before the first update."""
        if self.last_batch is None:
            return {}
        at, tokens = self.last_batch
        return {"update_tokens_per_s": round(tokens / max(now - at, 1e-9), 1)}

    def _measure_policy(self) -> dict[str, float]:
        """Return the measures of the policy; each process with an engine measures a share of the problems."""
        k, seed, rank = self.rl.samples_each, self.config.seed, self.ranks.rank
        if not self.watched:
            return {}
        if self.policy.engine.is_external or self.ranks.size == 1:
            return self.policy.measure(self.watched, k, seed) if self.ranks.is_first else {}
        mine = self.policy.count_right(self.watched[rank :: self.ranks.size], k, seed, rank)
        greedy, drawn = zip(*self.ranks.all_gather(mine, is_patient=True), strict=True)
        return shares(list(chain(*greedy)), list(chain(*drawn)), k)

    def _make_batch(self, place: int, model: Decoder) -> tuple[Batch, dict[str, float], dict[str, float]]:
        """Return the rows of a round, metrics of the answers, and the speed of the generation."""
        began = time.perf_counter()
        found = self._gather_round(self.next_round.get_round(place))
        rewards = self._penalized_rewards(found)
        for attempt in range(1, self.rl.dynamic_sampling + 1):
            silent = np.flatnonzero(~has_signal(rewards))
            if not len(silent):
                break
            others = self._gather_round(self._share(place, attempt))
            worth = self._penalized_rewards(others)
            fresh = np.flatnonzero(has_signal(worth))[: len(silent)]
            found = _exchanged(found, others, silent, fresh, self.rl.group)
            rewards[silent[: len(fresh)]] = worth[fresh]
        signal = has_signal(rewards)
        self._check_signal(float(signal.mean()))
        batch = self._rows(found, rewards, model)
        tokens = sum(len(one) for one in found.ids)
        speed = {
            "rollout_tokens_per_s": round(tokens / max(found.took_s, 1e-9), 1),
            "rollout_s": round(time.perf_counter() - began, 6),
        }
        return batch, _told(found, rewards, signal, self.rl), speed

    def _share(self, place: int, attempt: int) -> Round:
        """Return this process's answers of a round; the first process makes all answers if the engine is apart."""
        size, rank = self.ranks.size, self.ranks.rank
        rounds = self.rl.dynamic_sampling + 1
        problems = self.problems.draw((place * rounds + attempt) * self.groups, self.groups)
        if not self.policy.engine.is_external:
            problems = problems[rank::size]
        elif not self.ranks.is_first:
            problems = []
        if not problems:
            return Round([], [], [], [], [], [], [], 0.0)
        return self.policy.round(problems, self.rl.group, self.policy.sampling, self.config.seed, place, attempt, rank)

    def _gather_round(self, mine: Round) -> Round:
        """Return the answers of all processes, in the order of the problems."""
        if self.ranks.size == 1:
            return mine
        if self.policy.engine.is_external:
            return Round.from_json(self.ranks.broadcast(mine.to_json() if self.ranks.is_first else None))
        # Patient, because answers differ in length, and the first process also shows samples before joining.
        heard = [Round.from_json(one) for one in self.ranks.all_gather(mine.to_json(), is_patient=True)]
        group = self.rl.group
        found = Round([], [], [], [], [], [], [], max(one.took_s for one in heard))
        for number in range(self.groups):
            its, place = heard[number % self.ranks.size], number // self.ranks.size
            rows = slice(place * group, (place + 1) * group)
            found.prompts.append(its.prompts[place])
            for name in OF_ANSWERS:
                getattr(found, name).extend(getattr(its, name)[rows])
        return found

    def _penalized_rewards(self, found: Round) -> np.ndarray:
        """Return (prompts, group): the reward of each answer, including the length penalty."""
        each = [
            reward.total + soft_overlong(len(ids), self.rl)
            for reward, ids in zip(found.rewards, found.ids, strict=True)
        ]
        return np.array(each, np.float64).reshape(-1, self.rl.group)

    def _rows(self, found: Round, rewards: np.ndarray, model: Decoder) -> Batch:
        """Return the rows with something to learn.

        If no answer differs in reward, the result is a single row with weight 0.
        """
        rl = self.rl
        better = advantages(rewards, rl).flatten()
        lengths = np.array([len(one) for one in found.ids])
        if rl.mask_truncated:
            lengths = np.where(found.ended, lengths, 0)
        kept = (lengths > 0) if rl.beta or self.learns_from_all else (better != 0) & (lengths > 0)
        weights = row_weights(lengths, kept, rl)
        rows = np.flatnonzero(kept).tolist() or [0]
        batch, spots = pack_answers(
            [found.prompts[row // rl.group] for row in rows],
            [found.ids[row] for row in rows],
            found.prompts[0][0],
            room=0 if model.head.is_cuda else max(ROOM, self.config.sequence_len),  # GPU kernels lack this mask
            merged=rl.loss != "gspo",  # gspo's ratio covers a whole answer
        )
        targets = batch["targets"]
        batch |= worth(targets, spots, better[rows], weights[rows] * kept.any())
        sampled = scatter_to_targets(targets, spots, [found.logprobs[row] for row in rows])
        # With `lag`, the importance weight also covers the update since the answers. Clipping around the weights of the
        # answers would stop most tokens of a large update; clipping around the current weights stops none in the first
        # update (decoupled PPO: Hilton et al., arXiv 2110.00641; Fu et al., arXiv 2505.24298).
        if rl.correction or rl.num_iterations > 1 or rl.lag:
            batch["sampled"] = sampled
        if rl.num_iterations > 1:
            batch["old"] = self._logprobs(model, batch)
        compared = self._reference_logprobs(batch, found, rows, spots)
        if compared is not None:
            batch["reference"] = compared
        return batch

    def _reference_logprobs(self, batch: Batch, found: Round, rows: Sequence[int], spots: Spots) -> np.ndarray | None:
        """Return ln p of the targets under the reference, fp32 (rows, T); None without a reference.

        rows: number of each answer of the batch in the round; spots: see `pack_answers`.
        """
        return None if self.reference is None else self._logprobs(self.reference, batch)

    @torch.no_grad()
    def _logprobs(self, model: Decoder, batch: Batch) -> np.ndarray:
        """Return ln p of every target, fp32 (rows, T), 0 elsewhere. Each process computes a share of the rows."""
        found, device = np.zeros(batch["targets"].shape, np.float32), model.head.device
        mine = np.array_split(np.arange(len(found)), self.ranks.size)[self.ranks.rank]
        with uncompiled(model):
            for start in range(0, len(mine), self.config.micro_rows):
                part = mine[start : start + self.config.micro_rows]
                targets = torch.from_numpy(batch["targets"][part])
                counted = (targets.flatten() != IGNORED).nonzero().squeeze(1)
                read: dict[str, Tensor] = {
                    name: torch.from_numpy(batch[name][part]).to(device)
                    for name in ("ids", "ends", "places")
                    if name in batch
                }
                hidden = hidden_of(model, read).flatten(0, 1)
                each = token_logprobs(
                    hidden[counted], model.head, targets.flatten()[counted].to(device), model.shape, self.rl.temperature
                )
                known = np.zeros(targets.numel(), np.float32)
                known[counted.numpy()] = each.cpu().numpy()
                found[part] = known.reshape(targets.shape)
        return self.ranks.all_reduce(torch.from_numpy(found).to(device)).float().cpu().numpy()

    def _check_signal(self, signal: float) -> None:
        """Emit an alarm after LONG consecutive steps with hardly any signal."""
        self.quiet = self.quiet + 1 if signal < FEW else 0
        if self.quiet == LONG:
            emit(
                "note",
                text=f"rl: for {LONG} steps fewer than {FEW:.0%} of the groups had answers with different rewards, so "
                "the model does not learn: all answers of a group are right, or all are wrong. Look at the samples. A "
                "lower learning rate, more answers per prompt, or easier problems restore a signal",
                alarm=True,
            )


def _exchanged(found: Round, others: Round, silent: np.ndarray, fresh: np.ndarray, group: int) -> Round:
    """Return `found` with the groups `silent` replaced by the groups `fresh` of `others`.

    Silent groups beyond the number of fresh groups stay unchanged.
    """
    new = replace(
        found,
        prompts=list(found.prompts),
        ids=list(found.ids),
        logprobs=list(found.logprobs),
        ended=list(found.ended),
        rewards=list(found.rewards),
        texts=list(found.texts),
        took_s=found.took_s + others.took_s,
    )
    for mine, its in zip(silent.tolist(), fresh.tolist(), strict=False):
        new.prompts[mine] = others.prompts[its]
        for name in OF_ANSWERS:
            getattr(new, name)[mine * group : (mine + 1) * group] = getattr(others, name)[
                its * group : (its + 1) * group
            ]
    return new


def _told(found: Round, rewards: np.ndarray, signal: np.ndarray, config: RlConfig) -> dict[str, float]:
    """Return metrics of the answers, for metrics.jsonl."""
    lengths = [len(one) for one in found.ids]
    parts = sorted({name for one in found.rewards for name in one.parts})
    figures = {
        "reward": float(rewards.mean()),
        **{
            f"reward_{name.replace(' ', '_')}": float(np.mean([one.parts.get(name, 0.0) for one in found.rewards]))
            for name in parts
        },
        "right": float(np.mean([one.is_right for one in found.rewards])),
        "length": float(np.mean(lengths)),
        "truncated": 1 - float(np.mean(found.ended)),
        "silent_groups": 1 - float(signal.mean()),
    }
    if config.overlong:
        figures["reward_overlong"] = float(np.mean([soft_overlong(one, config) for one in lengths]))
    return figures
