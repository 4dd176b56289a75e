"""Custom jobs: the same pipeline as a training, on this machine and in the rehearsed market."""

import json
import os
from pathlib import Path

import pytest

from infra.agent.job import Job
from infra.ledger.journal import Journal
from infra.rehearsal import attach
from store.backends.backend import open_place
from tests.store.conftest import KEY
from tests.store.conftest import s3_server as s3_server
from tests.world import ROOT, World, until

pytestmark = pytest.mark.process

SECRET = "top-" + "hush"
JOB = """
name: mine
num_nodes: {nodes}
workdir: {folder}/my files
envs: {{STAGE: 1.90, NEEDED: }}
secrets: {{DB_DSN: }}
file_mounts: {{~/data/words.txt: {folder}/words.txt}}
resources: {{accelerators: 'H100:8', use_spot: true, job_recovery: {{max_restarts_on_errors: 1}}}}
setup: |
  echo once >> ~/setups
  python -m pip --version && python -c "import sys; assert sys.prefix != sys.base_prefix"
run: |
  [ "${{#DB_DSN}}" = 8 ] || exit 9
  echo "stage $STAGE needed $NEEDED in $(basename "$PWD") of $(cat own.txt) with $(cat ~/data/words.txt)"
  echo "rank $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES id $SKYPILOT_TASK_ID gpus $SKYPILOT_NUM_GPUS_PER_NODE"
  echo "$(echo "$SKYPILOT_NODE_IPS" | wc -l) addresses; home in the pod: ${{HOME#"$SLIPWAY_WORK"}}"
  sleep $SKYPILOT_NODE_RANK
  [ -e ~/failed ] || {{ touch ~/failed; exit 3; }}
  python -c "from slipway import checkpoint; print('sdk', checkpoint.RESUME_ME)"
"""


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path / "world")
    yield one
    one.inv("down", "--all")


def job_file(folder, nodes=1):
    (folder / "my files").mkdir(parents=True, exist_ok=True)
    (folder / "my files" / "own.txt").write_text("mine")
    (folder / "my files" / ".env").write_text("HF_TOKEN=hf_never")
    (folder / "words.txt").write_text("words")
    path = folder / "job.yaml"
    path.write_text(JOB.format(folder=folder, nodes=nodes))
    return str(path)


