"""Conversion of a nanochat checkpoint to a Hugging Face folder of our decoder, in a restricted child process.

nanochat stores weights and tokenizer as pickles, which can execute arbitrary code. The child process accepts only
tensors and plain values, runs with limits on memory, CPU time and file sizes, and inherits no secrets.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from data.single_writer import PARENT
from packs.imports.records.nanochat import tokenizer_of
from trainer.config import ImportSpec, ModelConfig
from trainer.errors import Refused

ROOT = Path(__file__).parents[3]
START_S, BYTES_PER_S = 300.0, 20e6  # PyTorch import on a busy machine; throughput of a slow disk
KNOWN = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")


def convert(spec: ImportSpec, folder: Path, out: Path) -> Path:
    """Convert the weights and, if requested, the tokenizer of `folder` into `out`; return `out`.

    Raises Refused with a readable reason.
    """
    weights = folder / spec.file
    if not weights.is_file():
        raise Refused(f"{weights} is not on this machine; import the model on the machine that runs the steps")
    pickled = tokenizer_of(folder) if spec.has_tokenizer else None
    _in_child(weights, pickled, out, spec.model)
    return out


def convert_tokenizer(pickled: Path, out: Path) -> Path:
    """Convert the pickled nanochat tokenizer to the new folder `out`; return `out`.

    Raises Refused with a readable reason.
    """
    _in_child(None, pickled, out, None)
    return out


def _in_child(weights: Path | None, pickled: Path | None, out: Path, model: ModelConfig | None) -> None:
    out.mkdir()
    read = weights or pickled
    assert read is not None, "there is something to convert"
    asked = {
        "weights": str(weights or ""),
        "tokenizer": str(pickled or ""),
        "out": str(out),
        "model": asdict(model) if model else None,
    }
    child = subprocess.Popen(
        [sys.executable, "-m", "packs.imports.trainer.child"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        start_new_session=True,
        env={
            **{name: os.environ[name] for name in KNOWN if name in os.environ},
            PARENT: str(os.getpid()),
            "OMP_NUM_THREADS": "1",
        },
    )
    limit_s = START_S + read.stat().st_size / BYTES_PER_S
    try:
        said, words = child.communicate(json.dumps(asked).encode(), timeout=limit_s)
    except subprocess.TimeoutExpired:
        raise Refused(f"{read} was not converted in {limit_s:,.0f} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    try:
        problem = json.loads(said.decode().splitlines()[-1])["problem"]
    except (ValueError, KeyError, IndexError, TypeError):
        last = (words.decode("utf-8", "replace").strip().splitlines() or ["no output"])[-1]
        raise Refused(f"{read} cannot be converted: the process ended with {child.returncode}: {last}") from None
    if problem:
        raise Refused(f"{read} cannot be converted: {problem}")
