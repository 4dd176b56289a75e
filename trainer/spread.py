"""`python -m trainer.spread [--train 0 --answer 1,2] WORDS`: `python WORDS` by torchrun, one process per GPU.

Of the GPUs, counted from 0 as this process sees them, each process sees those that train; those that answer stand in
SLIPWAY_ANSWERING_DEVICES. `--spare N` of earlier jobs: the last N answer. Without a GPU it is one process on the CPU.

Which node this is and where the first one listens stand in SLIPWAY_NODE_RANK, SLIPWAY_NUM_NODES, MASTER_ADDR and
MASTER_PORT. The number of nodes is fixed and node 0 has the checkpoints, so ranks are given, not drawn; whoever started
this starts all nodes again when one has failed. Exit codes are those of the processes, where torchrun says 1 for any.
"""

import os
import sys

RESUME_ME = 75
MEET_S = 60  # the agents have seen all nodes ready a moment ago


def main(words: list[str]) -> int:
    """Return 0, or the exit code of the process that failed first.

    It is 75 when that was killed: then it may be started again.
    """
    import torch
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    environ = os.environ
    gpus = torch.cuda.device_count()
    try:
        training, answering, words = divided(words, gpus)
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
    except torch.distributed.DistError as error:  # the other nodes did not come, or have gone
        print(f"torchrun: {error}", file=sys.stderr)
        return RESUME_ME
    return 0


def divided(words: list[str], gpus: int) -> tuple[list[int], list[int], list[str]]:
    """Return the GPUs that train, those that answer, and the words without what divides them.

    Raises ValueError for GPUs that this machine has not, and where none is left to train.
    """
    training, answering = list(range(gpus)), list[int]()
    if words[:1] == ["--spare"]:
        spare, words = int(words[1]), words[2:]
        training, answering = training[: max(0, gpus - spare)], training[max(0, gpus - spare) :]
    elif words[:1] == ["--train"]:
        said, words = (words[1], words[3]), words[4:]
        if gpus:
            training, answering = ([int(one) for one in some.split(",")] for some in said)
    if beyond := [one for one in (*training, *answering) if one >= gpus]:
        raise ValueError(f"there is no GPU {max(beyond)}: this machine has {gpus}")
    if gpus and not training:
        raise ValueError(f"{len(answering)} of {gpus} GPUs are to answer, and none is left to train")
    return training, answering, words


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