@pytest.mark.nightly
def test_job_of_two_nodes_runs_here_and_its_secret_is_written_only_once(world, tmp_path):
    words = ["launch", job_file(tmp_path, 2), "-e", "NEEDED=yes", "--secret", f"DB_DSN={SECRET}", "--provider", "local"]
    done = world.json(*words, "-n", "pair")
    assert (done["state"], done["ran"]) == ("succeeded", ["setup", "run"])
    for rank, name in enumerate(("pair", "pair.1")):
        pod = world.folder / "pods" / name
        log = (pod / "logs" / "run.log").read_text()
        assert "stage 1.90 needed yes in workdir of mine with words\n" in log
        assert f"rank {rank} of 2 id pair gpus 0\n2 addresses; home in the pod: /home\n" in log
        assert "restart 1 of 1" in log and log.endswith("sdk 75\n")
        assert (pod / "work" / "home" / "setups").read_text() == "once\n"
        assert not (pod / "workdir" / ".env").exists()
        held = [path.name for path in pod.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
        assert set(held) <= {"secrets.json"}
    with Journal.open(world.folder / "state" / "journal.db") as journal:
        rows = journal.ops(run="pair")
        assert all(SECRET not in (row.job + (row.asked or "")) for row in rows)
        assert Job.from_json(rows[-1].job).steps[-1].together


@pytest.mark.nightly
def test_followed_job_prints_its_output_once(world):
    done = world.run("launch", "--cmd", "echo half; echo whole; exit 3", "--provider", "local", "-n", "loud", "--yes")
    assert (done.stdout, done.returncode) == ("half\nwhole\n", 1), done.stderr
    assert "whole" not in done.stderr and "run failed with exit code 3" in done.stderr


@pytest.mark.nightly
def test_stopped_job_saves_and_continues(world, tmp_path):
    run = f"cd {ROOT}/examples/jobs/smoke; exec python count.py --steps 60 --pause 0.2"
    world.inv("launch", "--cmd", run, "--provider", "local", "-n", "counting", "--detach")
    log = world.folder / "pods" / "counting" / "logs" / "run.log"
    until(lambda: log.exists() and "step 10" in log.read_text(), "the first checkpoint")
    world.inv("down", "counting")
    stopped = log.read_text()
    said = world.inv("resume", "counting")
    told = log.read_text()[len(stopped) :]
    assert said == told
    assert "begins at step" in told and "begins at step 0" not in told and told.endswith("done\n")


@pytest.mark.nightly
def test_pending_uploads_of_a_mounted_folder_are_shown(world, tmp_path):
    file, enough = tmp_path / "job.yaml", tmp_path / "enough"
    file.write_text(
        "file_mounts: {~/out: {name: numbers, mode: MOUNT_CACHED}}\n"
        f"run: echo all > ~/out/whole; until [ -e {enough} ]; do echo 1 >> ~/out/growing; sleep 0.05; done\n"
    )
    world.inv("launch", str(file), "--provider", "local", "-n", "kept", "--detach")
    store = world.folder / "artifacts" / "mounts" / "numbers"
    until((store / "whole").exists, "what is written once is in the store")
    growing = "work/mounts/numbers/growing"  # Different every time, so that the job waits.
    until(lambda: world.json("ckpt.status", "kept")[0]["pending"] == [growing], "the other file is shown")
    said = world.inv("ckpt.status", "kept")
    assert "kept: pending 1;" in said and f"\n  {growing}\n" in said and not (store / "growing").exists()
    enough.touch()
    until(lambda: world.json("status", "kept")[0]["state"] == "succeeded", "it ends")
    assert "kept: pending 0;" in world.inv("ckpt.status", "kept")
    assert (store / "growing").read_text() == (world.folder / "pods/kept/work/mounts/numbers/growing").read_text()


@pytest.fixture
def bucket(world, s3_server, monkeypatch):
    """Return an empty bucket that the commands of `world` reach."""
    environ = {**KEY, "AWS_ENDPOINT_URL": s3_server.url}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    world.extra.update(environ)
    found = open_place(s3_server.bucket())
    found.create()
    return found


@pytest.mark.nightly
def test_job_reads_and_writes_a_bucket(world, tmp_path, bucket):
    uri = bucket.uri
    bucket.put({"shelf/a.txt": b"words", "one.txt": b"one"})
    file = tmp_path / "job.yaml"
    file.write_text(
        f"file_mounts:\n  ~/shelf: {{source: {uri}/shelf}}\n  ~/copy: {{source: {uri}/shelf, mode: COPY}}\n"
        f"  ~/w.txt: {{source: {uri}/one.txt, mode: COPY}}\n"
        "run: |\n  cat ~/shelf/a.txt ~/copy/a.txt ~/w.txt && echo new > ~/shelf/b.txt && echo lost > ~/copy/c.txt\n"
        '  [ -z "$AWS_SECRET_ACCESS_KEY" ]\n'
    )
    world.inv("launch", str(file), "--provider", "local", "-n", "books")
    assert "wordswordsone" in (world.folder / "pods" / "books" / "logs" / "run.log").read_text()
    assert set(bucket.listing()) == {"shelf/a.txt", "shelf/b.txt", "one.txt"}


def test_invalid_job_is_refused_before_any_process_starts(world, tmp_path):
    file = job_file(tmp_path)
    for words, why in (
        ([file, "--provider", "local"], "line 5: envs: NEEDED has no value; give -e NEEDED=VALUE"),
        (
            [file, "-e", "NEEDED=1", "--secret", "DB_DSN=x"],
            "runs commands of the job on your own machine only with --provider",
        ),
        ([file, "--phase", "base"], "--phase is for Slipway's own trainings"),
        ([file, "--phase", "sft"], "--phase is for Slipway's own trainings"),
        ([file, "--cmd", "true"], "are two jobs; give one of them"),
        (["--workdir", str(tmp_path)], "--workdir needs a job of your own"),
        ([str(tmp_path / "words.txt")], "expected"),
    ):
        process = world.run("launch", *words)
        err = process.stderr
        assert (process.returncode, "Traceback" in err) == (2, False), err
        assert why in " ".join(err.split()), err
    assert not (world.folder / "pods").exists()


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("ablation_haar", "-e MODEL=toy -e INIT= -e EXPERIMENT=haar -e HAAR_ENABLED=true"),
        ("ablation_saliency", "-e MODEL=toy -e INIT="),
        ("dlm_train", "-e MODEL=tiny -e INIT= -e TOKENS=2048 -e BLOCK_SIZE=8"),
    ],
)
def test_example_training_is_planned_with_its_head_comment_in_an_empty_store(world, file, words):
    assert words in (ROOT / "examples" / "jobs" / f"{file}.yaml").read_text()
    plan = world.json("launch", f"examples/jobs/{file}.yaml", *words.split(), "--provider", "local", "--dry-run")
    assert plan["state"] == "planned" and "base" in plan["steps"]
    if file.startswith("ablation"):
        asked = world.begin(
            "launch", f"examples/jobs/{file}.yaml", *words.split(), "--provider", "local", "--dry-run", "--tag", "slip"
        )
        assert "no checkpoint has the tag 'slip'" in asked.communicate(timeout=120)[1]


