"""Check that a machine can run the engine of rl's answers, before anything starts. Light: no torch here."""

from infra.errors import UsageError
from infra.records import Request
from trainer.records.rl_config import RlConfig


def environment_of(torch: str) -> str:
    """Return the environment of the engine vllm beside that build of PyTorch."""
    return "serve-cpu" if torch == "cpu" else "serve-cuda"


def check(rl: RlConfig, request: Request) -> None:
    """Raise UsageError where the machine that is asked for cannot answer by vLLM."""
    if rl.engine != "vllm":
        return
    if request.nodes > 1:
        raise UsageError("--engine vllm answers on one machine; leave out --nodes, or take --engine embedded")
    if request.num_gpus and not rl.engine_devices:
        raise UsageError(f"--engine vllm: how many of the {request.num_gpus} GPUs are to answer? --engine-devices 1, "
                         "and the others train")  # fmt: skip
    if rl.engine_devices and rl.engine_devices >= request.num_gpus:
        raise UsageError(f"--engine-devices {rl.engine_devices}: of {request.num_gpus} GPUs none is left to train; "
                         f"--num-gpus {rl.engine_devices + 1} or more")  # fmt: skip
