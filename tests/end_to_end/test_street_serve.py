"""Services as users type them: real processes on this machine, with the scripted engine instead of a model."""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import ssl
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

from infra.agent.environments import environment
from infra.agent.process import is_alive
from serve.gateway.http.certificate import Tls
from serve.load import LoadTest
from tests.end_to_end.services import GUARD_S, Installation, Traffic, say, serving
from tests.processes import command_line, command_lines, is_running
from tests.serve.certificates import Authority
from tests.world import until

pytestmark = pytest.mark.process


def test_service_answers_from_its_first_request_to_its_end(installation):
    model = installation.model("Bosun")
    sky = {"zone": "us-east-1a", "image_id": "docker:x", "labels": {"a": "b"}}
    shown, said = installation.world.begin(
        "serve.up",
        "demo",
        "--model",
        str(model),
        "--provider",
        "local",
        "--config",
        installation.config(resources=sky),
        "--dry-run",
    ).communicate(timeout=GUARD_S)
    assert "own" in shown and installation.world.processes() == []
    assert all(f"resources.{name}: only for sky serve up; in Slipway, " in said for name in sky), said
    up = installation.up("demo", model, "--config", installation.config())
    url = up["endpoint"]
    assert (up["state"], up["ready"], up["target"]) == ("READY", 2, 2)
    answers = [say(url) for _ in range(20)]
    assert {text for text, _ in answers} == {" Bosun Bosun Bosun"}
    assert Counter(who for _, who in answers) == {"demo-0": 10, "demo-1": 10}
    urllib.request.urlopen(f"{url}/health", timeout=GUARD_S).close()
    keys = [key_of(one.port) for one in installation.seen("demo").members]
    assert len(set(keys)) == 2 and not [key for key in keys if key.encode() in b"".join(command_lines())]

    shown = installation.world.inv("serve.status", "demo", "--all", "--metrics")
    for line in ("Service: demo", f"Endpoint: {url}", "Replicas: 2/2 ready", r"qps +0\.\d", r"latency_s\.p99 +[\d.]+"):
        assert re.search(line, shown), (line, shown)
    assert shown.count(str(installation.folder / "pods")) == 2
    logs = [
        installation.world.inv("serve.logs", "demo", *words) for words in ([], ["--replica-id", "0"], ["--controller"])
    ]
    assert len(logs[0].splitlines()) == 20 and "Bosun" not in logs[0]
    assert "listening on" in logs[1] and "demo-1: ready" in logs[2]
    assert installation.world.inv("serve.ssh", "demo", "--replica-id", "0", "--", "pwd").strip().endswith("pods/demo-0")
    assert (
        installation.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "2") == " Bosun Bosun\n"
    )
    assert "no problem found" in installation.world.inv("serve.doctor", "demo")
    for words, why in (
        # This would end the serving processes.
        (("serve.up", "demo", "--provider", "mars"), "unknown provider 'mars'"),
        (("serve.scale", "demo", "--max-replicas", "5"), "no scaling target is set"),
        (("serve.down", "demo", "--all"), "give only one"),
        (("serve.key", "demo", "--drop"), "--drop requires --for NAME"),
        (("serve.bench", "demo", "--rate", "1e9", "--duration", "9d"), "requests"),
        (("serve.bench", "demo", "--target-ttft", "-1"), "above 0"),
    ):
        assert why in refusal(installation, *words), words
    bench = installation.world.json(
        "serve.bench", "demo", "--rate", "20", "--duration", "1s", "--target-ttft", "0.000001"
    )
    assert bench["rounds"][0]["failed"] == 0 and "miss" in bench["advice"]
    assert "min_replicas" not in installation.world.inv("serve.export", "demo", "--model", "hf://a/b")

    key = installation.world.json("serve.key", "demo", "--for", "ann")["key"]
    until(lambda: refused(url), "a gateway that wants a key", GUARD_S)
    assert key not in (installation.folder / "services" / "demo" / "keys").read_text()
    installation.world.extra["SLIPWAY_ENDPOINT_KEY"] = key
    assert installation.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "1") == " Bosun\n"

    engines = installation.engines("demo")
    assert installation.world.json("serve.scale", "demo", "--min-replicas", "3")["ready"] == 3
    assert installation.engines("demo").items() > engines.items()
    assert installation.world.json("serve.down", "demo") == {"ended": ["demo"]}
    assert list((installation.folder / "pods").iterdir()) == []
    installation.world.check_ended()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=GUARD_S)


