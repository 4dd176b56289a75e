"""`python -m trainer.spread [--spare N] WORDS`: `python WORDS` by torchrun, one process per GPU of this node.

The last N GPUs are left to others. Without a GPU it is one process on the CPU.

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

    spare = 0
    if words[:1] == ["--spare"]:
        spare, words = int(words[1]), words[2:]
    gpus = torch.cuda.device_count()
    if gpus and gpus <= spare:
        print(f"{spare} of {gpus} GPUs are to be left to others, and none is left to train", file=sys.stderr)
        return 2
    environ = os.environ
    flags = [
        f"--nproc-per-node={gpus - spare if gpus else 1}",
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
