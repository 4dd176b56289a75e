"""A job file: keys, refusals with the line number, and the requested machine."""

import os
from dataclasses import replace

import pytest

from flows.runs import work_kinds
from infra.errors import UsageError
from infra.selection.machine_spec import MachineSpec
from packs.jobs.control import job_file, job_steps, machines, schema


def job(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return job_file.load(path)


def machine_wishes(tmp_path, resources, provider="", is_rented=True, **typed):
    task = job(tmp_path, f"run: x\nresources: {resources}\n").tasks[0]
    return machines.wishes(task, MachineSpec(**typed), provider, is_rented, "job.yaml")


def test_job_file_is_distinguished_from_a_flag_file_by_its_keys(tmp_path):
    for text, is_job in (
        ("run: x", True),
        ("setup: x\n", True),
        ("resources: {}", True),
        ("gpu: H100", False),
        ("slipway: {train: {phase: base}}", True),
        ("name: a\n---\nrun: x", True),
        ("- run", False),
        ("", False),
    ):
        path = tmp_path / "file.yaml"
        path.write_text(text)
        assert (work_kinds.of_file(path) is not None) is is_job, text


def test_every_key_of_a_task_is_read_as_written(tmp_path):
    (tmp_path / "data").mkdir()
    (task,) = job(
        tmp_path,
        f"""
name: bert-qa
workdir: {tmp_path}
num_nodes: 2
envs: {{STAGE: 1.90, FAST: true, KEY: , EMPTY: ''}}
secrets: [HF_TOKEN]
file_mounts: {{~/data: {tmp_path}/data}}
setup: pip install -e .
run: |
  python train.py
resources:
  job_recovery: {{max_restarts_on_errors: 2, recover_on_exit_codes: [33, 34]}}
""",
    ).tasks
    assert (task.name, task.workdir, task.num_nodes) == ("bert-qa", tmp_path, 2)
    assert task.envs == {"STAGE": "1.90", "FAST": "true", "KEY": None, "EMPTY": ""}
    assert task.secrets == {"HF_TOKEN": None} and task.run == "python train.py\n"
    assert [(one.path, one.mode) for one in task.mounts] == [("~/data", "COPY")]
    assert machines.recovery_of(task) == (2, (33, 34))


def test_pipeline_has_the_name_of_its_head_and_its_tasks_in_order(tmp_path):
    file = job(tmp_path, "name: both\n---\nname: a\nrun: x\n---\nname: b\nrun: y\n")
    assert (file.name, [one.name for one in file.tasks]) == ("both", ["a", "b"])


BAD = {
    "runn: x\nrun: y": "line 1: unknown key 'runn'; did you mean run?",
    "run: x\ngpu: H100": "line 2: unknown key 'gpu'; in a job file write resources.accelerators",
    "run: x\nresources:\n  acelerators: H100": "line 3: unknown key 'resources.acelerators'; did you mean acc",
    "run: x\nresources:\n  any_of:\n    - {cpu: 1}": "unknown key 'resources.any_of.0.cpu'; did you mean cpus?",
    "run: x\nnum_nodes: two": "line 2: num_nodes: Expected `int | null`, got `str`",
    "run: x\nnum_nodes: -2": "line 2: num_nodes is -2",
    "run: x\nenvs:\n  A=B: 1": "line 3: envs: 'A=B' is not a valid name of a variable",
    "run: x\nenvs: {ON: 1}": "line 2: envs: put the names yes, no, on and off in quotes",
    "run: x\nenvs: {SKYPILOT_TASK_ID: 1}": "line 2: envs: SKYPILOT_TASK_ID: Slipway sets this variable",
    "run: x\nenvs: {A: 1}\nsecrets: {A: 2}": "line 3: A is both in envs and in secrets",
    "run: x\nworkdir: /etc/passwd": "line 2: workdir: /etc/passwd is a file",
    "run: x\nworkdir: /no/where": "line 2: workdir: the folder /no/where does not exist",
    "run: x\nfile_mounts:\n  /data: /no/where": "line 3: /data: /no/where cannot be read: No such file",
    "run: x\nfile_mounts:\n  /data: /dev/zero": "line 3: /data: /dev/zero is neither a file nor a folder",
    "run: x\nfile_mounts:\n  /data: ''": "line 3: /data: source is empty: write the file or folder to mount",
    "run: x\nfile_mounts:\n  /data:\n    name:\n    mode: COPY": "line 4: /data: name is empty: write the name of your",
    "run: x\nfile_mounts:\n  /data: {name: a, mode: MONT}": "line 3: mode is 'MONT'; did you mean MOUNT?",
    "run: x\nfile_mounts: {../up: /etc}": "line 2: file_mounts: '../up' cannot be the path",
    "run: x\npool: {workers: 2}": "line 2: pool: only SkyPilot has pools of workers",
    "service: {replicas: 2}\nresources: {cpus: 2}": "line 1: the file describes a service without a command; start the "
    "service with: inv serve.up",
    "service: {replicas: 2}\nrun: x\nslipway: {model: a}": "line 3: unknown key 'slipway.model'; this is a key of a "
    "service; start the service with: inv serve.up",
    "run: x\nresources: {max_hourly_cost: .nan}": "line 2: max_hourly_cost is nan",
    "run: x\nresources:\n  job_recovery: {recover_on_exit_codes: 300}": "line 3: recover_on_exit_codes: "
    "300 is not an exit",
    "resources: {cpus: 2}": "line 1: the task has neither `run` nor `setup`",
    "run: x\nname: -bad": "line 2: name: '-bad' is not a valid name",
    "run: x\nrun: y": "line 2 column 1: 'run' is given twice",
    "a: &a [*a]\nrun: x": "this value contains itself",
    "- run": "line 1: expected lines of the form",
    "run: [": "line 1",
    'run: "a\\0b"': "line 1: the text has a character that a file cannot hold",
    'run: x\nfile_mounts: {/a: "/x\\0y"}': "line 2: the text has a character that a file cannot hold",
    'run: x\nsetup: "\\ud800"': "line 2: the text has a character that a file cannot hold",
    "run: x\nresources: {ports: 70000}": "line 2: ports: 70000 is neither a port",
    "run: x\nresources: {ports: [8000, 9000-8000]}": "line 2: ports: '9000-8000' is neither a port",
    "run: x\nenvs: " + "[" * 50: "line 2: more than 16 levels",
    b"run: \xff\xfe": "can't decode",
    b"run: \x00": "",
    "run: " + "x" * 300_000: "longer than 256 KiB",
    "x: &a [" + "y," * 60 + "]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 6)}]\n" for n in range(9)
    ) + "run: x": "the file has more than 20000 values",
}  # fmt: skip


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_invalid_value_is_refused_with_its_line(tmp_path, text):
    with pytest.raises(UsageError) as refused:
        job(tmp_path, text)
    assert BAD[text] in str(refused.value) and "\n" not in str(refused.value)