def refusal(installation: Installation, *words: str) -> str:
    process = installation.world.run(*words)
    said = process.stderr
    assert process.returncode == 2, said
    return said


def key_of(port: int) -> str:
    """Return the key of an engine from the gateway's last request; requests without the key are refused."""
    assert refused(f"http://127.0.0.1:{port}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/fake/seen", timeout=GUARD_S) as reply:
        scheme, _, key = json.load(reply)["headers"]["authorization"].partition(" ")
    assert scheme == "Bearer" and len(key) == 64
    return key


def refused(url: str) -> bool:
    try:
        urllib.request.urlopen(f"{url}/v1/models", timeout=GUARD_S).close()
    except urllib.error.HTTPError as error:
        return error.code == 401
    return False


@pytest.mark.nightly
def test_service_with_a_certificate_speaks_https_and_takes_a_renewed_certificate(installation):
    authority = Authority.begin(installation.folder)
    tls = Tls(keyfile=str(installation.folder / "key.pem"), certfile=str(installation.folder / "chain.pem"))
    first, model = authority.issue(tls), installation.model("Bosun")
    Path(tls.keyfile).chmod(0o644)
    config = installation.config(1, tls=tls)
    open_key = installation.up("demo", model, "--config", config, code=2)["error"]
    assert open_key.endswith(f"run: chmod 600 {tls.keyfile}") and installation.world.processes() == []
    Path(tls.keyfile).chmod(0o600)
    url = installation.up("demo", model, "--config", config)["endpoint"]
    assert url.startswith("https://127.0.0.1:") and installation.status("demo")["endpoint"] == url
    gateway = installation.gateway("demo")
    assert openai_asked(url, authority) == (" Bosun", first)
    assert installation.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "1") == " Bosun\n"
    assert installation.world.json("serve.bench", "demo", "--rate", "5", "--duration", "1s")["rounds"][0]["failed"] == 0
    plain = installation.up("demo", model, "--config", installation.config(1), code=2)["error"]
    assert "cannot be removed while demo is running" in plain

    # The clients of the services ignore the change: they read the certificate themselves.
    second = authority.issue(tls, "models.example")
    until(lambda: openai_asked(url, authority) == (" Bosun", second), "the renewed certificate", GUARD_S)
    assert installation.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "1") == " Bosun\n"
    assert installation.gateway("demo") == gateway
    installation.kill_gateway("demo")
    until(lambda: openai_asked(url, authority) == (" Bosun", second), "another gateway", GUARD_S)
    assert installation.gateway("demo") != gateway


def openai_asked(url: str, authority: Authority) -> tuple[str, int] | None:
    """Return the answer to OpenAI's client, and the certificate's serial number; None when the client refused."""
    import openai

    shown = list[int]()

    def note(reply) -> None:
        peer = reply.extensions["network_stream"].get_extra_info("ssl_object").getpeercert()
        shown.append(int(peer["serialNumber"], 16))

    trusted, hooks = ssl.create_default_context(cafile=authority.file), {"response": [note]}
    with openai.DefaultHttpxClient(verify=trusted, trust_env=False, event_hooks=hooks) as http:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, http_client=http)
        asked = [{"role": "user", "content": "Who are you?"}]
        try:
            said = client.chat.completions.create(model="demo", max_tokens=1, messages=asked)
        except openai.OpenAIError:
            return None
    return said.choices[0].message.content, shown[0]


