"""Kills, signals and full disks: shards are whole or absent, and the result is the same after any interruption."""

import contextlib
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from data.card import CARD
from data.errors import DataError
from data.manifest import MANIFEST, PARTIAL, read_manifest
from data.single_writer import lock_folder
from data.verify import verify
from tests.data.conftest import ROOT, run_step
from tests.processes import is_running
from tests.programs import source

pytestmark = pytest.mark.process

LINES = 100_000
SPEC = {"val_ratio": 0.01, "seed": 7, "lines_per_shard": 4500, "keep_every_s": 0.02}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write distinct lines in five files."""
    folder = tmp_path_factory.mktemp("corpus")
    tail = " and a few words more" * 5
    for number in range(5):
        first, last = number * LINES // 5, (number + 1) * LINES // 5
        lines = (f"line {n} says \\ {n * 7919 % 1_000_003}{tail}\n" for n in range(first, last))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def undisturbed_files(corpus, tmp_path_factory):
    """Return the files of an undisturbed run with one process, by name."""
    folder = tmp_path_factory.mktemp("expected")
    spec = {**SPEC, "source": str(corpus), "workers": 1}
    done = run_step("text", {"out": str(folder / "out"), "spec": spec}, folder)
    assert (done.returncode, done.stderr) == (0, "")
    return contents(folder / "out")


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def listed_shards(folder):
    return read_manifest(folder, finished=False)["shards"] if (folder / MANIFEST).exists() else []


def start_step(tmp_path, **spec):
    (tmp_path / "config.json").write_text(json.dumps({"out": str(tmp_path / "out"), "spec": spec}))
    words = [sys.executable, "-m", "data", "text", "--config", str(tmp_path / "config.json")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)


def wait_for_marks(process, tmp_path, marks):
    """Wait for this many new marks, or for the end of the process."""
    state, seen, last = tmp_path / "out" / ".draft" / "state.json", -1, None
    deadline = time.monotonic() + 30
    while seen < marks and process.poll() is None:
        assert time.monotonic() < deadline
        with contextlib.suppress(FileNotFoundError):
            now = state.stat().st_mtime_ns
            seen, last = (seen + 1, now) if now != last else (seen, last)
        time.sleep(0.01)  # Between two checks.


def test_output_has_every_line_once_with_one_in_a_hundred_held_out(undisturbed_files):
    train, val = (json.loads(undisturbed_files[f"{part}/{MANIFEST}"]) for part in ("train", "val"))
    assert train["total_lines"] + val["total_lines"] == LINES
    assert 0.008 < val["total_lines"] / LINES < 0.012
    assert {shard["lines"] for shard in train["shards"][:-1]} == {SPEC["lines_per_shard"]}
    lines = [line for name, raw in undisturbed_files.items() if name.endswith(".txt") for line in raw.splitlines()]
    assert len(set(lines)) == LINES


@pytest.mark.nightly
def test_two_processes_killed_five_times_make_the_files_of_an_undisturbed_process(corpus, undisturbed_files, tmp_path):
    chance, kills, spec = random.Random(5), 0, {**SPEC, "source": str(corpus), "workers": 2}
    while kills < 5:
        process = start_step(tmp_path, **spec)
        wait_for_marks(process, tmp_path, chance.randint(0, 1))
        process.kill()
        process.communicate()
        kills += 1
        assert process.returncode == -signal.SIGKILL, "it must not come to its end"
        for shard in listed_shards(tmp_path / "out" / "train"):
            assert (tmp_path / "out" / "train" / shard["name"]).stat().st_size == shard["bytes"]
    assert listed_shards(tmp_path / "out" / "train"), "kills came too early to tell anything"
    process = start_step(tmp_path, **spec)
    assert process.communicate() == (None, "") and process.returncode == 0
    assert contents(tmp_path / "out") == undisturbed_files


def test_reader_processes_exit_without_a_parent(corpus, tmp_path):
    process = start_step(tmp_path, **SPEC, source=str(corpus), workers=4)
    wait_for_marks(process, tmp_path, 1)  # The first mark precedes the reader processes.
    process.send_signal(signal.SIGSTOP)  # So that the processes are in the middle of their work.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert len(children) == 3
    process.kill()
    process.wait()
    try:
        deadline = time.monotonic() + 30
        while any(is_running(int(child)) for child in children):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # Between two checks.
    finally:
        for child in filter(is_running, children):
            os.kill(int(child), signal.SIGKILL)
        process.stderr.close()


def test_second_writer_waits_for_the_first_and_then_names_it(corpus, undisturbed_files, tmp_path):
    spec = {**SPEC, "source": str(corpus), "workers": 1}
    process = start_step(tmp_path, **spec)
    wait_for_marks(process, tmp_path, 1)
    process.send_signal(signal.SIGSTOP)
    try:
        with (
            pytest.raises(DataError, match=f"process {process.pid} is writing to the folder"),
            lock_folder(tmp_path / "out", wait_s=0),
        ):
            pass
        other = start_step(tmp_path, **spec)
    finally:
        process.kill()
        process.communicate()
    assert other.communicate() == (None, "") and other.returncode == 0
    assert contents(tmp_path / "out") == undisturbed_files


def test_step_stops_when_its_command_was_killed(corpus, undisturbed_files, tmp_path):
    spec = {**SPEC, "source": str(corpus), "workers": 1}
    config = {"out": str(tmp_path / "out"), "spec": spec}
    starter = (
        "import json, sys; from pathlib import Path; from infra import train_env as inside\n"
        "for one in inside.run(('-m', 'data', 'text'), json.loads(sys.argv[1]), root=Path.cwd(),"
        " python=Path(sys.executable)): pass"
    )
    process = subprocess.Popen([sys.executable, "-c", starter, json.dumps(config)], cwd=ROOT, stderr=subprocess.PIPE)
    wait_for_marks(process, tmp_path, 1)
    process.kill()
    process.communicate()
    with lock_folder(tmp_path / "out", wait_s=30):  # After the exit of the step.
        assert (tmp_path / "out" / ".draft" / "state.json").exists(), "it went on to its end"
    process = start_step(tmp_path, **spec)
    assert process.communicate() == (None, "") and process.returncode == 0
    assert contents(tmp_path / "out") == undisturbed_files


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_signal_leaves_whole_shards_and_the_same_command_continues(corpus, undisturbed_files, tmp_path, number, code):
    spec = {**SPEC, "source": str(corpus), "workers": 1 if code == 75 else 2}
    while True:
        process = start_step(tmp_path, **spec)
        wait_for_marks(process, tmp_path, 3)
        process.send_signal(number)
        _, said = process.communicate()
        if process.returncode not in (0, -number):
            break
        assert contents(tmp_path / "out") == undisturbed_files  # The step finished before the signal; try again.
        shutil.rmtree(tmp_path / "out")
    assert (process.returncode, said.count("\n")) == (code, 1)
    assert "whole shards; to continue, run the same command again" in said
    other = start_step(tmp_path, **{**spec, "seed": 8})
    assert "run the command of the unfinished run again to continue" in other.communicate()[1] and other.returncode == 2
    problems = verify(tmp_path / "out" / "train")
    assert problems == [f"{MANIFEST}: not finished; to continue, run the same command again; {PARTIAL}"]
    process = start_step(tmp_path, **spec)
    assert process.communicate() == (None, "") and process.returncode == 0
    assert contents(tmp_path / "out") == undisturbed_files


def test_source_with_a_non_utf_8_name_is_read_and_resumed(corpus, undisturbed_files, tmp_path):
    source = tmp_path / os.fsdecode(b"raw\xff")
    shutil.copytree(corpus, source)
    process = start_step(tmp_path, **SPEC, source=str(source), workers=1)
    wait_for_marks(process, tmp_path, 2)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    before = {path: path.stat().st_ino for path in (tmp_path / "out").rglob("shard-*")}
    again = start_step(tmp_path, **SPEC, source=str(source), workers=1)
    assert (process.returncode, again.communicate(), again.returncode) in [(75, (None, ""), 0), (0, (None, ""), 0)], (
        said
    )
    assert before and all(path.stat().st_ino == number for path, number in before.items())
    assert [verify(tmp_path / "out" / part) for part in ("train", "val")] == [[], []]
    texts = {name: raw for name, raw in contents(tmp_path / "out").items() if name.endswith(".txt")}
    assert texts == {name: raw for name, raw in undisturbed_files.items() if name.endswith(".txt")}


def test_silent_source_does_not_block_a_stopping_step(tmp_path):
    config = {"out": str(tmp_path / "out"), "spec": {"source": "stdin", "lines_per_shard": 1}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", "data", "text", "--config", str(tmp_path / "config.json")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=ROOT, env=environ, stdin=pipe, stderr=pipe, text=True) as process:
        deadline = time.monotonic() + 30
        while not handles_signal(process.pid, signal.SIGTERM):
            assert time.monotonic() < deadline
            time.sleep(0.01)  # Between two checks.
        process.terminate()
        assert process.wait(30) == 75
        assert "no progress for" in process.stderr.read()


def handles_signal(pid, number):
    """Return whether a process handles this signal itself."""
    caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
    return int(caught, 16) >> (number - 1) & 1


@pytest.mark.nightly
def test_packed_shards_and_seen_documents_survive_a_kill_too(corpus, tmp_path):
    spec = {**SPEC, "source": str(corpus), "compression": "gzip", "dedup": "exact", "val_ratio": 0.0, "workers": 1}
    (tmp_path / "alone").mkdir()
    alone = start_step(tmp_path / "alone", **spec)
    process = start_step(tmp_path, **spec)
    wait_for_marks(process, tmp_path, 3)
    process.kill()
    process.communicate()
    process = start_step(tmp_path, **spec)
    assert process.communicate() == (None, "") and process.returncode == 0
    assert alone.communicate() == (None, "") and alone.returncode == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "alone" / "out")
    assert read_manifest(tmp_path / "out")["counts"]["duplicate"] == 0


def test_full_disk_keeps_the_whole_shards(corpus, undisturbed_files, tmp_path):
    config = {"out": str(tmp_path / "out"), "spec": {**SPEC, "source": str(corpus), "workers": 1, "dedup": "exact"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    limit = 5 << 19  # The file of hashes grows beyond the limit.
    done = subprocess.run(
        [sys.executable, "-m", "data", "text", "--config", str(tmp_path / "config.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert listed_shards(tmp_path / "out" / "train") and verify(tmp_path / "out" / "train")[1:] == []
    assert run_step("text", config, tmp_path).returncode == 0
    left = contents(tmp_path / "out")
    assert {name: raw for name, raw in left.items() if name.endswith(".txt")} == {
        name: raw for name, raw in undisturbed_files.items() if name.endswith(".txt")
    }


def test_finished_run_stays_until_the_next_run_is_whole(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "bad.jsonl").write_text('{"text": "four"}\n' * 3 + "{oops\n")
    out = {"out": str(tmp_path / "out")}

    def run(**spec):
        return run_step("text", {**out, "spec": {"workers": 1, "lines_per_shard": 2, **spec}}, tmp_path).returncode

    assert run(source=str(tmp_path / "a.txt")) == 0
    before = contents(tmp_path / "out")
    assert run(source=str(tmp_path / "bad.jsonl")) == 2
    assert {name: raw for name, raw in contents(tmp_path / "out").items() if not name.startswith(".draft")} == before
    assert run(source=str(tmp_path / "nothing.txt"), reuse_shards=True) == 0
    assert run(source=str(tmp_path / "a.txt"), take=1) == 0
    assert sorted(contents(tmp_path / "out")) == [CARD, MANIFEST, "shard-00000.txt"]
    assert (tmp_path / "out" / "shard-00000.txt").read_text() == "one\n"


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("compression", ["", "gzip"])
def test_kill_at_any_rename_or_removal_of_the_end_is_repaired(tmp_path, compression):
    """Kill the process at the first rename, then at the second, and so on, over a finished run of other options."""
    (tmp_path / "a.txt").write_text("".join(f"line {n}\n" for n in range(50)))
    spec = {"source": str(tmp_path / "a.txt"), "val_ratio": 0.2, "lines_per_shard": 15, "compression": compression}
    program = source("shard_until_killed")

    def run(out, kill_at, **more):
        words = [sys.executable, "-c", program, json.dumps({**spec, **more}), str(out), str(kill_at)]
        return subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60).returncode

    assert run(tmp_path / "expected", 0) == 0
    out, kill_at, code = tmp_path / "out", 0, -signal.SIGKILL
    assert run(out, 0, seed=8) == 0
    while code:
        kill_at += 1
        code = run(out, kill_at)
        assert code in (0, -signal.SIGKILL)
    assert kill_at > 5
    assert contents(out) == contents(tmp_path / "expected")
