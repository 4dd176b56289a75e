"""A test that cannot run is no success."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
TESTS = """
import pytest

def test_fine():
    pass

@pytest.mark.skipif(True, reason="sshd is missing")
def test_over_ssh():
    pass

@pytest.mark.xfail
def test_known_to_fail():
    assert False
"""


def run(folder: Path, *words: str) -> tuple[int, list[str]]:
    shutil.copy2(HERE / "conftest.py", folder)
    (folder / "test_some.py").write_text(TESTS)
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *words)
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=str)
def test_a_skipped_test_fails_the_run_by_name(tmp_path, words):
    code, lines = run(tmp_path, *words)
    assert code == 1
    assert "test_some.py::test_over_ssh: Skipped: sshd is missing" in lines
    assert "1 passed, 1 skipped, 1 xfailed" in lines[-1]


def test_without_skips_the_run_succeeds(tmp_path):
    assert run(tmp_path, "--deselect", "test_some.py::test_over_ssh")[0] == 0