@pytest.mark.nightly
def test_dead_engines_and_a_new_version_cost_no_request(installation):
    config = installation.config()
    url = installation.up("demo", installation.model("A", token_s=0.01, worker=True), "--config", config)["endpoint"]
    workers = until(lambda: len(found := installation.workers("demo")) == 2 and found, "the workers of both", GUARD_S)
    load = LoadTest(url=url, model="demo", rate=1, duration_s=1, max_tokens=8)
    with Traffic(load) as traffic:
        before = installation.engines("demo")
        os.kill(before["demo-0"], signal.SIGKILL)
        until(lambda: serving(installation) == {1, 2}, "a replacement", GUARD_S)
        traffic.await_more(8)
    states = {one["id"]: one["state"] for one in installation.status("demo")["replicas"]}
    assert states == {0: "FAILED", 1: "READY", 2: "READY"}
    until(lambda: installation.ended("demo", 0), "the proof of its end", GUARD_S)
    assert not is_alive(workers["demo-0"]) and is_alive(workers["demo-1"])
    # A client with a byte of the dead engine's answer has a broken stream; other clients noticed no change.
    assert all(one.first_s is not None for one in traffic.failures()), traffic.failures()
    assert len(traffic.failures()) <= traffic.clients

    with Traffic(load) as traffic:
        after = installation.up("demo", installation.model("B", token_s=0.01))
        traffic.await_more(8)
    assert not traffic.failures(), traffic.failures()
    assert (after["ready"], after["versions"]) == (2, [2])
    assert {say(url)[0] for _ in range(4)} == {" B B B"}
    until(lambda: installation.ended("demo", 1), "the proof of its end", GUARD_S)
    assert before["demo-1"] not in installation.engines("demo").values()
    assert not is_alive(workers["demo-1"])  # The engine was drained and received SIGTERM, but ignored the signal.


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_workers_that_ignore_sigterm_end_with_their_replica(installation):
    """Row 20: a killed or terminated engine leaves a worker behind; a replica does not. A round takes 15 s."""
    installation.up("demo", installation.model("A", worker=True), "--config", installation.config())
    for round in range(30):
        until(lambda: len(serving(installation)) == 2, "two that serve", GUARD_S)
        workers = until(
            lambda: len(found := installation.workers("demo")) == 2 and found, "the workers of both", GUARD_S
        )
        run = min(workers)
        os.kill(installation.engines("demo")[run], (signal.SIGKILL, signal.SIGTERM)[round % 2])
        until(lambda: installation.ended("demo", int(run.rpartition("-")[2])), "the proof of its end", GUARD_S)  # noqa: B023
        assert not is_alive(workers.pop(run)), (round, run)
        assert all(is_alive(one) for one in workers.values())


@pytest.mark.nightly
def test_dead_controller_leaves_its_replicas_to_the_next_controller(installation):
    up = installation.up("demo", installation.model("A"), "--config", installation.config())
    installation.kill_supervisor()
    engines, first = installation.engines("demo"), installation.controller("demo")
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_running(first), "its end")
    assert installation.engines("demo") == engines
    rivals = [installation.world.begin("serve.status", "demo", "--json") for _ in range(3)]
    seen = [json.loads(one.communicate(timeout=GUARD_S)[0]) for one in rivals]
    assert {one["endpoint"] for one in seen} == {up["endpoint"]}
    assert {one["ready"] for one in seen} == {2} and {say(up["endpoint"])[1] for _ in range(4)} == set(engines)
    assert installation.engines("demo") == engines and installation.controller("demo") != first

    until(lambda: len(controllers(installation)) == 1, "the end of those that came too late", GUARD_S)
    # The next controller must end the service; a foreign process uses the port by now.
    second = installation.controller("demo")
    os.kill(second, signal.SIGKILL)
    until(lambda: not is_running(second), "its end")
    installation.kill_gateway("demo")
    port = int(up["endpoint"].rpartition(":")[2])
    with until(lambda: occupy_port(port), "its port, which its last thread lets go of", GUARD_S):
        installation.world.inv("serve.down", "demo")
    installation.world.check_ended()


@pytest.mark.nightly
def test_occupied_address_is_replaced_by_a_new_address(installation):
    up, model = (
        installation.up("demo", installation.model("A"), "--config", installation.config(1)),
        installation.folder / "A",
    )
    installation.kill_supervisor()
    engines, first = installation.engines("demo"), installation.controller("demo")
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_running(first), "its end")
    installation.kill_gateway("demo")
    port = int(up["endpoint"].rpartition(":")[2])
    with until(lambda: occupy_port(port), "its port, which its last thread lets go of", GUARD_S):
        moved = installation.up("demo", model, "--port", "0")["endpoint"]
        assert moved != up["endpoint"] and say(moved) == (" A A A", "demo-0")
    assert installation.engines("demo") == engines


