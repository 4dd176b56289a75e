"""All refusals of a job file come at once, each with the line to write; lint and launch refuse the same lines."""

import re

import pytest

from infra.agent.job import Job
from infra.errors import UsageError
from infra.flags import flags_of
from infra.runs.sync import sync_step
from packs.jobs.control import job_file, job_steps, lint, resolve, schema
from packs.jobs.control.refusals import Refusals
from scripts.runs.launch import LaunchFlags

BUCKET = "file_mounts:\n  ~/books: {{source: {0}, mode: {1}}}\nrun: ls ~/books\n"
REFUSED = {  # the lines of the refusals, with a pattern of each
    "name: -a\nnum_nodes: 0\nrunn: x\nrun: y\nenvs:\n  A: 1\n  B=: 2\nsecrets:\n  A: 3\n": {
        1: "not a valid name",
        2: "expected 1 to 1000",
        3: "did you mean run",
        7: "not a valid name of a variable",
        9: "remove the line under envs",
    },
    "run: [a]\nsetup: {b: c}\nenvs:\n  A: [1]\n  B: {c: 2}\n  C: fine\n": {
        1: "run: Expected",
        2: "setup: Expected",
        4: r"envs\.A: Expected",
        5: r"envs\.B: Expected",
    },
    "resources:\n  accelerators: tpu-v4-8\n  cpus: -4\n  memory: lots\n  network_tier: fast\n  volumes: [{path: /a}]\n"
    "run: x\n": {2: "TPU", 3: "cpus", 4: "memory", 5: "network_tier", 6: "--volume ID"},
    "run: x\nfile_mounts:\n  /a: /no/where\n  /b: {name: c, mode: MONT}\n  ../d: /etc\nevent_callback: x\n": {
        3: "No such file",
        4: "did you mean MOUNT",
        5: "cannot be the path",
        6: "exit with the state",
    },
    BUCKET.format("r2://shelf/books", "MOUNT"): {2: "--provider skypilot, or .*fetch r2://shelf/books"},
    BUCKET.format("cos://us-east/books", "MOUNT_CACHED"): {2: "--provider skypilot, or .*fetch cos://us-east/books in"},
    BUCKET.format("https://example.org/b.txt", "COPY"): {2: "curl .* -o ~/books https://example.org/b.txt"},
    BUCKET.format("/etc/hostname", "MOUNT"): {2: "write ~/books: /etc/hostname, which copies the files"},
    BUCKET.format("/etc/hostname", "MOUNT_CACHED"): {2: "write ~/books: /etc/hostname, which copies the files"},
    "file_mounts: {~/out: {name: shelf, mode: COPY}}\nrun: x\n": {1: "write mode: MOUNT_CACHED"},
    "file_mounts: {~/sky_workdir/: /etc/hostname}\nrun: x\n": {1: "write ~/sky_workdir/hostname: /etc/hostname$"},
    "resources: {accelerators: 'A100:1', disk_size: 300}\n": {1: r"inv pod.create --gpu A100:1 --disk-size 300"},
    "resources: {accelerators: {H100: 8}, use_spot: true}\n": {1: r"inv pod.create --gpu H100:8 --use-spot"},
    "resources: {any_of: [{gpus: 'A100:2', memory: 16384MB}]}\n": {1: r"pod.create --gpu A100:2 --memory 16$"},
    "resources: {infra: runpod/US, instance_type: a, cpus: 4+}\n": {
        1: r"pod.create --instance-type a --cpus 4 --provider runpod --region US$"
    },
    "resources: {infra: '*', gpus: L4}\n": {1: r"pod.create --gpu L4$"},
    "resources: {cpus: 4}\n": {1: "add the line `run: COMMAND`$"},
    "workdir: /dev/shm/no\nrun: x\nname: -a\n": {1: "does not exist", 3: "not a valid name"},
    "resources:\n  infra: aws\nrun: x\n": {1: "--provider skypilot"},
    "name: a\nexecution: parallel\n---\nname: b\nrun: x\n---\nname: c\nrun: y\n": {2: "write serial.*b.yaml"},
    "slipway: {train: {phase: base, stepz: 3}}\n": {1: "did you mean steps"},
}


def launch_refusals(path, provider=""):
    """Return the lines that a launch on a vendor refuses."""
    refused = Refusals(str(path))
    file = resolve.load(str(path), "", "", "", refused)
    resolve.check(file, refused, provider, is_rented=True, is_own=False, is_rehearsed=False)
    return {one.line: one.text for one in refused.found}


