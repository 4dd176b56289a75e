"""Benchmark reinforcement learning: whole steps against TRL, and rollouts against transformers and vLLM.

Run: python -m bench.rl MODEL [--vllm PYTHON] [--rounds N] [--steps N] [--rows N] [--only step|rollout] [--threads N]
MODEL is an artifact of sft or the Hugging Face folder of the artifact. All arms but vLLM run in the environment `trl`
(constraints/trl.txt) with the same PyTorch; the first use installs the environment. --vllm names the Python of an
environment with vLLM, such as `serve-cpu`. Every arm is a process that lives through the whole run with the same
setting for freed memory; the arms take turns. Times are CPU seconds, on which other programs have little effect.

A step: `--prompts` problems of `sort` with 8 answers each, sampled at temperature 1, exact rewards, the loss dapo, one
update with AdamW. The learning rate is close to 0, so that the model stays the same in every arm. `ours` skips answers
of groups with equal rewards in the update; `ours, all rows` trains on all answers. Both compute the prompt that answers
share only once. A rollout: `--rows` answers of exactly `--new` tokens to sixteen prompts.
"""

import argparse
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.train import ROOT, Arm, shown
from infra.agent.environments import cache_folder

GROUP, MAX_NEW, MICRO_ROWS = 8, 14, 66
STILL = 1e-9  # learning rate
PROMPTS_OF_ROLLOUT = 16
STEP = ("ours", "ours, all rows", "trl")
ROLLOUT = ("ours", "transformers", "vllm")
Turn = Callable[[int], int]  # number of steps or rollouts -> number of generated tokens


def ours(model: Path, given: argparse.Namespace, all_rows: bool = False) -> Turn:
    """Return a function that runs steps of the phase rl with the trainer's own parts."""
    import numpy as np
    import torch

    from data.problems import sort
    from data.tokens import tokenizer as tokenizers
    from trainer.device import prepare
    from trainer.loop import accumulate
    from trainer.model import export
    from trainer.objectives.rl import PolicyLoss
    from trainer.optim import Optimizer
    from trainer.recipes import smoke
    from trainer.records.rl_config import RlConfig
    from trainer.rewards.task_rewards import judge_of
    from trainer.rollouts import source as sources
    from trainer.rollouts.policy import Embedded, Policy, stops
    from trainer.rollouts.problem_sampler import Problems

    machine = prepare()
    decoder, tokenizer = export.read(model, getattr(torch, given.dtype)), tokenizers.load(model)
    rows, usual = given.prompts * GROUP, smoke().phases["rl"]
    rl = RlConfig(group=GROUP, max_new=MAX_NEW, eval_every=0, side_by_side=rows)
    optimizer_config = replace(usual.optimizer, lr=STILL)
    config = replace(
        usual,
        model=decoder.config,
        rl=rl,
        rows=rows,
        micro_rows=MICRO_ROWS,
        optimizer=optimizer_config,
        dtype=given.dtype,
    )
    engine = Embedded(stops(tokenizer), rows)
    policy = Policy(engine, tokenizer, {"sort": judge_of("sort", rl)}, rl, config.sequence_len)
    problems = Problems({"sort": sort.problems(1)[0]}, {"sort": 1.0}, 1)
    source, objective = sources.Rollouts(config, rl, policy, problems, []), PolicyLoss(rl)
    optimizer = Optimizer(decoder, config.optimizer)
    if all_rows:
        exact = sources.advantages
        sources.advantages = lambda *words: np.where((one := exact(*words)) == 0, np.float32(1e-12), one)
    done = iter(range(1 << 30))
    assert machine.device.type == "cpu"

    def turn(steps: int) -> int:
        tokens = 0.0
        for _ in range(steps):
            batch = source.batch(next(done), decoder)
            optimizer.zero_grad()
            accumulate(decoder, batch, config.micro_rows, objective.loss_divisor(batch), objective)
            optimizer.clip()
            optimizer.step(1.0)
            tokens += source.metrics()["length"] * rows
        return round(tokens)

    return turn


