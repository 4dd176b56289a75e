"""The tasks of a pipeline share a machine that satisfies all tasks, and a repository as the work folder is cloned."""

import contextlib
import subprocess

import pytest

from infra.errors import UsageError
from infra.records import Request
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from packs.jobs.control import job_file, job_steps, pipelines, resolve
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.work import JobWork
from tests.world import ROOT

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
    ("resources: {any_of: [{gpus: H100}, {gpus: A100}]}", "resources: {cpus: 4}"): {
        "any_of": [{"accelerators": "H100"}, {"accelerators": "A100"}],
        "cpus": 4,
    },
    ("resources: {cpus: 4, ordered: [{ephemeral_storage: 9, cpus: 8}]}", "resources: {cpus: 8}"): {
        "ordered": [{"disk_size": 9, "cpus": 8}],
        "cpus": 8,
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
    ("resources: {any_of: [{gpus: H100, cpus: 2}]}", "resources: {cpus: 8}"): "cpus",
    ("resources: {gpus: T4}", "resources: {ordered: [{accelerators: H100}, {gpus: T4}]}"): "accelerators",
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


@pytest.mark.parametrize("provider", ["runpod", "skypilot"])
def test_alternatives_of_a_pipeline_keep_their_gpus(tmp_path, provider):
    file = read(tmp_path, ("resources: {any_of: [{gpus: H100}, {gpus: 'A100:2'}]}", "resources: {cpus: 4}"))
    found = resolve.common_alternatives(file, MachineSpec(), provider, True).wishes
    assert [(one.machine.gpu, one.machine.num_gpus, one.machine.cpus) for one in found] == [
        ("H100", 1, "4"),
        ("A100", 2, "4"),
    ]


@pytest.mark.parametrize("provider", ["", "runpod", "skypilot", "local"])
@pytest.mark.parametrize(
    "tasks",
    [
        ("", "num_nodes: 2"),
        ("num_nodes: 2", ""),
        ("num_nodes: 2", "resources: {cpus: 2}"),
        ("resources: {}", "num_nodes: 2"),
    ],
)
def test_tasks_with_different_numbers_of_nodes_are_refused_with_a_line(tmp_path, tasks, provider):
    file, refused = read(tmp_path, tasks), Refusals("job")
    resolve.check(file, refused, provider, provider != "local", provider == "local", is_rehearsed=False)
    assert ["write the same num_nodes in each task" in one.text for one in refused.found] == [True]


DIFFERENT = ("secrets: {PASS: one}", "secrets: {PASS: two}")


@pytest.mark.parametrize(
    ("tasks", "lines"),
    [
        (DIFFERENT, [5]),
        (("envs: {A_TOKEN: one}", "envs: {A_TOKEN: two}"), [5]),
        (("secrets: {A_TOKEN: one}", "envs: {A_TOKEN: two}"), [5]),
        (("secrets: {PASS: one}", "secrets: {PASS: one}"), []),
        (("secrets: {PASS: one}", "secrets: {PASS2: two}"), []),
        (("envs: {SHELF: one}", "envs: {SHELF: two}"), []),  # Each script gets its own variables.
    ],
)
def test_different_secrets_of_one_name_are_refused(tmp_path, tasks, lines):
    file, refused = read(tmp_path, tasks), Refusals("job")
    resolve.check(file, refused, "runpod", is_rented=True, is_own=False, is_rehearsed=False)
    assert [one.line for one in refused.found] == lines
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    with pytest.raises(UsageError, match="line 5: .*in an earlier task") if lines else contextlib.nullcontext():
        resolve.values_of(file, {}, set(), settings)


def test_typed_secret_overrides_all_tasks_and_a_value_of_the_shell_does_not_replace_one(tmp_path, monkeypatch):
    settings = Settings.load(ROOT, environ={"HOME": str(tmp_path)})
    file = read(tmp_path, DIFFERENT)
    assert resolve.values_of(file, {"PASS": "three"}, {"PASS"}, settings)[1] == {"PASS": "three"}
    monkeypatch.setenv("PASS", "shell")
    with pytest.raises(UsageError, match="PASS has a different value in an earlier task"):
        resolve.values_of(read(tmp_path, ("secrets: {PASS: one}", "secrets: {PASS: }")), {}, set(), settings)


def engine_keys(file, envs, tmp_path):
    from packs.skypilot.control.managed_jobs import ManagedJobs

    work = JobWork(file=file, envs=envs, secrets={})
    return work._engine_keys(Request(run="a"), ManagedJobs(None, tmp_path))[0]


@pytest.mark.pack("skypilot")
def test_mounts_of_an_engine_at_one_path_are_refused_unless_they_are_equal(tmp_path):
    mount = "file_mounts: {{/out: {{name: {0}, store: r2}}}}"
    same = read(tmp_path, (mount.format("shelf"), mount.format("shelf")))
    assert engine_keys(same, ({}, {}), tmp_path)["file_mounts"] == {"/out": {"name": "shelf", "store": "r2"}}
    with pytest.raises(UsageError, match="line 5: file_mounts: /out is a different mount in an earlier task"):
        engine_keys(read(tmp_path, (mount.format("shelf"), mount.format("desk"))), ({}, {}), tmp_path)


@pytest.mark.pack("skypilot")
def test_variables_of_a_callback_reach_the_engine(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("event_callback: curl ${HOOK_URL}/$NAME_A\nrun: x\n")
    envs = {"HOOK_URL": "https://a", "NAME": "b", "NAME_A": "c", "PATH": "/x"}
    keys = engine_keys(job_file.read(path, Refusals("job")), (envs,), tmp_path)
    assert keys["envs"] == {"HOOK_URL": "https://a", "NAME_A": "c"}


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


@pytest.mark.parametrize("provider", ["runpod", pytest.param("skypilot", marks=pytest.mark.pack("skypilot"))])
@pytest.mark.parametrize("mode", ["MOUNT", "MOUNT_CACHED"])
def test_bucket_written_by_name_and_read_by_address_is_refused(tmp_path, provider, mode):
    text = (
        "run: x\nfile_mounts:\n  /cache:\n    name: lesson\n    store: gcs\n    mode: {0}\n{1}---\nrun: y\n"
        "file_mounts:\n  /data: gs://lesson/tokens\n  /other: {{name: other, mode: MOUNT_CACHED}}\n"
    )
    for more, lines in (
        ("", [3] * (provider != "skypilot" or mode == "MOUNT_CACHED")),
        ("    source: gs://lesson\n", []),
    ):
        (path := tmp_path / "job.yaml").write_text(text.format(mode, more))
        refused = Refusals(str(path))
        file = job_file.read(path, refused)
        resolve.check(file, refused, provider, is_rented=True, is_own=False, is_rehearsed=False)
        assert [one.line for one in refused.found] == lines
        assert all("write source: gs://lesson, a bucket" in one.text for one in refused.found)


@pytest.mark.parametrize("workdir", ["{ref: main}", "{url: 'https://x/y.git', branch: a}"])
def test_repository_without_url_or_with_an_unknown_key_is_refused(tmp_path, workdir):
    path = tmp_path / "job.yaml"
    path.write_text(f"workdir: {workdir}\nrun: x\n")
    with pytest.raises(UsageError, match="line 1: workdir: .*expected a folder, or url and ref"):
        job_file.load(path)
