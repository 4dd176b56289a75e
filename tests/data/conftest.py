"""Text, tokenizer and token shards, made once by the commands of a pod."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data.tokens import tokenize
from data.tokens import tokenizer as tokenizers

ROOT = Path(__file__).resolve().parents[2]


def run_step(step: str, config: dict[str, Any], scratch: Path, **environ: str) -> "subprocess.CompletedProcess[str]":
    """Run `python -m data STEP` with this configuration, in a separate process."""
    path = scratch / f"{step}.json"
    path.write_text(json.dumps(config))
    words = [sys.executable, "-m", "data", step, "--config", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return all of pydocs, with a held-out part."""
    folder = tmp_path_factory.mktemp("text")
    done = run_step(
        "text", {"out": str(folder / "out"), "spec": {"val_ratio": 0.05}}, folder, SECRET="canary-in-environ"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder / "out"


@pytest.fixture(scope="session")
def tokenizer_folder(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    config = {"out": str(folder / "out"), "inputs": {"text": str(text)}, "spec": {"vocab_size": 1024}}
    done = run_step("tokenizer", config, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return folder / "out"


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.load(tokenizer_folder)


@pytest.fixture(scope="session")
def token_folder(text: Path, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    tokenize.make(text, tokenizer_folder, folder)
    return folder