def trl(model: Path, given: argparse.Namespace) -> Iterator[Turn]:
    """Yield a function that runs steps of TRL's training loop; the loop blocks between two turns."""
    import threading

    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from data.problems import sort
    from trainer.device import keep_freed_memory

    torch.set_num_threads(given.threads)
    keep_freed_memory()
    rows = given.prompts * GROUP
    micro_rows = given.trl_rows or MICRO_ROWS
    begin, end = threading.Semaphore(0), threading.Semaphore(0)
    told: dict[str, int] = {"steps": 0, "tokens": 0}

    def reward(completions: Any, completion_ids: Any, answer: Any, **_: Any) -> list[float | None]:
        told["tokens"] += sum(map(len, completion_ids))
        said = [one[0]["content"].strip() for one in completions]
        return [float(one == gold) for one, gold in zip(said, answer, strict=True)]

    class Turns(TrainerCallback):
        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if not told["steps"]:
                end.release()
                begin.acquire()
            told["steps"] -= 1

    config = GRPOConfig(
        output_dir=os.environ["SCRATCH"],
        use_cpu=True,
        bf16=given.dtype == "bfloat16",
        fp16=False,
        report_to=[],
        save_strategy="no",
        logging_steps=10**6,
        disable_tqdm=True,
        gradient_checkpointing=False,
        max_steps=10**6,
        per_device_train_batch_size=micro_rows,
        gradient_accumulation_steps=rows // micro_rows,
        steps_per_generation=rows // micro_rows,
        num_generations=GROUP,
        max_completion_length=MAX_NEW,
        temperature=1.0,
        beta=0.0,
        epsilon=0.2,
        epsilon_high=0.28,
        loss_type="dapo",
        learning_rate=STILL,
        lr_scheduler_type="constant",
        weight_decay=0.0,
        adam_beta2=0.99,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        dataloader_num_workers=0,
    )
    problems = [
        {"prompt": [{"role": "user", "content": one.question}], "answer": one.answer} for one in sort.problems(1)[0]
    ]
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_list(problems),
        processing_class=AutoTokenizer.from_pretrained(model),
        callbacks=[Turns()],
    )

    def train() -> None:
        try:
            trainer.train()
        finally:  # Only a failure ends train(); without an exit, turn() would wait forever.
            traceback.print_exc()
            os._exit(1)

    threading.Thread(target=train, daemon=True).start()
    end.acquire()

    def turn(steps: int) -> int:
        told.update(steps=steps, tokens=0)
        begin.release()
        end.acquire()
        return told["tokens"]

    yield turn


def prompts_of(model: Path) -> list[list[int]]:
    """Return the prompts of a rollout as token ids."""
    from data.chat import conversations
    from data.problems import sort
    from data.tokens import tokenizer as tokenizers

    tokenizer = tokenizers.load(model)
    some = sort.problems(1)[0][:PROMPTS_OF_ROLLOUT]
    return [conversations.prompt([{"role": "user", "content": one.question}], tokenizer) for one in some]


def our_rollout(model: Path, given: argparse.Namespace) -> Turn:
    import torch

    from trainer.device import prepare
    from trainer.model import export
    from trainer.rollouts.generator import generate_answers
    from trainer.rollouts.problem_sampler import uniform
    from trainer.rollouts.sampling import Sampling

    prepare()
    dtype = getattr(torch, given.dtype)
    decoder, prompts = export.read(model, dtype).to(dtype).eval().requires_grad_(False), prompts_of(model)
    each, how = given.rows // len(prompts), Sampling(max_new=given.new, temperature=1.0)

    def turn(rollouts: int) -> int:
        numbers = (uniform(given.rows, given.new, number) for number in range(rollouts))
        return sum(
            int(generate_answers(decoder, prompts, each, (), how, one, given.rows).lengths.sum()) for one in numbers
        )

    return turn


def of_transformers(model: Path, given: argparse.Namespace) -> Turn:
    import torch
    from transformers import AutoModelForCausalLM

    from trainer.device import keep_freed_memory

    torch.set_num_threads(given.threads)
    keep_freed_memory()
    theirs: Any = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, given.dtype)).eval()
    prompts = [one for one in prompts_of(model) for _ in range(given.rows // PROMPTS_OF_ROLLOUT)]
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(one)) + one for one in prompts])
    mask = torch.tensor([[0] * (longest - len(one)) + [1] * len(one) for one in prompts])

    def turn(rollouts: int) -> int:
        made = 0
        for _ in range(rollouts):
            found = theirs.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                max_new_tokens=given.new,
                min_new_tokens=given.new,
            )
            made += found.shape[0] * (found.shape[1] - longest)
        return made

    return turn


def of_vllm(model: Path, given: argparse.Namespace) -> Turn:
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(model),
        dtype=given.dtype,
        max_num_seqs=given.rows,
        max_model_len=256,
        enable_prefix_caching=True,
        disable_log_stats=True,
    )
    asked: Any = [{"prompt_token_ids": json.loads(one)} for one in os.environ["PROMPTS"].splitlines()]
    how = SamplingParams(
        temperature=1.0, n=given.rows // len(asked), max_tokens=given.new, ignore_eos=True, detokenize=False
    )

    def turn(rollouts: int) -> int:
        made = (engine.generate(asked, how, use_tqdm=False) for _ in range(rollouts))
        return sum(len(one.token_ids) for all_of in made for found in all_of for one in found.outputs)

    return turn


