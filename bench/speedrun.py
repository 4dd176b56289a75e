"""Train nanochat's own code and ours on the same tokens: bits per byte of held-out text, CPU seconds, seconds.

Run: python -m bench.speedrun --nanochat DIR [--depth 4] [--seeds 1,2,3] [--steps 150 | --seconds 480] [--rows 8]
[--length 256] [--arms ours,smoke] [--eager] [--threads N] [--val-batches N]

DIR is a git checkout of karpathy/nanochat, whose commit is in the table. Each arm trains in a process of its own.
`ours` has the shape and the recipe of the profile `speedrun_d4`, at the depth of --depth, and `ours-PART` is `ours`
without a part. Every arm sees the same rows in the same order, and all arms use the GPU of a machine with a GPU. The
schedules of rates and of Muon's momentum are the same, except for `smoke`; the rates are not scaled down for the small
steps, and no weight decays. All times are those of the steps, without the start, the compiler and the evaluation. On a
busy machine take --threads 1: a thread that waits for the other one spends CPU seconds, too.

With --seconds, each arm first times a few steps, compiled unless --eager, and then trains for as many steps as fit,
with the schedule of this length. Several numbers, as in --seconds 120,240,480, are trainings of their own: bits per
byte against time. For d12 on a GPU: --depth 12 --rows 32 --length 2048 --seconds 480.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from bench.quality import Inputs, StepTimes, inputs, trained
from data.tokens.loader import LOADERS, heldout
from data.tokens.token_file import token_files
from data.tokens.tokenizer import load as load_tokenizer
from packs.speedrun.records import recipes
from trainer.config import PhaseConfig, ScheduleConfig
from trainer.device import Machine, prepare
from trainer.evaluation.evaluate import bits_per_byte
from trainer.optim import learning_rate_scale, momentum_at
from trainer.recipes import PROFILES

ROOT = Path(__file__).parents[1]
VOCAB = 4096
UNTIMED, TIMED = 3, 10  # first steps, which compile; steps behind these, from which --seconds takes the pace
NANOCHAT = "nanochat"
WITHOUT: Mapping[str, Mapping[str, Any]] = {  # fields of `model.nanochat`
    "windows": {"windows": "L"},
    "values": {"value_channels": 0},
    "smear": {"smear_channels": 0},
    "scales": {"scales": False},
    "backout": {"backout": False},
}


def arms(depth: int, steps: int, rows: int, length: int, seed: int) -> dict[str, PhaseConfig]:
    """Return the base phase of each arm of ours by name."""
    smoke = PROFILES["smoke"]().phases["base"]
    shape = recipes.shape(depth, VOCAB, length)
    whole = replace(
        smoke,
        model=shape,
        optimizer=recipes.optimizer(shape.hidden_size),
        schedule=ScheduleConfig(warmup_steps=max(1, steps // 15), decay=0.65, final=0.05),
        steps=steps,
        rows=rows,
        micro_rows=rows,
        sequence_len=length,
        seed=seed,
    )
    assert shape.nanochat is not None

    def with_shape(**changes: Any) -> PhaseConfig:
        return replace(whole, model=replace(shape, **changes))

    def with_rates(**changes: Any) -> PhaseConfig:
        return replace(whole, optimizer=replace(whole.optimizer, **changes))

    own = replace(smoke.with_steps(steps), rows=rows, micro_rows=rows, sequence_len=length, seed=seed)
    return {
        "ours": whole,
        **{f"ours-{part}": with_shape(nanochat=replace(shape.nanochat, **off)) for part, off in WITHOUT.items()},
        "ours-plain": with_shape(nanochat=None),
        "ours-untied": replace(  # a shared matrix does not bear the rate of an embedding
            with_rates(embed_lr=None), model=replace(shape, tie_word_embeddings=True)
        ),
        "ours-relu2": with_shape(mlp="swiglu", intermediate_size=64 * round(shape.hidden_size / 24)),
        "ours-softcap": with_shape(logit_softcap=0.0),
        "ours-muon": with_rates(muon=None),
        "smoke": own,
    }


def trained_by_nanochat(
    config: PhaseConfig, given: Inputs, machine: Machine, steps: int, *, folder: Path
) -> tuple[Any, StepTimes]:
    """Return nanochat's model after the first `steps` steps on the rows of `config`, and the times of the steps."""
    os.environ["NANOCHAT_DTYPE"] = str(machine.dtype(config)).removeprefix("torch.")
    sys.path.insert(0, str(folder))
    from nanochat.gpt import GPT, GPTConfig

    shape = config.model
    torch.manual_seed(config.seed)
    model = GPT(
        GPTConfig(
            sequence_len=config.sequence_len,
            vocab_size=shape.vocab_size,
            n_layer=shape.num_hidden_layers,
            n_head=shape.num_attention_heads,
            n_kv_head=shape.num_key_value_heads,
            n_embd=shape.hidden_size,
        )
    )
    model.to(machine.device)
    model.init_weights()
    rates = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "matrix_lr": 0.02, "scalar_lr": 0.5}  # base_train's flags
    optimizer = model.setup_optimizer(**rates, weight_decay=0.0)
    for group in optimizer.param_groups:  # the argument reaches the groups of Muon only
        group["weight_decay"] = 0.0
    compiled = torch.compile(model, dynamic=False)
    files = token_files(given.tokens, "train")
    loader: Any = LOADERS[config.packing](files, config.sequence_len, config.rows, config.seed, given.tokenizer.sha256)
    times = StepTimes(machine.device)
    for step in range(steps):
        with times.step():
            rows = torch.from_numpy(loader.batch(step)).to(machine.device)
            compiled(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
            scale = learning_rate_scale(config.schedule, step, config.steps)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * scale
                if group["kind"] == "muon":
                    group["momentum"] = momentum_at(recipes.MUON, step, scale)
            optimizer.step()
            model.zero_grad(set_to_none=True)
    return model.eval(), times


class Measured:
    """A model of nanochat with the methods that `bits_per_byte` calls."""

    def __init__(self, model: Any) -> None:
        self.model, self.head = model, model.lm_head.weight

    def loss(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nats: torch.Tensor = self.model(ids, targets, loss_reduction="sum")
        return nats


def of_all(spent: Sequence[float]) -> float:
    """Return the time of all steps without the compiler: the first UNTIMED steps count as a median step."""
    timed = spent[UNTIMED:]
    return sum(timed) + statistics.median(timed) * (len(spent) - len(timed)) if timed else sum(spent)


def steps_within(seconds: float, spent: Sequence[float]) -> int:
    """Return the number of steps that fit into `seconds`, by the times of the first steps."""
    return max(1, int(seconds * len(spent) / of_all(spent)))


def run_arm(
    name: str, folder: Path, nanochat: Path, config: PhaseConfig, val_batches: int | None, seconds: float = 0.0
) -> dict[str, float]:
    """Train an arm in this process; return size, bits per byte and times.

    seconds: time of the steps, in place of the number of steps in `config`; 0 = that number.
    """
    given = Inputs(folder / "text", folder / "tokenizer", folder / "tokens", load_tokenizer(folder / "tokenizer"))
    machine: Machine = prepare()
    train: Any = partial(trained_by_nanochat, folder=nanochat) if name == NANOCHAT else trained
    if seconds:
        _, times = train(config, given, machine, UNTIMED + TIMED)
        config = config.with_steps(steps_within(seconds, times.wall_s))
    model, times = train(config, given, machine, config.steps)
    text_of = heldout(token_files(given.tokens, "val"), given.tokenizer_folder, config.sequence_len)
    measured: Any = Measured(model) if name == NANOCHAT else model
    return {
        "params": sum(one.numel() for one in model.parameters()),
        **bits_per_byte(measured, islice(text_of, val_batches)),
        "steps": config.steps,
        "step_cpu_s": statistics.median(times.cpu_s[UNTIMED:] or times.cpu_s),
        "cpu_s": of_all(times.cpu_s),
        "step_s": statistics.median(times.wall_s[UNTIMED:] or times.wall_s),
        "s": of_all(times.wall_s),
    }


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--nanochat", type=Path, required=True, help="git checkout of karpathy/nanochat")
    flags.add_argument("--depth", type=int, default=4)
    flags.add_argument("--seeds", default="1,2,3")
    length = flags.add_mutually_exclusive_group()
    length.add_argument("--steps", type=int, default=150)
    length.add_argument("--seconds", default="", help="seconds of the steps, or several numbers separated by commas")
    flags.add_argument("--rows", type=int, default=8)
    flags.add_argument("--length", type=int, default=256)
    flags.add_argument("--arms", default="", help="names separated by commas; default: all")
    flags.add_argument("--eager", action="store_true", help="compile nothing")
    flags.add_argument("--threads", type=int, default=2)
    flags.add_argument("--val-batches", type=int, default=0, help="batches of 32 rows of held-out text; 0: all")
    flags.add_argument("--child", default="", help=argparse.SUPPRESS)
    flags.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = flags.parse_args()
    seeds = [int(one) for one in given.seeds.split(",")]
    os.environ["OMP_NUM_THREADS"] = str(given.threads)  # of the processes of the arms
    if given.eager:
        os.environ["TORCHDYNAMO_DISABLE"] = "1"
    known = arms(given.depth, given.steps, given.rows, given.length, seeds[0])
    if given.child:
        config = known["ours" if given.child == NANOCHAT else given.child]
        seconds = float(given.seconds or 0)
        config = replace(config, compile="never" if given.eager else "always" if seconds else config.compile)
        batches = given.val_batches or None
        print(json.dumps(run_arm(given.child, given.folder, given.nanochat, config, batches, seconds)))
        return
    names = given.arms.split(",") if given.arms else [NANOCHAT, *known]
    commit = subprocess.check_output(["git", "-C", str(given.nanochat), "rev-parse", "--short", "HEAD"], text=True)
    with tempfile.TemporaryDirectory() as folder:
        inputs(Path(folder), VOCAB)
        print(f"nanochat {commit.strip()}, depth {given.depth}, seeds {seeds}")
        print(f"{f'{given.seconds} s' if given.seconds else given.steps} steps of {given.rows} x {given.length} tokens")
        print(f"{given.threads} threads, {'eager' if given.eager else 'compiled where the arm compiles'}")
        print(f"\n| arm | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
        for name in names:
            for seconds in given.seconds.split(","):
                told = [run_child(name, folder, seed, seconds) for seed in seeds]
                print(line_of(name, told), flush=True)


def run_child(name: str, folder: str, seed: int, seconds: str) -> dict[str, float]:
    """Run an arm in a process of its own, with the flags of this process."""
    line = [sys.executable, "-m", "bench.speedrun", *sys.argv[1:]]
    line += ["--child", name, "--folder", folder, "--seeds", str(seed), *(["--seconds", seconds] if seconds else [])]
    done = subprocess.run(line, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


COLUMNS = (
    "parameters",
    "steps",
    "bits per byte, mean [range]",
    "nats a token",
    "CPU s a step",
    "CPU s of all steps",
    "s a step",
    "s of all steps",
)


def line_of(name: str, told: list[dict[str, float]]) -> str:
    """Return the line of an arm for the table."""
    mean: Callable[[str], float] = lambda key: statistics.mean(one[key] for one in told)  # noqa: E731
    bits = [one["bits_per_byte"] for one in told]
    cells = (
        f"{told[0]['params'] / 1e6:.2f}M",
        f"{mean('steps'):.0f}",
        f"{mean('bits_per_byte'):.3f} [{min(bits):.3f}-{max(bits):.3f}]",
        f"{mean('loss'):.3f}",
        f"{mean('step_cpu_s'):.3f}",
        f"{mean('cpu_s'):.0f}",
        f"{mean('step_s'):.3f}",
        f"{mean('s'):.0f}",
    )
    return f"| {name} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
