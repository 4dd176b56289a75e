"""Compare the answers of one model in two engines: share of equal answers, share of right answers, and speed.

Run: python -m bench.engines.answers --tag smoke_bits [--phase bits3] [--store DIR] [--questions N]
[--engines torch,llama.cpp].
Each engine runs as in a replica of `inv serve.up`, in a separate environment, and answers the held-out questions over
OpenAI's protocol with greedy decoding. The first engine is the reference for the others. CPU seconds are measured in
the engine's process while the engine answers; other programs have little effect on CPU seconds.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.held_out import folder_of, questions_of
from infra.agent.environments import cache_folder, environment
from infra.checkout import ROOT
from serve import engines
from store.artifacts.artifacts import Store
from trainer.evaluation import intervals
from trainer.evaluation.multi_turn import TurnsQuestion
from trainer.records.phase_registry import PHASES

PROGRAMS = {"torch": ("-m", "trainer", "serve"), engines.LLAMA: ("-m", "trainer.engines", "serve")}
LISTENING = "listening on "
MAX_NEW = 96
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass
class EngineAnswers:
    """Answers of an engine to all questions, with the cost."""

    texts: list[str] = field(default_factory=list)
    tokens: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0
    mb: float = 0.0


@contextmanager
def started(engine: str, folder: Path) -> Iterator[tuple[str, int]]:
    """Start an engine and yield its address and process id when it answers; end the engine on exit."""
    group = engines.ENVIRONMENTS[engine]
    python = environment.ensure(group, ROOT, cache_folder.default_cache(), environment.torch_build(), print)
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    environ.pop(engines.KEY, None)
    words = [str(python), *PROGRAMS[engine], "--model", str(folder), "--name", "m"]
    with tempfile.TemporaryFile("w+") as errors:
        one = subprocess.Popen(words, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert one.stdout is not None
            line = one.stdout.readline()
            if not line.startswith(LISTENING):
                errors.seek(0)
                sys.exit(f"{engine}: {errors.read()[-900:]}")
            yield f"http://127.0.0.1:{line.removeprefix(LISTENING).strip()}", one.pid
        finally:
            one.terminate()
            one.wait()


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process, all threads together."""
    words = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / TICKS_PER_S


def ask(engine: str, folder: Path, questions: Sequence[TurnsQuestion]) -> EngineAnswers:
    """Ask an engine each question in a new conversation and return the answers."""
    found = EngineAnswers()
    with started(engine, folder) as (url, pid):
        before, began = cpu_s(pid), time.perf_counter()
        for one in questions:
            talk = [{"role": "user", "content": one.text}]
            body = {"model": "m", "messages": talk, "temperature": 0, "max_tokens": MAX_NEW}
            request = urllib.request.Request(
                f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=600) as reply:
                said = json.load(reply)
            found.texts.append(said["choices"][0]["message"]["content"])
            found.tokens += said["usage"]["completion_tokens"]
        found.cpu_s, found.wall_s = cpu_s(pid) - before, time.perf_counter() - began
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        found.mb = int(status["VmHWM"].split()[0]) / 1024
    return found


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--store", default="var/artifacts")
    flags.add_argument("--tag", default="smoke_bits")
    flags.add_argument("--phase", default="bits3", choices=tuple(PHASES))
    flags.add_argument("--questions", type=int, default=0, help="number of held-out questions; 0 = all")
    flags.add_argument("--engines", default=f"torch,{engines.LLAMA}")
    given = flags.parse_args()
    store = Store(given.store)
    folder = folder_of(store, f"{PHASES[given.phase].folder}/{given.tag}") / "hf"
    asked, name = questions_of(store)
    asked = asked[:: max(1, len(asked) // given.questions)] if given.questions else asked
    found = {engine: ask(engine, folder, asked) for engine in given.engines.split(",")}
    kinds = sorted({one.kind for one in asked})
    threads = os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))
    print(
        f"{given.phase} of {given.tag}: {len(asked)} held-out questions, {threads} threads, load "
        f"{os.getloadavg()[0]:.1f}\n"
    )
    print(
        f"| engine | {' | '.join(f'right, {one}' for one in kinds)} | same words, {' | same words, '.join(kinds)} | "
        "tokens per CPU s | tokens/s | MB at most |"
    )
    print(f"|---|{'---|' * (2 * len(kinds) + 3)}")
    first = next(iter(found.values()))
    for engine, one in found.items():
        cells = []
        for hits in (
            [question.is_right(text, name) for question, text in zip(asked, one.texts, strict=True)],
            [text == other for text, other in zip(one.texts, first.texts, strict=True)],
        ):
            for kind in kinds:
                some = [int(hit) for hit, question in zip(hits, asked, strict=True) if question.kind == kind]
                cells.append(share(some))
        print(
            f"| {engine} | {' | '.join(cells)} | {one.tokens / one.cpu_s:.0f} | {one.tokens / one.wall_s:.0f} | "
            f"{one.mb:.0f} |",
            flush=True,
        )


def share(hits: Sequence[int]) -> str:
    """Return the share of hits in % with Wilson's 95 % interval."""
    found = intervals.share(sum(hits), len(hits))
    return f"{100 * found.value:.1f} % [{100 * found.low:.0f}, {100 * found.high:.0f}] of {len(hits)}"


if __name__ == "__main__":
    main()
