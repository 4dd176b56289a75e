"""Files of other tools are recognized, and answered with the command that does the same."""

import pytest

from flows.specs import foreign_files
from tests.world import World

FOREIGN = {
    "pod.yaml": (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n    - {name: a, image: lab/x, command: [python, work.py]}\n",
        "this is a Kubernetes Pod; start the command with: inv launch --cmd 'python work.py' --workdir .",
    ),
    "batch.yaml": (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n\n"
        "        - args: [sh, -c, 'a; b']\n          resources: {limits: {nvidia.com/gpu: 4}}\n",
        "this is a Kubernetes Job; start the command with: inv launch --cmd 'a; b' --workdir . --num-gpus 4",
    ),
    "cron.yml": ("apiVersion: v1\nkind: Deployment\nspec: 3\n", "this is a Kubernetes Deployment; start the command"),
    "compose.yaml": (
        "services:\n  web:\n    image: nginx\n    command: python -m http.server\n",
        "this is a file of Docker Compose; start the command with: inv launch --cmd 'python -m http.server'",
    ),
    "stack.yml": ("version: '3'\nservices: {a: {build: .}}\n", "this is a file of Docker Compose"),
    "task.dstack.yml": (
        "type: task\ncommands: [pip install x, python a.py]\nresources: {gpu: 24GB}\n",
        "this is a task of dstack; start the commands with: inv launch --cmd 'pip install x && python a.py'",
    ),
    "dev.dstack.yml": ("type: dev-environment\nide: vscode\n", "rent a machine without work with: inv pod.create"),
    "fleet.dstack.yml": ("type: fleet\nnodes: 2\n", "this is a fleet of dstack"),
    "train.sbatch": (
        "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH --gres=gpu:a100:4\n#SBATCH --time=1-12:00:00\nsrun python a.py\n",
        "batch script of Slurm; start the script with: inv launch --cmd 'bash train.sbatch' --workdir {0} --nodes 2 "
        "--num-gpus 4 --ttl 36h",
    ),
    "job.slurm": ("#!/bin/sh\n#SBATCH -N 1\n#SBATCH -t 02:30:00\n", "--nodes 1 --ttl 3h"),
    "run.sh": ("echo hi\n", "this is a shell script; start the script with: inv launch --cmd 'bash run.sh'"),
    "start": ("#!/usr/bin/env bash\necho\n", "this is a shell script"),
    "work.py": ('print("hello")\n', "inv launch --script {0}/work.py"),
    "tool": ("#!/usr/bin/env python3\nx = 1\n", "this is a Python program"),
    "notebook.ipynb": ("{}", "this is a notebook"),
}  # fmt: skip


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_file_is_named_with_the_command_that_does_the_same(tmp_path, name):
    text, wanted = FOREIGN[name]
    (tmp_path / name).write_text(text)
    assert wanted.format(tmp_path) in foreign_files.about(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        "run: x",
        "gpu: H100\n",
        "kind: Pod\nname: a\ngpuType: A100\ncommand: x",
        "service: {replicas: 2}\nrun: x",
        "services: a",
        "type: train",
        "- a",
        "a: [",
        "",
        "\0",
    ],
)
def test_file_of_slipway_is_not_foreign(tmp_path, text):
    (tmp_path / "file.yaml").write_text(text)
    assert foreign_files.about(tmp_path / "file.yaml") == ""


@pytest.mark.pack("jobs")
@pytest.mark.process
def test_bare_word_that_is_a_file_is_read_as_the_file(tmp_path):
    world = World(tmp_path / "world")
    (tmp_path / "talk").write_text("service: {replicas: 1}\nrunn: x\n")
    assert "runn" in world.run("serve.up", str(tmp_path / "talk")).stderr
    (tmp_path / "work.py").write_text("print(1)")
    for words in (("launch", str(tmp_path / "work.py")), ("doctor", "--lint", str(tmp_path / "work.py"))):
        done = world.run(*words)
        assert "--script" in " ".join(f"{done.stdout}{done.stderr}".split()) and done.returncode in (1, 2)
