"""Services as people type them: real processes on this machine, the scripted engine in place of a model."""

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
from tests.end_to_end.services import GUARD_S, Place, Traffic, say, serving
from tests.processes import command_line, command_lines, is_running
from tests.serve.certificates import Authority
from tests.world import until

pytestmark = pytest.mark.process


def test_a_service_from_its_first_request_to_its_end(place):
    model = place.model("Bosun")
    sky = {"zone": "us-east-1a", "image_id": "docker:x", "labels": {"a": "b"}}
    shown, said = place.world.begin(
        "serve.up",
        "demo",
        "--model",
        str(model),
        "--provider",
        "local",
        "--config",
        place.config(resources=sky),
        "--dry-run",
    ).communicate(timeout=GUARD_S)
    assert "own" in shown and place.world.processes() == []
    assert all(f"resources.{name}: only for sky serve up; in Slipway, " in said for name in sky), said
    up = place.up("demo", model, "--config", place.config())
    url = up["endpoint"]
    assert (up["state"], up["ready"], up["target"]) == ("READY", 2, 2)
    answers = [say(url) for _ in range(20)]
    assert {text for text, _ in answers} == {" Bosun Bosun Bosun"}
    assert Counter(who for _, who in answers) == {"demo-0": 10, "demo-1": 10}
    urllib.request.urlopen(f"{url}/health", timeout=GUARD_S).close()
    keys = [key_of(one.port) for one in place.seen("demo").members]
    assert len(set(keys)) == 2 and not [key for key in keys if key.encode() in b"".join(command_lines())]

    shown = place.world.inv("serve.status", "demo", "--all", "--metrics")
    for line in ("Service: demo", f"Endpoint: {url}", "Replicas: 2/2 ready", r"qps +0\.\d", r"latency_s\.p99 +[\d.]+"):
        assert re.search(line, shown), (line, shown)
    assert shown.count(str(place.folder / "pods")) == 2
    logs = [place.world.inv("serve.logs", "demo", *words) for words in ([], ["--replica-id", "0"], ["--controller"])]
    assert len(logs[0].splitlines()) == 20 and "Bosun" not in logs[0]
    assert "listening on" in logs[1] and "demo-1: ready" in logs[2]
    assert place.world.inv("serve.ssh", "demo", "--replica-id", "0", "--", "pwd").strip().endswith("pods/demo-0")
    assert place.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "2") == " Bosun Bosun\n"
    assert "no problem found" in place.world.inv("serve.doctor", "demo")
    for words, why in (
        (("serve.up", "demo", "--provider", "mars"), "unknown provider 'mars'"),  # which would end what serves
        (("serve.scale", "demo", "--max-replicas", "5"), "no scaling target is set"),
        (("serve.down", "demo", "--all"), "give only one"),
        (("serve.key", "demo", "--drop"), "--drop requires --for NAME"),
        (("serve.bench", "demo", "--rate", "1e9", "--duration", "9d"), "requests"),
        (("serve.bench", "demo", "--target-ttft", "-1"), "above 0"),
    ):
        assert why in refusal(place, *words), words
    bench = place.world.json("serve.bench", "demo", "--rate", "20", "--duration", "1s", "--target-ttft", "0.000001")
    assert bench["rounds"][0]["failed"] == 0 and "miss" in bench["advice"]
    assert "min_replicas" not in place.world.inv("serve.export", "demo", "--model", "hf://a/b")

    key = place.world.json("serve.key", "demo", "--for", "ann")["key"]
    until(lambda: refused(url), "a gateway that wants a key", GUARD_S)
    assert key not in (place.folder / "services" / "demo" / "keys").read_text()
    place.world.extra["SLIPWAY_ENDPOINT_KEY"] = key
    assert place.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "1") == " Bosun\n"

    engines = place.engines("demo")
    assert place.world.json("serve.scale", "demo", "--min-replicas", "3")["ready"] == 3
    assert place.engines("demo").items() > engines.items()
    assert place.world.json("serve.down", "demo") == {"ended": ["demo"]}
    assert list((place.folder / "pods").iterdir()) == []
    assert place.world.processes() == []
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"{url}/health", timeout=GUARD_S)


def refusal(place: Place, *words: str) -> str:
    process = place.world.begin(*words)
    _, said = process.communicate(timeout=GUARD_S)
    assert process.returncode == 2, said
    return said


