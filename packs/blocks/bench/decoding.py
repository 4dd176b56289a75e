"""Compare block decoding with decoding from left to right: right answers, tokens per forward pass and per CPU second.

Run: python -m packs.blocks.bench.decoding [--store DIR] [--tag NAME] [--thresholds 1,0.9] [--questions N] [--alone N]
[--steps N].
Compares a model of phase dlm with the sft model before dlm. To make both: ./inv launch --phase sft+dlm --profile smoke.

Both models answer the same held-out questions in batches, for the share of right answers (paired) and the number of
forward passes. Then both answer some questions one by one, as in a chat, for the speed in CPU seconds of this process;
the arms take turns, so that other programs have little effect. Both models have a KV cache. Finally the program
compares the training cost of dlm and sft on the same conversations, for a few steps.
"""

import argparse
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bench.held_out import folder_of, questions_of
from data.chat.conversations import Conversations, prompt
from data.chat.phrasing import make_conversation
from data.tokens import tokenizer as tokenizers
from data.tokens.tokenizer import BOS, END, Tokenizer
from packs.blocks.records.dlm_config import DlmConfig
from packs.blocks.trainer.block_decoding import Decoding
from packs.blocks.trainer.objective import BlockDiffusion, with_masks
from store.artifacts.artifacts import Store
from trainer.config import PhaseConfig
from trainer.device import prepare
from trainer.evaluation import intervals
from trainer.evaluation.multi_turn import TurnsQuestion
from trainer.loop import accumulate
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.model.generate import steps
from trainer.objectives import Batch, CrossEntropy
from trainer.phases.conversations import OURS
from trainer.recipes import PROFILES
from trainer.records.phase_registry import PHASES

MAX_NEW, SIDE_BY_SIDE = 96, 64


@dataclass
class Arm:
    """A model with a decoding method."""

    name: str
    model: Decoder
    threshold: float | None = None
    """Threshold of block decoding; None = decode from left to right."""
    tokens: int = 0
    passes: int = 0

    def answer(self, prompts: Sequence[Sequence[int]], stop: set[int]) -> list[list[int]]:
        """Return the answers without stop tokens; add to `tokens` and `passes`."""
        said: list[list[int]] = [[] for _ in prompts]
        if self.threshold is None:
            going = set(range(len(prompts)))
            for chosen in steps(self.model, prompts, MAX_NEW):
                for row in sorted(going):
                    said[row].append(int(chosen[row]))
                    self.passes += 1
                going -= {row for row in going if said[row][-1] in stop}
                if not going:
                    break
        else:
            decoding = Decoding(self.model, prompts, stop, MAX_NEW, threshold=self.threshold)
            for found in decoding:
                for one, new in zip(said, found, strict=True):
                    one.extend(new)
            self.passes += sum(decoding.passes)
        self.tokens += sum(map(len, said))
        return [[token for token in one if token not in stop] for one in said]


def quality(
    arms: Sequence[Arm], asked: Sequence[TurnsQuestion], prompts: Sequence[list[int]], words: Tokenizer, name: str
) -> dict[str, list[int]]:
    """Return 1 or 0 for each question, by arm: 1 for a right answer."""
    stop = {words.special(END), words.special(BOS)}
    order = sorted(range(len(prompts)), key=lambda one: len(prompts[one]))
    right: dict[str, list[int]] = {}
    for arm in arms:
        truths = [0] * len(asked)
        for start in range(0, len(order), SIDE_BY_SIDE):
            some = order[start : start + SIDE_BY_SIDE]
            for at, ids in zip(some, arm.answer([prompts[one] for one in some], stop), strict=True):
                truths[at] = int(asked[at].is_right(words.decode(ids), name))
        right[arm.name] = truths
    return right


def speed(arms: Sequence[Arm], prompts: Sequence[list[int]], stop: set[int], rounds: int = 3) -> dict[str, list[float]]:
    """Return tokens per CPU second of each round, by arm; prompts run in sequence."""
    found: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for _ in range(rounds):
        for arm in arms:
            before, began = arm.tokens, time.process_time()
            for one in prompts:
                arm.answer([one], stop)
            found[arm.name].append((arm.tokens - before) / (time.process_time() - began))
    return found


