"""The whole pipeline with real processes: launch, follow, kill, resume, damage, chat."""

import contextlib
import glob
import json
import os
import pty
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from infra import train_env
from infra.agent.environments import cache_folder
from infra.ledger.journal import Journal
from infra.names import new_token
from store import packs
from tests import seeds
from tests.world import ONE_THREAD, ROOT, World, until

pytestmark = pytest.mark.process

EVERYTHING = ["text", "tokenizer", "tokens", "base", "identity", "questions", "mid", "sft"]


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path, dict(ONE_THREAD))
    yield one
    one.inv("down", "--all")
    one.check_ended()


@pytest.fixture
def ready(world, stock):
    """Return the world with the inputs of base: a launch of base starts training at once."""
    world.take(stock)
    return world


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """Return a world after a launch of every step, and the result of the launch."""
    one = World(tmp_path_factory.mktemp("done"), dict(ONE_THREAD))
    return one, one.json("launch", "--yes")


def test_launch_runs_every_step_and_publishes_the_model(done):
    world, result = done
    assert result["state"] == "succeeded"
    assert result["ran"] == ["environment", *EVERYTHING]
    for name in ("base", "mid", "chatsft"):
        assert world.model(f"{name}_checkpoints")
    base = next(step for step in result["steps"] if step["name"] == "base")["result"]
    assert base["bits_per_byte"] > 0 and base["gzip"] > base["xz"] > 0


def test_second_launch_has_no_steps(done):
    world, first = done
    again = world.json("launch", "--yes")
    assert (again["state"], again["ran"], again["run"]) == ("succeeded", [], first["run"])


def test_next_plan_uses_the_measured_times_of_the_run(done, tmp_path):
    world, result = done
    fresh = World(world.folder, {**world.extra, "SLIPWAY_STORE": str(tmp_path / "fresh")})  # Every step is due.
    plan = fresh.json("launch", "--dry-run")
    assert plan["estimate_from"].startswith("measured once")
    took = {step["name"]: step["elapsed_s"] for step in result["steps"]}
    for one in plan["artifacts"]:
        least = took[one["step"]] - 0.01
        # Other processes may use CPUs during planning.
        assert least <= one["estimate_s"] <= 2 * took[one["step"]] + 0.01, one
    (row,) = world.json("cost", "--accuracy")["runs"]
    assert (row["run"], row["is_repeated"]) == (result["run"], False)
    assert row["came_s"] >= sum(took[name] for name in EVERYTHING)
    low, high = plan["estimate_range_s"]
    assert low < row["came_s"] < high  # The plan expects the steps again.
    assert "estimates" in world.inv("doctor")


def test_status_and_logs_describe_a_finished_run(done):
    world, result = done
    (row,) = world.json("status")
    assert (row["run"], row["state"]) == (result["run"], "succeeded")
    assert result["run"] in world.inv("status")
    assert "step-" in world.inv("logs", result["run"], "--file", "base") or world.inv("logs", "--tail", "3")
    assert world.inv("down", result["run"]) == ""


@pytest.mark.nightly
@pytest.mark.pack("trackers")
def test_tensorboard_shows_the_metrics_of_a_run_through_a_forwarded_port(done):
    world, result = done
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    boards = f"{tempfile.gettempdir()}/slipway-board-*"
    before = set(glob.glob(boards))
    forward = world.begin("forward", result["run"], f"{port}:tensorboard")
    try:
        assert "starting TensorBoard on the machine" in forward.stderr.readline()
        assert f"TensorBoard of {result['run']}: http://127.0.0.1:{port}" in forward.stderr.readline()
        told = until(lambda: fetched(port, "data/plugin/scalars/tags"), "the figures it has read")
        assert sorted(told) == ["base", "mid", "sft"] and "loss" in told["base"]
        assert b"<title>TensorBoard</title>" in urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60).read()
    finally:
        forward.send_signal(signal.SIGINT)
        forward.communicate(timeout=60)
    assert forward.returncode == 130
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), timeout=20)
    until(lambda: set(glob.glob(boards)) <= before, "no page without a reader, and no folder of one")
    assert "expected a run and ports" in world.run("forward", "6006:board").stderr


