"""The command line from the user's side: real `inv` processes over a small tasks.py."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from invoke import Exit

from infra.errors import UsageError
from scripts.cli.invoke_patch import convert_errors, line_after_dashes
from tests import fork_server
from tests.programs import source

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
TASKS = source("small_tasks")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "tasks.py").write_text(TASKS)
    return folder


def start(checkout: Path, *words: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "invoke", *words],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def inv(checkout: Path, *words: str) -> tuple[int, str, str]:
    done = fork_server.run(words, {**os.environ, "PYTHONPATH": str(ROOT)}, 30, checkout)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["launch", "--num-gpus", "x"], "inv launch: --num-gpus 'x' is not a whole number\n"),
        (["launch", "--take=many"], "inv launch: --take 'many' is not a whole number\n"),
        (["launch", "--lr", "fast"], "inv launch: --lr 'fast' is not a number\n"),
        (["launch", "--phaes", "sft"], "inv launch: no flag --phaes; did you mean --phase?\n"),
        (["launch", "--dry"], "inv launch: no flag --dry; see: inv --help launch\n"),
        (["launch", "--phase"], "inv launch: --phase needs a value\n"),
        (["launch", "--phase", "--no-yes"], "inv launch: --phase needs a value\n"),
        (["launch", "--yes=1"], "inv launch: --yes takes no value\n"),
        (["launch", "now"], "inv: no task 'now'; see: inv --list, or inv docs now\n"),
        (["lunch"], "inv: no task 'lunch'; did you mean launch?\n"),
        (["cancel", "a"], "inv: no task 'cancel'; here that is: inv down RUN\n"),
        (["launch", "--gpu-type", "A100"], "inv launch: no flag --gpu-type; here that is: --gpu\n"),
        (["launch", "--destroy"], "inv launch: no flag --destroy; here that is: inv down --all\n"),
        (
            ["launch", "--inspect-executors"],
            "inv launch: no flag --inspect-executors; here that is: inv offers --provider lium --gpu A100\n",
        ),
        (["--help", "lunch"], "inv: no task 'lunch'; did you mean launch?\n"),
        (["--list", "nowhere"], "inv: Sub-collection 'nowhere' not found!\n"),
        (
            ["status", "brave-otter-3", "--run", "calm-owl-1"],
            "inv status: 'brave-otter-3' means --run brave-otter-3; leave out one of the two\n",
        ),
        (["status", "brave-otter-3", "calm-owl-1"], "inv status: run is already given, and 'calm-owl-1' is no task; "),
        (["fail", "--kind", "usage"], "inv fail: so it is\n"),
        (["fail", "--kind", "config"], "inv fail: so it is\n"),
    ],
)
def test_invalid_words_get_one_line_and_exit_code_2(checkout, words, said):
    code, out, err = inv(checkout, *words)
    assert (code, out) == (2, "")
    assert err.startswith(said) and err.count("\n") == 1


def test_flags_have_the_types_of_the_task(checkout):
    words = ["launch", "--num-gpus=2", "--take", "10", "--lr", "-1", "--no-yes", "--set", "a=1", "--set=b=2", "-n", "x"]
    code, out, err = inv(checkout, *words, "--option", "sft.lr=1", "--option", "sft.lr=2")
    given = {
        "num_gpus": 2,
        "take": 10,
        "lr": -1.0,
        "phase": "sft",
        "yes": False,
        "run_name": "x",
        "set_": ["a=1", "b=2"],
        "options": {"sft.lr": "2"},
    }
    assert (code, json.loads(out), err) == (0, given, "")


@pytest.mark.parametrize(
    ("words", "run", "watch"),
    [
        ([], "", None),
        (["brave-otter-3"], "brave-otter-3", None),
        (["--run", "brave-otter-3"], "brave-otter-3", None),
        (["--watch"], "", True),
        (["--watch", "2"], "", 2.0),
        (["--watch", "brave-otter-3"], "brave-otter-3", True),
        (["brave-otter-3", "--watch=2"], "brave-otter-3", 2.0),
    ],
)
def test_run_may_be_a_positional_word_and_a_flag_may_omit_its_value(checkout, words, run, watch):
    assert inv(checkout, "status", *words) == (0, json.dumps([run, watch], indent=1) + "\n", "")


def test_positional_words_and_words_after_two_dashes_are_passed_unchanged(checkout):
    code, out, _ = inv(checkout, "test", "a.py", "b c.py", "--", "-x", "two words")
    assert (code, json.loads(out)) == (0, [["a.py", "b c.py"], ["-x", "two words"]])


def test_each_task_runs_once_per_mention(checkout):
    code, out, _ = inv(checkout, "status", "status", "x")
    assert (code, out.count("["), '"x"' in out) == (0, 2, True)


def test_slipway_error_carries_its_exit_code(checkout):
    assert inv(checkout, "fail", "--kind", "limit") == (5, "", "inv fail: so it is\n")


def test_store_and_disk_errors_are_no_internal_errors(checkout):
    assert inv(checkout, "fail", "--kind", "store") == (1, "", "inv fail: so it is\n")
    assert inv(checkout, "fail", "--kind", "disk") == (1, "", "inv fail: [Errno 28] so it is\n")


@pytest.mark.parametrize(("kind", "code"), [("usage", 2), ("limit", 5), ("disk", 1), ("bug", 1)])
def test_failure_is_a_json_document_on_request(checkout, kind, code):
    left, out, err = inv(checkout, "fail", "--kind", kind, "--json")
    said = json.loads(out)
    assert left == said["exit_code"] == code
    assert "so it is" in said["error"] and err == f"inv fail: {said['error']}\n"


def test_failure_without_a_json_reader_is_still_printed(checkout):
    with start(checkout, "fail", "--kind", "usage", "--json") as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(30)
    assert (process.returncode, err) == (2, "inv fail: so it is\n")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_stream_is_replaced_and_no_file_takes_its_descriptor(checkout, closed):
    words = f"{sys.executable} -m invoke status {closed}"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, shell=True, cwd=checkout, env=environ, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == ("" if ">&-" in closed.replace("2>&-", "") else '[\n "",\n null\n]\n')


def test_internal_error_is_one_line_with_a_saved_traceback(checkout):
    code, out, err = inv(checkout, "fail", "--kind", "bug")
    assert (code, out) == (1, "")
    first, second = err.splitlines()
    assert first == "inv fail: unexpected KeyError: 'so it is'"
    assert "Traceback" in Path(second.rpartition(": ")[2]).read_text()


def test_ctrl_c_exits_with_130_without_a_traceback(checkout):
    with start(checkout, "wait") as process:
        deadline = time.monotonic() + 30
        while not (checkout / "ready").exists() and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("words", [["flood"], ["--list"]])
def test_closed_pipe_causes_no_message(checkout, words):
    with start(checkout, *words) as process:
        process.stdout.close()
        err = process.stderr.read()
        process.wait(30)
    assert (process.returncode, err) == (141, "")


def test_help_has_groups_an_example_and_the_positional_flag(checkout):
    code, out, _ = inv(checkout, "status", "--help")
    assert code == 0 and "status [RUN] [FLAGS]" in out and "--watch [X]" in out and "; also as a bare word" in out
    code, out, _ = inv(checkout, "launch", "--help")
    assert code == 0 and "\nExample: ./inv launch --num-gpus 2\n" in out
    assert "\nMachine\n  --num-gpus GPUS             how many (default: 8)\n" in out
    assert "  -n, --run-name TEXT " in out and "  --no-yes " in out


def test_line_for_a_remote_machine_reaches_its_shell_like_with_ssh(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["inv", "ssh", "run", "--", "cd /; pwd", "&&", "echo", "a b"])
    done = subprocess.run(line_after_dashes(), capture_output=True, text=True)
    assert done.stdout == "/\na b\n"
    monkeypatch.setattr(sys, "argv", ["inv", "ssh", "run"])
    assert line_after_dashes() == []


@pytest.mark.parametrize(
    ("words", "said"), [(["nosuch"], "no task 'nosuch'"), (["launch", "--phaes"], "no flag --phaes")]
)
def test_unparsable_line_is_a_json_document_too(checkout, words, said):
    code, out, err = inv(checkout, *words, "--json")
    found = json.loads(out)
    assert (code, found["exit_code"]) == (2, 2) and found["error"].startswith(said) and said in err
    assert inv(checkout, *words, "--", "--json")[1] == ""


@pytest.mark.parametrize("path", ["~nosuchuser", "~nosuchuser/models/a", "~nosuchuser/*.jsonl"])
def test_home_of_an_unknown_user_is_named(tmp_path, path):
    with pytest.raises(Exit) as left, convert_errors(tmp_path, "report"):
        Path(path).expanduser()
    assert (left.value.message, left.value.code) == (
        f"inv report: {path}: ~ names no user of this machine; write the whole path",
        2,
    )


@pytest.mark.parametrize(("name", "said"), [("status", "inv status: no host"), ("", "inv: no host")])
def test_failure_before_any_command_is_reported_too(tmp_path, name, said):
    with pytest.raises(Exit) as left, convert_errors(tmp_path, name):
        raise UsageError("no host")
    assert (left.value.message, left.value.code) == (said, 2)
