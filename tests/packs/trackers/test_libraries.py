"""The real tracking libraries in separate environments: a killed run is one tracked run, with each step once."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from infra.agent.environments import cache_folder, environment
from store import packs
from tests.trainer.tracking.test_sidecar import tell
from tests.world import ONE_THREAD, ROOT, World, until

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

STEPS = 30
READER = """
import json, struct, sys
from wandb.proto import wandb_internal_pb2 as pb

BLOCK, HEAD, WHOLE, LAST = 32768, 7, 1, 4  # their file is a log as LevelDB writes it, after a header of 7 bytes
for path in sys.argv[1:]:
    data, at, content = open(path, "rb").read(), HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + HEAD])
        content += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind not in (WHOLE, LAST):
            continue
        record = pb.Record.FromString(content)
        content = b""
        if record.WhichOneof("record_type") == "history":
            row = {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}
            if "sft/loss" in row:
                print(row["sft/step"], row["sft/loss"])
"""


def python(name: str) -> Path:
    return environment.ensure(name, ROOT, cache_folder.default_cache(), "cpu", print)


def start_sidecar(pod: Path, name: str, **more: str) -> subprocess.Popen[bytes]:
    config = pod / f"{name}.json"
    said = {"tracker": name, "opened_by": packs.named_trackers()[name].opened_by}
    config.write_text(json.dumps({**said, "configs": {"sft": {"steps": STEPS, "optimizer": {"lr": 0.1}}}}))
    environ = {
        **os.environ,
        "SLIPWAY_WORK": str(pod / "work"),
        "SLIPWAY_RUN_ID": "brave-otter-3",
        "PYTHONPATH": str(ROOT),
        **more,
    }
    words = [str(python(f"track-{name}")), "-m", "trainer.tracking", "--config", str(config)]
    return subprocess.Popen(words, env=environ, cwd=ROOT, stdout=sys.stderr, start_new_session=True)


def track(pod: Path, name: str, **more: str) -> dict:
    """Run so many steps with the sidecar killed in the middle; return the second sidecar's messages."""
    state = pod / "state" / "tracking" / f"{name}.json"

    def metrics_read() -> int:
        return json.loads(state.read_text())["figures"].get("sft", 0) if state.exists() else 0

    figures = pod / "work" / "runs" / "sft"
    tell(figures, range(1, 13))
    first = start_sidecar(pod, name, **more)
    until(lambda: metrics_read() == 12, "the first half is told", 240)
    time.sleep(2)  # For the library's background uploads.
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    tell(figures, range(9, STEPS + 1))  # Steps 9 to 12 are repeated.
    (figures / "samples.jsonl").write_text(json.dumps({"step": STEPS, "prompt": "Who?", "text": "I am."}) + "\n")
    second = start_sidecar(pod, name, **more)
    until(lambda: metrics_read() == STEPS, "the second half is told", 240)
    second.terminate()
    assert second.wait(120) == 0
    return json.loads(state.read_text())


def test_wandb_offline_is_one_run_with_each_step_once(tmp_path):
    said = track(tmp_path, "wandb", WANDB_MODE="offline")
    assert said["link"].startswith("offline") and said["samples"] == {"sft": STEPS}
    files = sorted((tmp_path / "work" / "tracking" / "wandb").glob("wandb/offline-run-*/run-*.wandb"))
    assert [one.name for one in files] == ["run-brave-otter-3.wandb"]
    words = [str(python("track-wandb")), "-c", READER, *map(str, files)]
    rows = subprocess.run(words, check=True, capture_output=True, text=True).stdout.splitlines()
    assert [int(row.split()[0]) for row in rows] == list(range(1, STEPS + 1))
    assert float(rows[-1].split()[1]) == pytest.approx(1 / STEPS)


