"""Benchmark a training step of a LoRA adapter against full training and against peft, on the shape of SmolLM2-135M.

Run: python -m bench.adapters [--peers PYTHON] [--rounds N] [--steps N] [--compiled] [--length TOKENS]. Prints CPU
seconds of a step, the peak memory of the steps, and ratios to the arm `full`; then the bytes of gradients, optimizer
state and checkpoint, measured and as `inv fit` estimates them. PYTHON belongs to an environment with the same torch,
transformers and peft, for the arms `transformers` (full training) and `peft`. Every arm is a process that lives through
the whole run; the arms take turns, so that load on the machine affects all arms. A step is a forward and backward pass
over one row, gradient clipping to 1, and AdamW, with activations in bfloat16. `lora` has rank 32 on the seven matrices
of each block beside a frozen model in bfloat16, and `qlora` beside these matrices in 4 bits; `peft` has the same as
`lora` beside a model in bfloat16 with adapters in float32 under autocast, as the Trainer of transformers sets up. CPU
seconds count all threads. The peak is VmHWM during the steps, reset after the warm-up.

With --rl MODEL, runs `sort` by rl with `full` and `lora` for each of --seeds seeds in place of the steps: CPU seconds
of the rollouts of a step, and of the learning part (loss, backward pass, optimizer) in the first 8 steps and in all;
right answers in the last 12 steps; greedy answers to 128 unseen problems before and after. MODEL is an artifact of sft
of the profile smoke with demonstrations (`inv launch --phase sft+rl`), or the folder of the artifact.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.train import peak_bytes

ROOT = Path(__file__).resolve().parent.parent
OURS, PEERS = ("full", "lora", "qlora"), ("transformers", "peft")
WARM_UP_STEPS = 2
FIRST_STEPS, LAST_STEPS, WATCHED = 8, 12, 128
Step = Callable[[Any, Any], float]  # ids, targets (1, T) -> loss in nats per token
Held = Callable[[], dict[str, float]]  # bytes of gradients, optimizer state and checkpoint


def held_bytes(model: Any, optimizer: Any, config: Any) -> dict[str, float]:
    from trainer import memory

    estimated = memory.estimate(config, "cpu")
    state = sum(one.nbytes for one in optimizer.tensors().values())
    return {
        "gradients": sum(one.grad.nbytes for one in model.parameters() if one.grad is not None),
        "optimizer": state,
        "checkpoint": state + sum(one.nbytes for one in model.learning_state().values()),
        "estimated": estimated.gradients + estimated.optimizer + memory.host_bytes(config),
    }


def ours(name: str, length: int, is_compiled: bool, run: Callable[[Step, int, Held], None]) -> None:
    import torch

    from packs.adapters.control.flags import AdapterFlags
    from packs.adapters.records.lora_config import AdapterPhaseConfig, with_adapter
    from packs.adapters.trainer.lora import Lora
    from trainer.device import prepare
    from trainer.loop import accumulate
    from trainer.model.decoder import Decoder, initialize, uninitialized_decoder
    from trainer.objectives import CrossEntropy
    from trainer.optim import Optimizer
    from trainer.recipes import PROFILES
    from trainer.speed import training_setup

    machine = prepare()
    config = replace(PROFILES["smollm2_135m"]().phases["sft"], rows=1, micro_rows=1, sequence_len=length, turns=1)
    config = replace(config, dtype="bfloat16", compile="always" if is_compiled else "never")
    if name != "full":
        config = with_adapter(AdapterFlags(adapter=name), config)
        assert isinstance(config, AdapterPhaseConfig)
        model = uninitialized_decoder(config.model, torch.bfloat16).to(torch.bfloat16).requires_grad_(False)
        model.to_empty(device="cpu")
        initialize(model, 1)
        Lora().compress(model, config, machine.device)
        Lora().attach(model, config)
        Lora().initialize(model, config)
    else:
        model = Decoder(config.model, torch.bfloat16)
        initialize(model, 1)
    optimizer = Optimizer(model, config.optimizer)

    def step(ids: Any, targets: Any) -> float:
        optimizer.zero_grad()
        loss = float(accumulate(model, {"ids": ids, "targets": targets}, 1, ids.size, CrossEntropy())["loss"])
        optimizer.clip()
        optimizer.step(0.1)
        return loss

    with training_setup(model, config, machine):
        run(step, config.model.vocab_size, lambda: held_bytes(model, optimizer, config))


def of_rl(name: str, model: Path, seed: int, steps: int) -> dict[str, float]:
    """Train `sort` by rl, and return CPU seconds, shares of right answers and bytes."""
    import torch

    from data.problems import sort
    from data.tokens import tokenizer as tokenizers
    from packs.adapters.control.flags import AdapterFlags
    from packs.adapters.records.lora_config import with_adapter
    from packs.adapters.trainer.lora import Lora
    from trainer.device import prepare
    from trainer.loop import accumulate
    from trainer.model import export
    from trainer.objectives.rl import PolicyLoss
    from trainer.optim import Optimizer, learning_rate_scale
    from trainer.recipes import PROFILES
    from trainer.rewards.task_rewards import judge_of
    from trainer.rollouts.policy import Embedded, Policy, stops
    from trainer.rollouts.problem_sampler import Problems
    from trainer.rollouts.source import Rollouts

    machine, tokenizer = prepare(), tokenizers.load(model)
    decoder, usual = export.read(model, torch.bfloat16), PROFILES["smoke"]().phases["rl"]
    assert usual.rl is not None
    rl = replace(usual.rl, eval_every=0)
    config = replace(usual, model=decoder.config, dtype="bfloat16", seed=seed, steps=steps, rl=rl)
    kind: Any = None
    if name != "full":
        config, kind = with_adapter(AdapterFlags(adapter=name), config), Lora()
        decoder.to(torch.bfloat16).requires_grad_(False)
        kind.compress(decoder, config, machine.device)
        kind.attach(decoder, config)
        kind.initialize(decoder, config)
    engine = Embedded(stops(tokenizer), rl.side_by_side, kind)
    policy = Policy(engine, tokenizer, {"sort": judge_of("sort", rl)}, rl, config.sequence_len)
    asked, unseen = sort.problems(1)[:2]
    source = Rollouts(config, rl, policy, Problems({"sort": asked}, {"sort": 1.0}, seed), [])
    objective, optimizer = PolicyLoss(rl), Optimizer(decoder, config.optimizer)
    watched = [("sort", one) for one in unseen[:WATCHED]]

    def greedy() -> float:
        engine.load_weights(decoder)
        return statistics.mean(one.is_right for one in policy.greedy(watched).rewards)

    before, answering, learning, right = greedy(), [], [], []
    for step in range(steps):
        began = time.process_time()
        batch = source.batch(step, decoder)
        made = time.process_time()
        optimizer.zero_grad()
        accumulate(decoder, batch, config.micro_rows, objective.loss_divisor(batch), objective)
        optimizer.clip()
        optimizer.step(learning_rate_scale(config.schedule, step, steps))
        answering.append(made - began)
        learning.append(time.process_time() - made)
        right.append(source.metrics()["right"])
    return {
        "rollout_cpu_s": statistics.median(answering),
        "learning_cpu_s": statistics.median(learning[:FIRST_STEPS]),
        "learning_all_cpu_s": statistics.median(learning),
        "right_last": statistics.mean(right[-LAST_STEPS:]),
        "greedy_before": before,
        "greedy": greedy(),
        **held_bytes(decoder, optimizer, config),
    }


def compare_rl(model: Path, seeds: int, steps: int) -> None:
    """Run each arm with each seed, in turns, and print means and ranges."""
    found: dict[str, list[dict[str, float]]] = {"full": [], "lora": []}
    for seed in range(1, seeds + 1):
        for name, runs in found.items():
            words = [sys.executable, "-m", "bench.adapters", "--arm", name, "--rl", str(model)]
            words += ["--seeds", str(seed), "--rl-steps", str(steps)]
            done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
            runs.append(json.loads(done.stdout.splitlines()[-1]))
    print(f"\nsort by rl, {steps} steps, {seeds} seeds; mean [range], and the ratio of means to full\n")
    print("| measure | full | lora | lora / full |\n|---|---|---|---|")
    for name in found["full"][0]:
        values = {arm: [one[name] for one in runs] for arm, runs in found.items()}
        ratio = statistics.mean(values["lora"]) / max(1e-9, statistics.mean(values["full"]))
        each = (f"{statistics.mean(some):.4g} [{min(some):.4g}-{max(some):.4g}]" for some in values.values())
        print(f"| {name} | {' | '.join(each)} | {ratio:.2f} |")


def peers(name: str, length: int, is_compiled: bool, run: Callable[[Step, int, Held], None]) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from trainer.device import keep_freed_memory
    from trainer.recipes import PROFILES

    keep_freed_memory()
    shape = PROFILES["smollm2_135m"]().phases["sft"].model
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    said = {one: getattr(shape, one) for one in (*names, "intermediate_size", "max_position_embeddings")}
    model: Any = LlamaForCausalLM(LlamaConfig(**said, tie_word_embeddings=True, use_cache=False))
    if name == "peft":
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model.to(torch.bfloat16), LoraConfig(r=32, lora_alpha=64, target_modules="all-linear"))
    model.train()
    learning = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(learning, lr=1e-4, betas=(0.9, 0.95), fused=True)
    called = torch.compile(model) if is_compiled else model

    def step(ids: Any, targets: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        given, wanted = torch.from_numpy(ids), torch.from_numpy(targets)
        with torch.autocast("cpu", torch.bfloat16):
            loss = called(input_ids=given, labels=given, shift_labels=wanted).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(learning, 1.0)
        optimizer.step()
        return float(loss.detach())

    run(step, shape.vocab_size, dict)


def arm(name: str, length: int, is_compiled: bool) -> None:
    """Read a number of steps from each line of stdin, run the steps, and print the figures as JSON."""
    import numpy as np

    chance = np.random.default_rng(1)

    def run(step: Step, vocab: int, held: Held) -> None:
        def once() -> float:
            row = chance.integers(0, vocab, (1, length + 1))
            return step(np.ascontiguousarray(row[:, :-1]), np.ascontiguousarray(row[:, 1:]))

        for _ in range(WARM_UP_STEPS):
            once()
        Path("/proc/self/clear_refs").write_text("5")  # Reset VmHWM.
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            began, loss = time.process_time(), 0.0
            for _ in range(int(line)):
                loss = once()
            spent_s = (time.process_time() - began) / int(line)
            print(json.dumps({"cpu_s": spent_s, "loss": loss, "peak_bytes": peak_bytes(), **held()}), flush=True)

    (ours if name in OURS else peers)(name, length, is_compiled, run)


def hear(process: "subprocess.Popen[str]") -> dict[str, float]:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise SystemExit(f"an arm ended with exit code {process.wait()}")
    found: dict[str, float] = json.loads(line)
    return found


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--peers", default="", help="Python of an environment with transformers and peft")
    flags.add_argument("--rounds", type=int, default=3)
    flags.add_argument("--steps", type=int, default=2, help="steps of each turn")
    flags.add_argument("--length", type=int, default=512, help="tokens of the row")
    flags.add_argument("--compiled", action="store_true", help="compile the blocks (peers: the model)")
    flags.add_argument("--rl", type=Path, default=None, help="model of sft for `sort` by rl, in place of the steps")
    flags.add_argument("--seeds", type=int, default=3, help="seeds of rl")
    flags.add_argument("--rl-steps", type=int, default=64)
    flags.add_argument("--arm", default="", help=argparse.SUPPRESS)
    given = flags.parse_args()
    if given.rl:
        model = given.rl / "hf" if (given.rl / "hf").is_dir() else given.rl
        if given.arm:
            print(json.dumps(of_rl(given.arm, model, given.seeds, given.rl_steps)))
        else:
            compare_rl(model, given.seeds, given.rl_steps)
        return
    if given.arm:
        arm(given.arm, given.length, given.compiled)
        return
    started: dict[str, subprocess.Popen[str]] = {}
    try:
        for name in (*OURS, *(PEERS if given.peers else ())):
            words = [given.peers if name in PEERS else sys.executable, "-m", "bench.adapters", "--arm", name]
            words += ["--length", str(given.length), *(["--compiled"] if given.compiled else [])]
            pipe = subprocess.PIPE
            started[name] = subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            hear(started[name])
        found: dict[str, list[dict[str, float]]] = {name: [] for name in started}
        for _ in range(given.rounds):
            for name, process in started.items():
                assert process.stdin is not None
                process.stdin.write(f"{given.steps}\n")
                process.stdin.flush()
                found[name].append(hear(process))
    finally:
        for process in started.values():
            process.kill()
            process.communicate()
    mode = "compiled" if given.compiled else "eager"
    print(f"\n1 x {given.length} tokens a step, {mode}, {given.steps} steps a turn; median [range]\n")
    print("| arm | CPU s a step | / full | peak MB | / full |\n|---|---|---|---|---|")
    full = found["full"]
    for name, turns in found.items():
        cpu = [one["cpu_s"] for one in turns]
        over = [one["cpu_s"] / base["cpu_s"] for one, base in zip(turns, full, strict=True)]
        peak, whole = (max(one["peak_bytes"] for one in some) / 1e6 for some in (turns, full))
        print(f"| {name} | {shown(cpu)} | {shown(over)} | {peak:.0f} | {peak / whole:.2f} |")
    print(
        "\n| arm | gradients MB | optimizer MB | checkpoint MB | / full | estimated / full |\n|---|---|---|---|---|---|"
    )
    parts = ("gradients", "optimizer", "checkpoint")
    for name, turns in found.items():
        if "estimated" in turns[0]:
            sizes, base = ([some[0][one] for one in parts] for some in (turns, full))
            of_fit = turns[0]["estimated"] / full[0]["estimated"]
            shown_mb = " | ".join(f"{one / 1e6:.1f}" for one in sizes)
            print(f"| {name} | {shown_mb} | {sum(sizes) / sum(base):.3f} | {of_fit:.3f} |")


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} [{min(values):.2f}-{max(values):.2f}]"


if __name__ == "__main__":
    main()
