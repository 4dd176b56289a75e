"""Steps run, end, fail, stop and resume."""

import json
import resource
import stat
from pathlib import Path

import pytest

from infra.agent.execution.steps import RESUME_ME, tail
from infra.agent.job import PodFolder, Step
from tests.infra.agent.world import World, module, names, until
from tests.programs import source

pytestmark = pytest.mark.process

COUNT = source("count_records")
WAIT = source("wait_for_go")
TORCHRUN = """ModuleNotFoundError: {}
W1129 19:07:37.4 263 torch/distributed/elastic/multiprocessing/api.py:900] Sending process 7 closing signal SIGTERM
E1129 19:07:37.5 263 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 6)
Traceback (most recent call last):
    raise ChildFailedError(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
t.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
  exitcode  : 1 (pid: 6)
============================================================
"""


def test_steps_run_in_order_and_leave_records_results_and_marks(world: World) -> None:
    world.program("count", COUNT)
    world.job(module("count", config={"total": 3}), Step("again", ("-m", "count"), config={"total": 2}))
    armed = world.start()
    assert armed["token"] == world.token and armed["armed"]
    verdict = world.verdict()
    assert (verdict["state"], verdict["exit_code"], verdict["step"]) == ("succeeded", 0, "")
    assert world.lines("ran.txt") == ["__main__ 3", "__main__ 2"]
    progress = world.progress()
    assert progress["state"] == "succeeded"
    assert names(progress["steps"]) == {"count": "done", "again": "done"}
    assert world.step("count")["result"]["total"] == 3
    assert world.step("again")["attempts"] == 1


def test_a_second_start_skips_marked_steps_and_runs_changed_steps(world: World) -> None:
    world.program("count", COUNT)
    same = module("count", config={"total": 3})
    world.job(same, Step("again", ("-m", "count"), config={"total": 2}))
    world.start()
    world.verdict()
    world.start()
    assert world.verdict()["state"] == "succeeded"
    assert len(world.lines("ran.txt")) == 2
    assert world.step("count")["state"] == "reused" and world.step("count")["result"]["total"] == 3
    world.job(same, Step("again", ("-m", "count"), config={"total": 5}))
    world.start()
    world.verdict()
    assert world.lines("ran.txt")[2:] == ["__main__ 5"]
    assert len(list(world.pod.state.glob("verdict-*.json"))) == 2


def test_tail_of_a_step_under_torchrun_ends_with_the_error_of_the_program(tmp_path: Path) -> None:
    pod = PodFolder(tmp_path)
    pod.logs.mkdir()
    pod.log("run").write_text(f"first attempt\n{TORCHRUN.format('one')}second attempt\n{TORCHRUN.format('two')}")
    said = tail(pod, "run").splitlines()
    assert said == ["first attempt", "ModuleNotFoundError: one", "second attempt", "ModuleNotFoundError: two"]
    pod.log("run").write_text("a torch/distributed/elastic of the user failed\n")
    assert tail(pod, "run") == "a torch/distributed/elastic of the user failed"


def test_a_failing_step_ends_the_run_with_its_exit_code_and_last_output(world: World) -> None:
    world.program("fail", "import sys; print('first'); print('the reason', file=sys.stderr); sys.exit(7)")
    world.program("count", COUNT)
    world.job(module("fail"), module("count", config={"total": 1}))
    world.start()
    verdict = world.verdict()
    assert (verdict["state"], verdict["step"], verdict["exit_code"]) == ("failed", "fail", 7)
    assert verdict["tail"].endswith("the reason")
    assert names(world.progress()["steps"]) == {"fail": "failed", "count": "waiting"}
    (error,) = world.pod.logs.glob("error-*.log")
    assert "failed with exit code 7" in error.read_text() and "the reason" in error.read_text()


