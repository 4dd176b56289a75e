"""Lines of job files that fail later."""

import pytest

from flows.installation import doctor
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.records import Request
from infra.selection import registry
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from packs.jobs.control import machines, resolve
from packs.jobs.control.job_file import load
from packs.jobs.control.lint import lint
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.work import JobWork
from serve import file_checks
from tests.packs.jobs.test_job_file import BAD
from tests.world import ROOT

CASES = {
    "run: ray stop": (1, "`ray stop` also ends SkyPilot's own Ray"),
    "run: |\n  x\n  python -c 'ray.init(address=\"auto\")'": (3, "`auto` finds SkyPilot's own Ray"),
    "run: |\n  ray.init('auto')": (2, "`auto` finds"),
    "run: ray start --head --port=6380": (1, "6380 is the port of SkyPilot's own Ray"),
    "run: x\nsetup: |\n  pip install ray\n  ray start --head": (4, "setup: this section runs once per machine"),
    "run: head=$(echo $SKYPILOT_NODE_IPS | head -n1)": (1, 'without quotes the lines are joined; write "$NAME"'),
    "run: torchrun --master-port=29500 x.py": (1, "write $MASTER_PORT"),
    "run: serve --port 8000\nresources: {ports: 8001}": (1, "port 8000 is not among resources.ports"),
    "service: {replicas: 2}\nrun: x": (1, "resources.ports is missing"),
    "run: x\nenvs:\n  STAGE: 1.90": (3, "SkyPilot reads STAGE as 1.9; write '1.90'"),
    "run: x\nenvs:\n  IS_ON: yes": (3, "SkyPilot reads IS_ON as True; write 'yes'"),
    "run: x\nresources:\n  acelerators: H100": (3, "did you mean accelerators?"),
}


@pytest.mark.parametrize("text", CASES, ids=range(len(CASES)))
def test_line_that_fails_later_is_reported(tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    (found,) = lint(tmp_path / "job.yaml")
    assert found.line == CASES[text][0] and CASES[text][1] in found.text


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("HF_TOKEN: <your-huggingface-token>", True),
        ("HF_TOKEN: hf_xxxxxxxx", True),
        ("WANDB_API_KEY: your_key_here", True),
        ("HF_TOKEN: hf_1xxxA", False),
        ("MODEL: <your-model>", False),
        ("HF_TOKEN:", False),
    ],
)
def test_placeholder_of_a_secret_is_found_by_lint_and_plan(tmp_path, line, is_found):
    (path := tmp_path / "job.yaml").write_text(f"run: x\nenvs:\n  {line}\n")
    found = [one for one in lint(path) if "is a placeholder" in one.text]
    assert [one.line for one in found] == [3] * is_found
    name, _, value = line.partition(": ")
    environ = {"HOME": str(tmp_path), "SLIPWAY_STATE_FILE": str(tmp_path / "journal.db")}
    settings = Settings.load(ROOT, {"provider": "local"}, environ=environ)
    work = JobWork(file=load(path), envs=({},), secrets={name: value} if name != "MODEL" else {})
    notes = work.plan(settings, Request(run="r"), registry.provider(settings, "local"), Limits()).notes
    assert [one for one in notes if "is a placeholder" in one] == [
        one.text.replace("envs:", "secrets:") for one in found
    ]


NODES = "num_nodes: 2\nrun: |\n  mpirun -np 16 \\\n    -x NCCL_DEBUG=INFO \\\n    -H $hosts ./all_reduce\n"
TEMPLATES = "run: |\n  export RAY_HEAD_PORT=6385\n  ~/sky_templates/ray/start_cluster\n"
MISSING = {  # line of the call, providers with the program, and a part of the message
    "run: x\nsetup: |\n  apt-get update\n  sudo docker run --gpus all a": (
        4,
        "shadeform",
        "runpod and lium have no Docker",
    ),
    "run: docker compose up": (1, "shadeform", "image_id: docker:IMAGE"),
    NODES: (3, "ssh", "no ssh key for each other; start one process on each node"),
    "num_nodes: 2\nrun: deepspeed --hostfile hosts a.py": (2, "local", "torchrun --nnodes"),
    TEMPLATES: (3, "skypilot", "ray start --head"),
    "run: conda activate a": (1, "", "vendors have no conda"),
}


@pytest.mark.parametrize("text", MISSING, ids=range(len(MISSING)))
def test_call_of_a_program_that_machines_lack_is_found_by_lint_and_plan(tmp_path, text):
    (path := tmp_path / "job.yaml").write_text(text)
    line, able, part = MISSING[text]
    (found,) = lint(path)
    assert found.line == line and part in found.text and not found.is_refused
    assert [one.text for one in lint(path, "runpod")] == [
        found.text.replace("runpod and lium", "runpod").replace("of vendors", "of runpod")
    ]
    assert not able or lint(path, able) == []
    environ = {"HOME": str(tmp_path), "RUNPOD_API_KEY": "x" * 32, "SLIPWAY_RUNPOD_URL": "http://127.0.0.1:9"}
    environ["SLIPWAY_STATE_FILE"] = str(tmp_path / "journal.db")
    settings = Settings.load(ROOT, {"provider": "runpod"}, environ=environ)
    work = JobWork(file=load(path), envs=({},), secrets={})
    plan = work.plan(settings, Request(run="r"), registry.provider(settings, "runpod"), Limits())
    assert found.text.partition("; ")[2] in " / ".join(plan.notes)


