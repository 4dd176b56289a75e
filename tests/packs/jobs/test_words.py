"""Words of a job file that SkyPilot takes are taken here, with the same meaning."""

import json
import subprocess
import sys

import pytest

from infra.agent import shell
from infra.errors import UsageError
from infra.selection.machine_spec import MachineSpec
from infra.transport import shipment, sky_ignore
from packs.jobs.control import job_file, machines


def task_of(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return job_file.load(path).tasks[0]


@pytest.mark.parametrize(
    ("resources", "gpu", "num_gpus"),
    [
        ("{gpus: 'L40S:2'}", "L40S", 2),
        ("{gpus: {A100: 8}}", "A100", 8),
        ("{any_of: [{gpus: H100}]}", "H100", 1),
        ("{gpus: ['A100:4']}", "A100", 4),
    ],
)
def test_gpus_are_accelerators(tmp_path, resources, gpu, num_gpus):
    (wish,) = machines.wishes(task_of(tmp_path, f"resources: {resources}\nrun: x"), MachineSpec(), "", True, "f").wishes
    assert (wish.machine.gpu, wish.machine.num_gpus) == (gpu, num_gpus)
    with pytest.raises(UsageError, match="gpus and accelerators exclude each other; keep accelerators"):
        task_of(tmp_path, "resources: {gpus: A100, accelerators: A100}\nrun: x")


@pytest.mark.parametrize(
    ("key", "said", "amount"),
    [
        ("memory", "16384MB", "16"),
        ("memory", "16384M+", "16"),
        ("memory", "512Mi", "1"),
        ("memory", "64Gi", "64"),
        ("memory", "1.5GB", "2"),
        ("memory", "1048576KB", "1"),
        ("disk_size", "1TB", "1000"),
        ("disk_size", "0.25t", "250"),
        ("disk_size", "300gb", "300"),
        ("ephemeral_storage", "200Gi", "200"),
        ("ephemeral_storage", "100", "100"),
        ("cpus", "0.5", "1"),
    ],
)
def test_size_has_the_unit_of_the_file(tmp_path, key, said, amount):
    task = task_of(tmp_path, f"resources: {{{key}: {said}}}\nrun: x")
    (wish,) = machines.wishes(task, MachineSpec(), "", True, "f").wishes
    assert getattr(wish.machine, job_file.schema.ALIASES.get(key, key)) == amount


@pytest.mark.parametrize("said", ["16MB MB", "MB", "0MB", "0.0", "-1Gi", "16QB", "1e3", "1.2.3"])
def test_size_without_a_number_or_unit_is_refused(tmp_path, said):
    task = task_of(tmp_path, f"resources: {{memory: '{said}'}}\nrun: x")
    with pytest.raises(UsageError, match="expected a number above 0"):
        machines.wishes(task, MachineSpec(), "", True, "f")


def test_words_of_skypilot_are_taken(tmp_path):
    task = task_of(tmp_path, "name: 7b-chat\nnum_nodes:\nresources: {network_tier: Best}\nrun: x")
    assert (task.name, task.num_nodes) == ("7b-chat", 1)
    assert machines.wishes(task, MachineSpec(), "", True, "f").wishes[0].machine.network == "best"
    task = task_of(
        tmp_path,
        "envs: {RELEASE: 2026-03-14, AT: 2026-03-14 10:00:00, SKYPILOT_SHELF: a, SKYPILOT_DOCKER_SERVER: b}\nrun: x\n"
        "resources: {labels: {since: 2026-01-02}}",
    )
    assert task.envs == {
        "RELEASE": "2026-03-14",
        "AT": "2026-03-14 10:00:00",
        "SKYPILOT_SHELF": "a",
        "SKYPILOT_DOCKER_SERVER": "b",
    }
    assert task.resources.labels == {"since": "2026-01-02"}


@pytest.mark.parametrize("name", ["SKYPILOT_TASK_ID", "SKYPILOT_NODE_IPS", "SLIPWAY_ANY"])
def test_variable_that_slipway_sets_is_refused(tmp_path, name):
    with pytest.raises(UsageError, match=f"line 2: envs: {name}: Slipway sets this variable"):
        task_of(tmp_path, f"run: x\nenvs: {{{name}: a}}")


def test_every_key_of_a_copied_mount_is_used_or_named(tmp_path):
    (tmp_path / "a").write_text("a")
    task = task_of(
        tmp_path,
        f"run: x\nfile_mounts:\n  ~/a: {{source: {tmp_path}/a, mode: COPY, name: b, store: s3, persistent: false}}\n"
        "  ~/c: {name: c, mode: MOUNT_CACHED, type: DATASET_RW, config: {mount_cached: {transfers: 2}}}\n",
    )
    for is_rented, provider in ((True, ""), (False, "local")):
        notes = machines.wishes(task, MachineSpec(), provider, is_rented, "f").notes
        assert [one.partition(":  ")[0].split(": no")[0] for one in notes] == [
            "file_mounts: ~/a: name, store, persistent",
            "file_mounts: ~/c: type, config",
        ]


def test_cpus_and_memory_are_named_on_this_machine_only(tmp_path):
    task = task_of(tmp_path, "resources: {cpus: 512, memory: 4096}\nrun: x")
    assert machines.wishes(task, MachineSpec(), "local", False, "f").notes[0].startswith("cpus, memory: no effect")
    assert not any("no effect" in one for one in machines.wishes(task, MachineSpec(), "ssh", False, "f").notes)


@pytest.mark.parametrize(
    ("patterns", "sent"),
    [
        ("heavy.bin\n", {"a.py", "in/b.py", "in/deep/c.log", "d.log"}),
        ("*.log\n", {"a.py", "heavy.bin", "in/b.py", "in/heavy.bin"}),
        ("/d.log\n# a.py\n", {"a.py", "heavy.bin", "in/b.py", "in/heavy.bin", "in/deep/c.log"}),
        ("in/\n", {"a.py", "heavy.bin", "d.log"}),
        ("./in/**/c.log\n/a.*\n", {"heavy.bin", "in/b.py", "in/heavy.bin", "d.log"}),
        ("", {"a.py", "heavy.bin", "in/b.py", "in/heavy.bin", "in/deep/c.log", "d.log"}),
    ],
)
def test_skyignore_excludes_files_as_written(tmp_path, patterns, sent):
    for name in ("a.py", "heavy.bin", "in/b.py", "in/heavy.bin", "in/deep/c.log", "d.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / sky_ignore.NAME).write_text(patterns)
    assert set(shipment.survey(tmp_path)) == {*sent, sky_ignore.NAME}


@pytest.mark.process
def test_script_finds_skypilots_variables(tmp_path):
    text = 'import json, os; print(os.environ["SKYPILOT_INTERNAL_JOB_ID"], os.environ["SKYPILOT_CLUSTER_INFO"])'
    program = f"{sys.executable} -c '{text}'"
    config = tmp_path / "run.json"
    config.write_text(json.dumps({"text": program, "name": "", "task": 1, "num_tasks": 2}))
    environ = {"PATH": "/usr/bin:/bin", "SLIPWAY_WORK": str(tmp_path / "work"), "SLIPWAY_CLOUD": "runpod"}
    environ |= {"HOME": str(tmp_path), "SLIPWAY_RUN_ID": "both"}
    (tmp_path / "state").mkdir()
    words = [sys.executable, "-m", shell.__name__, "--config", str(config)]
    number, _, info = subprocess.run(words, env=environ, check=True, capture_output=True, text=True).stdout.partition(
        " "
    )
    assert number == "2" and json.loads(info)["cloud"] == "runpod" and json.loads(info)["cluster_name"] == "both"
