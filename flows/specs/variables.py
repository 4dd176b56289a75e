"""The variables of SkyPilot job files, typed without a file: `inv launch -e MODEL=qwen3_4b -e STAGE=2`.

The input is the flags of a training and the typed variables; the result is the equivalent flags. A variable without
effect on the work is refused, with the command that supports the variable: a variable with a known name is never just
passed to the job.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from flows.specs.work import WorkSpec
from infra.errors import UsageError
from infra.settings import of_packs
from store import packs
from trainer import plan as planning
from trainer.records.phase_registry import phases_sized

W = TypeVar("W", bound=WorkSpec)
FLAGS = {"MODEL": "profile", "STAGE": "phase", "INIT": "init"}
OF_FILES = {
    "HAAR_ENABLED": "examples/jobs/ablation_haar.yaml",
    "SALIENCY_ENABLED": "examples/jobs/ablation_saliency.yaml",
    "EXPERIMENT": "examples/jobs/ablation_haar.yaml",
}
OF_HUB = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")


def applied(spec: W, given: Mapping[str, str]) -> W:
    """Return the flags of a training without a job file, with the variables applied. Raise UsageError."""
    for name, file in OF_FILES.items():
        if name in given:
            raise UsageError(f"-e {name}: {file} has that variable: ./inv launch {file} -e {name}={given[name]}")
    found: dict[str, Any] = {}
    for name, flag in FLAGS.items():
        if name not in given:
            continue
        if flag in spec.typed:
            raise UsageError(f"-e {name} and --{flag} mean the same; choose one")
        found[flag] = given[name]
    if model := of_hub(found.get("profile", "")):
        if found.get("init") or "init" in spec.typed:
            raise UsageError(
                f"-e MODEL={found['profile']} is on the hub, and INIT names a different model; choose one of the two"
            )
        del found["profile"]
        found["init"] = model
    spec = replace(spec, **found)
    for name, size in sizes().items():
        if name not in given:
            continue
        if said := packs.missing_pack_message("sizes", size):
            raise UsageError(f"-e {name}: {said}")
        if (phase := phases_sized()[size]) not in planning.parse_phases(spec.phase):
            raise UsageError(f"-e {name}: only for the phase {phase}; to add the phase: --phase {spec.phase}+{phase}")
    return spec


def sizes() -> dict[str, str]:
    """Return the variables of the sizes in `Phase.sizes` of all packs, installed or not, each with the size."""
    return {row["variable"]: name for name, row in of_packs() if name in packs.words("sizes")}


def of_hub(model: str) -> str:
    """Return the hf:// URI of a MODEL on the hub, or "" for the name or file of a profile."""
    if model.startswith("hf://"):
        return model
    is_there = OF_HUB.fullmatch(model) and not model.endswith((".yaml", ".yml"))
    return f"hf://{model}" if is_there else ""
