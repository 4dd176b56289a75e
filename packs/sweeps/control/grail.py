"""Modules of GRAIL's research code by name, so that its file of sweep functions works as a file of Slipway.

GRAIL's file imports `ExperimentConfig` from `experiment_runner` and `PodSpec` from `lium_manager`. Source:
one-covenant/grail, research/infrastructure.
"""

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from packs.sweeps.control.experiment import ExperimentConfig, PodSpec

NAMES = {"vllm_gpu": "gpu_devices", "train_gpu": "train_gpu_device"}  # an earlier version of GRAIL
UNUSED = ("vllm_port",)  # Slipway chooses free ports


class GrailExperiment(ExperimentConfig):
    """Experiment with the field names of all versions of GRAIL."""

    def __init__(self, **said: Any) -> None:
        renamed = {NAMES.get(name, name): value for name, value in said.items() if name not in UNUSED}
        super().__init__(**renamed)
        if "vllm_gpu" in said:
            self.vllm_gpu = said["vllm_gpu"]

    def __setattr__(self, name: str, value: Any) -> None:
        if name in UNUSED:
            return
        super().__setattr__(NAMES.get(name, name), value)
        if name == "vllm_gpu":
            super().__setattr__("vllm_tensor_parallel", len(str(value).split(",")))


@contextlib.contextmanager
def modules() -> Iterator[None]:
    """Let the body import GRAIL's modules."""
    made: dict[str, dict[str, Any]] = {
        "experiment_runner": {"ExperimentConfig": GrailExperiment},
        "lium_manager": {"PodSpec": PodSpec},
    }
    before = {name: sys.modules.get(name) for name in made}
    for name, members in made.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update(members)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
