"""Lines of job files that fail later."""

import pytest

from flows.installation import doctor
from infra.errors import UsageError
from packs.jobs.control.lint import lint
from tests.packs.jobs.test_job_file import BAD

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
    "text",
    [
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
