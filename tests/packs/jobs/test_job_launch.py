"""The user's own jobs as the work of a launch: the words passed on, and refusals in the plan."""

import contextlib
from dataclasses import replace

import pytest

from flows.runs import launch, work_kinds
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.flags import command_words, nondefault_flags
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings
from packs.jobs.control import job_file, resolve, schema, typed_jobs
from packs.jobs.control.flags import JobFlags
from packs.jobs.control.kind import OwnCommands, TrainingFile
from packs.jobs.control.refusals import Refusals
from packs.jobs.control.work import JobWork
from packs.jobs.pack import PACK
from scripts.runs.launch import LaunchFlags
from tests.flows.test_launch import journal as journal
from tests.flows.test_launch import settings as settings
from tests.world import ROOT, World


def spec_of(**flags) -> LaunchFlags:
    own = {name: flags.pop(name) for name in ("cmd", "script", "workdir", "secret") if name in flags}
    return LaunchFlags(**flags, added=(JobFlags(**own),))


def test_command_line_requests_commands_a_training_or_phases(tmp_path):
    job, training, flags = (tmp_path / f"{name}.yaml" for name in ("job", "training", "flags"))
    job.write_text("run: echo")
    training.write_text("slipway: {train: {phase: base}}")
    flags.write_text("gpu: H100")
    assert isinstance(work_kinds.work_of_command(spec_of(cmd="true"), ""), OwnCommands)
    assert isinstance(work_kinds.work_of_command(spec_of(cmd="true"), str(flags)), OwnCommands)
    assert isinstance(work_kinds.work_of_command(spec_of(), str(job)), OwnCommands)
    assert isinstance(work_kinds.work_of_command(spec_of(), str(training)), TrainingFile)
    for spec in (spec_of(), spec_of(secret=("A=b",)), LaunchFlags()):
        assert type(work_kinds.work_of_command(spec, str(flags))) is work_kinds.RequestedWork
    with pytest.raises(UsageError, match="are two jobs; give one of them"):
        work_kinds.work_of_command(spec_of(cmd="true"), str(job))


def test_record_of_the_pack_names_the_keys_of_a_job():
    assert PACK.works["job"].file_keys == schema.JOB_KEYS


def test_flags_of_the_pack_reach_a_plan_and_a_second_process():
    spec = spec_of(cmd="echo", secret=("A", "B"), gpu="H100")
    assert nondefault_flags(spec) == {"gpu": "H100", "cmd": "echo", "secret": ["A", "B"]}
    assert command_words(spec) == ["--gpu=H100", "--cmd=echo", "--secret=A", "--secret=B"]


def understood(settings, **flags) -> launch.ResolvedLaunch:
    job = resolve.load("", "true", "", "", Refusals(""))
    assert job is not None
    return resolve.understand(spec_of(cmd="true", **flags), job, {}, settings)


def test_plan_names_the_files_that_survive_a_lost_machine(settings, tmp_path):
    rented = replace(settings, runpod_api_key="x" * 32, runpod_url="http://127.0.0.1:9")
    (path := tmp_path / "job.yaml").write_text("file_mounts: {~/out: {name: a, mode: MOUNT_CACHED}}\nrun: x\n")

    def plan_notes(vendor, job):
        work = JobWork(file=job, envs=({},), secrets={})
        return " / ".join(work.plan(rented, Request(run="r"), registry.provider(rented, vendor), Limits()).notes)

    plain, kept = typed_jobs.of_command("true", None), job_file.load(path)
    assert "are lost with the machine" not in plan_notes("local", plain)
    assert "except checkpoints of slipway.checkpoint / to keep other files: " in plan_notes("runpod", plain)
    assert plan_notes("runpod", kept).endswith("slipway.checkpoint, and the files in ~/out")


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({"gpu": "A100:8,H100:4"}, (1, "cuda")),
        ({"gpu": "H100", "num_gpus": 8}, (8, "cuda")),
        ({"instance_type": "B200x8"}, (1, "cuda")),
        ({"cpus": 4}, (0, "cpu")),
    ],
)
def test_job_on_a_machine_with_gpus_expects_gpus_before_the_choice_of_an_offer(settings, machine, expected):
    rented = replace(settings, runpod_api_key="x" * 32, runpod_url="http://127.0.0.1:9")
    work = JobWork(file=typed_jobs.of_command("true", None), envs=({},), secrets={})
    job = work.plan(rented, Request(run="r", **machine), registry.provider(rented, "runpod"), Limits()).job
    assert job is not None and (job.num_gpus, job.torch) == expected


