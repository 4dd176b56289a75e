"""Generation of many answers per prompt in parallel, the most expensive part of reinforcement learning.

`generate_answers` takes a model, prompts as ids, the number of answers per prompt and uniform random numbers, and
returns `BatchedAnswers`: ids with log-probabilities. Each prompt is prefilled once, for any number of answers. On a
GPU, a row with a finished answer starts the next answer at once, so that shapes stay constant; without further answers,
finished rows are removed. On a CPU, identical beginnings of answers to a prompt share a row until the answers differ.
The random numbers of an answer depend only on the position of the answer.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.decoder import Cache, Decoder
from trainer.model.losses import capped
from trainer.rollouts.branches import Branches
from trainer.rollouts.sampling import Sampling, draw
from trainer.rollouts.weight_layout import Product, optimized_layout

ROUND_TO = 16  # attention reads caches up to a multiple of this number of tokens
PREFILL_TOKENS = 16_384  # maximum prompt tokens per prefill pass
BRANCHING = ("cpu",)  # devices that run any number of rows well: copying rows costs less than recomputing


@dataclass(frozen=True)
class BatchedAnswers:
    """N answers in the order of the prompts, with the answers to a prompt in sequence. On the CPU."""

    ids: Tensor  # int64 (N, longest), 0 after the end
    logprobs: Tensor  # fp32 (N, longest), log-probability of each sampled id
    lengths: Tensor  # int64 (N,), including the end id
    ended: Tensor  # bool (N,), False for answers cut off at max_new

    def answer_ids(self, row: int) -> list[int]:
        """Return the ids of an answer."""
        return list(self.ids[row, : int(self.lengths[row])].tolist())


@dataclass
class Slots(Cache):
    """Cache with a separate position per row: each row starts at 0, and `at` is the position of the next token."""

    next_positions: Tensor = None  # type: ignore[assignment]  # (B,), always given

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, KV, 1, D), a token per row; return keys and values up to `length`."""
        place = self.next_positions[:, None, None, None].expand_as(k)
        keys, values = self.keys[layer], self.values[layer]
        keys.scatter_(2, place, k)
        values.scatter_(2, place, v)
        return keys[:, :, : self.length], values[:, :, : self.length]

    def select_rows(self, rows: Tensor) -> "Slots":
        """Return a cache with only the given rows."""
        return Slots(
            self.keys.index_select(1, rows),
            self.values.index_select(1, rows),
            self.starts[rows],
            self.length,
            self.next_positions[rows],
        )


@dataclass(frozen=True)
class Prefix:
    """Prefilled prompts: keys and values, and the hidden state after the last token of each prompt."""

    cache: Cache  # cache of P rows
    lengths: Tensor  # (P,)
    last: Tensor  # (P, d)


