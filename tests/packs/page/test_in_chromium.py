"""The page in a real Chromium, over a real run, a service and a sweep of this machine.

SLIPWAY_SCREENSHOTS names a folder for screenshots.
"""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from infra import train_env
from infra.agent.environments import cache_folder
from scripts.project import debian
from tests.world import ROOT, World

pytestmark = [pytest.mark.pack("sweeps"), pytest.mark.nightly, pytest.mark.process, pytest.mark.timeout(1500)]
ACTS = {"End", "Resume", "Scale"}
SWEEP = "axes: {seed: [1, 2]}\neach: {phase: base}\n"


def visits(run: str) -> list[dict]:
    found = [
        {"name": "runs", "path": "runs", "wait": run},
        {"name": "run", "path": f"curves?runs={run}&phase=base", "wait": "What it says"},
        {"name": "compare", "path": "curves?runs=sweep.seed-1,sweep.seed-2&phase=base", "wait": "What differs"},
        {"name": "compare-dark", "path": "curves?runs=sweep.seed-1,sweep.seed-2", "wait": "What differs", "dark": True},
        {"name": "run-narrow", "path": f"curves?runs={run}", "wait": "What it says", "narrow": True},
        {"name": "logs", "path": f"logs?run={run}", "wait": "starting at step"},
        {"name": "logs-narrow", "path": f"logs?run={run}&search=checkpoints", "wait": "lines hold it", "narrow": True},
        {"name": "pods", "path": "pods", "wait": "guard alive"},
        {"name": "services", "path": "services", "wait": "Requests per second"},
        {"name": "services-narrow-dark", "path": "services", "wait": "Replicas", "narrow": True, "dark": True},
        {"name": "cost", "path": "cost", "wait": "Nothing was spent"},
        {"name": "offers", "path": "offers", "wait": "illustrative"},
        {"name": "sweeps", "path": "sweeps", "wait": "seed-2"},
        {"name": "arms", "path": "sweeps?name=sweep", "wait": "Arms, the best first"},
        {"name": "data-report", "path": "data?report=datasets/pydocs/text", "wait": "Most frequent lines"},
        {"name": "data", "path": "data", "wait": "datasets/"},
        {"name": "chat", "path": "chat?model=service%20demo", "wait": " pieces", "say": "Who are you?"},
    ]
    known = [one for one in found if "narrow" not in one and "dark" not in one and "say" not in one]
    return found + [{**one, "name": f"{one['name']}-small", "narrow": True, "dark": True} for one in known]


@pytest.fixture
def world(tmp_path):
    """Yield an installation with a real run, a sweep of two and a service; end the processes afterwards."""
    made = World(
        tmp_path,
        extra={
            "SLIPWAY_PROVIDER": "local",
            "OMP_NUM_THREADS": "1",
            "RUNPOD_API_KEY": "",
            "LIUM_API_KEY": "",
            "SHADEFORM_API_KEY": "",
        },
    )
    try:
        yield made
    finally:
        made.run("serve.down", "--all")
        made.run("down", "--all")


def seen_in_browser(world, pictures: Path, visits: list[dict], *flags: str) -> dict:
    """Return the browser's view of these visits on a page started with `flags`."""
    words = ["invoke", "ui"] if "--rehearse" in flags else ["packs.page.views"]
    page = subprocess.Popen(
        [sys.executable, "-m", *words, "--port", "0", *flags],
        cwd=ROOT,
        env=world.environ,
        text=True,
        stdout=subprocess.PIPE,
    )
    try:
        link = re.search(r"http\S+", page.stdout.readline())[0]
        return browse(link, pictures, visits)
    finally:
        page.terminate()
        page.wait(30)


