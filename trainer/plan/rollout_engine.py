"""Checks of the requested machine for the rollout engine of rl, before anything starts. Light: no torch here."""

from collections.abc import Sequence

from infra.errors import UsageError
from infra.records import Request
from trainer.records.rl_config import RlConfig

MOST_GPUS = 64  # per machine: no vendor offers more


def environment_of(torch: str) -> str:
    """Return the environment of the vllm engine for a build of PyTorch."""
    return "serve-cpu" if torch == "cpu" else "serve-cuda"


def check(rl: RlConfig, request: Request, heads: int = 0) -> None:
    """Raise UsageError if the requested machine cannot generate answers with vLLM.

    heads: attention heads of the model, divided evenly over the GPUs of a process; 0 = unknown.
    """
    if rl.engine != "vllm":
        return
    if request.nodes > 1:
        raise UsageError("--engine vllm supports a single machine. Remove --nodes, or use --engine embedded")
    count, said = request.num_gpus, _as_typed(rl)
    if not said:
        if count:
            raise UsageError(
                f"--engine vllm needs GPUs for answers out of {count}. For example, --engine-devices {count - 1} "
                "leaves the other GPUs for training"
            )
        return
    if not count:
        raise UsageError(f"{said}: the number of GPUs of the machine is unknown. Set --num-gpus")
    training, answering = rl.divide_gpus(count)
    beyond = [one for one in (*training, *answering) if one >= count]
    if beyond:
        here = "GPU 0" if count == 1 else f"GPUs 0 to {count - 1}"
        raise UsageError(
            f"{said}: GPU {max(beyond)} does not exist; {_asked(request)} means {here}. Name other GPUs, or "
            f"{_with(max(beyond) + 1, request)}"
        )
    spread = rl.engine_tensor_parallel
    if len(answering) % spread or heads % spread:
        by = (
            f"{len(answering)} GPUs for answers" if len(answering) % spread else f"{heads} attention heads of the model"
        )
        raise UsageError(
            f"--engine-tensor-parallel {spread} does not divide the {by}. Use a different number, or remove "
            "the flag, so that each GPU holds the whole model"
        )
    if not (training and answering):
        does = "answer" if training else "train"
        raise UsageError(
            f"{said}: no GPU of {count} remains to {does}. Name fewer GPUs, or {_with(count + 1, request)}"
        )


def fewest(rl: RlConfig) -> int:
    """Return the minimum number of GPUs of a machine for the configured engine devices, at most MOST_GPUS."""
    if rl.engine != "vllm":
        return 1
    for count in range(2, MOST_GPUS):
        training, answering = rl.divide_gpus(count)
        if training and max((*training, *answering)) < count and (answering or not _as_typed(rl)):
            return count
    return MOST_GPUS


def spread_arguments(rl: RlConfig, num_gpus: int) -> tuple[str, ...]:
    """Return the arguments for `trainer.spread` that divide the GPUs; () if all GPUs train."""
    training, answering = rl.divide_gpus(num_gpus)
    return ("--train", joined(training), "--answer", joined(answering)) if answering else ()


def told(rl: RlConfig, num_gpus: int) -> str:
    """Return the GPUs for training and for answers, in words; "" if all GPUs train."""
    training, answering = rl.divide_gpus(num_gpus)
    if not answering:
        return ""
    idle = [one for one in range(num_gpus) if one not in training and one not in answering]
    does = (("trains", "train", training), ("answers", "answer", answering), ("has no work", "have no work", idle))
    said = ", ".join(f"{named(some)} {one if len(some) == 1 else more}" for one, more, some in does if some)
    spread, share = rl.engine_tensor_parallel, f"{rl.engine_memory:g} of the memory of each GPU"
    number = len(answering) // spread
    how = f"over {spread} GPUs each (tensor parallel)" if spread > 1 else "on a GPU each"
    return f"{said}; vLLM: {'1 process' if number == 1 else f'{number} processes'}, the model {how}, with {share}"


def named(devices: Sequence[int]) -> str:
    """Return GPUs in words: `GPU 0`, `GPUs 1,2,3`."""
    return f"GPU{'s' if len(devices) > 1 else ''} {joined(devices)}"


def joined(devices: Sequence[int]) -> str:
    """Return GPUs as typed on the command line: `1,2,3`."""
    return ",".join(map(str, devices))


def _asked(request: Request) -> str:
    return f"--devices {request.devices}" if request.devices else f"--num-gpus {request.num_gpus}"


def _with(count: int, request: Request) -> str:
    return f"name {count} GPUs in --devices" if request.devices else f"take --num-gpus {count}"


def _as_typed(rl: RlConfig) -> str:
    said = (("--engine-devices", rl.engine_devices), ("--train-devices", rl.train_devices))
    return " ".join(f"{flag} {joined(some)}" for flag, some in said if some)
