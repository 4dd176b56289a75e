"""Files of other people's jobs, drawn by the hash of a commit and run on this machine.

    python -m tests.packs.jobs.drawn FOLDER COMMIT [--number 20]

FOLDER: a checkout with SkyPilot YAML files. Only files that a launch accepts here take part, and no file whose commands
need a foreign network, root's programs or GPUs. The files that a task names are stand-ins (`corpus`), so that a command
may fail for lack of a program; the table shows the last line of the output for the judgement of a reader.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.ledger.journal import Journal
from tests.packs.jobs import corpus
from tests.world import ROOT, World

FOREIGN = re.compile(
    r"\b(pip3?|uv|conda|curl|wget|git|apt(-get)?|docker|sudo|hf|huggingface[-_]cli|ray|nvidia-smi|vllm|torchrun|aws|gsutil"
    r"|gcloud|ssh|scp|npm|kubectl|sky|rm|p?kill|ollama|sglang|mpirun|mount|modprobe|srun|sbatch)\b|://|/etc/|all_reduce"
)
RUN_S = 120.0


def drawn(folder: Path, scratch: Path, commit: str, number: int, journal: Journal) -> Iterator[corpus.Sample]:
    """Yield files in the order of the draw that this machine accepts and can run."""
    every = [one for one in corpus.samples(folder, scratch) if not one.is_service]
    random.Random(commit).shuffle(every)
    for one in every:
        texts = [str(task.get(key) or "") for task in one.documents for key in ("setup", "run")]
        if not number:
            return
        if "".join(texts).strip() and not any(map(FOREIGN.search, texts)):
            refused, plan = corpus.verdicts(one, "local", journal)
            if plan is not None and not refused:
                number -= 1
                yield one


def result(one: corpus.Sample, folder: Path) -> str:
    """Run a file in an installation of its own; return the state and the last line of the output."""
    world = World(folder, {"HOME": f"{one.folder}-home", "PYTHONPATH": str(ROOT)})
    values = [word for name, value in one.values.items() for word in ("-e", f"{name}={value}")]
    words = ("launch", str(one.folder / "task.yaml"), "--provider", "local", "-n", "drawn", "--yes", "--ttl", "2m")
    try:
        line = [sys.executable, "-m", "invoke", "-r", str(ROOT), *words, *values]
        done = subprocess.run(  # Relative paths of a file begin at the working folder.
            line,
            cwd=one.folder,
            env=world.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_S,
        )
        said = world.run("status", "drawn", "--json").stdout
        state = re.search(r'"state": "(\w+)"', said)
        lines = [line for line in done.stdout.splitlines() if line.strip()] or done.stderr.splitlines()
        fault = "FAULT " if "Traceback" in done.stderr else ""
        return f"{fault}{state[1] if state else f'exit code {done.returncode}'}: {' '.join(lines[-1:])[:90]}"
    except Exception as error:
        return f"FAULT {type(error).__name__}: {error}"[:200]
    finally:
        world.run("down", "--all")


def main(words: Sequence[str]) -> int:
    about = (__doc__ or "").split("\n")[0]
    known = argparse.ArgumentParser(prog="python -m tests.packs.jobs.drawn", description=about)
    known.add_argument("folder", type=Path)
    known.add_argument("commit")
    known.add_argument("--number", type=int, default=20)
    asked = known.parse_args(words)
    home, faults = os.environ["HOME"], 0
    with tempfile.TemporaryDirectory(prefix="drawn-", ignore_cleanup_errors=True) as made:
        scratch = Path(made).resolve()
        os.environ["SLIPWAY_STATE_FILE"] = str(scratch / "state" / "journal.db")
        os.environ["SLIPWAY_STORE"] = str(scratch / "store")
        with Journal.open(scratch / "state" / "journal.db") as journal:
            found = [*drawn(asked.folder.resolve(), scratch / "files", asked.commit, asked.number, journal)]
        os.environ["HOME"] = home
        print("| file | result |\n|---|---|", flush=True)
        for number, one in enumerate(found):
            seen = result(one, scratch / f"world-{number}")
            faults += seen.startswith("FAULT")
            print(f"| {one.name} | {seen.replace('|', '/')} |", flush=True)
    print(f"\n{len(found) - faults} of {len(found)} ran without a fault of Slipway")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
