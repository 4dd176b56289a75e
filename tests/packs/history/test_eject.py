"""A run as plain files: the variables set by the script per step, and the notes about the machine."""

import json
import os
import subprocess

import pytest

from flows.runs import receipt
from flows.runs.receipt import Receipt
from packs.history.control import eject
from store.artifacts.artifacts import Store

pytestmark = pytest.mark.process

PYTHON = """#!/bin/sh
if [ "$1" = -c ]; then echo "$TORCH"; exit; fi
echo "$@, threads ${OMP_NUM_THREADS:-usual}, NOTE=$NOTE"
"""


@pytest.fixture
def make(tmp_path):
    """Return a function that writes the files of a run of a tokenizer and a phase on `machine`."""
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    for name in (*eject.CODE, "made"):
        (tmp_path / "here" / name).mkdir(parents=True)
        (tmp_path / "here" / name / "file.py").write_text("")

    def make(machine):
        store = tmp_path / "artifacts"
        about = {"machine": machine} if machine else {}
        Store(store).publish(tmp_path / "here" / "made", "base_checkpoints/tiny", "f" * 16, about)
        making = {"store": str(store), "name": "tokenizer", "fingerprint": "e" * 16, "inputs": {}}
        steps = [
            {"name": "tokenizer", "words": ["-m", "data", "tokenizer"], "config": {"making": making}},
            {
                "name": "base",
                "words": ["-m", "trainer", "base"],
                "config": {
                    "keeping": {},
                    "making": {**making, "name": "base_checkpoints/tiny", "fingerprint": "f" * 16},
                },
            },
        ]
        one = Receipt(
            run="deft-trout-1",
            at=0.0,
            commit="",
            diff_sha256="",
            environment="",
            provider="local",
            asked={},
            offer={},
            micro_usd_per_hour=0,
            store=str(store),
            job={"environ": {"NOTE": "it's two words"}, "torch": "cpu", "steps": steps},
        )
        eject.eject(one, tmp_path / "plain", tmp_path / "here")
        return one, tmp_path / "plain"

    return make


def run(folder, torch):
    environ = {**os.environ, "PYTHON": str(folder.parent / "python"), "TORCH": torch, "OMP_NUM_THREADS": "7"}
    return subprocess.run(["sh", folder / "run.sh"], env=environ, cwd="/", capture_output=True, text=True, check=True)


def test_each_step_has_the_variables_and_the_threads_of_the_run(make):
    machine = {"device": "cpu", "threads": 3, "units": "AVX2", "torch": "2.13.0+cpu"}
    one, folder = make(machine)
    assert receipt.environ_of(one, one.steps[1]) == {"NOTE": "it's two words", "OMP_NUM_THREADS": "3"}
    first = run(folder, "2.13.0+cpu")
    assert "-m data tokenizer --config config/tokenizer.json, threads 7, NOTE=it's two words\n" in first.stdout
    assert "-m trainer base --config config/base.json, threads 3, NOTE=it's two words\n" in first.stdout
    assert first.stderr == "" and json.loads((folder / "config" / "base.json").read_text())["keeping"] == {}
    again = run(folder, "2.13.0")
    assert "base: done already" in again.stdout and "-m trainer" not in again.stdout
    assert again.stderr == "PyTorch is 2.13.0 here and was 2.13.0+cpu: the last bits of the weights may differ\n"
    assert "The run had: 3 threads, PyTorch 2.13.0+cpu, AVX2." in (folder / "README.md").read_text()


@pytest.mark.parametrize("torch, asked", [
    ("2.13.0+cpu", []),
    ("", ["-m pip install uv",
          "-m uv pip install --python venv/bin/python --torch-backend cpu -r requirements.txt"]),
])  # fmt: skip
def test_run_on_a_cpu_gets_the_cpu_pytorch_from_pip_or_the_index_known_to_uv(make, tmp_path, torch, asked):
    _, plain = make({})
    (tmp_path / "bin").mkdir()
    fake = f"""#!/bin/sh
if [ "$2" = venv ]; then mkdir -p venv/bin; cp "$0" venv/bin/python; exit; fi
if [ "$1" = -c ] || [ "$2" = data ] || [ "$2" = trainer ]; then exit; fi
echo "$@" >> {tmp_path}/asked
case "$*" in *+cpu) [ -n "{torch}" ];; esac
"""
    (tmp_path / "bin" / "python3").write_text(fake)
    (tmp_path / "bin" / "python3").chmod(0o755)
    environ = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin"}
    subprocess.run(["sh", plain / "run.sh"], env=environ, capture_output=True, check=True)
    first, *others = (tmp_path / "asked").read_text().splitlines()
    assert first.startswith("-m pip install -r requirements.txt torch==") and first.endswith("+cpu")
    assert others == asked


def test_unknown_facts_about_the_machine_are_not_invented(make):
    _, folder = make(None)
    said = run(folder, "2.13.0")
    assert "-m trainer base --config config/base.json, threads 7, NOTE=" in said.stdout and said.stderr == ""
    assert "The run did not compute on a CPU, or the machine is unknown" in (folder / "README.md").read_text()
