"""`inv eval --lm-eval TASKS --endpoint URL`: EleutherAI's harness, asking a model that is served.

In: the harness's own task names, the address of an OpenAI-compatible server, the model's folder, whose tokenizer the
harness needs to know where an answer begins. Out: measures as `inv eval` keeps them. The harness is a program of the
user's: `lm_eval` on the PATH, or `LM_EVAL` names it; nothing of ours installs it, since it brings hundreds of packages.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError, UsageError
from trainer.evaluation.intervals import Z

METRICS = ("acc_norm,none", "acc,none", "exact_match,strict-match", "exact_match,none", "f1,none")
INSTALL = "install it into an environment of its own (pip install 'lm-eval[api]') and put lm_eval on the PATH"


def measure(folder: Path, name: str, *, lm_eval: str, endpoint: str, served_name: str) -> dict[str, dict[str, Any]]:
    """Measure a model by `lm-eval <task>`.

    Raises UsageError for what is missing, SlipwayError when the harness fails.
    """
    if not lm_eval or not endpoint:
        raise UsageError(
            "--lm-eval TASKS and --endpoint URL go together: http://127.0.0.1:8000 of a server of the model"
        )
    program = os.environ.get("LM_EVAL") or shutil.which("lm_eval")
    if not program:
        raise UsageError(f"--lm-eval: the program lm_eval is not installed; {INSTALL}, or name it in LM_EVAL")
    tokenizer = folder / "hf" if (folder / "hf").is_dir() else folder
    url = endpoint.rstrip("/").removesuffix("/v1")
    with tempfile.TemporaryDirectory(prefix="slipway-") as out:
        model = {
            "model": served_name or name,
            "base_url": f"{url}/v1/completions",
            "tokenizer": str(tokenizer),
            "tokenized_requests": "False",
            "num_concurrent": "8",
        }
        args = ",".join(f"{key}={value}" for key, value in model.items())
        said = [program, "--model", "local-completions", "--model_args", args, "--tasks", lm_eval, "--output_path", out]
        done = subprocess.run(said, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if done.returncode:
            raise SlipwayError(f"lm_eval left with code {done.returncode}; its own words stand above")
        files = sorted(Path(out).rglob("results*.json"))
        if not files:
            raise SlipwayError("lm_eval has written no results; its own words stand above")
        return read(json.loads(files[-1].read_text(encoding="utf-8")))


def read(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the harness's results as measures: of each task the first metric that we know. Its error is its own."""
    found = {}
    for task, figures in results["results"].items():
        metric = next((one for one in METRICS if one in figures), "")
        if not metric:
            continue
        kind, _, rest = metric.partition(",")
        value, error = figures[metric], figures.get(f"{kind}_stderr,{rest}")
        known = isinstance(error, int | float)
        found[f"lm-eval {task}"] = {
            "value": value,
            "low": max(0.0, value - Z * error) if known else None,
            "high": min(1.0, value + Z * error) if known else None,
            "unit": "share",
            "of": results.get("n-samples", {}).get(task, {}).get("effective"),
            "method": f"lm-eval's {kind}, its standard error, normal",
            "material": f"lm-eval {task} version {results.get('versions', {}).get(task, '?')}",
        }
    return found