@pytest.mark.parametrize("text", REFUSED, ids=range(len(REFUSED)))
def test_every_refused_line_is_named_at_once_by_launch_and_lint(tmp_path, text):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    linted = {one.line: one.text for one in lint.lint(path) if one.is_refused}
    assert sorted(linted) == sorted(REFUSED[text])
    assert all(re.search(words, linted[line]) for line, words in REFUSED[text].items()), linted
    if "train" not in text:  # The flags of a training are read by the resolution of the training.
        assert launch_refusals(path) == linted


def test_several_refusals_are_one_message_with_a_line_each(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("run: x\nname: -a\nnum_nodes: 0\n")
    with pytest.raises(UsageError) as refused:
        job_file.load(path)
    assert str(refused.value).splitlines()[0] == f"{path}: 2 lines to correct"
    assert [one.split(":")[0] for one in str(refused.value).splitlines()[1:]] == ["  line 2", "  line 3"]


@pytest.mark.parametrize("provider", ["", "runpod", "local"])
def test_lint_refuses_an_absolute_mount_only_where_launch_does(tmp_path, provider):
    path = tmp_path / "job.yaml"
    path.write_text(f"run: x\nfile_mounts:\n  /data: {tmp_path}\n")
    refused = [one.text for one in lint.lint(path, provider) if one.is_refused]
    assert (["write ~/data" in one for one in refused]) == ([True] if provider == "local" else [])


def test_advice_on_a_mount_leads_to_an_accepted_file(tmp_path):
    path = tmp_path / "job.yaml"
    for source, mode in (("https://example.org/b.txt", "COPY"), ("http://example.org/c", "MOUNT")):
        path.write_text(BUCKET.format(source, mode))
        (advice,) = launch_refusals(path).values()
        line = re.search(r"write into setup: (.*)$", advice)
        path.write_text(f"setup: {line[1]!r}\nrun: ls ~/books\n")
        assert launch_refusals(path) == {} and not [one for one in lint.lint(path) if one.is_refused]


@pytest.mark.parametrize(
    "line",
    [
        *(f"{key}: {{}}" for key in [*schema.REFUSED, *schema.OLDER] if key != "service"),
        "resources: {accelerator_args: {}}",
        "resources: {volumes: [{path: /a}]}",
    ],
)
def test_advice_on_a_refused_key_leads_to_an_accepted_file(tmp_path, line):
    path = tmp_path / "job.yaml"
    path.write_text(f"run: x\n{line}\n")
    (advice,) = launch_refusals(path).values()
    assert "remove the key" in advice
    known = {one.name.replace("_", "-") for one in flags_of(LaunchFlags)}
    assert set(re.findall(r"--([a-z-]+)", advice)) <= known
    path.write_text("run: x\n")
    assert launch_refusals(path) == {}


@pytest.mark.parametrize("mode", ["MOUNT", "MOUNT_CACHED", "COPY"])
@pytest.mark.parametrize(
    ("source", "path", "file"),
    [
        ("s3://shelf/books", "~/books", ""),
        ("s3://shelf", "~/all", ""),
        ("gs://shelf/books/", "~/books", ""),
        ("gs://shelf/a.b/words.txt", "~/w.txt", "words.txt"),
        ("hf://lab/model", "~/model", ""),
    ],
)
def test_bucket_is_brought_by_the_uploader(tmp_path, mode, source, path, file):
    written = tmp_path / "job.yaml"
    written.write_text(f"file_mounts:\n  {path}: {{source: '{source}', mode: {mode}}}\nrun: x\n")
    assert launch_refusals(written) == {} and lint.lint(written) == []
    read = job_file.load(written)
    layout = job_steps.lay_out(read, is_own=True)
    (kept,) = layout.kept[0]
    kind = "still" if mode == "COPY" else "mount" if mode == "MOUNT" and source.startswith("s3") else ""
    assert (kept.place, kept.path, kept.file, kept.kind) == (source.rstrip("/"), path, file, kind)
    (step,) = job_steps.steps_of(read, layout, [{}], (), True, "1")
    assert step.config["kept"] == [[kept.name, file, path, kept.place, kind]]
    config = sync_step.with_uploader(Job(run="a", token="", steps=(step,)), "/store", "a").beside.config
    assert config["mounts"] == [[kept.name, kept.place, kind]]


def test_folder_of_the_store_is_mounted_by_name_in_both_modes(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("file_mounts: {~/a: {name: shelf}, ~/b: {name: desk, mode: MOUNT_CACHED}}\nrun: x\n")
    kept = job_steps.lay_out(job_file.load(path), is_own=True).kept[0]
    assert [(one.name, one.path, one.place) for one in kept] == [("shelf", "~/a", ""), ("desk", "~/b", "")]