def key_of(port: int) -> str:
    """Return the key of an engine, as the gateway has just sent it; requests without one are refused."""
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
def test_a_service_with_a_certificate_speaks_https_to_everybody_and_takes_a_renewed_one(place):
    authority = Authority.begin(place.folder)
    tls = Tls(keyfile=str(place.folder / "key.pem"), certfile=str(place.folder / "chain.pem"))
    first, model = authority.issue(tls), place.model("Bosun")
    Path(tls.keyfile).chmod(0o644)
    config = place.config(1, tls=tls)
    open_key = place.up("demo", model, "--config", config, code=2)["error"]
    assert open_key.endswith(f"run: chmod 600 {tls.keyfile}") and place.world.processes() == []
    Path(tls.keyfile).chmod(0o600)
    url = place.up("demo", model, "--config", config)["endpoint"]
    assert url.startswith("https://127.0.0.1:") and place.status("demo")["endpoint"] == url
    gateway = place.gateway("demo")
    assert openai_asked(url, authority) == (" Bosun", first)
    assert place.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "1") == " Bosun\n"
    assert place.world.json("serve.bench", "demo", "--rate", "5", "--duration", "1s")["rounds"][0]["failed"] == 0
    plain = place.up("demo", model, "--config", place.config(1), code=2)["error"]
    assert "cannot be removed while demo is running" in plain

    second = authority.issue(tls, "models.example")  # which clients of ours do not mind: they know it itself
    until(lambda: openai_asked(url, authority) == (" Bosun", second), "the renewed certificate", GUARD_S)
    assert place.world.inv("chat", "--endpoint", "demo", "--prompt", "hi", "--max-tokens", "1") == " Bosun\n"
    assert place.gateway("demo") == gateway
    place.kill_gateway("demo")
    until(lambda: openai_asked(url, authority) == (" Bosun", second), "another gateway", GUARD_S)
    assert place.gateway("demo") != gateway


def openai_asked(url: str, authority: Authority) -> tuple[str, int] | None:
    """Return the answer to OpenAI's client, and the serial number of the certificate it saw; None if it refused."""
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
def test_engines_that_die_and_a_new_version_cost_no_request(place):
    config = place.config()
    url = place.up("demo", place.model("A", token_s=0.01, worker=True), "--config", config)["endpoint"]
    workers = until(lambda: len(found := place.workers("demo")) == 2 and found, "the workers of both", GUARD_S)
    load = LoadTest(url=url, model="demo", rate=1, duration_s=1, max_tokens=8)
    with Traffic(load) as traffic:
        before = place.engines("demo")
        os.kill(before["demo-0"], signal.SIGKILL)
        until(lambda: serving(place) == {1, 2}, "a replacement", GUARD_S)
        traffic.await_more(8)
    states = {one["id"]: one["state"] for one in place.status("demo")["replicas"]}
    assert states == {0: "FAILED", 1: "READY", 2: "READY"}
    until(lambda: place.ended("demo", 0), "the proof of its end", GUARD_S)
    assert not is_alive(workers["demo-0"]) and is_alive(workers["demo-1"])
    # Whoever had a byte of the dead one's has a broken stream; nobody else has noticed.
    assert all(one.first_s is not None for one in traffic.failures()), traffic.failures()
    assert len(traffic.failures()) <= traffic.clients

    with Traffic(load) as traffic:
        after = place.up("demo", place.model("B", token_s=0.01))
        traffic.await_more(8)
    assert not traffic.failures(), traffic.failures()
    assert (after["ready"], after["versions"]) == (2, [2])
    assert {say(url)[0] for _ in range(4)} == {" B B B"}
    until(lambda: place.ended("demo", 1), "the proof of its end", GUARD_S)
    assert before["demo-1"] not in place.engines("demo").values()
    assert not is_alive(workers["demo-1"])  # which was drained, told to end, and did not listen


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_workers_that_ignore_term_never_outlive_their_replica(place):
    """Row 20: an engine that was killed, or told to end, leaves a worker behind; a replica does not."""
    place.up("demo", place.model("A", worker=True), "--config", place.config())
    for round in range(200):
        until(lambda: len(serving(place)) == 2, "two that serve", GUARD_S)
        workers = until(lambda: len(found := place.workers("demo")) == 2 and found, "the workers of both", GUARD_S)
        run = min(workers)
        os.kill(place.engines("demo")[run], (signal.SIGKILL, signal.SIGTERM)[round % 2])
        until(lambda: place.ended("demo", int(run.rpartition("-")[2])), "the proof of its end", GUARD_S)  # noqa: B023
        assert not is_alive(workers.pop(run)), (round, run)
        assert all(is_alive(one) for one in workers.values())


