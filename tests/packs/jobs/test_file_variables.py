"""Variables of `envs` in the paths of a job file and in the section `service`."""

import subprocess

import pytest
import yaml

from infra.errors import UsageError
from packs.jobs.control import job_file, job_steps, pipelines, resolve
from packs.jobs.control.path_variables import Values
from packs.jobs.control.refusals import Refusals
from serve import service
from tests.world import World


def read(tmp_path, text, usual=None, **given):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    refused = Refusals(str(path))
    return job_file.read(path, refused, Values(given=given, usual=usual)), refused.found


@pytest.mark.parametrize("written", ["$CORNER", "${CORNER}"])
def test_variable_in_a_path_is_replaced_by_its_value(tmp_path, written):
    (tmp_path / "shelf").mkdir()
    (tmp_path / "desk").mkdir()
    text = (
        f"envs: {{CORNER: shelf, PLACE: {tmp_path}}}\nworkdir: $PLACE/{written}\nrun: x\n"
        f"file_mounts:\n  ~/{written}/a: ${{PLACE}}/{written}\n"
        f"  ~/b: {{name: '{written}-b', mode: MOUNT_CACHED}}\n"
    )
    for given, corner in (({}, "shelf"), ({"CORNER": "desk"}, "desk")):
        file, found = read(tmp_path, text, **given)
        (task,) = file.tasks
        assert (found, task.workdir) == ([], tmp_path / corner)
        assert [(one.path, one.source, one.name, one.line) for one in task.mounts] == [
            (f"~/{corner}/a", str(tmp_path / corner), "", 5),
            ("~/b", "", f"{corner}-b", 6),
        ]


def test_unknown_variable_in_a_path_is_refused_with_its_line(tmp_path):
    _, found = read(tmp_path, "run: x\nworkdir: $WHERE\nfile_mounts:\n  ~/${WHO}/a: .\n  ~/b: ./$WHICH.txt\n")
    told = [(one.line, one.text.partition(" is not a variable of envs")[0]) for one in found]
    assert told == [(2, "workdir: $WHERE"), (4, "file_mounts: $WHO"), (5, "file_mounts: $WHICH")]


def test_variable_without_a_value_is_no_refusal_of_the_path(tmp_path):
    text = "run: x\nenvs: {WHERE: }\nworkdir: $WHERE\nfile_mounts: {~/a: $WHERE/a}\n"
    assert read(tmp_path, text)[1] == []  # The launch asks for the value.
    assert "does not exist" in read(tmp_path, text, WHERE="/no/where")[1][0].text


@pytest.mark.parametrize("section", ["envs: {CORNER: }", "secrets: {CORNER: }", "secrets: [CORNER]"])
def test_variable_of_a_path_has_its_value_outside_of_the_file(tmp_path, section):
    (tmp_path / "shelf").mkdir()
    text = f"{section}\nworkdir: {tmp_path}/$CORNER\nfile_mounts:\n  ~/${{CORNER}}/a: s3://$CORNER/x\nrun: x\n"
    file, found = read(tmp_path, text, {"CORNER": "shelf"})
    (task,) = file.tasks
    assert (found, task.workdir) == ([], tmp_path / "shelf")
    assert [(one.path, one.source) for one in task.mounts] == [("~/shelf/a", "s3://shelf/x")]
    _, found = read(tmp_path, text, {})
    told = {(one.line, one.text) for one in found if "has no value" in one.text}
    advice = "$CORNER has no value; give -e CORNER=VALUE, or set the variable in .env"
    assert told == {(2, f"workdir: {advice}"), (4, f"file_mounts: {advice}")}
    file, found = read(tmp_path, "envs: {CORNER: }\nvolumes: {/mnt: $CORNER}\nrun: x\n", {"CORNER": "shelf"})
    assert found == [] and pipelines.keys_of_engine(file)["volumes"] == {"/mnt": "shelf"}


SECRET = "hf_" + "1" * 20


@pytest.mark.parametrize("section", ["envs: {HF_TOKEN: }", "secrets: [HF_TOKEN]", f"secrets: {{HF_TOKEN: {SECRET}}}"])
@pytest.mark.parametrize("usual", [None, {"HF_TOKEN": SECRET}])
@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("file_mounts: {~/a.zip: 'https://u:$HF_TOKEN@host/a.zip'}", "the plan shows the address"),
        ("file_mounts: {~/a: {source: 'https://a.net/${HF_TOKEN}/b', mode: MOUNT}}", "the plan shows the address"),
        ("file_mounts: {~/a: {source: ['https://a.net/$HF_TOKEN'], mode: COPY}}", "the plan shows the address"),
        ("file_mounts: {~/a: 's3://u:$HF_TOKEN@host/a'}", "the plan shows the address"),
        ("volumes: {/mnt: $HF_TOKEN}", "the plan shows volumes"),
        ("volumes: {/mnt: {name: '${HF_TOKEN}'}}", "the plan shows volumes"),
    ],
)
def test_secret_that_a_plan_would_show_is_refused_with_its_line(tmp_path, section, usual, lines, why):
    file, found = read(tmp_path, f"run: x\n{section}\n{lines}\n", usual)
    assert [(one.line, f"$HF_TOKEN is a secret, and {why}" in one.text) for one in found] == [(3, True)]
    assert SECRET not in str((file.tasks[0].mounts, pipelines.keys_of_engine(file).get("volumes"), found))


