"""Skipped tests are reported, and fail in CI; tests that start processes need a mark; randomness is fixed by day."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pure, seeds

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


IMPURE = """
import multiprocessing, os, socket, subprocess, threading
import pytest

def start_a_program():
    subprocess.run(["true"])

def start_a_copy():
    multiprocessing.get_context("spawn").Process(target=print).start()

def fork():
    if os.fork() == 0:
        os._exit(0)

def listen():
    socket.create_server(("127.0.0.1", 0)).close()

def listen_in_a_thread():
    thread = threading.Thread(target=listen)
    thread.start()
    thread.join()

def swallow():
    try:
        listen()
    except BaseException:
        pass

WAYS = (start_a_program, start_a_copy, fork, listen, listen_in_a_thread, swallow)

@pytest.mark.parametrize("way", WAYS)
def test_unmarked(way):
    way()

@pytest.mark.process
@pytest.mark.parametrize("way", (start_a_program, fork, listen))
def test_marked(way):
    way()

def test_pure():
    a, b = socket.socketpair()
    a.close(), b.close()
"""
CHANCE = """
import sys
from hypothesis import given, strategies as st
from tests import seeds

def test_some():
    drawn = []

    @given(st.integers())
    def draw(one):
        drawn.append(one)

    draw()
    print("DRAWN", seeds.seed(), seeds.examples(2, 9), drawn[:30], file=sys.__stdout__)
"""


def run(folder: Path, ci: str, *words: str, tests: str = TESTS, **more: str) -> tuple[int, list[str]]:
    shutil.copy2(HERE / "conftest.py", folder)
    (folder / "test_some.py").write_text(tests)
    words = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--rootdir", str(folder), *words)
    own = {name: value for name, value in os.environ.items() if name != seeds.VARIABLE}
    environ = {**own, "CI": ci, "PYTHONPATH": str(HERE.parent), **more}
    done = subprocess.run(words, cwd=folder, env=environ, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=str)
def test_in_ci_a_skipped_test_fails_the_run_by_name(tmp_path, words):
    code, lines = run(tmp_path, "true", *words)
    assert code == 1
    assert "test_some.py::test_over_ssh: Skipped: some-serverd is missing (Debian: some-server)" in lines
    assert "1 passed, 4 skipped, 1 xfailed" in lines[-1]


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("words", [(), ("-n", "1")], ids=str)
def test_outside_ci_the_last_lines_count_skips_with_reasons(tmp_path, words):
    code, lines = run(tmp_path, "", *words)
    assert code == 0
    about = next(number for number, line in enumerate(lines) if "4 tests could not run here" in line)
    assert lines[about + 1] == "    4  some-serverd is missing (Debian: some-server)"
    assert len(lines) - about <= 4 and "1 passed, 4 skipped, 1 xfailed" in lines[-1]


def test_a_run_without_skips_succeeds_in_ci_too(tmp_path):
    assert run(tmp_path, "true", "-k", "fine")[0] == 0


@pytest.mark.parametrize("words", [(), ("--fast",)], ids=str)
def test_an_unmarked_test_with_a_process_or_socket_fails_with_a_hint(tmp_path, words):
    code, lines = run(tmp_path, "", *words, tests=IMPURE)
    # a thread may be left over from an earlier test: only --fast checks threads
    threads = 0 if words else 1
    ran = 0 if words else 3
    assert code == 1 and f"{6 - threads} failed, {1 + threads + ran} passed" in lines[-1], lines
    assert sum("mark the test, or its module, with pytest.mark.process" in line for line in lines) >= 6 - threads


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=str)
def test_a_run_of_many_files_ends_with_its_slowest_files(tmp_path, words):
    for number in range(11):
        (tmp_path / f"test_{number}.py").write_text(f"import time\ndef test(): time.sleep({2 if number == 7 else 0})\n")
    code, lines = run(tmp_path, "", "--ignore=test_some.py", *words)
    about = next(number for number, line in enumerate(lines) if " the 10 slowest of 11 files " in line)
    assert code == 0 and lines[about + 1].split() == ["2", "s", "test_7.py"], lines
    assert lines[about + 11].split()[1:] == ["s", "all,", "added", "up", "over", "the", "workers"]


def test_module_without_selected_tests_is_imported_only_if_the_command_names_the_file(tmp_path):
    (tmp_path / "folder").mkdir()
    for mark in ("process", "slow", "nightly"):
        text = f"import pytest\npytestmark = [\n    pytest.mark.{mark},\n    pytest.mark.timeout(9),\n]\n1 / 0\n"
        (tmp_path / "folder" / f"test_{mark}.py").write_text(text)
    night = "import pytest\npytestmark = pytest.mark.nightly\ndef test_night(): 1 / 0\n"
    (tmp_path / "test_named.py").write_text(night)
    code, lines = run(tmp_path, "", "--fast", "-m", "not nightly", "folder", "test_named.py", "test_some.py")
    assert code == 0 and "1 passed, 4 skipped, 1 deselected, 1 xfailed" in lines[-1], lines


@pytest.mark.parametrize(
    ("markexpr", "marks"),
    [
        ("not gpu and not account and not nightly", {"gpu", "account", "nightly"}),
        ("not gpu and not account", {"gpu", "account"}),
        ("gpu", set()),
        ("gpu and not account", {"account"}),
        ("process or not gpu and not nightly", set()),
        ("not (gpu and not nightly)", set()),
        ("", set()),
    ],
)
def test_marks_without_a_selected_test_are_found_in_the_selection(markexpr, marks):
    assert pure.left_out(markexpr) == marks


@pytest.mark.nightly
def test_seeds_are_fixed_by_day_new_at_night_and_repeatable_by_number(tmp_path):
    def drawn(*words: str, **more: str) -> str:
        code, lines = run(tmp_path, "", "-s", *words, tests=CHANCE, **more)
        assert code == 0, lines
        return next(line for line in lines if "DRAWN" in line)

    day, night = ("-m", "not nightly"), ("-m", "not gpu")
    assert drawn(*day) == drawn(*day) and f"DRAWN {seeds.BY_DAY} 2 " in drawn(*day)
    first, second = drawn(*night), drawn(*night)
    assert first != second and first.split()[2] == "9" and first.split()[1] != second.split()[1]
    assert "DRAWN 77 " in drawn(*night, SLIPWAY_TEST_SEED="77") and "DRAWN 77 " in drawn(*day, SLIPWAY_TEST_SEED="77")