def test_smoke_test_ends_on_this_machine_within_seconds(world):
    words = ("-e", "STEPS=20", "-e", "PAUSE=0", "--provider", "local", "-n", "smoke-test-1")
    done = world.json("launch", "examples/jobs/smoke_test.yaml", *words)
    assert (done["state"], done["ran"]) == ("succeeded", ["setup", "run"])
    log = world.inv("logs", "smoke-test-1", "--file", "run")
    assert "smoke-test-1 begins at step 0\n" in log and log.endswith("step 20: sum 210\ndone\n")


@pytest.mark.nightly
def test_preempted_job_continues_from_its_checkpoint(world):
    done = world.json(
        "rehearse", "examples/jobs/smoke_test.yaml", "--preempt", "1", "--yes", "--spend-limit", "5", "-e", "STEPS=150"
    )
    try:
        assert done["launch"]["state"] == "succeeded" and done["launch"]["recoveries"] == 1
        assert done["still_running"] == [] and done["problems"] == []
        log = world.inv("logs", "--rehearse", done["launch"]["run"], "--file", "run")
        begun = [line.rpartition(" ")[2] for line in log.splitlines() if "begins at step" in line]
        assert begun[0] == "0" and int(begun[-1]) > 0 and log.endswith("done\n")
    finally:
        world.inv("rehearse", "--stop")
    assert json.dumps(done)


BERT = """name: bert-qa
resources:
  accelerators: V100:1
  use_spot: true
  disk_tier: best
file_mounts:
  /checkpoint:
    name: bert-of-test
    mode: MOUNT_CACHED
envs:
  WANDB_API_KEY:
workdir: .
setup: echo needs > wanted.txt
run: |
  mkdir -p /checkpoint/bert_qa && echo "$SKYPILOT_TASK_ID" > /checkpoint/bert_qa/model.txt
  test -n "$WANDB_API_KEY" && cat wanted.txt /checkpoint/bert_qa/model.txt
"""


@pytest.mark.nightly
def test_file_of_the_guide_with_an_absolute_mount_runs_only_in_a_rehearsed_pod(world, tmp_path):
    """The file "BERT end-to-end" of SkyPilot's training guide: the job sees `/checkpoint`, kept in the store."""
    folder = tmp_path / "transformers"
    folder.mkdir()
    (folder / "README").write_text("the code of somebody\n")
    file = folder / "bert_qa.yaml"
    file.write_text(BERT)
    refused = world.run("launch", str(file), "--provider", "local", "-e", "WANDB_API_KEY=key-of-test")
    said = refused.stderr
    assert (
        refused.returncode == 2 and "file_mounts: /checkpoint: on a machine of your own Slipway writes only" in said
    ), said
    done = world.json("rehearse", str(file), "-e", "WANDB_API_KEY=key-of-test", "--yes", "--spend-limit", "5")
    try:
        assert done["launch"]["state"] == "succeeded" and done["still_running"] == [] and done["problems"] == []
        run = done["launch"]["run"]
        assert world.inv("logs", "--rehearse", run, "--file", "run").endswith(f"needs\n{run}\n")
        kept = attach.find(attach.worlds_folder(world.folder / "state" / "journal.db")).folder / "artifacts" / "mounts"
        assert (kept / "bert-of-test" / "bert_qa" / "model.txt").read_text() == f"{run}\n"
        assert not Path("/checkpoint/bert_qa").exists()
    finally:
        world.inv("rehearse", "--stop")


