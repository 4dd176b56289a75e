"""Variables of `envs` in the paths of a job file and in the section `service`."""

import pytest
import yaml

from infra.errors import UsageError
from packs.jobs.control import job_file
from packs.jobs.control.refusals import Refusals
from serve import service


def read(tmp_path, text, **given):
    path = tmp_path / "job.yaml"
    path.write_text(text)
    refused = Refusals(str(path))
    return job_file.read(path, refused, given), refused.found


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