# Asks the server for the steps of a run three times: before and after the library got steps, and without a server.
ASK = """
import os, sys, types
from packs.trackers.trainer.wandb_run import WandbRun

one = object.__new__(WandbRun)
one.is_offline, one.due, one.run = False, {}, types.SimpleNamespace(path="us/slipway/brave-otter-3")
for steps in ({"sft": 7}, {"sft": 9}, {"sft": 9}):
    one.handed = steps
    print(one.problem())
os.environ["WANDB_BASE_URL"] = "http://127.0.0.1:9"
print(one.problem())
"""


class Wandb(BaseHTTPRequestHandler):
    """The answers of W&B's server to questions about a run whose summary has step 7."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length") or 0))
        names = ("id", "name", "displayName", "user", "createdAt", "heartbeatAt", "description", "notes", "state")
        run = {**dict.fromkeys(names, ""), "user": {"name": "us", "username": "us"}, "tags": [], "config": "{}"}
        run |= {"summaryMetrics": json.dumps({"sft/step": 7}), "systemMetrics": "{}", "historyLineCount": 7}
        viewer = {"id": "1", "entity": "us", "username": "us", "flags": "{}", "teams": {"edges": []}}
        body = json.dumps({"data": {"viewer": viewer, "project": {"run": {**run, "state": "running"}}}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_wandb_server_that_lacks_steps_is_named():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Wandb)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_API_KEY": "a" * 40, "WANDB_SILENT": "true"}
    environ["WANDB_BASE_URL"] = f"http://127.0.0.1:{server.server_port}"
    try:
        done = subprocess.run([python("track-wandb"), "-c", ASK], env=environ, capture_output=True, text=True)
    finally:
        server.shutdown()
    assert done.returncode == 0, done.stderr
    first, second, third, away = done.stdout.split("\n")[:4]
    assert (first, second, third) == ("", "", "the server has sft: step 7 of 9"), done.stderr
    assert away.startswith("no answer from the server (")


OPEN = """
from pathlib import Path
from packs.trackers.trainer.wandb_run import WandbRun
from trainer.tracking.tracker import TrackedRun

