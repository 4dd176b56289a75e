"""Several processes that train as one, forked from a test: one second each, compared with ten for a program.

Input: the number of processes, and a function of each process's `Ranks`. Output: their messages, and the end of each.
Required modules are imported before the fork.
"""

import importlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import torch

from tests.faults.lives import Child, Tell, fork
from trainer.errors import PeerLost
from trainer.parallel.process_group import Ranks, join_process_group

GROUP_TIMEOUT_S = 30.0
Work = Callable[[Ranks, Tell], None]


def import_ahead() -> None:
    """Import slow modules once, before the first fork, because every pytest worker imports this module."""
    for name in ("torch._dynamo", "torch.distributed.fsdp"):
        importlib.import_module(name)


def fork_processes(size: int, work: Work, per_node: int = 0, timeout_s: float = GROUP_TIMEOUT_S) -> list[Child]:
    """Fork `size` processes that run `work`, per_node on each simulated node (all on one); they hold no inherited
    locks.
    """
    import_ahead()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def one(rank: int, tell: Tell) -> None:
        os.environ |= {
            "WORLD_SIZE": str(size),
            "RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(per_node or size),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "SLIPWAY_GROUP_TIMEOUT_S": str(timeout_s),
        }
        logging.disable()
        torch.set_num_threads(1)
        try:
            with join_process_group() as ranks:
                work(ranks, tell)
        except PeerLost as error:  # Like the program: no further wait.
            tell("lost", str(error).replace("\n", " ")[:200])
            os._exit(PeerLost.exit_code)

    return [fork(lambda tell, rank=rank: one(rank, tell)) for rank in range(size)]


def together(size: int, work: Work, per_node: int = 0, timeout_s: float = GROUP_TIMEOUT_S) -> list[dict[str, Any]]:
    """Return the last messages of each process, by rank; raise Wrong after a failure."""
    if size == 1:
        import_ahead()

        def alone(tell: Tell) -> None:
            # The threads of PyTorch do not survive a fork: a child of a process that has used them waits forever.
            torch.set_num_threads(1)
            work(Ranks(), tell)

        return [dict(fork(alone).wait(120.0))]
    return [dict(child.wait(4 * timeout_s)) for child in fork_processes(size, work, per_node, timeout_s)]
