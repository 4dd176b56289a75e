import os
import time

import pytest

from infra.agent.execution.figures import Figures
from tests.world import until

pytestmark = pytest.mark.process


def smi(folder, script):
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_disk_and_gpus_are_told_with_their_times(on_path):
    smi(on_path, "echo 'NVIDIA H100, 80GB, 93, 31200, 81559'; echo 'NVIDIA H100, 80GB, [N/A], 0, 81559'")
    figures = Figures(on_path)
    began = time.time()
    seen = until(lambda: (found := figures.look()).get("gpus") and found, "an answer", 20)
    assert seen["gpus"][0] == {
        "name": "NVIDIA H100, 80GB", "percent": 93, "used_bytes": 31200 << 20, "memory_bytes": 81559 << 20
    }  # fmt: skip
    assert seen["gpus"][1]["percent"] is None
    assert seen["disk_free_bytes"] > 0
    assert began <= seen["disk_at"] <= seen["gpus_at"] <= time.time()


@pytest.mark.parametrize("script", ["exec sleep 60", "echo 'no devices'; exit 9", "echo what"])
def test_a_driver_that_is_broken_is_not_waited_for(on_path, script):
    smi(on_path, script)
    figures = Figures(on_path)
    try:
        assert figures.look()["disk_free_bytes"] > 0
        if script.startswith("echo"):
            until(lambda: (figures.look(), figures.asked)[1] is None, "its answer", 20)
        assert "gpus" not in figures.look()
    finally:
        if figures.asked:
            figures.asked.kill()
            figures.asked.communicate()
