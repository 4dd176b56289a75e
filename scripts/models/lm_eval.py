"""`inv eval --lm-eval TASKS --endpoint URL`: EleutherAI's harness against a served model.

The input is the harness's task names, the address of an OpenAI-compatible server, and the model's folder with the
tokenizer, which the harness needs to find the start of an answer. The output is measures in the format of `inv eval`.
The user installs the harness, because the package brings hundreds of dependencies: `lm_eval` on the PATH, or a path in
`LM_EVAL`.
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

from data.config import ENDS_ANSWER
from infra.errors import SlipwayError, UsageError
from store.artifacts import tokenizer_files
from trainer.evaluation.intervals import Z

METRICS = ("acc_norm,none", "acc,none", "exact_match,strict-match", "exact_match,none", "f1,none")
INSTALL = "install the harness into a separate environment (pip install 'lm-eval[api]') and put lm_eval on the PATH"


def measure(
    folder: Path, name: str, *, lm_eval: str, endpoint: str, served_name: str, as_text: bool = False
) -> dict[str, dict[str, Any]]:
    """Run the harness and return the measures by name `lm-eval <task>`.

    Raises UsageError for a missing flag or program, SlipwayError if the harness fails.
    """
    if not lm_eval or not endpoint:
        raise UsageError("--lm-eval TASKS needs --endpoint URL, such as http://127.0.0.1:8000 of a server of the model")
    program = os.environ.get("LM_EVAL") or shutil.which("lm_eval")
    if not program:
        raise UsageError(
            f"--lm-eval: the program lm_eval was not found; {INSTALL}, or set LM_EVAL to the path of the program"
        )
    tokenizer = folder / "hf" if (folder / "hf").is_dir() else folder
    url = endpoint.rstrip("/").removesuffix("/v1")
    with tempfile.TemporaryDirectory(prefix="slipway-") as out:
        model = {
            "model": served_name or name,
            "base_url": f"{url}/v1/completions",
            "tokenizer": str(tokenizer),
            "tokenized_requests": "True",  # token ids let the harness apply the model's chat template
            "num_concurrent": "8",
        }
        args = ",".join(f"{key}={value}" for key, value in model.items())
        said = [program, "--model", "local-completions", "--model_args", args, "--tasks", lm_eval, "--output_path", out]
        said += as_asked_here(tokenizer, as_text)
        done = subprocess.run(said, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        if done.returncode:
            raise SlipwayError(f"lm_eval failed with exit code {done.returncode}; its output is above")
        files = sorted(Path(out).rglob("results*.json"))
        if not files:
            raise SlipwayError("lm_eval wrote no results; its output is above")
        return read(json.loads(files[-1].read_text(encoding="utf-8")))


def as_asked_here(folder: Path, as_text: bool) -> list[str]:
    """Return the harness flags that format prompts as `inv eval` does: as chat, or as training text.

    For text, our tokenizers put a start token before each document, which the harness would omit.
    """
    if not as_text:
        return ["--apply_chat_template"]
    ours = ENDS_ANSWER in tokenizer_files.template_of(folder)
    bos = tokenizer_files.load_if_present(folder, tokenizer_files.TOKENIZER_CONFIG).get("bos_token") if ours else None
    return ["--system_instruction", bos] if isinstance(bos, str) else []


def read(results: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Convert the harness's results to measures: per task the first metric known from METRICS, and `acc` besides.

    Intervals use the harness's own standard error; low and high are None without a standard error.
    """
    found: dict[str, dict[str, Any]] = {}
    for task, figures in results["results"].items():
        for metric in (one for one in METRICS if one in figures):
            kind, _, rest = metric.partition(",")
            first = f"lm-eval {task}" not in found
            if not first and kind != "acc":
                continue
            value, error = figures[metric], figures.get(f"{kind}_stderr,{rest}")
            known = isinstance(error, int | float)
            found[f"lm-eval {task}" if first else f"lm-eval {task} {kind}"] = {
                "value": value,
                "low": max(0.0, value - Z * error) if known else None,
                "high": min(1.0, value + Z * error) if known else None,
                "unit": "share",
                "of": results.get("n-samples", {}).get(task, {}).get("effective"),
                "method": f"lm-eval's {kind}, its standard error, normal",
                "material": f"lm-eval {task} version {results.get('versions', {}).get(task, '?')}",
            }
    return found