def test_a_dead_controller_leaves_its_replicas_and_the_next_one_takes_them_over(place):
    up = place.up("demo", place.model("A"), "--config", place.config())
    place.kill_supervisor()
    engines, first = place.engines("demo"), place.controller("demo")
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_running(first), "its end")
    assert place.engines("demo") == engines
    rivals = [place.world.begin("serve.status", "demo", "--json") for _ in range(3)]
    seen = [json.loads(one.communicate(timeout=GUARD_S)[0]) for one in rivals]
    assert {one["endpoint"] for one in seen} == {up["endpoint"]}
    assert {one["ready"] for one in seen} == {2} and {say(up["endpoint"])[1] for _ in range(4)} == set(engines)
    assert place.engines("demo") == engines and place.controller("demo") != first

    until(lambda: len(controllers(place)) == 1, "the end of those that came too late", GUARD_S)
    second = place.controller("demo")  # the next one is to end it, where its port is somebody else's by now
    os.kill(second, signal.SIGKILL)
    until(lambda: not is_running(second), "its end")
    place.kill_gateway("demo")
    port = int(up["endpoint"].rpartition(":")[2])
    with until(lambda: taken(port), "its port, which its last thread lets go of", GUARD_S):
        place.world.inv("serve.down", "demo")
    assert place.world.processes() == []


@pytest.mark.nightly
def test_an_address_that_somebody_else_has_taken_meanwhile_is_given_up_for_another_one(place):
    up, model = place.up("demo", place.model("A"), "--config", place.config(1)), place.folder / "A"
    place.kill_supervisor()
    engines, first = place.engines("demo"), place.controller("demo")
    os.kill(first, signal.SIGKILL)
    until(lambda: not is_running(first), "its end")
    place.kill_gateway("demo")
    port = int(up["endpoint"].rpartition(":")[2])
    with until(lambda: taken(port), "its port, which its last thread lets go of", GUARD_S):
        moved = place.up("demo", model, "--port", "0")["endpoint"]
        assert moved != up["endpoint"] and say(moved) == (" A A A", "demo-0")
    assert place.engines("demo") == engines


def controllers(place: Place) -> list[int]:
    return [pid for pid in place.world.processes() if b"serve.controller" in command_line(pid)]


def taken(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


@pytest.mark.nightly
def test_what_cannot_be_served_is_refused_in_one_message_and_leaves_nothing(place):
    good = place.model("A")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = place.up("demo", good, "--config", place.config(), "--port", port, code=2)
    assert f"port {port}" in said["error"] and "inv serve.up" in said["error"]
    assert "no model" in place.up("demo", place.folder / "nowhere", code=2)["error"]
    assert "--tag tiny" in place.up("demo", good, "--tag", "tiny", code=2)["error"]
    beyond = place.up("demo", good, "--config", place.config(), "--port", "99999", code=2)["error"]
    assert "1 to 65535" in beyond  # not the port that is left of it in 16 bits
    nameless = place.world.json("serve.up", "demo", "--model", "hf://", "--provider", "local", code=2)["error"]
    assert "expected hf://user/repo" in nameless
    keyless = place.world.json("serve.up", "demo", "--model", "s3://bucket/model", "--provider", "local", code=4)
    assert "no credentials" in keyless["error"]
    assert "key" in place.up("demo", good, "--config", place.config(), "--host", "0.0.0.0", code=2)["error"]
    one = place.up("demo", good, "--dry-run")  # three engines would share the same CPUs
    assert (one["min_replicas"], one["max_replicas"]) == (1, 1)
    assert place.world.json("serve.status") == [] and place.world.processes() == []

    crashing = place.up("demo", place.model("C", crash=3), "--config", place.config(1), code=1)["error"]
    assert (
        "never ready" in crashing and "EngineCore failed to start" in crashing and "all replicas were ended" in crashing
    )
    with place.journal() as journal:
        assert len(journal.ops()) <= 3
    assert place.world.json("serve.status") == []
    until(lambda: not place.world.processes(), "the end of the supervisor, which has nothing left to look after")


@pytest.mark.nightly
def test_a_model_that_is_never_healthy_is_given_up_and_leaves_nothing(place):
    config = place.config(1, initial_delay_seconds=0.2)
    late = place.up("demo", place.model("D", start_s=600), "--config", config, code=1)["error"]
    assert "initial_delay_seconds" in late and "never ready" in late
    assert place.world.json("serve.status") == [] and place.world.processes() == []


@pytest.mark.nightly  # its engine is made anew: tests/serve/policy has what is decided
def test_the_making_of_its_environment_takes_nothing_of_a_replica_s_initial_delay(place):
    """Another process makes that environment, so that the replica waits for it for longer than its initial delay."""
    place.world.extra["SLIPWAY_ENVIRONMENTS"] = str(place.folder / "environments")
    policy = {"min_replicas": 0, "max_replicas": 1, "target_qps_per_replica": 1}
    place.up("demo", place.model("A"), "--config", place.config(policy=policy, initial_delay_seconds=2))
    (folder,) = (place.folder / "environments").glob("serve-*[!.lock]/")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / environment.MARKER).unlink()
        scaling = place.world.begin("serve.scale", "demo", "--min-replicas", "1")

        def waits():
            (one,) = place.status("demo")["replicas"] or [{"phases_s": {}}]
            return one["phases_s"].get("environment", 0.0) > 4.0 and one

        one = until(waits, "an environment that takes twice as long as the initial delay", GUARD_S)
        assert (one["id"], one["state"], one["why"]) == (0, "STARTING", None) and list(one["phases_s"]) == [
            "environment"
        ]
        shown = place.world.inv("serve.status", "demo")
        assert "REPLICA_INIT" in shown and re.search(r"Starting: demo-0, environment [\d.]+ s so far", shown), shown
        place.world.inv("serve.down", "demo")
    assert "demo-0 STARTING: environment 0." in scaling.communicate(timeout=GUARD_S)[1]


