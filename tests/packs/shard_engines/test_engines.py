"""Ranks on an external engine: started, followed, restarted after a kill, cancelled, merged."""

import os
import select
import signal
import subprocess
import sys

import pytest

import data.__main__
from data import card
from data.config import ConfigError, TextSpec
from data.errors import DataError, InputError
from data.merge import merge
from data.shards.pipeline import RunOptions, StoppedBySignal
from data.shards.pipeline import shard as shard_alone
from data.shards.shards import shard_paths
from data.text.inputs import Share
from packs.shard_engines.data.drive import shard
from packs.shard_engines.data.on_ray import run_task
from packs.shard_engines.data.ray import Ray
from packs.shard_engines.data.work import ShardWork, begin, locked, task_words
from tests.data.conftest import ROOT

ENVIRON = {**os.environ, "PYTHONPATH": str(ROOT)}
WORLD = 3


class LocalEngine:
    """The smallest possible engine: each rank is a process of this machine."""

    def __init__(self, kill=(), interrupt=False):
        self.kill, self.interrupt = set(kill), interrupt
        self.started, self.processes = [], []

    def start(self, work, ranks):
        self.started.append(list(ranks))
        for rank in ranks:
            name = work.name(rank)
            words = task_words(work, name)
            if rank in self.kill:
                # The rank waits for this, so the kill comes before the end of the rank.
                with locked(work.file(name, "lock")):
                    process = subprocess.Popen(words, cwd=ROOT, env=ENVIRON)
                    process.kill()
                    process.wait()
                self.kill.remove(rank)
            else:
                self.processes.append(subprocess.Popen(words, cwd=ROOT, env=ENVIRON))

    def status(self):
        if self.interrupt:
            signal.raise_signal(signal.SIGINT)
        return None if all(one.poll() is not None for one in self.processes) else "here"

    def cancel(self):
        for one in self.processes:
            one.terminate()
            one.wait(30)
        return f"{len(self.processes)} processes"


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "corpus").mkdir()
    for number in range(4):
        lines = (f"file {number} says {n * 7919 % 10_007}\n" for n in range(500 + number))
        (tmp_path / "corpus" / f"{number}.txt").write_text("".join(lines))
    return tmp_path / "corpus"


def text(corpus, **spec):
    return TextSpec(**{"source": str(corpus), "val_ratio": 0.2, "lines_per_shard": 300, **spec})


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def shard_on_engine(spec, folder, engine):
    """Return the summary of a command under the engine."""
    result = shard(spec, folder, RunOptions(), WORLD, engine)
    card.write(folder)
    return result


def run_ranks(spec, folder):
    """Run the same ranks in sequence in this process."""
    for rank in range(WORLD):
        shard_alone(spec, folder, True, RunOptions(workers=1), Share(rank=rank, world=WORLD))
    merge(folder)
    card.write(folder)
    return contents(folder)


@pytest.mark.process
def test_killed_rank_is_restarted_and_the_bytes_equal_one_machine(corpus, tmp_path):
    engine = LocalEngine(kill={1})
    result = shard_on_engine(text(corpus), tmp_path / "out", engine)
    assert engine.started == [[0, 1, 2], [1]]
    assert result["documents"] == 2006
    assert contents(tmp_path / "out") == run_ranks(text(corpus), tmp_path / "by-hand")
    shard_alone(text(corpus), tmp_path / "one", True, RunOptions(workers=1))
    for part in ("train", "val"):
        ours, theirs = (
            b"".join(path.read_bytes() for path in shard_paths(tmp_path / out, part)) for out in ("out", "one")
        )
        assert ours == theirs


@pytest.mark.process
def test_unreadable_input_is_reported_once_and_blocks_the_merge(corpus, tmp_path):
    (corpus / "3.txt").rename(corpus / "3.jsonl")
    with pytest.raises(InputError, match=r"^rank-00002-of-00003: .*3.jsonl:1: not JSON"):
        shard_on_engine(text(corpus), tmp_path / "out", LocalEngine())
    assert not (tmp_path / "out" / "train" / "manifest.json").exists()
    (corpus / "3.jsonl").write_text('{"text": "now it is"}\n')
    engine = LocalEngine()
    shard_on_engine(text(corpus), tmp_path / "out", engine)
    assert engine.started == [[0, 1, 2]]  # For the other ranks this is a different source.
    assert contents(tmp_path / "out") == run_ranks(text(corpus), tmp_path / "by-hand")