@torch.inference_mode()
def generate_answers(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    each: int,
    stop: Collection[int],
    how: Sampling,
    uniform: Tensor,
    rows: int = 128,
) -> BatchedAnswers:
    """Return `each` answers per prompt, up to and including the first id of `stop`.

    uniform: (len(prompts) * each, max_new) in [0, 1), on the CPU. rows: number of answers in parallel. Raises
    ValueError if the longest prompt leaves fewer than `max_new` positions.
    """
    longest, device = max(map(len, prompts)), model.head.device
    room = model.config.max_position_embeddings - longest
    if room < how.max_new:
        raise ValueError(
            f"a prompt of {longest} tokens leaves {room} positions of the model, and max_new is {how.max_new}"
        )
    ends = torch.zeros(model.config.vocab_size, dtype=torch.bool, device=device)
    ends[list(stop)] = True
    found = _Found.empty(len(prompts) * each, how.max_new, device)
    prefix = read(model, prompts)
    if device.type in BRANCHING and not model.model.is_own_attention:
        with optimized_layout(model, rows) as logits_of:
            for jobs in torch.arange(len(prompts) * each).split(rows):
                _answer_branching(model, logits_of, prefix, jobs, jobs // each, uniform[jobs], ends, how, found)
    else:
        _answer_in_rows(model, prefix, each, uniform.to(device), ends, how, rows, found)
    return found.to_answers()


@dataclass(frozen=True)
class _Found:
    """Sampled ids of each answer, with an extra row for idle rows of the batch."""

    ids: Tensor  # (N + 1, max_new)
    logprobs: Tensor
    lengths: Tensor  # (N + 1,)
    ended: Tensor

    @staticmethod
    def empty(number: int, max_new: int, device: torch.device) -> "_Found":
        ids = torch.zeros((number + 1, max_new), dtype=torch.int64, device=device)
        lengths = torch.zeros(number + 1, dtype=torch.int64, device=device)
        return _Found(ids, torch.zeros(ids.shape, device=device), lengths, torch.zeros_like(lengths, dtype=torch.bool))

    def record(self, jobs: Tensor, places: Tensor | int, ids: Tensor, logprobs: Tensor, is_end: Tensor) -> None:
        """Record the sampled ids at the given position of some answers."""
        self.ids[jobs, places], self.logprobs[jobs, places] = ids, logprobs
        self.lengths[jobs], self.ended[jobs] = places + 1, is_end

    def to_answers(self) -> BatchedAnswers:
        """Return all answers."""
        lengths, ended = self.lengths[:-1].cpu(), self.ended[:-1].cpu()
        width = int(lengths.max())
        inside = torch.arange(width) < lengths[:, None]
        ids, logprobs = (one[:-1, :width].cpu().where(inside, 0) for one in (self.ids, self.logprobs))
        return BatchedAnswers(ids, logprobs, lengths, ended)


def _answer_branching(
    model: Decoder,
    logits_of: Product,
    prefix: Prefix,
    jobs: Tensor,
    asked: Tensor,
    uniform: Tensor,
    ends: Tensor,
    how: Sampling,
    found: _Found,
) -> None:
    """Generate all answers in parallel from the first id on; equal beginnings of answers to a prompt share a row.

    jobs: (N,), numbers of the answers; asked: (N,), numbers of their prompts; uniform: (N, max_new).
    """
    some, rows = asked.unique(return_inverse=True)  # some: prompts; rows: row of each unfinished answer
    cache = Cache(prefix.cache.keys[:, some], prefix.cache.values[:, some], prefix.cache.starts[some])
    branches = Branches.empty(cache, prefix.lengths[some], len(jobs), how.max_new - 1)
    prompts, hidden, are_apart = torch.arange(len(some)), prefix.last[some], False
    for place in range(how.max_new):
        logits = capped(logits_of(hidden).float(), model.shape.softcap)
        chosen, logprobs = draw(logits, uniform[:, place], how, rows)
        is_end = ends[chosen]
        found.record(jobs, place, chosen, logprobs, is_end)
        going = (~is_end).nonzero().squeeze(1)
        if not len(going) or place + 1 == how.max_new:
            return
        if are_apart and len(going) == len(rows):
            hidden = branches.decode_step(model, chosen, prompts)
            continue
        jobs, uniform = jobs[going], uniform[going]
        different, rows = (rows[going] * len(ends) + chosen[going]).unique(return_inverse=True)
        parents, ids = different // len(ends), different % len(ends)
        place_of, branch_in = branches.reorder(parents)
        rows, prompts = place_of[rows], prompts[parents[branch_in]]
        if are_apart := len(prompts) == len(rows):  # every answer has a row: sort the answers by row
            order, rows = rows.argsort(), torch.arange(len(rows))
            jobs, uniform = jobs[order], uniform[order]
        hidden = branches.decode_step(model, ids[branch_in], prompts)


def _decoded(model: Decoder, slots: Slots, ids: Tensor) -> Tensor:
    """Return hidden states (B, d) after reading the next id of each row."""
    reach = min(int(slots.next_positions.max()) + 1, slots.keys.shape[3])
    slots.length = min(reach + -reach % ROUND_TO, slots.keys.shape[3])
    seen = torch.arange(slots.length, device=ids.device)
    mask = (seen[None] <= slots.next_positions[:, None])[:, None, None]  # (B, 1, 1, S)
    return model.hidden(ids[:, None], slots, at=model.positions(slots.next_positions[:, None], mask))[:, 0]


def _answer_in_rows(
    model: Decoder, prefix: Prefix, each: int, uniform: Tensor, ends: Tensor, how: Sampling, rows: int, found: _Found
) -> None:
    """Generate answers in a fixed number of rows, each row making an answer at a time.

    uniform: (answers, max_new).
    """
    work = _Work(model, prefix, each, how, rows)
    number, uniform = len(uniform), F.pad(uniform, (0, 0, 0, 1))  # extra row for idle rows
    while work.is_running:
        jobs, places = work.jobs, work.places
        chosen, logprobs = draw(work.logits(), uniform[jobs, places], how)
        is_end = ends[chosen]
        found.record(jobs, places, chosen, logprobs, is_end)
        work.advance(chosen, (is_end | (places + 1 >= how.max_new)) & (jobs < number))


def read(model: Decoder, prompts: Sequence[Sequence[int]]) -> Prefix:
    """Return the prefilled prompts, padded on the right, where attention never reads the padding."""
    longest, device = max(map(len, prompts)), model.head.device
    ids = torch.zeros((len(prompts), longest), dtype=torch.int64, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)] = torch.tensor(prompt)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    whole = Cache.empty(model.config, torch.zeros_like(lengths), longest, model.compute_dtype)
    last, some = [], max(1, PREFILL_TOKENS // longest)
    for start in range(0, len(prompts), some):
        part = slice(start, start + some)
        cache = Cache(whole.keys[:, part], whole.values[:, part], whole.starts[part])
        hidden = model.hidden(ids[part], cache)
        last.append(hidden[torch.arange(len(hidden), device=device), lengths[part] - 1])
    return Prefix(whole, lengths, torch.cat(last))


class _Work:
    """State of the rows: the current answer of each row, the position in the answer, and the next answer to start."""

    def __init__(self, model: Decoder, prefix: Prefix, each: int, how: Sampling, rows: int) -> None:
        self.model, self.prefix, self.each, self.max_new = model, prefix, each, how.max_new
        self.number = number = each * len(prefix.lengths)
        self.begun = count = min(rows, number)
        capacity = prefix.cache.keys.shape[3] + how.max_new
        device = prefix.last.device
        self.jobs = torch.arange(count, device=device)  # `number` marks an idle row
        self.places = torch.zeros_like(self.jobs)  # position of the next id in the answer
        empty = Cache.empty(
            model.config, torch.zeros_like(self.jobs), capacity + -capacity % ROUND_TO, model.compute_dtype
        )
        self.slots = Slots(empty.keys, empty.values, empty.starts, 0, torch.zeros_like(self.jobs))
        self.hidden = torch.zeros((count, prefix.last.shape[1]), dtype=prefix.last.dtype, device=device)
        self.num_busy = count
        self.weight = model.head.to(model.compute_dtype)
        self._start_answers(self.jobs.clone(), self.jobs.clone())

    @property
    def is_running(self) -> bool:
        return self.num_busy > 0

    def logits(self) -> Tensor:
        """Return fp32 (B, V) for the next id of every row."""
        return capped(F.linear(self.hidden, self.weight).float(), self.model.shape.softcap)

    def advance(self, chosen: Tensor, done: Tensor) -> None:
        """Read the sampled ids; finished rows start the next answer, or become idle."""
        finished = done.nonzero().squeeze(1)  # synchronizes with the GPU, once per id
        num_done = len(finished)
        if num_done == self.num_busy and self.begun == self.number:
            self.num_busy = 0
            return
        self.places = (self.places + 1).clamp(max=self.max_new - 1)
        self.hidden = self._decode(chosen)
        if not num_done:
            return
        new = min(num_done, self.number - self.begun)
        if new:
            jobs = torch.arange(self.begun, self.begun + new, device=chosen.device)
            self.begun += new
            self._start_answers(finished[:new], jobs)
        resting = finished[new:]
        self.jobs[resting] = self.number
        self.num_busy -= len(resting)
        if self.num_busy <= 3 * len(self.jobs) // 4:
            self._drop_idle_rows()

    def _decode(self, chosen: Tensor) -> Tensor:
        hidden = _decoded(self.model, self.slots, chosen)
        self.slots.next_positions = (self.slots.next_positions + 1).clamp(
            max=self.slots.keys.shape[3] - 1
        )  # idle rows stay in bounds
        return hidden

    def _start_answers(self, rows: Tensor, jobs: Tensor) -> None:
        prompts = jobs // self.each
        width = self.prefix.cache.keys.shape[3]
        self.slots.keys[:, rows, :, :width] = self.prefix.cache.keys[:, prompts]
        self.slots.values[:, rows, :, :width] = self.prefix.cache.values[:, prompts]
        self.slots.next_positions[rows] = self.prefix.lengths[prompts]
        self.hidden[rows] = self.prefix.last[prompts]
        self.jobs[rows], self.places[rows] = jobs, 0

    def _drop_idle_rows(self) -> None:
        rows = (self.jobs < self.number).nonzero().squeeze(1)
        self.slots = self.slots.select_rows(rows)
        self.hidden, self.jobs, self.places = (one[rows] for one in (self.hidden, self.jobs, self.places))