@pytest.mark.parametrize(
    "text",
    [
        "run: mpirun -np 8 ./a\nnum_nodes: 2",
        "run: mpirun -H localhost:2 ./a",
        "setup: echo $KEY >> ~/.ssh/authorized_keys\nrun: mpirun -H $hosts a\nnum_nodes: 2",
        "run: |\n  # docker run a\n  pip install docker",
        "run: command -v docker && docker run a || bash a.sh",
        "run: |\n  if [ -f ~/sky_templates/ray/start_cluster ]; then\n    ~/sky_templates/ray/start_cluster\n  fi",
        "run: ~/sky_templates/ray/start_cluster || bash ray.sh",
        'run: echo "$SKYPILOT_NODE_IPS" | head -n1',
        "run: ray start --head --port=6379",
        "run: |\n  # ray stop would be wrong\n  pkill -f 'ray start --head --port=6379'",
        "run: serve --port 8000\nresources: {ports: 8000-8010}",
        "run: x\nenvs: {STAGE: '1.90', N: 3, F: 0.5}",
    ],
)
def test_correct_file_has_no_findings(tmp_path, text):
    (tmp_path / "job.yaml").write_text(text)
    assert lint(tmp_path / "job.yaml") == []


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_any_file_is_linted_or_refused_in_one_line(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_bytes(text) if isinstance(text, bytes) else path.write_text(text)
    try:
        assert lint(path)
    except UsageError as error:
        assert "\n" not in str(error)


SERVICE = "service:\n  replicas: 1\nresources:\n  ports: 8080\n{0}run: serve\n"
OF_SERVICES = {  # lines of the refusals, with a part of each
    "  memory: lots\n  accelerators: 'A100:x'\n": {5: "a number above 0", 6: "expected a kind and a number"},
    "  memory: lots\n": {5: "expected a number above 0"},
    "  image_id: 'docker:a'\nfile_mounts:\n  ~/a: s3://shelf/a\n": {7: "fetch s3://shelf/a"},
    "  any_of: [{accelerators: L4, cpus: 8}]\nworkdir: ./no-such\n": {5: "move cpus from any_of", 6: "no-such"},
    "  acelerators: L4\n": {5: "did you mean accelerators?"},
    "  gpus: L4\n  accelerators: A100\n": {5: "exclude each other"},
    "  gpus: L4\n  memory: 16384MB\n  ephemeral_storage: 200Gi\nenvs: {AT: 2026-03-14}\n": {},
    "  any_of: [{gpus: L4, infra: aws}, {gpus: A10G}]\n": {},
}


@pytest.mark.parametrize("text", OF_SERVICES, ids=range(len(OF_SERVICES)))
def test_refusals_of_a_service_come_at_once_with_their_lines(tmp_path, text):
    path = tmp_path / "talk.yaml"
    path.write_text(SERVICE.format(text))
    found = {one.line: one.text for one in lint(path) if one.is_refused}
    assert found.keys() == OF_SERVICES[text].keys(), found
    assert all(OF_SERVICES[text][line] in said for line, said in found.items()), found
    assert sorted(found.values()) == sorted(file_checks.refusals_of(path))


NODES = """\
service:
  readiness_probe: /health
  replicas: 1
resources: {accelerators: "H100:8", ports: 8000}
num_nodes: 2
setup: pip install vllm
run: vllm serve some/model --port 8000
"""


@pytest.mark.parametrize("provider", ["", "runpod", "lium", "local"])
def test_way_in_the_refusal_of_a_service_on_several_machines_is_open(tmp_path, provider):
    path = tmp_path / "serve.yaml"
    path.write_text(NODES)
    (found,) = [one for one in lint(path, provider) if one.is_refused]
    assert found.line == 5 and f"for one run on several machines: inv launch {path};" in found.text
    refused = Refusals(str(path))
    file = resolve.load(str(path), "", "", "", refused)
    resolve.check(file, refused, provider, provider != "local", provider == "local", is_rehearsed=False)
    assert refused.found == []
    asked = machines.wishes(file.tasks[0], MachineSpec(), provider, provider != "local", str(path))
    (note,) = [one for one in asked.notes if one.startswith("service has no effect: ")]
    assert "inv forward RUN PORT" in note and "inv serve.up" in note and file.tasks[0].num_nodes == 2


def test_value_of_a_secret_is_not_in_a_finding(tmp_path):
    (tmp_path / "job.yaml").write_text("run: x\nsecrets: {PIN: 0042}\nenvs: {A_KEY: 0043}\n")
    found = [one.text for one in lint(tmp_path / "job.yaml")]
    assert len(found) == 2 and not [one for one in found if "42" in one or "43" in one or "34" in one or "35" in one]


def test_folder_without_a_file_is_a_refusal_with_its_line(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "job.yaml").write_text(f"run: x\nworkdir: {tmp_path}/empty\nfile_mounts:\n  ~/a: {tmp_path}/empty\n")
    found = lint(tmp_path / "job.yaml")
    assert [(one.line, one.text.partition(":")[0]) for one in found] == [(2, "workdir"), (4, "file_mounts")]


def test_lines_to_fix_are_reported_and_other_files_are_refused(tmp_path):
    (tmp_path / "job.yaml").write_text("run: ray stop\n")
    (one,) = doctor.lint(str(tmp_path / "job.yaml"))
    assert (one.name, one.state) == (f"{tmp_path}/job.yaml:1", "warn")
    for path in (tmp_path, tmp_path / "nowhere.yaml"):
        with pytest.raises(UsageError):
            doctor.lint(str(path))
    (tmp_path / "flags.yaml").write_text("gpu: H100\n")
    with pytest.raises(UsageError, match="not a job file"):
        doctor.lint(str(tmp_path / "flags.yaml"))