def test_a_step_killed_from_outside_fails_and_the_next_start_resumes_it(world: World) -> None:
    world.program("die", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    world.job(module("die"))
    world.start()
    verdict = world.verdict()
    reason = "step die was killed by SIGKILL; the usual cause: the machine ran out of memory"
    assert (verdict["exit_code"], verdict["reason"]) == (-9, reason)
    world.program("die", "pass")
    world.start()
    assert world.verdict()["state"] == "succeeded"


def test_a_step_that_requests_a_restart_is_restarted_up_to_a_limit(world: World) -> None:
    world.program(
        "twice", "import os, sys; sys.exit(75 if not os.path.exists('x') and not open('x', 'w').close() else 0)"
    )
    world.program("never", f"import sys; sys.exit({RESUME_ME})")
    world.job(module("twice"), module("never", max_restarts=2))
    world.start()
    verdict = world.verdict()
    assert (verdict["state"], verdict["exit_code"]) == ("failed", RESUME_ME)
    assert (world.step("twice")["attempts"], world.step("never")["attempts"]) == (2, 3)


def test_a_step_that_publishes_after_a_request_to_stop_is_done(world: World) -> None:
    """torchrun leaves with RESUME_ME after the signal, also if its processes have published the model."""
    world.program(
        "publish",
        "import os, signal, sys, time\n"
        "def leave(number, frame):\n"
        "    open(os.environ['SLIPWAY_RECORDS'], 'a').write('{\"kind\": \"result\", \"total\": 3}\\n')\n"
        f"    sys.exit({RESUME_ME})\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(600)\n",
    )
    world.job(module("publish"))
    world.start()
    until((world.pod.code / "ready").exists)
    world.call("stop")
    assert world.verdict()["state"] == "succeeded"
    assert (world.step("publish")["state"], world.step("publish")["result"]["total"]) == ("done", 3)


def test_a_silent_step_prints_its_stacks_and_is_restarted_up_to_a_limit(world: World) -> None:
    world.program(
        "hang",
        "import faulthandler, os, signal, time\n"
        "if not os.path.exists('deaf'):\n"
        "    faulthandler.register(signal.SIGUSR1)\n"
        "open('deaf', 'w').close()\n"  # at the second stall the signal ends the step
        "def stuck_here():\n    time.sleep(600)\n"
        "stuck_here()\n",
    )
    world.job(module("hang", silent_s=0.5, max_restarts=1))
    world.start()
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("failed", "step hang fell silent 2 times")
    assert "in stuck_here" in world.pod.log("hang").read_text()


def test_a_reporting_step_is_not_silent(world: World) -> None:
    world.program(
        "talk",
        "import os, time\n"
        "for _ in range(12):\n"
        "    open(os.environ['SLIPWAY_RECORDS'], 'a').write('{\"kind\": \"progress\"}\\n')\n"
        "    time.sleep(0.1)\n",
    )
    world.job(module("talk", silent_s=1.0))
    world.start()
    assert world.verdict()["state"] == "succeeded"
    assert world.step("talk")["attempts"] == 1


def test_a_step_beyond_its_time_limit_fails(world: World) -> None:
    world.program("slow", "import time; time.sleep(600)")
    world.job(module("slow", timeout_s=0.5))
    world.start()
    assert world.verdict()["reason"] == "step slow reached the time limit of 0.5 s"


def test_a_stop_lets_the_step_finish_cleanly_and_a_start_resumes_it(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start()
    until(lambda: world.lines("ran.txt"))
    stopped = world.call("stop")
    assert stopped["stopped"] and stopped["survivors"] == []
    assert stopped["verdict"]["state"] == "stopped" and stopped["verdict"]["step"] == "wait"
    assert world.lines("left.txt") == ["left"] and not world.members()
    assert world.progress()["state"] == "stopped"
    (world.pod.work / "go").touch()
    world.start()
    assert world.verdict()["state"] == "succeeded"
    assert world.lines("ran.txt") == ["ran", "ran"]
    assert world.call("stop")["verdict"]["state"] == "succeeded"  # a stop after the end changes nothing


def test_secrets_reach_the_step_and_no_written_file(world: World) -> None:
    canary = "canary-8b1d"
    world.program(
        "tell",
        "import json, os, sys\n"
        "secret = os.environ['HF_TOKEN']\n"
        "open(os.environ['SLIPWAY_RECORDS'], 'a').write(json.dumps({'kind': 'result', 'said': secret}) + '\\n')\n"
        "print('with', secret, os.environ['PLAIN'])\n"
        "sys.exit('HF_TOKEN=%s OTHER=%s' % (secret, os.environ.get('OTHER')))\n",
    )
    world.pod.secrets.write_text(json.dumps({"HF_TOKEN": canary, "OTHER": "unasked-77"}))
    world.pod.secrets.chmod(0o600)
    world.job(module("tell"), secrets=("HF_TOKEN",), environ={"PLAIN": "plain"})
    world.start()
    assert world.verdict()["tail"].endswith("with [HF_TOKEN] plain\nHF_TOKEN=[HF_TOKEN] OTHER=None")
    assert world.step("tell")["result"]["said"] == "[HF_TOKEN]"
    assert stat.S_IMODE(world.pod.secrets.stat().st_mode) == 0o600
    told = {
        path.name for path in world.pod.root.rglob("*") if path.is_file() and canary in path.read_text(errors="replace")
    }
    assert told == {"secrets.json", "tell.log", "tell.jsonl"}  # files written by the step stay unchanged


def test_a_crashing_step_leaves_no_memory_on_disk(world: World) -> None:
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    before, canary = resource.getrlimit(resource.RLIMIT_CORE)[0], "canary-5f02"
    world.program("crash", "import os; print(open('/proc/self/coredump_filter').read()); os.abort()")
    world.pod.secrets.write_text(json.dumps({"HF_TOKEN": canary}))
    world.job(module("crash", max_restarts=0), secrets=("HF_TOKEN",))
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))  # as during debugging
    try:
        world.start()
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (before, hard))
    assert world.verdict()["state"] == "failed"
    assert world.pod.log("crash").read_text().split() == ["00000000"]
    held = {path.name for path in world.pod.root.rglob("*") if path.is_file() and canary.encode() in path.read_bytes()}
    assert held == {"secrets.json"}
    assert not [path for path in world.pod.root.rglob("core*") if path.is_file()]


