"""Text, tokenizer and token shards, made once by the commands of a pod for all workers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from data.tokens import tokenize
from data.tokens import tokenizer as tokenizers
from tests.once import made_once

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

    def make(draft: Path) -> Path:
        config = {"out": str(draft / "out"), "spec": {"val_ratio": 0.05}}
        done = run_step("text", config, draft, SECRET="canary-in-environ")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return draft / "out"

    return made_once(tmp_path_factory, "data-text", make)


@pytest.fixture(scope="session")
def tokenizer_folder(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(draft: Path) -> Path:
        config = {"out": str(draft / "out"), "inputs": {"text": str(text)}, "spec": {"vocab_size": 1024}}
        done = run_step("tokenizer", config, draft)
        assert (done.returncode, done.stderr) == (0, "")
        return draft / "out"

    return made_once(tmp_path_factory, "data-tokenizer", make)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.load(tokenizer_folder)


@pytest.fixture(scope="session")
def token_folder(text: Path, tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(draft: Path) -> Path:
        tokenize.make(text, tokenizer_folder, draft)
        return draft

    return made_once(tmp_path_factory, "data-tokens", make)