@pytest.mark.process
def test_interrupt_cancels_the_started_ranks_with_a_message(corpus, tmp_path):
    engine = LocalEngine(interrupt=True)
    with pytest.raises(StoppedBySignal, match=r"cancelled 3 processes, \d of 3 ranks finished") as stop:
        shard_on_engine(text(corpus), tmp_path / "out", engine)
    assert stop.value.exit_code == 130
    assert all(one.returncode is not None for one in engine.processes)
    shard_on_engine(text(corpus), tmp_path / "out", LocalEngine())
    assert contents(tmp_path / "out") == run_ranks(text(corpus), tmp_path / "by-hand")


def test_folder_admits_only_one_command(corpus, tmp_path):
    (tmp_path / "out" / ".engine").mkdir(parents=True)
    with locked(tmp_path / "out" / ".engine" / "command.lock"), pytest.raises(DataError, match="another process"):
        shard(text(corpus), tmp_path / "out", RunOptions(), WORLD, LocalEngine())


@pytest.mark.parametrize(
    ("world", "spec", "seen"),
    [
        (1, {}, "--world N"),
        (2, {"source": "stdin"}, "one machine only"),
        (5, {}, "4 files for a world of 5"),
        (2, {"take": 9}, "take looks at all documents"),
    ],
)
def test_unsupported_options_of_ranks_are_refused_before_any_start(corpus, tmp_path, world, spec, seen):
    with pytest.raises(InputError, match=seen):
        shard(text(corpus, **spec), tmp_path / "out", RunOptions(), world, LocalEngine())
    assert not (tmp_path / "out").exists()


def test_folder_with_shards_of_different_work_is_refused(corpus, tmp_path):
    (tmp_path / "out" / ".engine").mkdir(parents=True)
    how = {"workers": 1}
    work = begin(text(corpus), [], tmp_path / "out", 2, how)
    assert work == begin(text(corpus), [], tmp_path / "out", 2, how)
    (tmp_path / "out" / "train" / "rank-00001-of-00003").mkdir(parents=True)
    with pytest.raises(InputError, match="rank-00001-of-00003: this file does not belong to a world of 2"):
        begin(text(corpus), [], tmp_path / "out", 2, how)


def test_unknown_engine_is_refused(corpus, tmp_path):
    asked = {"source": str(corpus), "engine": "spark", "world": 2}
    with pytest.raises(ConfigError, match="engine is 'spark'; known: ray$"):
        data.__main__.text(asked, {}, tmp_path / "out", True)


@pytest.mark.process
def test_missing_ray_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="no ray here; install the cluster's version"):
        Ray("")
    with pytest.raises(InputError, match="no /nowhere/python; install"):
        Ray("/nowhere/python")
    (tmp_path / ".engine").mkdir()
    engine = Ray(sys.executable)
    engine.start(ShardWork(tmp_path, 2, 1), [0, 1])
    engine.process.wait(30)
    with pytest.raises(InputError, match="has no package ray; install the cluster's version"):
        engine.status()


@pytest.mark.process
def test_ray_task_returns_the_exit_code_of_its_process(tmp_path):
    (tmp_path / "ends.py").write_text("import sys\nsys.exit(int(sys.argv[2]))\n")
    words = [sys.executable, "-m", "ends", str(tmp_path)]
    assert [run_task(str(tmp_path), [*words, code], {}, 5) for code in "012"] == [0, 1, 2]
    with pytest.raises(RuntimeError, match="ended with exit code 75"):
        run_task(str(tmp_path), [*words, "75"], {}, 5)
    with pytest.raises(FileNotFoundError, match="cannot read /nowhere, which all machines must share"):
        run_task("/nowhere", [*words, "0"], {}, 5)


@pytest.mark.process
def test_task_does_not_outlive_its_parent(tmp_path):
    """The parent of a task is killed while the task waits for a lock; the task exits, and releases every lock."""
    work = ShardWork(tmp_path, 2, 1)
    work.home.mkdir()
    name = work.name(0)
    mother = (
        "import os, subprocess, sys\nenviron = {**os.environ, 'SLIPWAY_PARENT': str(os.getpid())}\n"
        "child = subprocess.Popen(sys.argv[1:], env=environ)\nprint(child.pid, flush=True)\nchild.wait()"
    )
    with locked(work.file(name, "lock")):
        words = [sys.executable, "-c", mother, *task_words(work, name)]
        process = subprocess.Popen(words, cwd=ROOT, env=ENVIRON, stdout=subprocess.PIPE, text=True)
        child = int(process.stdout.readline())
        descriptor = os.pidfd_open(child)
        process.kill()
        process.wait()
        assert select.select([descriptor], [], [], 30)[0]
    process.stdout.close()
    os.close(descriptor)
    assert work.code(name) is None