def test_key_for_the_end_of_a_pod_applies_to_trainings_only(settings):
    with pytest.raises(UsageError, match="--self-end is for Slipway's own trainings"):
        understood(settings, self_end=True)


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("evals=x", "--budget: "),
        ("evals=0", "--budget is 0; give an amount above 0"),
        ("=3", "expected NAME, or NAME=USD"),
        ("evals", "budget 'evals' does not exist; known: none"),
    ],
)
def test_insufficient_budget_is_refused_with_the_plan(said, why, settings, journal):
    vendor = {"provider": "runpod", "runpod_api_key": "x" * 32, "runpod_url": "http://127.0.0.1:9"}
    settings = replace(settings, **vendor, sources={**settings.sources, "provider": ""})
    with pytest.raises(UsageError, match=why):
        launch.prepare(understood(settings, provider="runpod", budget=said), journal, settings, print)


@pytest.mark.day_cases(2)
@pytest.mark.process
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file_mounts: {/c: {name: b}}", "a job needs a command; add the line `run: COMMAND`"),
        ("config: {gcp: {}}", "this is a key of a job"),
        ("readiness_probe: {path: /health}", "in the file of a service the key stands under `service:`"),
        (
            "replica_policy: {min_replicas: 3}\nrun: x",
            "line 1: unknown key 'replica_policy'; in the file of a service the key stands under `service:`",
        ),
        ("command: [bash, -c, x]\nphase: base\nprovider: local", "--phase is for Slipway's own trainings"),
        (
            "run: x\nresources: {infra: local}",
            "runs commands of the job on your own machine only with --provider local",
        ),
    ],
)
def test_invalid_file_is_refused_with_the_place(tmp_path, text, said):
    world, path = World(tmp_path), tmp_path / "run.yaml"
    path.write_text(text + "\n")
    err = (process := world.run("launch", str(path), "--dry-run")).stderr
    assert process.returncode == 2 and said in " ".join(err.split()) and "Traceback" not in err, err


def test_plan_names_the_files_that_a_command_without_a_workdir_does_not_have(settings, journal, tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)

    def notes(cmd: str, workdir: str = "", provider: str = "local") -> str:
        job = resolve.load("", cmd, "", workdir, Refusals(""))
        assert job is not None
        spec = spec_of(cmd=cmd, workdir=workdir, provider=provider, dry_run=True)
        resolved = resolve.understand(spec, job, {}, settings)
        return "\n".join(launch.prepare(resolved, journal, settings, print).plan.notes)

    said = notes("python train.py --out ../train.py other.py && cat /etc/train.py ~/train.py")
    assert "train.py: not sent, because the job has no workdir; add --workdir ." in said.splitlines()
    assert "not sent" not in notes("python train.py", ".") + notes("python other.py")
    assert "the launch needs --provider local" in notes("true", provider="") and "needs" not in notes("true")


@pytest.mark.process
def test_training_flag_for_a_job_is_refused_even_with_the_default_value(tmp_path):
    process = World(tmp_path).run("launch", "examples/jobs/data.yaml", "--phase", "sft", "--provider", "local")
    err = process.stderr
    assert process.returncode == 2 and "--phase is for Slipway's own" in err, err


@pytest.mark.parametrize(
    ("provider", "is_refused"), [("", True), ("market", False), ("runpod", False), ("local", False)]
)
def test_cloud_of_skypilot_is_refused_only_without_a_provider(tmp_path, provider, is_refused):
    path = tmp_path / "job.yaml"
    path.write_text("resources: {infra: aws}\nrun: x\n")
    environ = {"HOME": str(tmp_path), "RUNPOD_API_KEY": "k" * 20}
    own = Settings.load(ROOT, {"provider": provider}, environ=environ)
    work = work_kinds.work_of_command(spec_of(provider=provider), str(path))
    with pytest.raises(UsageError, match="--provider skypilot") if is_refused else contextlib.nullcontext():
        assert work.variables(own) == {}