def test_accelerators_are_a_kind_a_set_or_a_preference_order(tmp_path):
    for text, asked, is_ordered in (
        ("{accelerators: 'H100:8'}", [("H100", 8)], False),
        ("{accelerators: H100}", [("H100", 1)], False),
        ("{accelerators: {A100: 1, A100-80GB: 1, H100: 1}}", [("A100,A100-80GB,H100", 1)], False),
        ("{accelerators: {A100: 2, H100: 1}}", [("A100", 2), ("H100", 1)], False),
        ("{accelerators: {A100:8, A100-80GB:4}}", [("A100", 8), ("A100-80GB", 4)], False),
        ("{accelerators: {L4:8, A100:8, H100: 8}}", [("L4,A100,H100", 8)], False),
        ("{accelerators: {L4, H100:4}}", [("L4", 1), ("H100", 4)], False),
        ("{accelerators: ['H100:8', 'A100:8']}", [("H100", 8), ("A100", 8)], True),
        ("{}", [("", 0)], False),
    ):
        found = machine_wishes(tmp_path, text)
        assert [(one.machine.gpu, one.machine.num_gpus) for one in found.wishes] == asked, text
        assert found.is_ordered is is_ordered
    assert [one.machine.gpu for one in machine_wishes(tmp_path, "{accelerators: V100:4}", gpu="A100:2").wishes] == [
        "A100:2"
    ]
    assert [one.machine.gpu for one in machine_wishes(tmp_path, "{accelerators: V100:4}", gpu="none").wishes] == [""]


def test_resources_become_the_equivalent_flags(tmp_path):
    text = (
        "{infra: runpod/US-KS-2, cpus: 4+, memory: 4x, disk_size: 1TB, use_spot: true, max_hourly_cost: 2.5, "
        "network_tier: best, any_of: [{accelerators: A100:1}, "
        "{accelerators: H100:1, use_spot: false}]}"
    )
    first, second = machine_wishes(tmp_path, text).wishes
    assert first == machines.MachineWish(
        provider="runpod",
        machine=MachineSpec(
            gpu="A100",
            num_gpus=1,
            cpus="4",
            memory="16",
            disk_size="1000",
            use_spot=True,
            max_price="2.500000",
            network="best",
            region="US-KS-2",
        ),
    )
    assert second.machine == replace(first.machine, gpu="H100", use_spot=False)


