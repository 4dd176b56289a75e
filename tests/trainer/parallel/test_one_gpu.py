"""Several processes on one GPU, by NCCL, train like one process."""

import json
import os
import socket
import subprocess
import sys

import pytest

from tests.programs import source
from tests.trainer.conftest import WAIT_S

pytestmark = [pytest.mark.gpu, pytest.mark.process, pytest.mark.timeout(600)]


def losses(size: int, way: str) -> list[float]:
    """Return the losses of `size` processes, two on each simulated node.

    NCCL refuses two processes of one machine that share a GPU; NCCL_HOSTID makes NCCL see two machines.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "LOCAL_RANK": "0"}
    where |= {"WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": "2", "NCCL_NET": "Socket"}
    where |= {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
    words, pipe = [sys.executable, "-c", source("losses"), way], subprocess.PIPE
    started = [
        subprocess.Popen(
            words, env={**os.environ, **where, "RANK": str(rank), "NCCL_HOSTID": f"host{rank}"}, stdout=pipe, text=True
        )
        for rank in range(size)
    ]
    said = [one.communicate(timeout=2 * WAIT_S)[0] for one in started]
    assert [one.returncode for one in started] == [0] * size
    return json.loads(said[0])


@pytest.fixture(scope="module")
def single_process_losses():
    return losses(1, "ddp")


@pytest.mark.parametrize(("size", "way"), [(2, "ddp"), (2, "fsdp"), (2, "fsdp-held"), (4, "hybrid")])
def test_several_processes_on_one_gpu_have_the_losses_of_one(size, way, single_process_losses):
    assert losses(size, way) == pytest.approx(single_process_losses, rel=1e-4)  # bfloat16; float32 with gloo on a CPU.
