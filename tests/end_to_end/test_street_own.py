"""The example of a custom provider, over a small rack of real machines: one sshd with a home each."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.ledger.journal import Journal
from infra.rehearsal.pods import Hardware, Pod
from tests.world import ROOT, World, until

pytestmark = [pytest.mark.process, pytest.mark.needs("sshd", "ssh-keygen")]

KEY = "rack-key-" + "0" * 16
KIND = {"kind": "l40s", "gpu": "L40S", "gpus": 1, "gpu_memory_gb": 48, "disk_gb": 100, "usd_per_hour": "0.50",
        "free": 2}  # fmt: skip
AWFUL = "def provider(settings):\n    raise SystemExit('no rack today')\n"


class Rack:
    """The lab's web service, as described at the top of examples/own/lab.py."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.machines, self.pods = folder, dict[str, dict](), dict[str, Pod]()
        self.is_losing_a_reply = False
        self.asked: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
        for pod in self.pods.values():
            pod.end()

    def rent(self, order: dict) -> dict:
        name = f"m{len(self.pods) + 1}"
        pod = self.pods[name] = Pod(
            self.folder / name,
            Hardware(gpu="NVIDIA L40S", num_gpus=1, vram_gb=48),
            (order["ssh_key"],) if order["ssh_key"] else (),
        )
        host, port = pod.start() or ("", 22)
        at = time.time()
        self.machines[name] = {
            "id": name,
            "token": order["token"],
            "run": order["run"],
            "state": "running",
            "user": "root",
            "host": host,
            "port": port,
            "usd_per_hour": KIND["usd_per_hour"],
            "created": int(at),
            "ends": at + order["seconds"],
        }
        return self.machines[name]

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, object]:
        self.asked.append(f"{method} {path}")
        place, _, name = path.strip("/").partition("/")
        if (method, path) == ("GET", "/kinds"):
            return 200, [KIND]
        if (method, path) == ("POST", "/machines"):
            return 200, self.rent(json.loads(body))
        if (method, path) == ("GET", "/machines"):
            return 200, list(self.machines.values())
        if place != "machines" or name not in self.machines:
            return 404, {"error": "no such machine"}
        if method == "DELETE":
            self.pods[name].end()
            return 200, self.machines.pop(name)
        return 200, self.machines[name]

    def handler(rack):
        class Handler(BaseHTTPRequestHandler):
            def _do(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                is_ours = self.headers.get("X-Lab-Key") == KEY
                status, said = rack.answer(self.command, self.path, body) if is_ours else (401, {"error": "key"})
                if self.command == "POST" and rack.is_losing_a_reply:
                    rack.is_losing_a_reply = False
                    self.close_connection = True
                    return  # The machine exists, but the answer is lost.
                content = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_DELETE = _do

            def log_message(self, *words: object) -> None:
                pass

        return Handler


@pytest.fixture
def rack(tmp_path):
    one = Rack(tmp_path / "rack")
    yield one
    one.close()


def world_of(rack: Rack, folder: Path, *more: str) -> World:
    words = ",".join([str(ROOT / "examples" / "own" / "lab.py"), *more])
    return World(
        folder,
        {
            "SLIPWAY_EXTENSIONS": words,
            "LAB_URL": rack.url,
            "LAB_KEY": KEY,
            "SLIPWAY_STORE": f"file://{folder}/artifacts",
        },
    )


def rows(world: World, run: str) -> list:
    with Journal.open(world.folder / "state" / "journal.db") as journal:
        return journal.ops(run=run)


@pytest.mark.pack("jobs")
@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_machines_of_a_custom_provider_are_rented_watched_audited_reaped_and_ended(rack, tmp_path):
    folder = tmp_path / "my world"
    world = world_of(rack, folder)
    (offer,) = world.json("offers", "--provider", "lab", "--gpu", "L40S")["offers"]
    assert (offer["provider"], offer["usd_per_hour"]) == ("lab", "0.50")
    rack.is_losing_a_reply = True  # A lost answer rents once.
    launch = (
        "launch",
        "--provider",
        "lab",
        "--gpu",
        "L40S",
        "--num-gpus",
        "1",
        "--cmd",
        "echo hello; sleep 600",
        "--spend-limit",
        "5",
        "--no-accept",
        "--run-name",
        "racked",
        "--detach",
        "--yes",
    )
    world.inv(*launch)
    assert list(rack.machines) == ["m1"] and rack.asked.count("POST /machines") == 1
    (row,) = rows(world, "racked")
    assert (row.vendor, row.remote_id, row.rate, row.cap) == ("lab", "m1", 500_000, 5_000_000)
    assert rack.machines["m1"]["token"] == row.token and rack.machines["m1"]["ends"] > time.time() + 8 * 3600
    (view,) = until(lambda: [one for one in world.json("status") if "lab's timer" in str(one["ends"])], "it runs")
    assert (view["run"], view["provider"], view["state"]) == ("racked", "lab", "running")
    assert any("guard alive" in end for end in view["ends"])
    receipt = json.loads((folder / "runs" / "racked" / "run.json").read_text())
    (code,) = receipt["extensions"]
    assert (code["name"], code["kind"], code["word"]) == ("lab", "provider", str(ROOT / "examples/own/lab.py"))

    (machine,) = world.json("audit")["machines"]
    assert (machine["provider"], machine["whose"], machine["run"]) == ("lab", "claimed", "racked")
    with Journal.open(folder / "state" / "journal.db") as journal:
        mark = f"sw1-{journal.installation}-aaaaaaaaaaaaaaaa"
    rack.rent({"token": mark, "run": "lost", "ssh_key": "", "seconds": 60})
    (folder / "awful.py").write_text(AWFUL)
    both = world_of(rack, folder, str(folder / "awful.py"), str(folder / "gone.py"))
    found = both.json("audit", code=5)
    assert {one["id"]: one["whose"] for one in found["machines"]} == {"m1": "claimed", "m2": "orphaned"}
    assert any("awful.py:2: SystemExit: no rack today" in one for one in found["problems"])
    both.inv("reap", code=5)  # The message says that one provider did not answer.
    assert list(rack.machines) == ["m1"], "the orphan is gone, whatever another file raises"

    lost = World(folder, {**world.extra, "SLIPWAY_EXTENSIONS": str(folder / "gone.py")})
    assert "racked" in [one["run"] for one in lost.json("status")]
    assert any(
        "name the provider's file in SLIPWAY_EXTENSIONS" in one for one in lost.json("audit", code=5)["problems"]
    )
    process = lost.run("down", "racked")
    err = process.stderr
    assert process.returncode == 2 and "unknown provider 'lab'" in err and "Traceback" not in err
    assert "SLIPWAY_EXTENSIONS has gone" in err
    assert list(rack.machines) == ["m1"]

    world.inv("down", "racked")
    assert rack.machines == {} and not rows(world, "racked")[-1].is_live
    assert world.json("audit")["machines"] == []


@pytest.mark.pack("jobs")
def test_machine_without_a_price_or_a_limit_is_not_rented(rack, tmp_path, monkeypatch):
    world = world_of(rack, tmp_path / "w")
    monkeypatch.setitem(KIND, "usd_per_hour", "0")
    process = world.run("launch", "--provider", "lab", "--gpu", "L40S", "--cmd", "true", "--yes", "--no-accept")
    err = process.stderr
    assert process.returncode in (2, 3) and "Traceback" not in err, err
    assert "POST /machines" not in rack.asked


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_custom_provider_is_drilled_like_a_vendor_and_plans_cite_the_result(rack, tmp_path):
    world = world_of(rack, tmp_path / "w")
    process = world.run("drill", "--provider", "lab", "--spend-limit", "3", "--yes", "--json", timeout_s=900)
    out, err = process.stdout, process.stderr
    said = json.loads(out)
    assert {one["clause"]: one["state"] for one in said["findings"]} == {
        **dict.fromkeys(
            "offer slices price token listing timer boot key machine guard log checkpoint delete".split(), "kept"
        ),
        **dict.fromkeys(["timer before boot", "host key", "lost reply", "nothing left"], "kept"),
    }, err
    assert process.returncode == 0 and rack.machines == {} and rack.asked.count("POST /machines") == 2
    assert world.json("offers", "--provider", "lab")["drills"]["lab"]["broken"] == []
