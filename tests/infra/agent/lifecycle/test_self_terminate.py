"""A pod ends itself when its work is over: a real guard below a first process with the key; a vendor."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from infra.agent.job import Call, Job, Limits
from infra.agent.lifecycle import self_terminate
from infra.agent.process import end_all
from infra.agent.state import UNCARRIED, ask_to_stop, self_terminating_guard
from tests.infra.agent.execution.test_steps import WAIT
from tests.infra.agent.lifecycle.test_guard import has_lived
from tests.infra.agent.world import World, module, until
from tests.infra.market.stand import Answer, Asked, Stand

KEY = "rpa_canary0123456789"
DELETE, ASK = "DELETE /v2/pods/{id}", "POST /graphql"
SCALE = 60.0
# A container's first process: the ancestor of all others, and the only process with the variables. It starts the
# commands on its stdin without the variables, like a user over SSH.
FIRST = """
import os, subprocess, sys
from infra.agent.process import become_subreaper
become_subreaper()
environ = {name: value for name, value in os.environ.items() if not name.startswith("RUNPOD_")}
environ["SLIPWAY_TOKEN"] = sys.argv[2]
for verb in sys.stdin:
    subprocess.Popen([sys.executable, "-m", "infra.agent", verb.strip(), sys.argv[1]], env=environ)
