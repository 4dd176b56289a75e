"""A test that cannot run here is told, and in CI it is no success."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

HERE = Path(__file__).parent
TESTS = """
import pytest
from scripts.project import debian
from tests import needs

debian.PACKAGES["some-server"] = ("some-serverd",)

def test_fine():
    pass

@pytest.mark.needs("some-serverd")
def test_over_ssh():
    pass

@pytest.mark.parametrize("one", range(3))
def test_in_its_midst(one):
    needs.needs("some-serverd")

@pytest.mark.xfail
def test_known_to_fail():
    assert False
"""


def run(folder: Path, ci: str, *words: str) -> tuple[int, list[str]]:
    shutil.copy2(HERE / "conftest.py", folder)
    (folder / "test_some.py").write_text(TESTS)
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *words)
    environ = {**os.environ, "CI": ci, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=str)
def test_in_ci_a_skipped_test_fails_the_run_by_name(tmp_path, words):
    code, lines = run(tmp_path, "true", *words)
    assert code == 1
    assert "test_some.py::test_over_ssh: Skipped: some-serverd is missing (Debian: some-server)" in lines
    assert "1 passed, 4 skipped, 1 xfailed" in lines[-1]


@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=str)
def test_elsewhere_the_last_lines_say_how_many_were_skipped_and_why(tmp_path, words):
    code, lines = run(tmp_path, "", *words)
    assert code == 0
    about = next(number for number, line in enumerate(lines) if "4 tests could not run here" in line)
    assert lines[about + 1] == "    4  some-serverd is missing (Debian: some-server)"
    assert len(lines) - about <= 4 and "1 passed, 4 skipped, 1 xfailed" in lines[-1]


def test_without_skips_the_run_succeeds_in_ci_too(tmp_path):
    assert run(tmp_path, "true", "-k", "fine")[0] == 0
