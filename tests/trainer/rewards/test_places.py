"""The sandbox of answers works for a checkout in any folder, also below the /tmp that bubblewrap replaces."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.world import ROOT

pytestmark = [pytest.mark.process, pytest.mark.needs("bwrap")]
TRY = """
from trainer.rewards import jail
assert jail.__file__.startswith("/tmp/"), jail.__file__
(found,) = jail.run("def f(x): return x + 1", ["f(1)"], [], "bubblewrap")
print(found.plain)
"""


def test_bubblewrap_finds_a_checkout_under_tmp():
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        for name in ("trainer", "store", "data", "infra"):
            shutil.copytree(ROOT / name, Path(folder, name), ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run([sys.executable, "-c", TRY], cwd=folder, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
