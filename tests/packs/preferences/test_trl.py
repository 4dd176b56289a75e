"""Losses and rewards of 20 steps compared with DPOTrainer and KTOTrainer of TRL, from the same model and pairs."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from data.tokens import tokenizer as tokenizers
from packs.preferences.records.dpo_config import DpoConfig
from packs.preferences.trainer.objective import PreferenceLoss
from packs.preferences.trainer.pairs import Pairs
from packs.preferences.trainer.source import PairBatches
from tests.trainer.conftest import TINY, tiny
from tests.trainer.model.test_model import random_model
from trainer.config import OptimizerConfig, as_phase
from trainer.loop import accumulate
from trainer.model import export
from trainer.optim import Optimizer
from trainer.parallel.process_group import Ranks

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(sys.version_info < (3, 11), reason="TRL needs Python 3.11"),
]
STEPS, ROWS, PAIRS = 20, 4, 12
WORDS = ("join", "the paths of", "number 7", "Hello.", "reads files", "I am Bosun", "writes 21 lines", "sockets")
FIGURES = {"reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected", "margin": "rewards/margins"}
NAMES = {"dpo": "sigmoid"}
BETAS = {"ipo": 0.2}


def said(role: str, number: int, length: int) -> dict[str, str]:
    return {"role": role, "content": " ".join(WORDS[(number * 3 + place) % 8] for place in range(length))}


def rows_of(loss: str) -> list[dict[str, Any]]:
    """Return pairs of different lengths, or as many judged answers as a step has rows."""
    asked = [[said("user", number, 1 + number % 3)] for number in range(PAIRS)]
    asked[5] = [*asked[5], said("assistant", 2, 2), said("user", 3, 1)]
    if loss == "kto":
        judged = [(said("assistant", number + 4, 1 + number), number % 3 > 0) for number in range(ROWS)]
        return [{"messages": asked[at], "completion": [one], "label": label} for at, (one, label) in enumerate(judged)]
    pairs = [(said("assistant", at + 1, 1 + at % 4), said("assistant", at + 2, 1 + at % 5)) for at in range(PAIRS)]
    return [{"messages": asked[at], "chosen": [a], "rejected": [b]} for at, (a, b) in enumerate(pairs)]


def config_of(loss: str) -> DpoConfig:
    optimizer = OptimizerConfig(lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0)
    smoothing = 0.2 if loss == "robust" else 0.0
    return as_phase(
        DpoConfig,
        tiny(),
        phase="dpo",
        optimizer=optimizer,
        steps=STEPS,
        rows=ROWS,
        micro_rows=2,
        sequence_len=96,
        dtype="float32",
        mixture={"mine": 1.0},
        loss=loss,
        beta=BETAS.get(loss, 0.5),
        label_smoothing=smoothing,
    )


def ours(folder: Path, config: DpoConfig, pairs: Pairs) -> list[dict[str, float]]:
    model, objective = random_model(TINY), PreferenceLoss(config)
    optimizer, source, found = Optimizer(model, config.optimizer), PairBatches(config, pairs, Ranks(), folder / "r"), []
    source.prepare(model)
    for step in range(STEPS):
        batch = source.batch(step, model)
        optimizer.zero_grad()
        sums = accumulate(model, batch, config.micro_rows, objective.loss_divisor(batch), objective)
        found.append({name: float(one) for name, one in sums.items()})
        optimizer.clip()
        optimizer.step(1.0)
    return found


def theirs(folder: Path, config: DpoConfig, rows: list[dict[str, Any]]) -> list[dict[str, float]]:
    """Return the figures of TRL for rows in the order of the steps."""
    import trl
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options, how = trl.DPOConfig, config.optimizer
    more: dict[str, Any] = {"loss_type": [NAMES.get(config.loss, config.loss)]}
    if config.loss == "kto":
        options, more = trl.KTOConfig, {"loss_type": "kto"}
    elif config.label_smoothing:
        more["label_smoothing"] = config.label_smoothing
    given = options(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=ROWS,
        max_steps=STEPS,
        learning_rate=how.lr,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        adam_beta1=how.betas[0],
        adam_beta2=how.betas[1],
        adam_epsilon=how.eps,
        max_grad_norm=how.grad_clip,
        beta=config.beta,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        train_sampling_strategy="sequential",
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )
    trainer_class: Any = trl.KTOTrainer if config.loss == "kto" else trl.DPOTrainer
    losses: list[float] = []

    class Judge(trainer_class):
        def compute_loss(self, *words: Any, **named: Any) -> Any:
            loss = super().compute_loss(*words, **named)  # the log of the trainer is rounded
            losses.append(loss.item())
            return loss

    columns = [{"prompt": one["messages"], **{k: v for k, v in one.items() if k != "messages"}} for one in rows]
    model, words = (one.from_pretrained(folder / "hf") for one in (AutoModelForCausalLM, AutoTokenizer))
    model.get_input_embeddings().padding_idx = None  # the pad token ends answers, and learns as any other token
    judge = Judge(model=model, args=given, train_dataset=Dataset.from_list(columns), processing_class=words)
    judge.train()
    told = [one for one in judge.state.log_history if "rewards/chosen" in one]
    return [{"loss": loss, **{a: one[b] for a, b in FIGURES.items()}} for loss, one in zip(losses, told, strict=True)]


@pytest.mark.parametrize("loss", ["dpo", "robust", "ipo", "kto"])
def test_losses_and_rewards_of_20_steps_equal_those_of_trl(inputs, tmp_path, loss):
    config, rows, tokenizer = config_of(loss), rows_of(loss), inputs[0] / "tokenizer"
    export.write(tmp_path / "hf", TINY, random_model(TINY).state_dict(), tokenizer, torch.float32)
    file = tmp_path / "conversations.jsonl"
    file.write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    words = tokenizers.load(tokenizer)
    pairs = Pairs({"mine": file}, {"mine": 1.0}, words, config.sequence_len, 1, ROWS, loss == "kto")
    drawn = [range(ROWS) if loss == "kto" else pairs.drawn(step) for step in range(STEPS)]
    assert len(pairs.pairs) == len(rows) and len({tuple(one) for one in drawn}) > (loss != "kto")
    found = ours(tmp_path, config, pairs)
    wanted = theirs(tmp_path, config, [rows[at] for some in drawn for at in some])
    for name in ("loss", *FIGURES):
        apart = [abs(a[name] - b[name]) for a, b in zip(found, wanted, strict=True)]
        print(loss, name, [round(one[name], 4) for one in found[:3] + found[-1:]], f"at most {max(apart):.1e} apart")
        assert max(apart) < 1e-4, (name, apart)
    assert abs(found[-1]["loss"] - found[0]["loss"]) > 0.01 and found[-1]["margin"] > found[0]["margin"]