def arm(name: str, given: argparse.Namespace) -> None:
    """Read a number of steps from each line of stdin, run the steps, and print the cost as JSON."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # Keep library output off the pipe.
    model = folder_of(given.model)
    if given.only == "rollout":
        turn = {"ours": our_rollout, "transformers": of_transformers, "vllm": of_vllm}[name](model, given)
    elif name == "trl":
        turn = next(trl(model, given))
    else:
        turn = ours(model, given, all_rows=name != "ours")
    turn(1)
    print(json.dumps({}), file=out)
    for line in sys.stdin:
        began, spent = time.perf_counter(), time.process_time()
        tokens = turn(int(line))
        said = {"s": time.perf_counter() - began, "cpu_s": time.process_time() - spent, "tokens": tokens}
        print(json.dumps(said), file=out)
    out.flush()
    os._exit(0)  # TRL's loop never ends.


def folder_of(model: Path) -> Path:
    return model / "hf" if (model / "hf").is_dir() else model


@contextmanager
def begun(given: argparse.Namespace, kind: str, python: str, scratch: Path) -> Iterator[list[Arm]]:
    """Start the arms of a kind and yield them after a warm-up."""
    names = [one for one in (STEP if kind == "step" else ROLLOUT) if one != "vllm" or given.vllm]
    asked = "\n".join(map(str, prompts_of(folder_of(given.model)))) if kind == "rollout" else ""
    environ = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(given.threads),
        "SCRATCH": str(scratch),
        "PROMPTS": asked,
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
    }
    arms: list[Arm] = []
    try:
        for name in names:
            words = [given.vllm if name == "vllm" else python, "-m", "bench.rl", str(given.model), "--arm", name]
            words += [
                "--only",
                kind,
                *(
                    f"--{one}={getattr(given, one.replace('-', '_'))}"
                    for one in ("threads", "dtype", "prompts", "rows", "new", "trl-rows")
                ),
            ]
            pipe = subprocess.PIPE
            arms.append(Arm(name, subprocess.Popen(words, cwd=ROOT, env=environ, stdin=pipe, stdout=pipe, text=True)))
            arms[-1].hear()
        yield arms
    finally:
        for one in arms:
            one.process.kill()
            one.process.communicate()


def main() -> None:
    from infra.agent.environments import environment

    flags = argparse.ArgumentParser()
    flags.add_argument("model", type=Path)
    flags.add_argument("--vllm", default="", help="the Python of an environment with vLLM")
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--steps", type=int, default=2, help="or rollouts, of each turn")
    flags.add_argument("--only", default="", choices=("", "step", "rollout"))
    flags.add_argument("--threads", type=int, default=1)
    flags.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    flags.add_argument("--prompts", type=int, default=33, help="problems of a step")
    flags.add_argument("--trl-rows", type=int, default=0, help=f"micro-batch of TRL in rows; 0 = {MICRO_ROWS}")
    flags.add_argument("--rows", type=int, default=128, help="answers of a rollout")
    flags.add_argument("--new", type=int, default=64, help="tokens of each answer")
    flags.add_argument("--arm", default="", help=argparse.SUPPRESS)
    given = flags.parse_args()
    if given.arm:
        arm(given.arm, given)
        return
    given.model = given.model.absolute()
    from bench.turns import scratch

    python = str(environment.ensure("trl", ROOT, cache_folder.default_cache(), "cpu", print))
    for kind in [given.only] if given.only else ["step", "rollout"]:
        with scratch(None) as folder, begun(given, kind, python, folder) as arms:
            found: dict[str, list[dict[str, float]]] = {one.name: [] for one in arms}
            loads = [os.getloadavg()[0]]
            for _ in range(given.rounds):
                for one in arms:
                    found[one.name].append(one.ask(given.steps))
                    loads.append(os.getloadavg()[0])
        tell(kind, found, given, loads)


def tell(kind: str, found: dict[str, list[dict[str, float]]], given: argparse.Namespace, loads: list[float]) -> None:
    """Print a table, with ratios to `ours` in the same round."""
    size = f"{given.prompts} x {GROUP} answers" if kind == "step" else f"{given.rows} x {given.new} tokens"
    print(f"\n{kind}: {size}, {given.dtype}, {given.threads} threads, load {min(loads):.1f}-{max(loads):.1f}; ", end="")
    print("median [range]\n\n| arm | CPU s each | tokens / CPU s | it / ours, CPU s per token |\n|---|---|---|---|")
    for name, turns in found.items():
        each = [one["cpu_s"] / given.steps for one in turns]
        speeds = [one["tokens"] / one["cpu_s"] for one in turns]
        over = [mine["tokens"] / mine["cpu_s"] / its for mine, its in zip(found["ours"], speeds, strict=True)]
        print(f"| {name} | {shown(each, 3)} | {shown(speeds, 0)} | {shown(over, 2)} |")


if __name__ == "__main__":
    main()