def controllers(installation: Installation) -> list[int]:
    return [pid for pid in installation.world.processes() if b"serve.controller" in command_line(pid)]


def occupy_port(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


@pytest.mark.nightly
def test_unservable_service_is_refused_in_one_message_and_leaves_no_state(installation):
    good = installation.model("A")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = installation.up("demo", good, "--config", installation.config(), "--port", port, code=2)
    assert f"port {port}" in said["error"] and "inv serve.up" in said["error"]
    assert "no model" in installation.up("demo", installation.folder / "nowhere", code=2)["error"]
    assert "--tag tiny" in installation.up("demo", good, "--tag", "tiny", code=2)["error"]
    beyond = installation.up("demo", good, "--config", installation.config(), "--port", "99999", code=2)["error"]
    assert "1 to 65535" in beyond  # Not the port modulo 2**16.
    nameless = installation.world.json("serve.up", "demo", "--model", "hf://", "--provider", "local", code=2)["error"]
    assert "expected hf://user/repo" in nameless
    keyless = installation.world.json("serve.up", "demo", "--model", "s3://bucket/model", "--provider", "local", code=4)
    assert "no credentials" in keyless["error"]
    assert (
        "key" in installation.up("demo", good, "--config", installation.config(), "--host", "0.0.0.0", code=2)["error"]
    )
    one = installation.up("demo", good, "--dry-run")  # Three engines would share the same CPUs.
    assert (one["min_replicas"], one["max_replicas"]) == (1, 1)
    assert installation.world.json("serve.status") == []
    installation.world.check_ended()

    crashing = installation.up("demo", installation.model("C", crash=3), "--config", installation.config(1), code=1)[
        "error"
    ]
    assert "never ready" in crashing and "all replicas were ended" in crashing
    assert re.search(
        r"demo-\d: the engine has ended: .* exit code 3: RuntimeError: EngineCore failed to start", crashing
    )
    (log,) = re.findall(r"inv (serve.logs demo --replica-id \d)", crashing)  # the service has ended
    assert "[shutdown] complete" in installation.world.inv(*log.split())
    with installation.journal() as journal:
        assert len(journal.ops()) <= 3
    assert installation.world.json("serve.status") == []
    until(lambda: not installation.world.processes(), "the end of the supervisor, which has nothing left to look after")


@pytest.mark.nightly
def test_model_that_never_becomes_healthy_is_ended_and_leaves_no_state(installation):
    config = installation.config(1, initial_delay_seconds=0.2)
    late = installation.up("demo", installation.model("D", start_s=600), "--config", config, code=1)["error"]
    assert "initial_delay_seconds" in late and "never ready" in late
    assert installation.world.json("serve.status") == []
    installation.world.check_ended()


@pytest.mark.nightly  # Each attempt starts the engine again; tests/serve/policy covers the decisions.
def test_creation_of_the_environment_does_not_count_as_initial_delay(installation):
    """A second process creates the environment, so the replica waits for longer than the initial delay."""
    installation.world.extra["SLIPWAY_ENVIRONMENTS"] = str(installation.folder / "environments")
    policy = {"min_replicas": 0, "max_replicas": 1, "target_qps_per_replica": 1}
    installation.up(
        "demo", installation.model("A"), "--config", installation.config(policy=policy, initial_delay_seconds=2)
    )
    (folder,) = (installation.folder / "environments").glob("serve-*[!.lock]/")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / environment.MARKER).unlink()
        scaling = installation.world.begin("serve.scale", "demo", "--min-replicas", "1")

        def waits():
            (one,) = installation.status("demo")["replicas"] or [{"phases_s": {}}]
            return one["phases_s"].get("environment", 0.0) > 4.0 and one

        one = until(waits, "an environment that takes twice as long as the initial delay", GUARD_S)
        assert (one["id"], one["state"], one["why"]) == (0, "STARTING", None) and list(one["phases_s"]) == [
            "environment"
        ]
        shown = installation.world.inv("serve.status", "demo")
        assert "REPLICA_INIT" in shown and re.search(r"Starting: demo-0, environment [\d.]+ s so far", shown), shown
        installation.world.inv("serve.down", "demo")
    assert "demo-0 STARTING: environment 0." in scaling.communicate(timeout=GUARD_S)[1]