def test_a_missing_secret_is_named(world: World) -> None:
    world.job(module("never"), secrets=("HF_TOKEN",))
    world.start()
    assert world.verdict()["reason"] == "not in secrets.json: HF_TOKEN"


ENVIRONMENT = """
import sys
from pathlib import Path
class EnvironmentFailed(Exception): pass
def ensure(name, code, cache, torch, say, carried):
    if torch == "none":
        raise EnvironmentFailed("train: no torch of that kind")
    say("linking " + name)
    bin = Path(cache) / name / "bin"
    bin.mkdir(parents=True, exist_ok=True)
    if not (bin / "python").exists():
        (bin / "python").symlink_to(sys.executable)
    return bin / "python"
"""


def test_step_zero_makes_the_environment_of_the_steps(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    world.program(
        "where",
        "import os, shutil; open(os.environ['SLIPWAY_WORK'] + '/where.txt', 'w').write(shutil.which('python') + '\\n')",
    )
    cache = world.pod.root / "cache"
    world.job(module("where", environment="train"), environments=str(cache))
    world.start()
    assert world.verdict()["state"] == "succeeded"
    assert names(world.progress()["steps"]) == {"environment": "done", "where": "done"}
    assert world.lines("where.txt") == [str(cache / "train" / "bin" / "python")]
    assert "linking train" in world.pod.log("environment").read_text()


def test_a_failed_environment_ends_the_run_with_its_error_line(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    world.job(module("never", environment="train"), environments=str(world.pod.root), torch="none")
    world.start()
    verdict = world.verdict()
    assert (verdict["step"], verdict["tail"]) == ("environment", "train: no torch of that kind")


def test_an_environment_removed_between_steps_fails_the_next_step_and_a_start_makes_it_again(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    cache = world.pod.root / "cache"
    world.program("vanish", f"import shutil; shutil.rmtree({str(cache)!r})")
    world.program("after", "")
    world.job(module("vanish", environment="train"), module("after", environment="train"), environments=str(cache))
    world.start()
    verdict = world.verdict()
    assert (verdict["state"], verdict["step"], verdict["tail"]) == ("failed", "after", "")
    assert verdict["reason"].startswith("step after cannot be started: [Errno 2]")
    world.start()
    assert world.verdict()["state"] == "succeeded"
    assert names(world.progress()["steps"]) == {"environment": "done", "vanish": "reused", "after": "done"}
