"""What a program does with the machine before its first tensor."""

import os
import subprocess
import sys

import pytest

from tests.programs import source
from tests.world import ROOT
from trainer import device

COUNT = source("page_faults")


@pytest.mark.process
def test_memory_that_tensors_leave_behind_is_taken_again_unless_the_allocator_was_told_otherwise():
    ours = {name: value for name, value in os.environ.items() if not name.startswith(device.MALLOC_SETTINGS)}
    told = {**ours, "MALLOC_MMAP_THRESHOLD_": "65536"}
    kept, new = (
        int(subprocess.run([sys.executable, "-c", COUNT], env=one, cwd=ROOT, check=True, capture_output=True).stdout)
        for one in (ours, told)
    )
    assert kept < 1000 < 8 * (64 << 20) // 4096 * 0.9 < new


def test_an_allocator_that_was_told_what_to_do_is_left_alone(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    assert not device.keep_freed_memory()