@pytest.mark.nightly
def test_what_an_engine_is_at_on_its_way_is_told_with_its_time(place):
    up = place.world.begin(
        "serve.up",
        "demo",
        "--model",
        str(place.model("A", start_s=3.0)),
        "--provider",
        "local",
        "--config",
        place.config(1),
    )
    said = up.communicate(timeout=GUARD_S)[1]
    assert up.returncode == 0 and re.search(r"demo-0 STARTING: .*compiling [\d.]+ s so far\n", said), said
    assert re.search(r"demo-0 READY: .*compiling [\d.]+ s", said), said
    (one,) = place.status("demo")["replicas"]
    known = ["environment", "weights", "compiling", "first answer"]
    assert [phase for phase in known if phase in one["phases_s"]] == list(one["phases_s"])
    assert 0 < one["phases_s"]["compiling"] < sum(one["phases_s"].values()) < one["ready_after_s"] + 1


@pytest.mark.nightly
def test_whoever_waits_for_a_version_that_another_command_replaces_is_told_so(place):
    place.up("demo", place.model("A"), "--config", place.config(1))
    first = place.world.begin("serve.up", "demo", "--model", str(place.model("B", start_s=600)))
    until(lambda: {one.version for one in place.seen("demo").members} == {1, 2}, "a replica of the second", GUARD_S)
    assert place.up("demo", place.model("C"))["versions"] == [3]
    _, said = first.communicate(timeout=GUARD_S)
    assert first.returncode == 1 and "a different command has replaced version 2 with version 3" in said


@pytest.mark.nightly
def test_a_service_that_sleeps_holds_its_first_request_until_it_is_awake(place):
    policy = {"min_replicas": 0, "max_replicas": 1, "target_qps_per_replica": 1}
    up = place.up("demo", place.model("A"), "--config", place.config(policy=policy))
    with pytest.raises(urllib.error.HTTPError, match="503"):  # it would refuse it
        urllib.request.urlopen(f"{up['endpoint']}/health", timeout=GUARD_S)
    place.up("demo", place.model("A"), "--config", place.config(policy=policy, slipway={"hold_seconds": 60}))
    assert until(lambda: health(up["endpoint"]) == "asleep", "the new limits of the gateway that runs")
    assert (up["ready"], up["target"]) == (0, 0) and place.engines("demo") == {}
    assert say(up["endpoint"]) == (" A A A", "demo-0")


def health(url: str) -> str:
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(f"{url}/health", timeout=GUARD_S) as reply:
        return json.load(reply)["status"]
    return ""


@pytest.mark.nightly
def test_an_engine_that_hangs_is_taken_out_and_replaced_and_all_change_at_once(place):
    config = place.config(timeout_seconds=1, consecutive_failure_threshold_timeout=2)
    url = place.up("demo", place.model("A"), "--config", config)["endpoint"]
    port = next(one.port for one in place.seen("demo").members if one.number == 0)
    hang = urllib.request.Request(f"http://127.0.0.1:{port}/fake/script", b'{"fail": "hang"}')
    urllib.request.urlopen(hang, timeout=GUARD_S).close()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=GUARD_S) as reply:
        assert reply.status == 200
    until(lambda: 0 not in serving(place), "the hung one taken out", GUARD_S)
    assert {who for _, who in (say(url) for _ in range(4))} <= {"demo-1", "demo-2"}
    until(lambda: serving(place) == {1, 2}, "a replacement", GUARD_S)
    assert "no token in 1 s" in place.world.inv("serve.status", "demo", "--all")

    with Traffic(LoadTest(url=url, model="demo", rate=1, duration_s=1, max_tokens=2)) as traffic:
        after = place.up("demo", place.model("B"), "--mode", "blue_green")
        traffic.await_more(8)
    assert not traffic.failures() and after["versions"] == [2] and serving(place) == {3, 4}