"""


class Pod(World):
    """A pod rented from a vendor."""

    def __init__(self, root: Path, vendor: str) -> None:
        super().__init__(root)
        key = {"Authorization": "Bearer {RUNPOD_API_KEY}"}
        body = json.dumps({"query": "mutation { end }", "variables": {"id": "{RUNPOD_POD_ID}"}})
        self.calls = (
            Call("DELETE", f"{vendor}/v2/pods/{{RUNPOD_POD_ID}}", key),
            Call("POST", f"{vendor}/graphql", key, body),
        )
        self.program("done", "")
        self.program("fails", "raise SystemExit(1)")
        self.program("wait", WAIT)
        self.program("slow", WAIT.replace("sys.exit(75)", ""))

    @contextmanager
    def first(self, key: str = KEY) -> Iterator[Callable[[str], None]]:
        """Start a first process, which starts the commands it receives."""
        environ = {
            **os.environ,
            "RUNPOD_POD_ID": self.pod.root.name,
            "RUNPOD_API_KEY": key,
            "PYTHONPATH": str(self.pod.code),
            "SLIPWAY_GRACE_S": "3",
        }
        with (self.pod.root / "first.log").open("wb") as log:
            words = [sys.executable, "-c", FIRST, str(self.pod.root), self.token]
            process = subprocess.Popen(words, env=environ, text=True, stdin=subprocess.PIPE, stdout=log, stderr=log)
        with process:
            assert process.stdin is not None

            def begin(verb: str) -> None:
                assert process.stdin is not None
                process.stdin.write(f"{verb}\n")
                process.stdin.flush()

            try:
                begin("start")
                yield begin
            finally:
                self.end()
                process.stdin.close()

    @property
    def guard_log(self) -> str:
        """Return the log of the guards of the pod."""
        path = self.pod.log("guard")
        return path.read_text() if path.exists() else ""


@pytest.fixture
def vendor() -> Iterator[Stand]:
    with Stand(("Authorization", f"Bearer {KEY}"), paths=("/v2/pods/{id}", "/graphql")) as stand:
        stand.on(DELETE, Answer(403))
        yield stand


def deletes(pods: dict[str, Pod]) -> Callable[[Asked], Answer]:
    """Return an answer of a vendor with GraphQL that ends all processes of a pod, perhaps before the answer."""

    def answer(asked: Asked) -> Answer:
        end_all(pods[asked.body["variables"]["id"]].token, 0.0)
        return Answer(200, {"data": {"podTerminate": None}})

    return answer


@pytest.mark.process
def test_a_pod_ends_itself_after_its_verdict_unless_kept_or_with_missing_uploads(vendor, tmp_path):
    pods = {
        name: Pod(tmp_path / name, vendor.url) for name in ("done", "failed", "kept", "limit", "alone", "full", "plain")
    }
    steps = {"failed": "fails", "kept": "fails", "limit": "wait", "alone": "slow", "full": "wait"}
    vendor.on(ASK, deletes(pods))
    for name, pod in pods.items():
        limits = Limits(time_s=900.0 if name == "limit" else 1e5)
        calls, on_failure = () if name == "plain" else pod.calls, "keep" if name == "kept" else "end"
        pod.job(
            module(steps.get(name, "done")),
            limits=limits,
            clock_scale=SCALE,
            on_failure=on_failure,
            self_terminate_calls=calls,
        )
    has_lived(pods["limit"], 780.0)
    full = pods["full"]

    def gone() -> set[str]:
        return {body["variables"]["id"] for body in vendor.bodies(ASK)}

    with ExitStack() as stack:
        begin = {name: stack.enter_context(pod.first()) for name, pod in pods.items()}
        alone = pods["alone"]
        until(lambda: full.lines("ran.txt") and alone.lines("ran.txt"), "work")
        ask_to_stop(alone.pod, "stopped", "somebody asks, and from now on nobody is revived", 60.0)
        alone.kill("guard")
        until(lambda: alone.lines("left.txt"), "a step that was told")  # not while it leaves
        (alone.pod.work / "go").touch()  # the ending agent leaves a new agent behind, which ends the pod
        ask_to_stop(full.pod, "failed", f"{UNCARRIED}: step-000000010", 3.0)
        for name in ("done", "failed", "limit", "alone"):
            until(lambda name=name: not pods[name].members() and name in gone(), f"the end of {name}")
        for name in ("kept", "plain"):
            assert pods[name].verdict()["state"] == {"kept": "failed", "plain": "succeeded"}[name]
        # Files with no other copy stay until the limit, and neither a start nor a stop ends the waiting guard.
        until(lambda: "waiting for the limit of 27 h 46 min" in full.guard_log, "a guard that waits")
        guard = full.living("guard")
        assert "the pod is deleting itself" in full.call("start", code=1)
        assert full.call("stop") | {"verdict": ""} == {"stopped": True, "survivors": [], "verdict": ""}
        assert self_terminating_guard(full.pod) == guard and full.members() == [guard]
        assert gone() == {"done", "failed", "limit", "alone"}
        full.kill("guard")
        has_lived(full, 1e5)
        begin["full"]("guard")
        until(lambda: not full.members() and "full" in gone(), "the end at the limit")
    assert [pods[name].guard_log.count("the guard deletes the pod") for name in pods] == [1, 1, 0, 1, 1, 1, 0]
    verdicts = {name: json.loads(pod.pod.verdict.read_text())["state"] for name, pod in pods.items()}
    assert verdicts == {
        "done": "succeeded",
        "failed": "failed",
        "kept": "failed",
        "limit": "limit",
        "alone": "succeeded",
        "full": "failed",
        "plain": "succeeded",
    }


@pytest.mark.process
def test_a_pod_requests_its_end_until_it_is_gone_and_shows_its_key_only_to_the_vendor(vendor, tmp_path):
    pods = {name: Pod(tmp_path / name, vendor.url) for name in ("patient", "wrong", "strange")}
    wrong, strange = "rpa_wrong9876543210", 'rpa_"quoted"\\'
    troubles = (
        Answer(503, {"error": KEY}),
        Answer(how="drop"),
        Answer(200, {"errors": [{"message": KEY}]}),
        Answer(307, headers={"Location": "/elsewhere"}),
        Answer(200, {"data": KEY}, how="short"),
    )
    vendor.on(ASK, *troubles, deletes(pods))
    for pod in pods.values():
        pod.job(module("done"), clock_scale=SCALE, self_terminate_calls=pod.calls)
    patient = pods["patient"]
    with ExitStack() as stack:
        for name, pod in pods.items():
            stack.enter_context(pod.first({"wrong": wrong, "strange": strange}.get(name, KEY)))
        until(lambda: not patient.members() and patient.pod.verdict.exists(), "the end that came late")
        until(lambda: pods["wrong"].guard_log.count("graphql: 401") > 2, "more tries with a key that is refused")
        until(
            lambda: pods["strange"].guard_log.count("are not set in any parent process") > 2,
            "more looks for a key that can be sent",
        )
        assert all(len(pods[name].members()) == 1 for name in ("wrong", "strange"))
    tried = [one for one in vendor.asked if one.headers["authorization"] == f"Bearer {KEY}"]
    assert {one.operation for one in tried} == {DELETE, ASK} and len(tried) >= 2 * len(troubles)
    for said in ("503", "RemoteDisconnected", "200 with errors", "307"):
        assert f"graphql: {said}\n" in patient.guard_log
    for pod in pods.values():
        for path in pod.pod.root.rglob("*"):
            content = path.read_bytes() if path.is_file() else b""
            assert not any(key.encode() in content for key in (KEY, wrong, strange)), path


@pytest.mark.process
def test_the_nearest_ancestor_with_all_variables_provides_the_key():
    probe = (
        "import os, infra.agent.lifecycle.self_terminate as f; print(sorted(f.variables('AB', os.getpid()).items()))"
    )
    path = {"PYTHONPATH": str(Path(__file__).parents[4])}

    def beneath(*environs: dict[str, str]) -> str:
        """Return the variables found by nested processes with `variables`, outermost first."""
        words = [sys.executable, "-c", probe]
        for environ in ({}, *reversed(environs[1:])):
            nest = f"import subprocess, sys; subprocess.run(sys.argv[1:], env={ {**path, **environ}!r})"
            words = [sys.executable, "-c", nest, *words]
        return subprocess.run(words, env={**path, **environs[0]}, capture_output=True, text=True).stdout.strip()

    assert beneath({"A": "1", "B": "2"}, {"A": "3"}) == "[('A', '1'), ('B', '2')]"
    assert beneath({"A": "1", "B": "2"}, {"B": "6", "A": "5"}) == "[('A', '5'), ('B', '6')]"
    assert beneath({"A": "3"}, {"B": "4"}) == "[]"


@pytest.mark.process
def test_a_key_is_sent_only_to_this_machine_or_over_verified_tls():
    values = {"KEY": KEY}
    header = {"Authorization": "{KEY}"}
    assert (
        self_terminate.ask(Call("GET", "http://api.example.org/", header), values) == "not sent: the URL is not https"
    )
    assert self_terminate.ask(Call("GET", "file:///etc/passwd", header), values) == "not sent: the URL is not https"
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with server.accept()[0] as link:
                heard.append(link.recv(1 << 16))

        thread = threading.Thread(target=listen)
        thread.start()
        said = self_terminate.ask(Call("GET", f"https://127.0.0.1:{server.getsockname()[1]}/", header), values)
        thread.join()
    assert "Error" in said and KEY.encode() not in heard[0]


@pytest.mark.process
def test_an_endless_slow_answer_is_given_up(vendor, monkeypatch):
    monkeypatch.setattr(self_terminate, "CALL_S", 0.5)
    vendor.on(ASK, Answer(200, b"x" * 10_000, how="drip"))
    call = Call("POST", f"{vendor.url}/graphql", {"Authorization": "Bearer {KEY}"}, "{}")
    assert self_terminate.ask(call, {"KEY": KEY}) == "no complete answer in 0.5 s"


def test_only_variable_names_are_filled_in():
    body = '{"query": "mutation ($id: String!) { end(input: {podId: $id}) }", "variables": {"id": "{POD_ID}"}}'
    assert self_terminate.fill(body, {"POD_ID": "a1"}) == body.replace("{POD_ID}", "a1")


def test_a_job_keeps_its_self_terminate_calls_in_json():
    job = Job(
        run="a", token="b", steps=(), self_terminate_calls=(Call("DELETE", "https://x/{ID}", {"A": "{KEY}"}, "{}"),)
    )
    assert Job.from_json(job.to_json()) == job
    assert Job.from_json(Job(run="a", token="b", steps=()).to_json()).self_terminate_calls == ()
