"""`python -m trainer.spread [--train 0 --answer 1,2] WORDS`: run `python WORDS` by torchrun, one process per GPU.

GPU numbers count from 0 among the visible GPUs. Training processes see the `--train` GPUs; SLIPWAY_ANSWERING_DEVICES
lists the `--answer` GPUs for rollout engines. Without a GPU, a single process trains on the CPU.

SLIPWAY_NODE_RANK, SLIPWAY_NUM_NODES, MASTER_ADDR and MASTER_PORT describe the nodes. Node ranks are fixed, because node
0 holds the checkpoints; after a failure the caller restarts all nodes. Exit codes pass through from the processes,
unlike torchrun's 1 for every failure.
"""

import os
import sys

RESUME_ME = 75
MEET_S = 60  # seconds; the agents have just seen all nodes ready


def main(words: list[str]) -> int:
    """Run torchrun; return 0, or the exit code of the first failed process, 75 (restart) for a killed process."""
    import torch
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    environ = os.environ
    gpus = torch.cuda.device_count()
    try:
        training, answering, words = divide_gpus(words, gpus)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if answering:
        from trainer.device import ANSWERING, VISIBLE

        seen = environ.get(VISIBLE, "")
        names = seen.split(",") if seen else [str(one) for one in range(gpus)]
        environ[VISIBLE] = ",".join(names[one] for one in training)
        environ[ANSWERING] = ",".join(names[one] for one in answering)
    flags = [
        f"--nproc-per-node={len(training) or 1}",
        "--max-restarts=0",
        f"--shutdown-timeout={float(environ.get('SLIPWAY_GRACE_S', '60')):.0f}",
    ]
    if environ.get("SLIPWAY_NUM_NODES", "1") == "1":
        flags.append("--standalone")
    else:
        flags += [f"--nnodes={environ['SLIPWAY_NUM_NODES']}", f"--node-rank={environ['SLIPWAY_NODE_RANK']}"]
        flags += [f"--master-addr={environ['MASTER_ADDR']}", f"--master-port={environ['MASTER_PORT']}"]
        flags += [f"--rdzv-conf=timeout={MEET_S}"]
    try:
        torchrun.run(torchrun.parse_args([*flags, *words]))
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        print(f"process {failure.local_rank} of this node ended with exit code {failure.exitcode}", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else RESUME_ME
    except SignalException:
        return RESUME_ME
    except torch.distributed.DistError as error:  # a node did not join or is lost
        print(f"torchrun: {error}", file=sys.stderr)
        return RESUME_ME
    return 0


def divide_gpus(words: list[str], gpus: int) -> tuple[list[int], list[int], list[str]]:
    """Parse `--train ... --answer ...`; return (training GPUs, rollout GPUs, remaining words).

    Raises ValueError for a GPU number beyond `gpus`.
    """
    training, answering = list(range(gpus)), list[int]()
    if words[:1] == ["--train"]:
        said, words = (words[1], words[3]), words[4:]
        if gpus:
            training, answering = ([int(one) for one in some.split(",")] for some in said)
    if beyond := [one for one in (*training, *answering) if one >= gpus]:
        raise ValueError(f"GPU {max(beyond)} does not exist: this machine has {gpus} GPUs")
    return training, answering, words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