SMI = """#!/bin/sh
case "$*" in *memory.used*) echo 'NVIDIA L40S, 50, 31200, 46068';; *query*) printf 'NVIDIA L40S\\nNVIDIA L40S\\n';; esac
"""


@pytest.fixture
def gpus(world, tmp_path):
    """Give this machine two GPUs, as reported by nvidia-smi."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvidia-smi").write_text(SMI)
    (tmp_path / "bin" / "nvidia-smi").chmod(0o755)
    world.extra["PATH"] = f"{tmp_path / 'bin'}:{os.environ['PATH']}"


def job_on(devices, name, *more, sleep=600):
    command = f'echo "sees $CUDA_VISIBLE_DEVICES"; sleep {sleep}'
    return ["launch", "--cmd", command, "--provider", "local", "--devices", devices, "-n", name, *more]


@pytest.mark.nightly
@pytest.mark.usefixtures("gpus")
def test_jobs_share_a_machine_by_gpu_and_wait_in_order(world):
    def waits_for():
        return {one["run"]: one["note"] for one in world.json("status") if one["state"] == "waiting"}

    for devices, name in (("0", "first"), ("1", "second")):
        world.inv(*job_on(devices, name, "--detach"))
    refused = world.json(*job_on("0,1", "greedy"), code=3)["error"]
    assert "device 0, is in use by first" in refused and "wait in line: --wait" in refused
    third = world.begin(*job_on("0", "third", "--wait", "--detach"))
    assert until(waits_for, "the third one stands in line") == {
        "third": "waits for this machine: first has device 0 until the end of the run"
    }
    fourth = world.begin(*job_on("0", "fourth", "--wait", "--detach"))
    until(lambda: len(waits_for()) == 2, "the fourth one stands behind it")
    third.kill()
    third.communicate()
    until(lambda: "third" not in waits_for(), "its place is free")
    world.inv("down", "first")
    out, err = fourth.communicate(timeout=120)
    assert fourth.returncode == 0 and waits_for() == {}, (out, err)
    log = world.folder / "pods" / "second" / "logs" / "run.log"
    assert until(lambda: log.exists() and log.read_text(), "its first word") == "sees 1\n"
    assert {one["run"] for one in world.json("status") if one["state"] == "running"} == {"second", "fourth"}
    # A waiting job is ended by name, and with all others before the resource is free.
    for name, words in (("fifth", ["fifth"]), ("sixth", ["--all"])):
        waiter = world.begin(*job_on("0", name, "--wait", "--detach"))
        until(waits_for, "it stands in line")
        assert "waits for this machine: fourth has device 0" in world.json("why", name, code=2)["error"]
        assert name in world.json("down", *words)["ended"] and waits_for() == {}
        out, err = waiter.communicate(timeout=120)
        assert waiter.returncode == 1 and "inv down ended the run during the wait" in err, (out, err)
    assert not [one for one in world.json("status") if one["state"] == "running"]


@pytest.mark.nightly
def test_script_runs_under_torchrun_with_the_training_packages(world, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "helper.py").write_text("import os\nSAID = f'rank {os.environ[\"RANK\"]}'\n")
    script = tmp_path / "mine" / "train me.py"
    script.write_text("import sys, torch, helper\nprint(helper.SAID, int(torch.ones(2).sum()), sys.argv[1:])\n")
    done = world.json("launch", "--script", str(script), "--provider", "local", "--nodes", "2")
    assert done["state"] == "succeeded"
    said = world.inv("logs", done["run"], "--file", "run")
    assert "rank 0 2 []" in said or "rank 1 2 []" in said
    assert "rank 0 2 ['--lr', '1']" in world.inv("train", "--script", str(script), "--", "--lr", "1")
    for words, told in {
        ("--cmd", "x"): "are two jobs",
        ("--workdir", "docs"): "the folder that is sent to the machine",
    }.items():
        assert told in world.json("launch", "--script", str(script), "--provider", "local", *words, code=2)["error"]
    world.inv("train", "--script", "nowhere.py", code=2)
    script.write_text("print('begun')\nimport helper, no_such_module\n")
    failed = world.run("launch", "--script", str(script), "--provider", "local", "--yes")
    assert failed.stdout.startswith("begun\n") and "ChildFailedError" in failed.stdout
    assert "ChildFailedError" not in failed.stderr and "import helper, no_such_module" in failed.stderr
    assert "exit code 1: ModuleNotFoundError: No module named 'no_such_module'" in world.inv("why")


@pytest.mark.nightly
@pytest.mark.pack("page")
@pytest.mark.usefixtures("gpus")
def test_the_memory_of_gpus_over_a_job_is_a_log_of_it_and_a_curve_in_its_report(world, tmp_path):
    world.inv(*job_on("0", "seen", sleep=3))
    log = world.inv("logs", "seen", "--file", "gpus")
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert lines and set(lines[0]) == {"at", "used_bytes", "memory_bytes", "percent"} and lines[0]["used_bytes"][0] > 0
    told = world.json("report", "seen", "--out", str(tmp_path / "page"))
    assert told["phases"] == [] and '"gpu_memory":{"x":[0' in (tmp_path / "page" / "report.html").read_text()
    (gpu,) = world.json("status", "seen")[0]["gpus"]
    assert gpu["peak_bytes"] == max(line["used_bytes"][0] for line in lines)


@pytest.mark.nightly
def test_secret_equal_to_a_field_name_is_masked_and_changes_no_state(tmp_path):
    """Masking replaced the names of fields in the agent's own records."""
    world = World(tmp_path)
    for value in ("token", "succeeded", "state"):
        words = (
            "launch",
            "--cmd",
            'echo "{\\"kind\\": 1} $A_TOKEN"; exit 3',
            "-n",
            f"one-{value}",
            "--provider",
            "local",
        )
        process = world.run(*words, "--env", f"A_TOKEN={value}", "--yes")
        said = process.stderr
        assert process.returncode == 1 and f"one-{value} failed" in said, said
        (row,) = (one for one in world.json("status") if one["run"] == f"one-{value}")
        assert row["state"] == "failed"
        progress = json.loads((tmp_path / "pods" / f"one-{value}" / "state" / "progress.json").read_text())
        assert progress["run"] == f"one-{value}" and progress["steps"][-1]["state"] == "failed" and progress["token"]
        assert "[A_TOKEN]" in world.inv("why", f"one-{value}")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("mode", "written"),
    [
        ("MOUNT_CACHED", {"of-0"}),  # node 0 alone writes back
        pytest.param("MOUNT", {"of-0", "of-1"}, marks=pytest.mark.needs("rclone", "fusermount3")),
    ],
)
def test_every_node_finds_the_files_of_a_bucket(world, tmp_path, bucket, mode, written):
    uri = bucket.uri
    bucket.put({"a.txt": b"words"})
    file = tmp_path / "job.yaml"
    file.write_text(
        f"num_nodes: 2\nfile_mounts: {{~/shelf: {{source: '{uri}', mode: {mode}}}}}\n"
        "run: cat ~/shelf/a.txt && echo x > ~/shelf/of-$SKYPILOT_NODE_RANK\n"
    )
    world.inv("launch", str(file), "--provider", "local", "-n", "pair")
    for name in ("pair", "pair.1"):
        assert (world.folder / "pods" / name / "logs" / "run.log").read_text() == "words"
    assert set(bucket.listing()) == {"a.txt", *written}