one = WandbRun(TrackedRun("brave-otter-3", Path("."), {"sft": {}}))
one.send_metrics("sft", [{"step": 1, "loss": 2.0}])
print(one.link, "; problem:", one.problem())
one.close()
"""


@pytest.mark.parametrize(
    ("mode", "link"), [("disabled", "nothing is kept: WANDB_MODE is disabled"), ("dryrun", "offline, ")]
)
def test_wandb_without_a_server_asks_no_server(tmp_path, mode, link):
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "WANDB_MODE": mode, "WANDB_BASE_URL": "http://127.0.0.1:9"}
    words = [python("track-wandb"), "-c", OPEN]
    done = subprocess.run(words, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.startswith(link) and done.stdout.endswith("; problem: \n"), done.stdout + done.stderr


@contextlib.contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Yield the address of MLflow's own server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    server = subprocess.Popen(
        [
            str(python("mlflow").parent / "mlflow"),
            "server",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--workers",
            "1",
            "--backend-store-uri",
            f"sqlite:///{folder}/mlflow.db",
            "--artifacts-destination",
            str(folder / "kept"),
        ],
        env={**os.environ, "PATH": f"{python('mlflow').parent}{os.pathsep}{os.environ['PATH']}"},
        stdout=sys.stderr,
        start_new_session=True,
    )

    def answers() -> bool:
        try:
            return bool(urllib.request.urlopen(f"{url}/health", timeout=5).status == 200)
        except OSError:
            return False

    try:
        until(answers, "MLflow's server answers", 280)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def mlflow_run(url: str) -> dict[str, Any]:
    """Return the only run on a server."""
    with urllib.request.urlopen(f"{url}/api/2.0/mlflow/experiments/get-by-name?experiment_name=slipway") as reply:
        said = {"experiment_ids": [json.load(reply)["experiment"]["experiment_id"]]}
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/2.0/mlflow/runs/search", json.dumps(said).encode(), head)
    with urllib.request.urlopen(request, timeout=30) as reply:
        (run,) = json.load(reply)["runs"]
    return run


def steps_of(url: str, run: dict[str, Any], metric: str) -> list[int]:
    """Return the steps of a metric, sorted."""
    found = f"{url}/api/2.0/mlflow/metrics/get-history?run_id={run['info']['run_id']}&metric_key={metric}"
    with urllib.request.urlopen(found) as reply:
        return sorted(one["step"] for one in json.load(reply)["metrics"])


def test_mlflow_keeps_one_run_on_its_server(tmp_path):
    with mlflow_server(tmp_path) as url:
        said = track(tmp_path, "mlflow", MLFLOW_TRACKING_URI=url)
        assert said["link"].startswith(f"{url}/#/experiments/")
        run = mlflow_run(url)
        assert (run["info"]["run_name"], run["info"]["status"]) == ("brave-otter-3", "FINISHED")
        assert {"key": "sft.optimizer.lr", "value": "0.1"} in run["data"]["params"]
        assert steps_of(url, run, "sft/loss") == list(range(1, STEPS + 1))
        assert list((tmp_path / "kept").rglob(f"sft-{STEPS:09}.txt"))


def test_mlflow_server_that_hangs_is_named_until_its_answer(tmp_path):
    state, figures = tmp_path / "state" / "tracking" / "mlflow.json", tmp_path / "work" / "runs" / "sft"

    def said() -> dict[str, Any]:
        return json.loads(state.read_text()) if state.exists() else {"problem": "", "figures": {}}

    with mlflow_server(tmp_path) as url:
        tell(figures, range(1, 4))
        one = start_sidecar(tmp_path, "mlflow", MLFLOW_TRACKING_URI=url)
        until(lambda: said()["figures"].get("sft") == 3, "the first steps", 240)
        server = os.getpgid(int(subprocess.check_output(["pgrep", "-f", f"{tmp_path}/mlflow.db"]).split()[0]))
        os.killpg(server, signal.SIGSTOP)
        tell(figures, range(1, 6))
        until(lambda: said()["problem"] == "no answer yet", "a report", 30)
        os.killpg(server, signal.SIGCONT)
        until(lambda: said()["problem"] == "" and said()["figures"] == {"sft": 5}, "the rest", 240)
        one.terminate()
        assert one.wait(120) == 0
        assert steps_of(url, mlflow_run(url), "sft/loss") == list(range(1, 6))


def test_metrics_that_a_server_missed_are_sent_later(tmp_path):
    """The server is away during the run; the last line names the command, which sends each step once."""
    away = World(tmp_path, {**ONE_THREAD, "MLFLOW_TRACKING_URI": "http://127.0.0.1:1"})
    words = ("--phase", "base", "--steps", "14", "--track", "mlflow", "--provider", "local", "--yes")
    done = away.run("launch", *words)
    run = away.json("status")[0]["run"]
    # The library itself gives up after some seconds; on a busy machine, the run ends first.
    assert done.returncode == 0 and "not all metrics are in mlflow (no answer " in done.stderr
    assert f"to send them: inv track.send {run}" in done.stderr
    with mlflow_server(tmp_path / "server") as url:
        back = World(tmp_path, {"MLFLOW_TRACKING_URI": url})
        for _ in range(2):
            (sent,) = back.json("track.send", run)["trackers"]
            assert (sent["figures"], sent["problem"]) == ({"base": 14}, "") and sent["link"].startswith(url)
        there = mlflow_run(url)
        assert there["info"]["run_name"] == run and steps_of(url, there, "base/loss") == list(range(1, 15))
    (sent,) = away.json("track.send", run, "--track", "tensorboard")["trackers"]
    assert sent["figures"] == {"base": 14}
    assert list((tmp_path / "runs" / run / "tracking").rglob("events.out.tfevents.*"))
    assert "known: wandb, mlflow, tensorboard" in away.run("track.send", run, "--track", "wnb").stderr
