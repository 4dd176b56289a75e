import json
import os
import time

import pytest

from infra.agent.execution.utilization import GpuHistory, UtilizationSampler
from tests.world import until

pytestmark = pytest.mark.process


def smi(folder, script):
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "nvidia-smi").chmod(0o755)


@pytest.fixture
def on_path(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def test_disk_and_gpus_are_reported_with_times(on_path):
    smi(on_path, "echo 'NVIDIA H100, 80GB, 93, 31200, 81559'; echo 'NVIDIA H100, 80GB, [N/A], 0, 81559'")
    figures = UtilizationSampler(on_path)
    began = time.time()
    seen = until(lambda: (found := figures.sample()).get("gpus") and found, "an answer", 20)
    assert seen["gpus"][0] == {
        "name": "NVIDIA H100, 80GB",
        "percent": 93,
        "used_bytes": 31200 << 20,
        "memory_bytes": 81559 << 20,
        "peak_bytes": 31200 << 20,
    }
    assert seen["gpus"][1]["percent"] is None
    assert seen["disk_free_bytes"] > 0
    assert began <= seen["disk_at"] <= seen["gpus_at"] <= time.time()


@pytest.mark.parametrize("script", ["exec sleep 60", "echo 'no devices'; exit 9", "echo what"])
def test_a_broken_driver_does_not_block(on_path, script):
    smi(on_path, script)
    figures = UtilizationSampler(on_path)
    try:
        assert figures.sample()["disk_free_bytes"] > 0
        if script.startswith("echo"):
            until(lambda: (figures.sample(), figures.asked)[1] is None, "its answer", 20)
        assert "gpus" not in figures.sample()
    finally:
        if figures.asked:
            figures.asked.kill()
            figures.asked.communicate()


def gpu(used, percent=50):
    return {"name": "H100", "percent": percent, "used_bytes": used, "memory_bytes": 100}


def test_gpu_memory_is_recorded_every_minute_and_the_peak_survives_the_agent(tmp_path, monkeypatch):
    file, now = tmp_path / "gpus.log", [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    history = GpuHistory(file)
    for minute in range(180):
        for used in (10 + minute, 30 + minute, 20):
            history.add([gpu(used, percent=used), gpu(None, percent=None)])
            now[0] += 20
    history.append_line()
    history.append_line()  # no new record
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(lines) == 181  # three hours: the first answer, one per minute, and the rest
    assert set(lines[0]) == {"at", "used_bytes", "memory_bytes", "percent"} and lines[0]["memory_bytes"] == [100, 100]
    assert lines[90]["used_bytes"] == [30 + 89, None] and lines[90]["percent"][1] is None
    assert max(line["used_bytes"][0] for line in lines) == 209

    file.write_text(file.read_text() + '{"at": 1, "used_')  # a kill left half a line
    seen = [gpu(5), gpu(7)]
    GpuHistory(file).add(seen)
    assert [one["peak_bytes"] for one in seen] == [209, 7]


def test_a_changed_number_of_gpus_begins_a_new_line(tmp_path):
    history = GpuHistory(tmp_path / "gpus.log")
    history.add([gpu(1), gpu(2)])
    history.add([gpu(3), gpu(4)])
    history.add([gpu(5)])
    history.append_line()
    lines = [json.loads(line)["used_bytes"] for line in (tmp_path / "gpus.log").read_text().splitlines()]
    assert lines == [[1, 2], [3, 4], [5]]