def test_address_of_a_variable_with_a_secret_value_is_refused(tmp_path):
    text = "secrets: [PLACE]\nfile_mounts: {~/a: $PLACE}\nrun: x\n"
    assert "$PLACE is a secret" in read(tmp_path, text, {"PLACE": "https://u:p@host/a"})[1][0].text
    path = tmp_path / "job.yaml"
    path.write_text(text.replace("secrets: [PLACE]", "envs: {PLACE: }"))
    refused = Refusals(str(path))
    values = Values(given={"PLACE": "https://u:p@host/a"}, usual={}, hidden=frozenset({"PLACE"}))
    job_file.read(path, refused, values)
    assert "$PLACE is a secret" in refused.found[0].text


@pytest.mark.parametrize("lines", ["workdir: ./$HF_TOKEN", "file_mounts: {~/a: ./$HF_TOKEN/b}"])
def test_refusal_has_the_name_of_a_secret_in_place_of_the_value(tmp_path, lines):
    refused = Refusals(str(tmp_path / "job.yaml"))
    (tmp_path / "job.yaml").write_text(f"run: x\nenvs: {{HF_TOKEN: }}\n{lines}\n")
    file = job_file.read(tmp_path / "job.yaml", refused, Values(usual={"HF_TOKEN": SECRET}))
    resolve.check(file, refused, "", is_rented=True, is_own=False, is_rehearsed=False)
    (one,) = refused.found
    assert "/$HF_TOKEN" in one.text and SECRET not in one.text


def test_value_in_the_file_comes_before_a_value_outside_of_the_file(tmp_path):
    text = "secrets: {SHELF: books}\nenvs: {DESK: wood}\nfile_mounts: {~/d: s3://$SHELF/$DESK}\nrun: x\n"
    for usual, given, source in (
        (None, {}, "s3://books/wood"),
        ({"SHELF": "a", "DESK": "b"}, {}, "s3://books/wood"),
        ({}, {"SHELF": "a"}, "s3://a/wood"),
    ):
        file, found = read(tmp_path, text, usual, **given)
        assert found == [] and [one.source for one in file.tasks[0].mounts] == [source]


def test_value_with_a_variable_is_refused_and_no_path_is_left_out(tmp_path):
    text = "envs: {WHERE: $DESK, DESK: wood}\nworkdir: ./$WHERE\nrun: x\n"
    assert "workdir: $DESK has no value" in read(tmp_path, text, {})[1][0].text


@pytest.mark.process
def test_repository_of_variables_is_cloned_and_secrets_stay_out_of_the_plan(tmp_path):
    origin = tmp_path / "team own"
    git = ("git", "-C", str(origin), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(origin)], check=True)
    for branch in ("main", "next"):
        subprocess.run([*git, "checkout", "--quiet", *(["-b"] if branch == "next" else []), branch], check=False)
        (origin / "own.txt").write_text(branch)
        subprocess.run([*git, "add", "own.txt"], check=True)
        subprocess.run([*git, "commit", "--quiet", "-m", branch], check=True)
    text = (
        f"envs: {{BRANCH: next, PLACE: {tmp_path}}}\nsecrets: {{TEAM: team own}}\n"
        "workdir: {url: $PLACE/$TEAM, ref: $BRANCH}\nrun: cat own.txt\n"
    )
    file, found = read(tmp_path, text, {})
    assert found == [] and file.tasks[0].repository == job_file.Repository(url=f"{tmp_path}/$TEAM", ref="next")
    steps = job_steps.steps_of(file, job_steps.lay_out(file, is_own=True), [{}], (), True, "1")
    (tmp_path / "home").mkdir()
    for step in steps:
        said = subprocess.run(
            ["bash", "-c", step.config["text"]],
            cwd=tmp_path,
            env={"HOME": str(tmp_path / "home"), "PATH": "/usr/bin:/bin", "TEAM": "team own"},
            capture_output=True,
            text=True,
            check=True,
        )
    assert said.stdout == "next" and "team own" not in str([step.config["text"] for step in steps])


@pytest.mark.process
def test_launch_reads_the_variables_of_paths_from_flags_and_the_shell(tmp_path):
    world, job = World(tmp_path, {"CORNER": "shelf"}), tmp_path / "job.yaml"
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "a.txt").write_text("a")
    for section, words in (("secrets", ()), ("envs", ("-e", "CORNER=shelf")), ("secrets", ("--secret", "CORNER"))):
        job.write_text(f"{section}: {{CORNER: }}\nworkdir: {tmp_path}/$CORNER\nrun: ls\n")
        plan = world.json("launch", str(job), *words, "--provider", "local", "--dry-run")
        assert "shelf" in str(plan["mounts"]), plan
    job.write_text(f"envs: {{SHELF2: }}\nworkdir: {tmp_path}/$SHELF2\nrun: ls\n")
    told = world.json("launch", str(job), "--provider", "local", "--dry-run", code=2)["error"]
    assert "line 2: workdir: $SHELF2 has no value" in told


TALK = """
envs: {WHICH: lab/tiny-talker, REPLICAS: 2, DELAY: 20}
service:
  readiness_probe:
    path: /v1/chat/completions
    post_data: {model: $WHICH, messages: [{role: user, content: hi}]}
    headers: {X-Model: "${WHICH}"}
  replicas: 1
run: vllm serve $WHICH
"""


def test_variable_in_a_service_is_replaced_by_its_value():
    made = service.parse("talk", yaml.safe_load(TALK))
    assert made.probe.post_data["model"] == "lab/tiny-talker" and made.probe.headers == {"X-Model": "lab/tiny-talker"}
    assert made.file.run == "vllm serve $WHICH"
    with pytest.raises(UsageError, match=r"talk: service: \$MODEL is not a variable of envs"):
        service.parse("talk", yaml.safe_load(TALK.replace("${WHICH}", "$MODEL")))
