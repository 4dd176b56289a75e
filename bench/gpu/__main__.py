"""Benchmark the trainer on a GPU: the first program to run on a new GPU machine. Prints a table, then JSON.

Run: python -m bench.gpu [--num-gpus N] [--only WORD,WORD] [--json FILE] [--toy]. Needs no network and no data; planned
time: eight minutes on one GPU. `--toy` runs the same parts at a size for one CPU. Every part uses the training loop,
optimizer and checkpoints of real runs. Column `seen` has the measured value, `wanted` the target for dev/log. A failed
part prints the error, and the exit code is 1. With N above 1, torchrun starts N processes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from bench.gpu.parts import PARTS
from bench.gpu.setup import Bench
from trainer.device import prepare
from trainer.parallel.process_group import join_process_group
from trainer.speed import kernels_of_node


def measured(bench: Bench, names: list[str]) -> tuple[list[dict[str, Any]], bool]:
    """Return a row for each measurement, and whether all parts worked."""
    rows, is_well = list[dict[str, Any]](), True
    for name in names:
        began = time.perf_counter()
        try:
            for what, seen, wanted in PARTS[name](bench):
                rows.append({"part": name, "what": what, "seen": dict(seen), "wanted": wanted})
                tell(bench, rows[-1])
        except Exception as error:  # Continue with the other parts.
            traceback.print_exc()
            rows.append({"part": name, "what": name, "failed": f"{type(error).__name__}: {error}"})
            tell(bench, rows[-1])
            is_well = False
            if bench.ranks.size > 1:
                break  # Other ranks may wait in a different collective.
        rows[-1:] = [{**rows[-1], "took_s": round(time.perf_counter() - began, 1)}] if rows else []
    return rows, is_well


def tell(bench: Bench, row: dict[str, Any]) -> None:
    """Print a line of the table at once, so that an interrupted benchmark keeps the measured values."""
    seen = row.get("failed") or ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row["seen"].items()
    )
    if bench.ranks.is_first:
        print(f"| {row['what']} | {seen} | {row.get('wanted', '')} |", flush=True)


def main() -> int:
    known = argparse.ArgumentParser()
    known.add_argument("--num-gpus", type=int, default=1)
    known.add_argument("--only", default=",".join(PARTS))
    known.add_argument("--json", default="")
    known.add_argument("--toy", action="store_true")
    flags = known.parse_args()
    names = flags.only.split(",")
    if unknown := sorted(set(names) - set(PARTS)):
        print(f"--only {', '.join(unknown)}: known: {', '.join(PARTS)}", file=sys.stderr)
        return 2
    if flags.num_gpus > 1 and "WORLD_SIZE" not in os.environ:
        words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={flags.num_gpus}", "-m", "bench.gpu"]
        return subprocess.run([sys.executable, *words, *sys.argv[1:]], check=False).returncode
    machine = prepare()
    with (
        join_process_group() as ranks,
        tempfile.TemporaryDirectory(prefix="slipway-") as folder,
        kernels_of_node(Path(folder)),
    ):
        began = time.perf_counter()
        name = torch.cuda.get_device_name() if machine.device.type == "cuda" else "CPU"
        if ranks.is_first:
            print(f"{name} x {ranks.size}, PyTorch {torch.__version__}\n\n| what | seen | wanted |", flush=True)
            print("|---|---|---|", flush=True)
        rows, is_well = measured(Bench(machine, ranks, flags.toy, Path(folder)), names)
        if ranks.is_first:
            about = {"device": name, "gpus": ranks.size, "torch": torch.__version__, "is_toy": flags.toy}
            whole = {**about, "took_s": round(time.perf_counter() - began, 1), "rows": rows}
            print(f"\n{whole['took_s']} s\n{json.dumps(whole)}")
            if flags.json:
                Path(flags.json).write_text(json.dumps(whole, indent=1) + "\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