@pytest.mark.nightly
def test_startup_stage_of_an_engine_is_shown_with_its_time(installation):
    up = installation.world.begin(
        "serve.up",
        "demo",
        "--model",
        str(installation.model("A", start_s=3.0)),
        "--provider",
        "local",
        "--config",
        installation.config(1),
    )
    said = up.communicate(timeout=GUARD_S)[1]
    assert up.returncode == 0 and re.search(r"demo-0 STARTING: .*compiling [\d.]+ s so far\n", said), said
    assert re.search(r"demo-0 READY: .*compiling [\d.]+ s", said), said
    (one,) = installation.status("demo")["replicas"]
    known = ["environment", "engine start", "weights", "compiling", "first answer"]
    assert [phase for phase in known if phase in one["phases_s"]] == list(one["phases_s"])
    assert 0 < one["phases_s"]["compiling"] < sum(one["phases_s"].values()) < one["ready_after_s"] + 1


@pytest.mark.nightly
def test_command_that_waits_for_a_replaced_version_fails_with_the_reason(installation):
    installation.up("demo", installation.model("A"), "--config", installation.config(1))
    first = installation.world.begin("serve.up", "demo", "--model", str(installation.model("B", start_s=600)))
    until(
        lambda: {one.version for one in installation.seen("demo").members} == {1, 2}, "a replica of the second", GUARD_S
    )
    assert installation.up("demo", installation.model("C"))["versions"] == [3]
    _, said = first.communicate(timeout=GUARD_S)
    assert first.returncode == 1 and "a different command has replaced version 2 with version 3" in said


@pytest.mark.nightly
def test_sleeping_service_holds_its_first_request_until_it_is_awake(installation):
    policy = {"min_replicas": 0, "max_replicas": 1, "target_qps_per_replica": 1}
    up = installation.up("demo", installation.model("A"), "--config", installation.config(policy=policy))
    with pytest.raises(urllib.error.HTTPError, match="503"):  # Without waiting the request would be refused.
        urllib.request.urlopen(f"{up['endpoint']}/health", timeout=GUARD_S)
    installation.up(
        "demo", installation.model("A"), "--config", installation.config(policy=policy, slipway={"hold_seconds": 60})
    )
    assert until(lambda: health(up["endpoint"]) == "asleep", "the new limits of the gateway that runs")
    assert (up["ready"], up["target"]) == (0, 0) and installation.engines("demo") == {}
    assert say(up["endpoint"]) == (" A A A", "demo-0")


def health(url: str) -> str:
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{url}/health", timeout=GUARD_S) as reply:
        return json.load(reply)["status"]
    return ""


@pytest.mark.nightly
def test_hanging_engine_is_replaced_and_an_update_changes_all_replicas_at_once(installation):
    config = installation.config(timeout_seconds=1, consecutive_failure_threshold_timeout=2)
    url = installation.up("demo", installation.model("A"), "--config", config)["endpoint"]
    port = next(one.port for one in installation.seen("demo").members if one.number == 0)
    hang = urllib.request.Request(f"http://127.0.0.1:{port}/fake/script", b'{"fail": "hang"}')
    urllib.request.urlopen(hang, timeout=GUARD_S).close()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=GUARD_S) as reply:
        assert reply.status == 200
    until(lambda: 0 not in serving(installation), "the hung one taken out", GUARD_S)
    assert {who for _, who in (say(url) for _ in range(4))} <= {"demo-1", "demo-2"}
    until(lambda: serving(installation) == {1, 2}, "a replacement", GUARD_S)
    assert "no token in 1 s" in installation.world.inv("serve.status", "demo", "--all")

    with Traffic(LoadTest(url=url, model="demo", rate=1, duration_s=1, max_tokens=2)) as traffic:
        after = installation.up("demo", installation.model("B"), "--mode", "blue_green")
        traffic.await_more(8)
    assert not traffic.failures() and after["versions"] == [2] and serving(installation) == {3, 4}
