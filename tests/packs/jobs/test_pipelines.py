"""The tasks of a pipeline share a machine that satisfies all tasks, and a repository as the work folder is cloned."""

import subprocess

import pytest

from infra.errors import UsageError
from infra.selection.machine_spec import MachineSpec
from packs.jobs.control import job_file, job_steps, pipelines, resolve
from packs.jobs.control.refusals import Refusals

TASKS = "{0}\nname: a\nrun: x\n---\n{1}\nname: b\nrun: y\n"
SHARED = {
    ("resources: {cpus: 8+}", "resources: {gpus: 'A100:8', memory: 64}"): {
        "cpus": "8+",
        "accelerators": "A100:8",
        "memory": 64,
    },
    ("resources: {cpus: 2, memory: 8GB}", "resources: {cpus: 4+, memory: 4}"): {"cpus": "4+", "memory": "8GB"},
    ("resources: {infra: aws/us-east-2}", "resources: {infra: aws}"): {"infra": "aws/us-east-2"},
    ("resources: {infra: gcp}", "resources: {infra: gcp/*/us-east4-b, ephemeral_storage: 9}"): {
        "infra": "gcp/*/us-east4-b",
        "disk_size": 9,
    },
    ("resources: {image_id: 'docker:a', use_spot: true}", "resources: {use_spot: true, image_id: 'docker:a'}"): {
        "image_id": "docker:a",
        "use_spot": True,
    },
}
CONFLICTS = {
    ("resources: {accelerators: V100}", "resources: {accelerators: T4}"): "accelerators",
    ("resources: {infra: aws/us-east-1}", "resources: {infra: aws/us-east-2}"): "infra",
    ("resources: {use_spot: true, cpus: 2}", "resources: {cpus: 2}"): "use_spot",
    ("resources: {cpus: 2}", "resources: {cpus: 2, image_id: 'docker:a'}"): "image_id",
}


def read(tmp_path, tasks):
    path = tmp_path / "job.yaml"
    path.write_text(TASKS.format(*tasks))
    refused = Refusals(str(path))
    file = job_file.read(path, refused)
    job_file.refuse_keys(file, refused, is_engine=True)
    refused.raise_all()
    return file


@pytest.mark.parametrize("tasks", SHARED, ids=range(len(SHARED)))
def test_machine_of_a_pipeline_satisfies_every_task(tmp_path, tasks):
    file = read(tmp_path, tasks)
    assert pipelines.resources_of(file) == SHARED[tasks]
    found = resolve.common_alternatives(file, MachineSpec(), "skypilot", True)
    assert (pipelines.NOTE in found.notes) == ("image_id" not in tasks[0])


@pytest.mark.parametrize("tasks", CONFLICTS, ids=range(len(CONFLICTS)))
def test_conflict_between_tasks_is_refused_with_the_key(tmp_path, tasks):
    with pytest.raises(UsageError, match=f"line [15]: .*no machine satisfies {CONFLICTS[tasks]} of all tasks"):
        resolve.common_alternatives(read(tmp_path, tasks), MachineSpec(), "skypilot", True)


def test_machine_of_a_vendor_has_the_most_of_each_task(tmp_path):
    file = read(tmp_path, ("resources: {cpus: 8+, disk_size: 50}", "resources: {accelerators: 'A100:8', cpus: 4}"))
    (wish,) = resolve.common_alternatives(file, MachineSpec(), "runpod", True).wishes
    assert (wish.machine.gpu, wish.machine.num_gpus, wish.machine.cpus, wish.machine.disk_size) == (
        "A100",
        8,
        "8",
        "50",
    )


@pytest.mark.process
@pytest.mark.parametrize("ref", ["", "v1"])
def test_repository_is_cloned_by_setup_and_entered_by_run(tmp_path, ref):
    origin = tmp_path / "origin"
    git = ("git", "-C", str(origin), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "--quiet", str(origin)], check=True)
    for text in ("one", "two"):
        (origin / "own.txt").write_text(text)
        subprocess.run([*git, "add", "own.txt"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", text], check=True)
        if text == "one":
            subprocess.run([*git, "tag", "v1"], check=True)
    path = tmp_path / "job.yaml"
    path.write_text(f"workdir: {{url: {origin}, ref: {ref}}}\nrun: cat own.txt ~/sky_workdir/own.txt\n" if ref else
                    f"workdir: {{url: '{origin}'}}\nsetup: ls\nrun: cat own.txt ~/sky_workdir/own.txt\n")  # fmt: skip
    file = job_file.load(path)
    steps = job_steps.steps_of(file, job_steps.lay_out(file, is_own=True), [{}], (), True, "1")
    (tmp_path / "home").mkdir()
    for _ in range(2):  # A second setup continues with the clone.
        said = [
            subprocess.run(
                ["bash", "-c", step.config["text"]],
                cwd=tmp_path,
                env={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
            for step in steps
        ]
    assert said[-1] == ("one" if ref else "two") * 2


@pytest.mark.parametrize("workdir", ["{ref: main}", "{url: 'https://x/y.git', branch: a}"])
def test_repository_without_url_or_with_an_unknown_key_is_refused(tmp_path, workdir):
    path = tmp_path / "job.yaml"
    path.write_text(f"workdir: {workdir}\nrun: x\n")
    with pytest.raises(UsageError, match="line 1: workdir: .*expected a folder, or url and ref"):
        job_file.load(path)
