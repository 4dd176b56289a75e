"""The guard enforces limits, and recovers when guard, agent or both are killed."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.agent import limits as ends
from infra.agent.job import Job, Limits
from infra.agent.process import find, send
from infra.agent.state import read_json, report, write_json
from tests.infra.agent.execution.test_steps import WAIT
from tests.infra.agent.world import World, module, until
from tests.needs import PRIVILEGE, needs
from tests.programs import source

pytestmark = pytest.mark.process

ORPHANS = source("orphans")

SLOW_GUARD = source("slow_guard")


def guard_json(world: World) -> dict[str, Any]:
    return json.loads((world.pod.state / "guard.json").read_text())


def has_lived(world: World, elapsed_s: float) -> None:
    """Write the state of earlier guards that counted `elapsed_s` seconds."""
    write_json(world.pod.state / "guard.json", {"token": world.token, "elapsed_s": elapsed_s, "clocks": None})


def test_a_second_start_has_no_effect_and_concurrent_starts_make_one_guard(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    both = [world.command("start"), world.command("start")]
    said = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert said[0]["identity"] == said[1]["identity"] == world.start()["identity"]
    until(lambda: world.lines("ran.txt"))
    status = world.call("status")
    assert status["guard"]["alive"] and status["agent"]["alive"] and status["verdict"] is None
    assert len(world.members()) == 3
    world.job(module("wait"), token=world.token + "-other")
    assert "another job is running in this folder" in world.call("start", code=1)
    world.job(module("wait"))
    world.call("stop")
    assert world.lines("ran.txt") == ["ran"]


def test_a_killed_agent_is_restarted_and_ends_the_old_step_first(world: World) -> None:
    world.program("orphans", ORPHANS)
    world.job(module("orphans"))
    world.start(SLIPWAY_GRACE_S="0.5")
    until(lambda: world.lines("ran.txt"))
    old = set(world.members()) - {world.living("guard")}
    assert len(old) == 4  # the agent, the step, and two orphans; one orphan has cleared its environment
    world.kill("agent")
    until(lambda: len(world.lines("ran.txt")) == 2)
    assert not old & set(world.members())
    world.call("stop", {"SLIPWAY_GRACE_S": "0.2"})
    assert not find(world.token)


def test_a_step_killed_together_with_its_agent_fails_without_a_restart(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start()
    until(lambda: world.lines("ran.txt"))
    agent = world.living("agent")
    (step,) = set(world.members()) - {agent, world.living("guard")}
    send(agent, signal.SIGSTOP)  # the agent must not see the end of the step
    send(step, signal.SIGKILL)
    send(agent, signal.SIGKILL)
    verdict = world.verdict()
    assert (verdict["state"], verdict["step"], verdict["exit_code"]) == ("failed", "wait", -9)
    assert verdict["reason"].startswith("step wait was killed by SIGKILL")
    assert world.lines("ran.txt") == ["ran"]
    (world.pod.work / "go").touch()
    world.start()  # a new start runs the step again
    assert world.verdict()["state"] == "succeeded" and world.lines("ran.txt") == ["ran", "ran"]


def test_an_agent_with_a_fresh_verdict_is_not_restarted(world: World) -> None:
    world.program("fail", "import sys; sys.exit(7)")
    world.job(module("fail"))
    environ = {**os.environ, "PYTHONPATH": str(world.pod.code), "SLIPWAY_TOKEN": world.token}
    words = [sys.executable, "-c", SLOW_GUARD, str(world.pod.root)]
    said = subprocess.run(words, env=environ, capture_output=True, text=True, timeout=60)
    assert said.returncode == 0 and "guard armed" in said.stdout, said
    assert world.verdict()["exit_code"] == 7
    assert "ended without a verdict" not in said.stdout and world.pod.log("agent").read_text().count("verdict") == 1


def test_the_kernel_kills_the_step_before_guard_and_agent_when_memory_runs_out(world: World) -> None:
    score = "/proc/self/oom_score_adj"
    world.program(
        "tell",
        "import os, subprocess\n"
        f"said = open('{score}').read() + subprocess.run(['cat', '{score}'], capture_output=True, text=True).stdout\n"
        "open(os.environ['SLIPWAY_WORK'] + '/score.txt', 'w').write(said)\n" + WAIT,
    )
    world.job(module("tell"))
    world.start()
    until(lambda: world.lines("ran.txt"))
    assert world.lines("score.txt") == ["500", "500"]
    for role in ("guard", "agent"):
        assert int(Path(f"/proc/{world.living(role).pid}/oom_score_adj").read_text()) <= 0


def test_leftover_processes_of_a_step_end_before_the_next_step(world: World) -> None:
    world.program("orphans", ORPHANS)
    world.program(
        "look",
        "import os\n"
        "from infra.agent.process import find\n"
        "with open(os.environ['SLIPWAY_WORK'] + '/found.txt', 'w') as file:\n"
        "    print(len(find(os.environ['SLIPWAY_TOKEN'])), file=file)\n",
    )
    (world.pod.work / "go").touch()
    world.job(module("orphans"), module("look"))
    world.start(SLIPWAY_GRACE_S="0.2")
    assert world.verdict()["state"] == "succeeded"
    assert world.lines("found.txt") == ["3"]  # guard, agent and the step that looks


def test_a_killed_guard_is_restarted_with_the_elapsed_time(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"), clock_scale=1000.0, limits=Limits(micro_usd_per_hour=3_600_000))
    began = ends.boottime_s()
    world.start()
    until(lambda: world.lines("ran.txt"))
    ran = ends.boottime_s()
    for _ in range(3):
        world.kill("guard")
        world.living("guard")
    stopping = ends.boottime_s()
    world.call("stop")
    # The guard counts from the arming, before the step runs, to the end of the step.
    least_s, most_s = (1000.0 * one for one in (stopping - ran, ends.boottime_s() - began))
    assert least_s <= guard_json(world)["elapsed_s"] <= most_s
    assert guard_json(world)["spent_micro_usd"] == ends.spent_micro_usd(
        guard_json(world)["elapsed_s"], Limits(micro_usd_per_hour=3_600_000)
    )
    assert world.lines("ran.txt") == ["ran"] and world.lines("left.txt") == ["left"]


def test_a_start_after_both_kills_ends_the_orphan_and_resumes(world: World) -> None:
    world.program("done", "import os; open(os.environ['SLIPWAY_WORK'] + '/done.txt', 'a').write('done\\n')")
    world.program("wait", WAIT)
    world.job(module("done"), module("wait"))
    world.start()
    until(lambda: world.lines("ran.txt"))
    world.kill("guard", "agent")
    (orphan,) = world.members()
    status = world.call("status")
    assert not status["guard"]["alive"] and not status["agent"]["alive"]
    world.start()
    until(lambda: len(world.lines("ran.txt")) == 2)
    assert orphan not in world.members()
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"
    assert world.lines("done.txt") == ["done"]


def test_a_stop_after_both_kills_ends_the_orphan_and_reports_stopped(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start()
    until(lambda: world.lines("ran.txt"))
    world.kill("guard", "agent")
    assert world.call("stop")["verdict"]["state"] == "stopped"
    assert not world.members() and world.progress()["state"] == "stopped"


def test_an_agent_in_a_crash_loop_is_given_up(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.pod.secrets.write_text("not json")
    world.start()
    assert world.verdict()["reason"].startswith("the agent ended 5 times in 10 min 00 s without a verdict")


@pytest.mark.day_cases(2)
@pytest.mark.parametrize(("finish_in_s", "time_s"), [(30.0, 10_000.0), (-60.0, 10_000.0), (30.0, None)])
def test_a_pod_that_waited_in_a_queue_ends_before_the_end_of_all_work(world: World, finish_in_s, time_s) -> None:
    world.program("wait", WAIT)
    environ = {ends.FINISH_BY: str(time.time() + finish_in_s)}
    world.job(module("wait"), limits=Limits(time_s=time_s), environ=environ, clock_scale=10.0)
    has_lived(world, 3000.0)  # under an earlier attempt, before a requeue
    world.start()
    verdict, said = world.verdict(), guard_json(world)
    assert verdict["state"] == "limit" and said["limit_s"] == said["limits"]["time_s"]
    assert said["limit_s"] == pytest.approx(max(0.0, 3000.0 + 10 * finish_in_s), abs=100)
    assert said["elapsed_s"] < 3300.0


def test_a_guard_keeps_an_earlier_limit_and_ignores_an_empty_end_of_all_work(world: World) -> None:
    for by in (str(time.time() + 9000.0), ""):
        found = ends.ending_in_time(Job("otter", "", (), Limits(time_s=900.0), environ={ends.FINISH_BY: by}), 100.0)
        assert found.limits.time_s == 900.0
    unlimited = Job("otter", "", (), Limits(), environ={ends.FINISH_BY: str(time.time() + 200.0)})
    assert ends.ending_in_time(unlimited, 100.0).limits.time_s == pytest.approx(300.0, abs=60.0)
    said = {"token": "", "elapsed_s": 100.0, "clocks": None}
    by = str(time.time() + 200.0)
    assert 0 < ends.upload_allowance_s(Job("otter", "", (), Limits(), environ={ends.FINISH_BY: by}), said) < 200.0


def test_the_guard_asks_the_step_to_save_before_the_time_limit(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"), limits=Limits(time_s=900.0), clock_scale=10.0)
    has_lived(world, 770.0)
    world.start()
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("limit", "the limit of 15 min 00 s is near")
    assert world.lines("left.txt") == ["left"]
    assert 900 * 0.88 <= guard_json(world)["elapsed_s"] < 900


def test_the_guard_kills_everything_at_the_spend_limit_even_with_a_hung_agent(world: World) -> None:
    world.program("wait", WAIT)
    # 4 USD at 2 USD an hour are 7200 s.
    money = Limits(time_s=1e6, spend_micro_usd=4_000_000, micro_usd_per_hour=2_000_000)
    world.job(module("wait"), limits=money, clock_scale=1000.0)
    has_lived(world, 4500.0)
    world.start()
    until(lambda: world.lines("ran.txt"))
    send(world.living("agent"), signal.SIGSTOP)
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == (
        "limit",
        "the spend limit of 4.00 USD (2 h 00 min of this pod) is reached",
    )
    assert world.progress()["state"] == "limit" and world.lines("left.txt") == []
    assert 7200 <= guard_json(world)["elapsed_s"] < 7200 + 1000 * 3
    world.start()  # the money is spent, so a new start ends at once
    assert world.verdict()["state"] == "limit" and world.lines("ran.txt") == ["ran"]


@pytest.mark.parametrize("words", [(), ("--stays",)], ids=["leaves", "stays"])
def test_a_step_that_fills_the_disk_ends_with_a_verdict(tmp_path: Path, words: tuple[str, ...]) -> None:
    needs(PRIVILEGE)
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", disk], check=True)
    world = World(disk / "pod")
    try:
        world.program("fills_disk", source("fills_disk"))
        world.job(
            replace(module("fills_disk", max_restarts=0), words=("-m", "fills_disk", *words)),
            limits=Limits(reserve_bytes=1 << 21),
        )
        world.start()
        assert world.verdict()["state"] == "failed"
        assert read_json(world.pod.progress)["state"] == "failed"
        assert shutil.disk_usage(disk).free < 1 << 21, "it was full"
    finally:
        world.end()
        subprocess.run(["umount", disk], check=True)


def test_a_disk_below_its_reserve_stops_the_work_and_reports_the_bytes(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"), limits=Limits(reserve_bytes=1 << 60))
    world.start()
    verdict = world.verdict()
    assert verdict["state"] == "failed" and "GB free, 1152921504.61 GB needed" in verdict["reason"]


def test_an_idle_gpu_ends_the_run(world: World) -> None:
    world.program("wait", WAIT)
    smi = world.pod.root / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text("#!/bin/sh\necho 0\necho 0\n")
    smi.chmod(0o755)
    world.job(module("wait"), limits=Limits(idle_gpu_s=100.0), clock_scale=100.0)
    world.start(PATH=f"{smi.parent}{os.pathsep}{os.environ['PATH']}")
    verdict = world.verdict()
    assert verdict["state"] == "limit" and re.match(r"2 GPUs idle for \d+ min ", verdict["reason"])
    assert read_json(report(world.pod, "guard"))["idle_s"] >= 100.0


def test_a_guard_asked_to_end_stops_the_run_cleanly(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start()
    until(lambda: world.lines("ran.txt"))
    send(world.living("guard"), signal.SIGTERM)
    assert world.verdict()["state"] == "stopped"
    assert world.lines("left.txt") == ["left"]


def test_a_folder_without_a_job_gets_a_one_line_error(world: World) -> None:
    assert "job.json" in world.call("start", code=1)
    assert world.call("status")["verdict"] is None
    assert "usage" in world.call("dance", code=2)


def test_a_gap_counts_the_larger_of_both_clocks_and_never_backwards() -> None:
    before = ends.Clocks("boot", 100.0, 1000.0)
    assert ends.gap_s(before, ends.Clocks("boot", 130.0, 1010.0)) == 30.0
    assert ends.gap_s(before, ends.Clocks("boot", 130.0, 1050.0)) == 50.0
    assert ends.gap_s(before, ends.Clocks("boot", 100.0, 400.0)) == 0.0
    assert ends.gap_s(before, ends.Clocks("other", 20.0, 1500.0)) == 500.0


def test_the_hard_limit_is_the_earlier_of_time_and_money() -> None:
    assert ends.hard_limit_s(Limits()) is None
    assert ends.hard_limit_s(Limits(time_s=50.0)) == 50.0
    assert ends.hard_limit_s(Limits(time_s=7200.0, spend_micro_usd=1_000_000, micro_usd_per_hour=2_000_000)) == 1800.0
    assert ends.hard_limit_s(Limits(spend_micro_usd=1_000_000)) is None
    assert ends.leads_s(7200.0) == (900.0, 300.0)


def test_a_report_overwritten_by_the_job_gets_a_clear_error(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start()
    guard, kept = world.living("guard"), report(world.pod, "guard")
    send(guard, signal.SIGSTOP)  # the guard would replace the report
    content = kept.read_bytes()
    with kept.open("wb") as file:
        file.truncate(3 << 30)
    done = world.command("status")
    _, words = done.communicate(timeout=60)
    assert done.returncode == 1 and "Traceback" not in words
    assert words.endswith("guard.json cannot be read: the document has more than 16777216 bytes\n")
    kept.write_bytes(content)
    send(guard, signal.SIGCONT)
    world.call("stop")


@pytest.mark.nightly
def test_a_job_that_overwrote_its_guards_report_can_be_stopped(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start()
    guard = world.living("guard")
    send(guard, signal.SIGSTOP)  # the guard would replace the report
    with report(world.pod, "guard").open("wb") as file:
        file.truncate(3 << 30)
    done = world.command("stop")
    said, words = done.communicate(timeout=120)
    assert done.returncode == 0 and "Traceback" not in words
    assert json.loads(said)["survivors"] == [] and not world.members()


def test_one_checkpoint_is_requested_at_80_percent_of_a_limit_and_work_continues(world: World) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"), limits=Limits(time_s=1e6))
    has_lived(world, 0.79e6)
    world.start()
    until(lambda: world.lines("ran.txt"))
    assert not world.pod.save_request.exists()
    world.kill("guard", "agent")
    has_lived(world, 0.8e6)
    world.start()
    until(world.pod.save_request.exists, "the request to save")
    assert read_json(world.pod.save_request) == {"limit_s": 1e6} and not world.pod.verdict.exists()
    written = world.pod.save_request.stat().st_mtime_ns
    world.kill("guard")
    until(lambda: (world.pod.logs / "guard.log").read_text().count("guard armed") == 3, "another guard")
    world.call("stop")
    assert world.pod.save_request.stat().st_mtime_ns == written
    assert (world.pod.logs / "guard.log").read_text().count("80% of the limit") == 1