def training_cost(store: Store, words: Tokenizer, profile: str, count: int) -> None:
    """Print CPU milliseconds per conversation for sft and dlm, on the same conversations."""
    phases = PROFILES[profile]().phases
    identity = folder_of(store, "identity_conversations") / "identity_conversations.jsonl"
    questions = next(
        one.name for one in store.artifacts() if one.name.startswith("datasets/") and one.name.endswith("questions")
    )
    files = {
        "identity": [identity],
        **{kind: [folder_of(store, questions) / f"{kind}.train.jsonl"] for kind in ("pydocs", "other")},
    }
    machine, sft, dlm = prepare(), phases["sft"], phases["dlm"]
    assert isinstance(dlm, DlmConfig) and dlm.blocks is not None and dlm.mixture is not None
    blocks = replace(dlm.blocks, mask_id=words.vocab_size)
    sft = replace(sft, turns=dlm.turns, sequence_len=dlm.sequence_len, mixture=dlm.mixture)

    def batches(config: PhaseConfig, align: int) -> Conversations:
        return Conversations(files, dlm.mixture or {}, words, config.sequence_len, 1, config.turns, OURS, align)

    plain, whole = batches(sft, 1), batches(dlm, blocks.block_size)
    model = Decoder(replace(sft.model, vocab_size=sft.model.vocab_size + 64), machine.dtype(sft))

    def one(arm: str, step: int) -> float:
        if arm == "sft":
            batch: Batch = dict(zip(("ids", "targets"), plain.batch(step, sft.rows), strict=True))
            objective: CrossEntropy | BlockDiffusion = CrossEntropy()
        else:
            batch = with_masks(*whole.batch(step, dlm.rows), blocks.block_size, np.random.default_rng(step))
            objective = BlockDiffusion(blocks)
        began = time.process_time()
        accumulate(model, batch, sft.micro_rows, objective.loss_divisor(batch), objective)
        return (time.process_time() - began) / sft.rows

    spent: dict[str, list[float]] = {"sft": [], "dlm": []}
    for step in range(count + 1):
        for arm, some in spent.items():
            took = one(arm, step)
            if step:
                some.append(took)
    middle = {arm: statistics.median(some) for arm, some in spent.items()}
    each = ", ".join(f"{arm} {1000 * took:.1f}" for arm, took in middle.items())
    print(
        f"\ntraining, CPU ms per conversation, without the optimizer: {each}; "
        f"{middle['dlm'] / middle['sft']:.2f} times as much, {count} steps each"
    )


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--store", default="var/artifacts")
    flags.add_argument("--tag", default="smoke")
    flags.add_argument("--thresholds", default="1,0.95,0.9,0.8,0.7,0.5")
    flags.add_argument("--questions", type=int, default=0, help="number of held-out questions; 0 = all")
    flags.add_argument("--alone", type=int, default=24, help="number of questions asked one by one, for the speed")
    flags.add_argument("--steps", type=int, default=5, help="number of timed training steps; 0 = none")
    given = flags.parse_args()
    machine, store = prepare(), Store(given.store)
    name = f"{PHASES['dlm'].folder}/{given.tag}"
    learnt = folder_of(store, name)
    before = store.manifest(name).about["inputs"]["sft"]  # The tag may name a newer sft model.
    folders = [one / "hf" for one in (store.path(before["name"], before["fingerprint"]), learnt)]
    plain, blocks = (export.read(folder).eval() for folder in folders)
    assert blocks.config.blocks is not None
    words = tokenizers.load(folders[0])
    asked, name = questions_of(store)
    asked = asked[:: max(1, len(asked) // given.questions)] if given.questions else asked
    prompts = [prompt(make_conversation(one.text), words) for one in asked]
    arms = [Arm("left to right", plain)]
    arms += [Arm(f"blocks, {one}", blocks, float(one)) for one in given.thresholds.split(",")]
    size = blocks.config.blocks
    print(
        f"{given.tag}: {plain.config.num_params:,} parameters, blocks of {size.block_size}, sub-blocks of "
        f"{size.sub_block_size}; {len(asked)} held-out questions; {machine.threads} threads, load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    right = quality(arms, asked, prompts, words, name)
    counted = {arm.name: arm.tokens / arm.passes for arm in arms}
    some = [prompts[at] for at in range(0, len(prompts), max(1, len(prompts) // max(1, given.alone)))][: given.alone]
    rates = speed(arms, some, {words.special(END), words.special(BOS)}) if some else {}
    kinds = sorted({one.kind for one in asked})
    print(
        f"| arm | {' | '.join(f'right, {kind}' for kind in kinds)} | right | beside left to right, points | tokens "
        "for each pass | tokens for each CPU s | times |"
    )
    print(f"|---|{'---|' * (len(kinds) + 5)}")
    base = right[arms[0].name]
    for arm in arms:
        of = right[arm.name]
        cells = [
            100 * statistics.mean(t for t, one in zip(of, asked, strict=True) if one.kind == kind) for kind in kinds
        ]
        apart, _ = intervals.paired_share(base, of)
        between = (
            f"{100 * apart.value:+.1f} [{100 * apart.low:+.1f}, {100 * apart.high:+.1f}]" if arm is not arms[0] else ""
        )
        rate = statistics.median(rates[arm.name]) if rates else 0.0
        times = rate / statistics.median(rates[arms[0].name]) if rates else 0.0
        shares = " | ".join(f"{cell:.1f} %" for cell in cells)
        print(
            f"| {arm.name} | {shares} | {100 * statistics.mean(of):.1f} % | {between} | {counted[arm.name]:.2f} | "
            f"{rate:.0f} | {times:.2f} |"
        )
    if given.steps:
        training_cost(store, words, given.tag if given.tag in PROFILES else "smoke", given.steps)
    print(f"load {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
