"""`python -m trainer.spread WORDS`: `python WORDS` by torchrun, one process per GPU of this node, or one on its CPU.

Which node this is and where the first one listens stand in SLIPWAY_NODE_RANK, SLIPWAY_NUM_NODES, MASTER_ADDR and
MASTER_PORT. The number of nodes is fixed and node 0 has the checkpoints, so ranks are given, not drawn; whoever started
this starts all nodes again when one has failed. Exit codes are those of the processes, where torchrun says 1 for any.
"""

import os
import sys

RESUME_ME = 75


def main(words: list[str]) -> int:
    """0, the exit code of the process that failed first, or 75 when that was killed: then it may be started again."""
    import torch
    from torch.distributed import run as torchrun
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    environ = os.environ
    flags = {
        "nnodes": environ.get("SLIPWAY_NUM_NODES", "1"),
        "node-rank": environ.get("SLIPWAY_NODE_RANK", "0"),
        "nproc-per-node": str(torch.cuda.device_count() or 1),
        "master-addr": environ.get("MASTER_ADDR", "127.0.0.1"),
        "master-port": environ.get("MASTER_PORT", "29500"),
        "rdzv-conf": "timeout=60",
        "max-restarts": "0",
    }
    try:
        torchrun.run(torchrun.parse_args([*(f"--{name}={value}" for name, value in flags.items()), *words]))
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