def browse(link: str, pictures: Path, visits: list[dict]) -> dict:
    """Return what a browser sees at these visits of a page."""
    chromium = debian.find("chromium")
    assert chromium, "the page is looked at in a real browser; on Debian: apt-get install chromium"
    python = train_env.interpreter(ROOT, cache_folder.default_cache(), print, "browser")
    pictures.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [python, ROOT / "tests" / "programs" / "browse.py", link, pictures, chromium],
        input=json.dumps(visits),
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextlib.contextmanager
def continuous_requests(url: str):
    """Keep a service busy meanwhile; every request must be answered."""
    over = threading.Event()

    def ask() -> int:
        asked = 0
        while not over.is_set():
            said = {"model": "demo", "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 8}
            httpx.post(f"{url}/v1/chat/completions", json=said, timeout=60).raise_for_status()
            asked += 1
        return asked

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            yield
        finally:
            over.set()
    assert all(one.result() for one in asking)


def test_every_view_shows_real_work(world, tmp_path):
    run = world.json("launch", "--phase", "sft", "--yes")["run"]
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    page = world.json("sweep", str(tmp_path / "sweep.yaml"), "--yes")["page"]
    world.inv("shard", "--report", str(world.folder / "artifacts" / "datasets" / "pydocs" / "text" / "train"))
    service = ("serve.up", "--name", "demo", "--model", "sft", "--engine", "torch", "--replicas", "1", "--yes")
    url = world.json(*service)["endpoint"]
    pictures = Path(os.environ.get("SLIPWAY_SCREENSHOTS") or tmp_path / "pictures")
    with continuous_requests(url):
        said = seen_in_browser(world, pictures, visits(run))
    assert len(said["asked"]) == 1, "nobody else is asked for anything"
    assert [(one["httpOnly"], one["sameSite"]) for one in said["cookies"]] == [(True, "Strict")]
    for name, one in said["visits"].items():
        assert one["serious"] == [], name
        assert one["errors"] == [], name
        assert one["too_wide"] <= 0, name
        assert one["cut_cells"] == [], name
        assert one["command"].startswith("inv "), name
        assert not ACTS & set(one["buttons"]), name
    seen = said["visits"]
    assert re.search(r"Loss, nats per token: \S+ \d", seen["run"]["charts"][0])
    assert "seed-1" in seen["compare"]["charts"][0] and "seed-2" in seen["compare"]["charts"][0]
    assert "seed" in seen["compare"]["text"].partition("What differs")[2]
    assert "bits per byte" in seen["run"]["text"] and "At the last steps" in seen["compare"]["text"]
    assert "held out" not in seen["data-report"]["text"] and "Samples" in seen["data-report"]["text"]
    report = world.json("report", run, "sweep.seed-1", "--out", str(tmp_path / "report"))["page"]
    alone = [one for one in visits(run) if one["name"] in ("compare", "arms")]
    saved = browse(f"file://{page}", tmp_path, alone)
    both = f"curves?runs={run},sweep.seed-1&phase=base"
    saved["visits"] |= browse(f"file://{report}", tmp_path, [{"name": "both", "path": both, "wait": "At the last"}])[
        "visits"
    ]
    for name, one in saved["visits"].items():
        assert (one["serious"], one["errors"]) == ([], []) and one["too_wide"] <= 0, name
        assert name == "both" or one["charts"] == seen[name]["charts"], "a file shows what the live page shows"
    assert "Phases that not all of these runs have: mid, sft" in saved["visits"]["both"]["text"]
    assert re.search(r"requests per second [1-9]", seen["services"]["charts"][0]), seen["services"]["charts"]
    assert "1 of 1" in seen["services"]["text"] and "no limit" in seen["pods"]["text"]
    assert len(seen["chat"]["text"].partition("Who are you?")[2]) > 20
    wanted = {"At least so many replicas": "2", "At most so many replicas": "2"}
    scaled = {"name": "scaled", "path": "services", "fill": wanted, "press": "Scale", "answer": "Yes", "wait": "1 of 2"}
    (scaled,) = seen_in_browser(world, tmp_path, [scaled], "--allow-acts")["visits"].values()
    assert "Let demo have 2 to 2 replicas?" in scaled["question"]
    assert scaled["acts"][0] == {"act": "scale", "name": "demo", "least": 2, "most": 2}
    assert scaled["serious"] == []


def test_page_shows_a_rehearsal_with_a_preemption(world, tmp_path):
    words = ("--provider", "runpod", "--phase", "base", "--use-spot", "--preempt", "1", "--spend-limit", "50", "--yes")
    try:
        run = world.json("rehearse", *words)["launch"]["run"]
        found = [
            {"name": "rehearsed", "path": f"curves?runs={run}&phase=base", "wait": "brought back"},
            {"name": "rehearsed-runs", "path": "runs", "wait": run},
            {"name": "rehearsed-logs", "path": f"logs?run={run}", "wait": "brought from the store"},
            {"name": "rehearsed-cost", "path": "cost", "wait": "By day"},
            {"name": "rehearsed-data", "path": "data", "wait": "base_checkpoints"},
        ]
        found += [{**one, "name": f"{one['name']}-small", "narrow": True, "dark": True} for one in found]
        pictures = Path(os.environ.get("SLIPWAY_SCREENSHOTS") or tmp_path / "pictures")
        said = seen_in_browser(world, pictures, found, "--rehearse")["visits"]
    finally:
        world.inv("rehearse", "--stop")
    for name, one in said.items():
        assert (one["serious"], one["errors"], one["cut_cells"]) == ([], [], []) and one["too_wide"] <= 0, name
        assert one["command"].splitlines()[0].endswith("--rehearse"), name
    assert "its pod was lost" in said["rehearsed"]["text"] and "no files of this run" in said["rehearsed-logs"]["text"]


def test_run_is_ended_from_the_page_once_allowed_and_confirmed(world, tmp_path):
    run = world.json("launch", "--phase", "base", "--set", "base.steps=100000", "--detach", "--yes")["run"]
    here = {"path": f"curves?runs={run}&phase=base", "wait": "Logs"}
    (plain,) = seen_in_browser(world, tmp_path, [{"name": "plain", **here}])["visits"].values()
    assert "running" in plain["text"] and not ACTS & set(plain["buttons"])
    end = {**here, "press": "End"}
    declined, still, ended = seen_in_browser(
        world,
        tmp_path,
        [
            {**end, "name": "declined", "answer": "No"},
            {**here, "name": "still"},
            {**end, "name": "ended", "answer": "Yes", "wait": "Resume"},
        ],
        "--allow-acts",
    )["visits"].values()
    assert f"End {run}?" in declined["question"] and f"inv down {run}" in declined["question"]
    assert declined["acts"] == [{"act": "down", "name": run}], "No sends nothing"
    assert "running" in still["text"]
    assert [*ended["acts"][0], *ended["acts"][1]] == ["act", "name", "word"]
    assert world.json("status", run)[0]["state"] == "stopped"
    resume = {**here, "name": "resumed", "press": "Resume", "answer": "Yes", "wait": "running"}
    (resumed,) = seen_in_browser(world, tmp_path, [resume], "--allow-acts")["visits"].values()
    assert f"inv resume {run} --detach" in resumed["question"] and "End" in resumed["buttons"]
    assert world.json("status", run)[0]["state"] == "running"


def test_new_metrics_of_a_run_are_shown_within_a_second(world, tmp_path):
    """The stream of a run's curves reports a new line of metrics, and sends no event without a new line."""
    run = world.json("launch", "--phase", "base", "--set", "base.steps=400", "--detach", "--yes")["run"]
    figures = world.folder / "pods" / run / "work" / "runs" / "base" / "metrics.jsonl"
    words = [sys.executable, "-m", "packs.page.views", "--port", "0"]
    page = subprocess.Popen(words, cwd=ROOT, env=world.environ, text=True, stdout=subprocess.PIPE)
    try:
        link = re.search(r"http\S+", page.stdout.readline())[0]
        base, token = link.split("/#")
        deadline = time.monotonic() + 600
        while not figures.exists() and time.monotonic() < deadline:
            time.sleep(1)
        with httpx.Client(base_url=base, headers={"Origin": base}, timeout=60, trust_env=False) as browser:
            assert browser.post("/api/session", json={"token": token}).status_code == 200
            with browser.stream("GET", f"/api/curves?runs={run}&phase=base&live=1") as events:
                steps = list[int]()
                for line in events.iter_lines():
                    event = json.loads(line[5:]) if line.startswith("data:") else {}
                    if event.get("part") == f"run {run}" and event["value"]["last"]:
                        steps.append(event["value"]["last"]["step"])
                    if len(steps) == 4:
                        break
        assert steps == sorted(set(steps)), "each event tells of newer steps"
    finally:
        page.terminate()
        page.wait(30)
