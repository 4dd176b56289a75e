"""A step in this terminal: records arrive live, and the end is reported correctly."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra import train_env
from infra.errors import SlipwayError, UsageError
from tests.programs import source

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[2]
STEP = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, {repository!r})
from data import events
config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text())
print("to people")
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(75))
try:
    events.emit("progress", done=1, total=2, pid=os.getpid())
    while config.get("until") and not os.path.exists(config["until"]):
        signal.sigtimedwait([], 0.02)
    while config.get("wait"):
        signal.pause()
except KeyboardInterrupt:
    Path("interrupted").touch()
    sys.exit(1)
except SystemExit:
    Path("interrupted").touch()  # Ctrl-C has met the reader of records
    print("step: kept what there was")
    raise
events.emit("result", where=os.getcwd(), path=os.environ["PYTHONPATH"], extra=os.environ.get("EXTRA"))
print("the last words", file=sys.stderr)
if config.get("signal"):
    os.kill(os.getpid(), config["signal"])
sys.exit(config.get("code", 0))
"""
PARENT = source("parent_of_step")


@pytest.fixture
def root(tmp_path) -> Path:
    (tmp_path / "step.py").write_text(STEP.format(repository=str(REPOSITORY)))
    return tmp_path


def run(root: Path, **config):
    return train_env.run(["-m", "step"], config, root=root, python=Path(sys.executable), environ={"EXTRA": "more"})


def test_records_arrive_while_the_step_runs(root, capsys):
    step = run(root, until=str(root / "go"))
    assert next(step)["done"] == 1
    (root / "go").touch()
    (last,) = step
    assert (last["where"], last["path"], last["extra"]) == (str(root), str(root), "more")
    assert capsys.readouterr() == ("", "to people\nthe last words\n")


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        ({"code": 2}, UsageError, "the last words"),
        ({"code": 7}, SlipwayError, "step failed with exit code 7: the last words"),
        ({"code": 75}, SlipwayError, "step stopped in good order; run the same command to resume"),
        ({"signal": 9}, SlipwayError, "step was ended by signal 9: "),
    ],
)
def test_a_failing_step_is_reported_with_its_last_output(root, config, kind, said):
    with pytest.raises(SlipwayError) as failed:
        list(run(root, **config))
    assert type(failed.value) is kind and str(failed.value).startswith(said)


def test_an_unfollowed_step_is_ended(root):
    step = run(root, until=str(root / "never"))
    pid = next(step)["pid"]
    step.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["terminal", "alone"])
def test_ctrl_c_reaches_the_step_once_and_the_command_waits(root, send):
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], cwd=root, env=environ, stdout=subprocess.PIPE, text=True, process_group=0
    )
    with parent:
        assert int(parent.stdout.readline())
        deadline = time.monotonic() + 30
        send(parent.pid, signal.SIGINT)  # a terminal signals the whole group
        assert parent.wait(deadline - time.monotonic()) == -signal.SIGINT
    assert (root / "interrupted").exists()


@pytest.mark.parametrize("busy", ["", "busy"])
def test_a_terminated_command_ends_its_step(root, busy):
    """Terminate the command, also while its step is between two records."""
    words, environ = [sys.executable, "-c", PARENT, busy], {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, cwd=root, env=environ, stdout=pipe, stderr=pipe, text=True) as parent:
        step = int(parent.stdout.readline())
        parent.terminate()
        assert parent.wait(30) == 128 + signal.SIGTERM
        assert parent.stderr.read().splitlines()[-1] == "kept what there was"
    with pytest.raises(ProcessLookupError):
        os.kill(step, 0)


def test_exec_of_a_program_keeps_the_terminal_and_the_exit_code(root):
    (root / "talk.py").write_text("import os, sys; print(input() + os.getcwd()); sys.exit(5)")
    text = "import sys; from pathlib import Path; from infra import train_env as inside; "
    text += f"inside.exec_interactive(['-m', 'talk'], root=Path({str(root)!r}), python=Path(sys.executable))"
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run([sys.executable, "-c", text], env=environ, input="hello ", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, f"hello {root}\n")


def test_a_failed_environment_is_an_error_of_ours(tmp_path):
    with pytest.raises(SlipwayError, match="the definition of the train environment cannot be read"):
        train_env.interpreter(tmp_path, tmp_path / "cache", print)
    assert json.dumps(sorted(path.name for path in tmp_path.iterdir())) == "[]"