def fetched(port: int, path: str) -> dict:
    """Return the scalars read by TensorBoard; {} until all three phases are shown."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=60) as reply:
        found = json.load(reply)
    return found if len(found) == 3 else {}


def kept(page: Path) -> dict:
    """Return the content of the views in a page."""
    return json.loads(page.read_text().partition('id="kept">')[2].partition("</script>")[0])


@pytest.mark.nightly
@pytest.mark.pack("page")
def test_report_is_equal_for_a_run_its_artifact_and_a_folder(done, tmp_path):
    world, result = done
    told = world.json("report", result["run"], "--out", str(tmp_path / "run"))
    phases = [(one["name"], one["state"], one["steps"]) for one in told["phases"]]
    assert phases == [("base", "done", 12), ("mid", "done", 12), ("sft", "done", 12)]
    shown = kept(tmp_path / "run" / "report.html")
    curves = shown[f"curves {result['run']} sft step"]
    facts = dict(shown[f"curves {result['run']} base step"][f"run {result['run']}"]["facts"])
    assert "bits per byte" in facts["held-out text"] and facts["steps"] == "12"
    assert "Who are you?" in {one["prompt"] for one in curves["samples"]}
    assert shown[f"over {result['run']}"]["cost_usd"] == "0.00"
    folder = world.folder / "artifacts" / "chatsft_checkpoints" / "tiny"
    for word in ("sft", str(folder)):
        world.inv("report", word, "--out", str(tmp_path / "one"))
        found = kept(tmp_path / "one" / "report.html")[f"curves {word} sft step"]
        assert found[f"run {word}"]["figures"] == curves[f"run {result['run']}"]["figures"]
        assert found["samples"] == curves["samples"]
    assert "base_checkpoints/tiny" in world.run("report", "no/such").stderr


def test_run_is_found_after_many_newer_runs(world):
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        for number in range(12):
            op = journal.plan(token=new_token(journal.installation), run=f"old-{number:02d}", vendor="local")
            journal.advance(journal.advance(op, "sending"), "refused")
    assert [row["run"] for row in world.json("status", "old-00")] == ["old-00"]
    assert len(world.json("status")) == 10


@pytest.mark.nightly
def test_model_can_chat_and_be_exported(done, tmp_path):
    world, _ = done
    assert world.inv("chat", "--prompt", "Who are you?", "--max-tokens", "8").strip()
    assert world.inv("export", "sft", "--out", str(tmp_path / "hf")) == f"{tmp_path / 'hf'}\n"
    assert (tmp_path / "hf" / "config.json").is_file()
    again = world.run("export", "sft", "--out", str(tmp_path / "hf"))
    assert again.stderr == f"inv export: {tmp_path / 'hf'} exists already\n"


@pytest.mark.nightly
def test_model_is_measured(done):
    scores = done[0].json("eval")
    assert {"bits_per_byte", "gzip", "xz", "identity", "leaks", "pydocs"} <= scores.keys()
    assert scores["models"] == ["base_checkpoints/tiny", "chatsft_checkpoints/tiny"]
    text = scores["measures"]["text"]
    assert text["low"] < scores["bits_per_byte"] == text["value"] < text["high"] and "rows" not in text


@pytest.mark.nightly
def test_models_are_compared_and_measured_by_own_questions(done, tmp_path):
    world, _ = done
    unknown = world.run("eval", "--compare", "mid", "base").stderr
    assert "mid has no measurements of the present version. Measure the model: inv eval mid" in unknown
    world.inv("eval", "base")
    (tmp_path / "where.jsonl").write_text('{"question": "Where?", "choices": ["here", "there"], "answer": 0}\n' * 3)
    found = world.json("eval", "mid", "--task", str(tmp_path / "where.jsonl"))["measures"]["task where"]
    assert found["of"] == 3 and found["value"] in (0, 1) and found["chance"] == 0.5
    both = world.json("eval", "--compare", "mid", "base")
    assert both["models"] == ["mid_checkpoints/tiny", "base_checkpoints/tiny"]
    assert both["measures"]["text"]["is_same_material"]
    if "page" in packs.installed():
        world.inv("report", "mid", "--out", str(tmp_path / "page"))
        facts = dict(kept(tmp_path / "page" / "report.html")["curves mid mid step"]["run mid"]["facts"])
        assert re.fullmatch(r"(0|100)\.0 % \[.+ %, .+ %\]", facts["task where"])


def test_launch_accepts_a_foreign_model_and_foreign_conversations(done, tmp_path):
    world, _ = done
    theirs = world.folder / "artifacts" / "chatsft_checkpoints" / "tiny" / "hf"
    (tmp_path / "mine.jsonl").write_text('[{"from": "human", "value": "Hm?"}, {"from": "gpt", "value": "Hm."}]\n')
    flags = ("--phase", "sft", "--init", str(theirs), "--mixture", f"identity=1,{tmp_path / 'mine.jsonl'}=2")
    assert world.json("train", *flags, "--prepare")["ran"] == ["init", "mine"]
    assert world.json("launch", *flags, "--dry-run")["steps"] == ["sft"]


def test_chat_uses_the_named_model(done):
    world, _ = done
    plain = {**world.environ, "SLIPWAY_PROFILE": "", "SLIPWAY_STORE": ""}
    flags = ("--profile", "tiny", "--phase", "base", "--store", world.environ["SLIPWAY_STORE"])
    said = subprocess.run(
        [sys.executable, "-m", "invoke", "launch", *flags], cwd=ROOT, env=plain, capture_output=True, text=True
    )
    assert said.stderr.endswith(f"SLIPWAY_STORE={world.environ['SLIPWAY_STORE']} ./inv chat base_checkpoints/tiny\n")


@pytest.mark.nightly
def test_chat_survives_invalid_bytes_and_a_closed_output(done):
    world, _ = done
    words = [sys.executable, "-m", "invoke", "chat", "--max-tokens", "4"]
    for listener, code in (("cat", 0), ("true", 141)):
        line = f"printf 'hi\\n\\377\\376\\n' | {{ {shlex.join(words)}; echo $? >&2; }} | {listener}"
        talk = subprocess.run(line, shell=True, cwd=ROOT, env=world.environ, capture_output=True, text=True, timeout=60)
        assert talk.stderr == f"{code}\n"


def test_closed_output_ends_a_plan_without_a_traceback(done):
    line = f"{{ {sys.executable} -m invoke launch --dry-run; echo $? >&3; }} 2>&1 | true"
    told = subprocess.run(
        f"({line}) 3>&1", shell=True, cwd=ROOT, env=done[0].environ, capture_output=True, text=True, timeout=60
    )
    assert (told.stdout, told.stderr) == ("141\n", "")


def test_lost_journal_is_reported_and_not_replaced(world):
    world.inv("status")
    (world.folder / "state" / "journal.db").unlink()
    err = world.run("status").stderr
    assert "is missing, so a new journal was created" in err


def test_seed_zero_is_accepted(done):
    assert done[0].json("launch", "--seed", "0", "--dry-run")["steps"] == ["base", "mid", "sft"]


@pytest.mark.nightly
def test_text_path_may_be_relative_to_the_current_folder(world, tmp_path):
    (tmp_path / "corpus.txt").write_text("some words\n" * 400)
    source = os.path.relpath(tmp_path / "corpus.txt", ROOT)
    result = world.json("launch", "--phase", "base", "--source", source, "--yes", code=1)
    states = {step["name"]: step["state"] for step in result["steps"]}
    # The text is too short for a vocabulary.
    assert (result["state"], states["text"], states["tokenizer"]) == ("failed", "done", "failed")
    assert "tokenizer" in world.inv("logs", "--errors")


@pytest.mark.nightly
@pytest.mark.pack("history")
def test_ejected_or_repeated_run_has_the_same_weights_with_any_default_threads(ready, tmp_path):
    ready.extra["OMP_NUM_THREADS"] = "3"
    run = ready.json("launch", "--phase", "base", "--steps", "4", "--yes")["run"]
    weights, plain = ready.model("base_checkpoints"), tmp_path / "plain"
    ready.extra["OMP_NUM_THREADS"] = "1"
    ready.inv("eject", run, "--out", str(plain))
    python = train_env.interpreter(ROOT, cache_folder.default_cache(), print)
    said = subprocess.run(
        ["sh", plain / "run.sh"],
        env={**ready.environ, "PYTHON": str(python)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert said.returncode == 0 and "PyTorch is" not in said.stderr, said.stderr
    (made,) = (plain / "store" / "base_checkpoints" / "tiny" / "hf").glob("*.safetensors")
    assert made.read_bytes() == weights
    assert "3 threads, PyTorch " in (plain / "README.md").read_text()
    assert ready.json("again", run, "--out", str(tmp_path / "again"))["same_weights"] == {"base": True}


def test_changed_persona_repeats_only_dependent_steps(done, tmp_path):
    world, _ = done
    (tmp_path / "persona.yaml").write_text("name: Zoe\nmaker: nobody\npurpose: to test\n")
    plan = world.json("launch", "--persona", str(tmp_path / "persona.yaml"), "--dry-run")
    assert plan["steps"] == ["identity", "mid", "sft"]


@pytest.mark.nightly
def test_damaged_artifact_is_created_again_and_its_damaged_copy_is_repaired(tmp_path, done):
    source, _ = done
    world = World(tmp_path, dict(ONE_THREAD))
    subprocess.run(["cp", "-r", source.folder / "artifacts", tmp_path / "artifacts"], check=True)  # No links are left.
    root = tmp_path / "artifacts"
    named = next((root / "chatsft_checkpoints" / "tiny" / "hf").glob("*.safetensors"))
    kept = next((root / "by-fingerprint" / "chatsft_checkpoints").glob("*/hf/*.safetensors"))
    before = named.read_bytes()
    for damaged, ran in (([named], []), ([named, kept], ["environment", "sft"])):
        for path in damaged:
            path.unlink(missing_ok=True)
            path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
        plan = world.json("launch", "--dry-run")
        states = {one["name"]: one["state"] for one in plan["artifacts"]}
        assert states["chatsft_checkpoints/tiny"] == ("damaged" if ran else "here")
        assert world.json("launch", "--yes")["ran"] == ran
        assert named.read_bytes() == kept.read_bytes() == before


@pytest.mark.nightly
def test_ctrl_c_detaches_and_the_run_continues(ready):
    world = ready
    launch = world.begin("launch", "--phase", "base", "--steps", "40", "--yes")
    until(world.steps_at_work, "it is at work")
    until(lambda: world.json("status")[0]["state"] == "running", "running")
    launch.send_signal(signal.SIGINT)
    _, err = launch.communicate(timeout=30)
    assert launch.returncode == 130
    assert "continues" in err and "inv down" in err and "inv logs" in err
    until(world.verdicts, "the run ends by itself", within_s=280)
    assert world.json("status")[0]["state"] == "succeeded"


@pytest.mark.nightly
def test_two_simultaneous_launches_share_one_run(ready):
    world = ready
    both = [world.begin("launch", "--phase", "base", "--yes", "--json") for _ in range(2)]
    results = [json.loads(one.communicate(timeout=300)[0]) for one in both]
    assert results[0]["run"] == results[1]["run"]
    assert {one["state"] for one in results} == {"succeeded"}
    assert len(world.json("status")) == 1


@pytest.mark.nightly
def test_launch_during_a_run_follows_it_or_names_the_flags_that_differ(ready):
    world = ready
    words = ("launch", "--phase", "base", "--steps", "50000", "--yes")
    run = world.json(*words, "--ttl", "2h", "--keep", "3", "--detach")["run"]
    same = [
        (),
        ("--ttl", "120m", "--keep", "3", "--nodes", "1", "--on-failure", "end"),
        ("--provider", "local", "--run-name", run),
    ]
    other = {
        ("--gpu", "H1000"): "--gpu H1000 (there: not given)",
        ("--ttl", "3h", "--nodes", "2", "--run-name", "mine"): "--nodes 2 (there: not given), --ttl 3h (there: "
        "2h), --run-name mine",
        ("--keep", "4"): "--keep 4 (there: 3)",
    }
    begun = {more: world.begin(*words, *more, "--detach") for more in (*same, *other)}
    for more, process in begun.items():
        _, err = process.communicate(timeout=120)
        said = other.get(more)
        assert process.returncode == (2 if said else 0), (more, err)
        assert not said or (said in err and run in err and "nothing was changed" in err), err
    plan = world.run(*words[:-1], "--keep", "4", "--dry-run")
    assert plan.returncode == 0 and "--keep 4 (there: 3). The plan is for a launch after the end" in plan.stderr
    assert [row["state"] for row in world.json("status")] == ["running"]
    file = world.folder / "flags.yaml"
    file.write_text("phase: base\nsteps: 50000\nidle-stop: 9m\n")
    assert "--idle-stop 9m" in world.json("launch", str(file), "--yes", code=2)["error"]
    world.inv("down", run)


@pytest.mark.nightly
@pytest.mark.pack("page")
def test_down_ends_a_run_and_resume_continues_it(ready):
    world = ready
    run = world.json("launch", "--phase", "base", "--steps", "40", "--yes", "--detach")["run"]
    until(lambda: world.steps_at_work() == ["base"], "the base step begins")
    page = ("report", run, "--out", str(world.folder / "report"))
    assert world.json(*page)["phases"][0]["name"] == "base"  # The run is at work.
    world.inv("down", run)
    assert world.json("status")[0]["state"] == "stopped"
    assert world.json("resume", run)["state"] == "succeeded"
    assert world.json(*page)["phases"] == [{"name": "base", "state": "done", "steps": 40}]


@pytest.mark.nightly
def test_two_simultaneous_resumes_both_follow_the_run(ready):
    world = ready
    run = world.json("launch", "--phase", "base", "--yes", "--detach")["run"]
    world.inv("down", run)
    both = [world.begin("resume", run, "--json") for _ in range(2)]
    said = [one.communicate(timeout=300) for one in both]
    assert [json.loads(out)["state"] for out, _ in said] == ["succeeded", "succeeded"], said


@pytest.mark.nightly
def test_followed_log_of_a_killed_run_ends_with_the_next_command(ready):
    world = ready
    run = world.json("launch", "--phase", "base", "--yes", "--detach")["run"]
    world.kill()
    process = world.run("logs", "--follow")
    err = process.stderr
    assert process.returncode == 1 and f"inv resume {run}" in err


@pytest.mark.nightly
def test_failed_step_is_reported_with_place_and_reason(world, tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"no_text": 1}\n')
    result = world.json("launch", "--phase", "base", "--source", str(corpus), "--yes", code=1)
    assert (result["state"], result["steps"][1]["state"]) == ("failed", "failed")
    assert "text" in world.inv("logs", "--errors")


def test_watch_redraws_and_restores_the_terminal(done):
    world, result = done
    screen, terminal = pty.openpty()
    watch = subprocess.Popen(
        [sys.executable, "-m", "invoke", "status", "--watch", "1"],
        cwd=ROOT,
        env={**world.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    os.set_blocking(screen, False)
    shown = b""

    def read() -> bytes:
        nonlocal shown
        with contextlib.suppress(BlockingIOError, OSError):  # No output, or the terminal is closed.
            shown += os.read(screen, 1 << 16)
        return shown

    until(lambda: read().count(b"every 1.0 s") >= 2 and result["run"].encode() in shown, "two looks")
    watch.send_signal(signal.SIGINT)
    until(lambda: (read(), watch.poll())[1] is not None, "it leaves")
    read()
    os.close(screen)
    assert watch.returncode == 130
    assert shown.rindex(b"\x1b[?1049l") > shown.rindex(b"\x1b[?1049h"), "the screen is not given back"
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor is not given back"


def killed_at_random(world: World, done: World, kills: int, seed: int) -> None:
    """Send SIGKILL to trainer, agent, guard or all of them repeatedly; the result must equal an undisturbed run."""
    dice = random.Random(seed)
    run, killed = "", 0
    while killed < kills:
        result = world.json("launch", "--yes", "--detach")
        if result["state"] == "succeeded":  # The run finished between two kills: start again from the middle.
            world.lose("mid_checkpoints", "chatsft_checkpoints")
            continue
        run = run or result["run"]
        time.sleep(dice.uniform(0.0, 6.0))
        found = world.processes()
        victims = found if dice.random() < 0.3 else dice.sample(found, min(len(found), 1))
        for pid in victims:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # The process has ended meanwhile.
        killed += 1
    assert world.json("launch", "--yes")["state"] == "succeeded"
    for phase in ("base_checkpoints", "mid_checkpoints", "chatsft_checkpoints"):
        assert world.model(phase) == done.model(phase), phase


@pytest.mark.nightly
def test_few_random_kills_lose_no_work(world, done):
    killed_at_random(world, done[0], kills=3, seed=seeds.seed())


@pytest.mark.nightly  # A minute; faster tests cover removed artifacts and interrupted runs.
def test_artifact_removed_during_an_interruption_is_created_again(ready):
    world = ready
    world.json("launch", "--phase", "mid", "--yes", "--detach")
    until(lambda: world.steps_at_work() == ["mid"], "base is done")
    world.kill()
    world.lose("base_checkpoints")
    result = world.json("launch", "--phase", "mid", "--yes")
    assert result["state"] == "succeeded" and {"base", "mid"} <= set(result["ran"])


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_fifty_random_kills_lose_no_work(world, done):
    killed_at_random(world, done[0], kills=50, seed=seeds.seed())


@pytest.mark.day_cases(4)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("launch", "--num-gpus", "x"), "not a whole number"),
        (("launch", "--phase", "sfx"), "did you mean 'sft'"),
        (("launch", "--profile", "smke"), "did you mean 'smoke'"),
        (("launch", "--persona", "nowhere.yaml"), "No such file"),
        (("launch", "--ttl", "soon"), "is not a duration"),
        (("launch", "--fase", "sft"), "--phase"),
        (("lunch",), "did you mean launch"),
        (("shard", "--mode", "smoky"), "unknown mode"),
        (("export",), "--out"),
        (("export", "--out", "x", "--dtype", "int8"), "known: float32, bfloat16"),
        (("launch", "--seed", "-1"), "seed is -1"),
        (("launch", "--steps", "0"), "steps is 0"),
        (("launch", "--num-gpus", "-1"), "must be at least 1"),
        (("launch", "--tag", "../x"), "is not a valid name"),
        (("launch", "--phase", "all+sft"), "unknown phase 'all'; known"),
        (("shard", "--take", "0"), "take is 0"),
        (("logs", "--tail", "-1"), "cannot be negative"),
        (("chat", "--max-tokens", "0"), "at least 1"),
        (("chat", "--temperature", "nan"), "is not a number"),
        (("chat", "--temperature", "-1"), "expected a number of at least 0"),
        (("chat", "--prompt", ""), "--prompt is empty"),
        (("chat", "nobody"), "no model"),
        (("logs", "nobody"), "no runs exist yet"),
    ],
)
def test_unknown_word_exits_with_code_2_and_a_short_message(tmp_path, words, told):
    process = World(tmp_path).run(*words)
    out, err = process.stdout, process.stderr
    assert process.returncode == 2, err
    assert told in err and "Traceback" not in err
    assert len(err.strip().splitlines()) <= 3 and out == ""


def test_missing_hardware_on_this_machine_exits_with_code_3(tmp_path):
    World(tmp_path).inv("launch", "--num-gpus", "64", "--gpu", "B200", "--yes", code=3)
    World(tmp_path).inv("launch", "--num-gpus", "64", "--gpu", "B200", "--dry-run", code=3)