def test_key_without_effect_is_reported(tmp_path):
    found = machine_wishes(
        tmp_path, "{disk_tier: best, ports: 8000, autostop: 10, labels: {a: b}, job_recovery: failover}"
    )
    keys = [one.split()[0] for one in found.notes]
    assert keys == ["disk_tier", "labels", "autostop", "ports", "job_recovery.strategy"]
    own = machine_wishes(tmp_path, "{use_spot: true, disk_size: 100, infra: gcp}", provider="local", is_rented=False)
    assert any(one.startswith("use_spot, disk_size: no effect") for one in own.notes)
    assert any(one.startswith("infra: gcp has no effect") for one in own.notes)


@pytest.mark.parametrize(
    ("resources", "why"),
    [
        ("{infra: awz}", "unknown cloud 'awz'; did you mean aws?"),
        (
            "{infra: aws}",
            "the entry is left out. Give a provider: --provider skypilot",
        ),
        ("{infra: nebius, accelerators: H100:8}", "--provider skypilot, which rents at these clouds"),
        ("{accelerators: 'A100:1 A100-80GB:1'}", "write accelerators: {A100: 1, A100-80GB: 1}"),
        ("{accelerators: H100:-1}", "H100:-1: expected a whole number"),
        ("{accelerators: H100:0.5}", "vendors rent whole GPUs only"),
        ("{accelerators: {H100: .inf}}", "H100:inf: expected a whole number"),
        ("{accelerators: {H100:x}}", "'H100:x'; expected a kind and a number"),
        ("{accelerators: {H100:8: 2}}", "'H100:8' is not a known GPU"),
        ("{accelerators: tpu-v4-8}", "the vendors of Slipway do not rent TPUs"),
        ("{memory: 4x}", "is GB per CPU; give cpus too"),
        ("{cpus: -4}", "expected a number above 0"),
        ("{disk_size: big}", "expected a number above 0"),
        ("{network_tier: fast}", "known: best, standard"),
    ],
)
def test_resources_that_no_provider_has_are_refused(tmp_path, resources, why):
    with pytest.raises(UsageError, match="line 2") as refused:
        machine_wishes(tmp_path, resources)
    assert why in str(refused.value)


def test_every_key_of_skypilot_is_known():
    """Compare with the schema of SkyPilot 0.14: each key is read, refused with advice, or reported as unused."""
    task = (
        "name workdir num_nodes resources envs secrets managed_secrets file_mounts volumes volume_mounts setup run "
        "service pool config event_callback inputs outputs file_mounts_mapping api_server_access"
    )
    resources = (
        "infra cloud region zone accelerators accelerator_args cpus memory instance_type use_spot job_recovery "
        "max_hourly_cost disk_size disk_tier network_tier local_disk ports image_id labels autostop priority "
        "priority_class volumes any_of ordered gpus ephemeral_storage"
    )
    assert set(task.split()) == set(schema.TaskFile.__dataclass_fields__) - {"slipway"}
    assert set(resources.split()) == set(schema.Resources.__dataclass_fields__)


def test_unsendable_file_is_refused_before_a_machine_is_chosen(tmp_path, monkeypatch):
    folder = tmp_path / "data"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    with pytest.raises(UsageError, match="/data/pipe is neither a file nor a folder"):  # The FIFO is not waited for.
        job(tmp_path, f"run: x\nfile_mounts: {{~/a: {folder}/pipe}}")
    for system in ("workdir: /proc", "workdir: /dev", "file_mounts: {~/a: /sys}"):  # Endless, and different each time.
        with pytest.raises(UsageError, match="is a folder of the system, not a project"):
            job_steps.lay_out(job(tmp_path, f"run: x\n{system}"), is_own=False)
    read = job(tmp_path, f"run: x\nfile_mounts: {{~/a: {folder}}}")
    with pytest.raises(UsageError, match="data: no file to send"):
        job_steps.lay_out(read, is_own=False)
    (folder / "nowhere").symlink_to("absent")
    (folder / "locked").write_text("x")
    job_steps.lay_out(read, is_own=False)
    may = os.access  # Root, as in tests, may read every file.
    monkeypatch.setattr(os, "access", lambda path, how: not str(path).endswith("locked") and may(path, how))
    with pytest.raises(UsageError, match="data/locked cannot be read for sending: permission denied"):
        job_steps.lay_out(read, is_own=False)
