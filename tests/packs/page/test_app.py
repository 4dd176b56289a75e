"""The page's server, in process: the exchange of the token, refusals, views, actions."""

import asyncio
import graphlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading

import httpx
import pytest

from infra.agent.job import Job
from infra.errors import NoOffer, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.records import Offer
from infra.settings import Settings
from packs.page.views import acts, app, chat, export, run_sources
from packs.page.views.access import Gate
from packs.page.views.page_context import PageContext
from packs.page.views.sections import VIEWS, artifacts, runs
from packs.page.views.sections.ask import View, ViewQuery
from packs.page.views.server import listen
from scripts.models.chat import ChatFlags
from serve.policy import service_state
from serve.policy.service_state import Version, WantedService
from store.artifacts.artifacts import Store
from tests.packs.page.shard_reports import REPORT, changed
from tests.world import ROOT

HOST = "127.0.0.1:7331"
BASE = f"http://{HOST}"


@pytest.fixture
def context(tmp_path, monkeypatch):
    """Return a context of an unused installation with one small artifact."""
    for name, value in {"STATE_FILE": "state/journal.db", "STORE": "artifacts", "PODS": "pods"}.items():
        monkeypatch.setenv(f"SLIPWAY_{name}", str(tmp_path / value))
    for vendor in ("RUNPOD", "LIUM", "SHADEFORM"):
        monkeypatch.setenv(f"{vendor}_API_KEY", "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "report.json").write_text(json.dumps(REPORT))
    Store(tmp_path / "artifacts").publish(folder, "text/few", "f" * 16, {"documents": 3, "nested": {"no": 1}})
    return PageContext(Settings.load(tmp_path, {}, ()))


def talk(context, *asks, acts_allowed=False, opens=True):
    """Return the replies to requests `(method, path, options)`, from a browser that has opened the link, or not."""

    async def go():
        gate = Gate(hosts=(HOST,), acts_allowed=acts_allowed)
        context.acts_allowed = acts_allowed
        server = app.make(context, gate)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url=BASE) as browser:
            if opens:
                reply = await browser.post("/api/session", json={"token": gate.token}, headers={"Origin": BASE})
                assert reply.status_code == 200
            return [await browser.request(method, path, **options) for method, path, options in asks]

    return asyncio.run(go())


def test_cookie_is_strict_and_http_only_and_the_token_is_valid_once(context):
    async def go():
        gate, heard = Gate(hosts=(HOST,)), []
        server = app.make(context, gate, lambda: heard.append("expired"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url=BASE) as browser:
            said = {"json": {"token": gate.token}, "headers": {"Origin": BASE}}
            return [await browser.post("/api/session", **said) for _ in range(2)], heard

    (first, second), heard = asyncio.run(go())
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(first.headers["set-cookie"].split("; "))
    assert second.status_code == 403 and heard == ["expired"]


def test_each_live_pod_is_shown_with_its_owner(context):
    owners = {"otter-1": ("", ""), "box": ("held", ""), "red": ("pod_set", "lab"), "chat-0": ("service", "chat")}
    with Journal.open(context.settings.state_file) as journal:
        for run, (kind, owner) in owners.items():
            journal.plan(token=f"sw1-{run}", run=run, vendor="local", owner_kind=kind, owner=owner)
    (reply,) = talk(context, ("GET", "/api/pods", {}))
    assert {one["run"]: (one["owner_kind"], one["owner"]) for one in reply.json()["pods"]} == owners


UNREADABLE = (b'{"token": "\\ud800"}', b"[" * 200_000, b'{"a":' * 100_000, b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}')


@pytest.mark.parametrize("body", UNREADABLE)
def test_unreadable_body_is_a_bad_request(context, body):
    async def go():
        gate = Gate(hosts=(HOST,), acts_allowed=True)
        server = app.make(context, gate)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=server), base_url=BASE) as browser:
            head = {"Origin": BASE, "Slipway-Act": "1", "Content-Type": "application/json"}
            first = await browser.post("/api/session", content=body, headers=head)
            await browser.post("/api/session", json={"token": gate.token}, headers=head)
            return [first, *[await browser.post(f"/api/{one}", content=body, headers=head) for one in ("acts", "chat")]]

    for reply in asyncio.run(go()):
        assert reply.status_code == 400 and "cannot be read" in reply.json()["error"]


def test_page_loads_no_external_resource_and_every_answer_has_the_policy(context):
    page, style, refused = talk(
        context, ("GET", "/", {}), ("GET", "/static/style.css", {}), ("GET", "/api/runs", {}), opens=False
    )
    assert page.status_code == style.status_code == 200 and refused.status_code == 401
    for reply in (page, style, refused):
        assert reply.headers["content-security-policy"].startswith("default-src 'none'")
        assert reply.headers["x-content-type-options"] == "nosniff"
    files = [path for path in app.STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    assert not [path for path in files if "https://" in path.read_text()]
    assert [reply.status_code for reply in talk(context, ("GET", "/static/../app.py", {}))] == [404]


def test_modules_of_the_page_have_no_import_cycle():
    imports = {
        path: {(path.parent / found[2]).resolve() for found in export.IMPORT.finditer(path.read_text())}
        for path in app.STATIC.resolve().rglob("*.js")
    }
    order = list(graphlib.TopologicalSorter(imports).static_order())
    assert set(order) == set(imports) and order[-1].name == "app.js"


def test_every_view_of_an_empty_installation_names_its_command(context):
    names = [name for name in VIEWS if name not in ("about", "curves", "data_report")]
    replies = talk(context, *(("GET", f"/api/{name}", {}) for name in names))
    for name, reply in zip(names, replies, strict=True):
        assert reply.status_code == 200, (name, reply.text)
        assert reply.json()["command"].startswith("inv "), name
    offers = dict(zip(names, replies, strict=True))["offers"].json()["offers"]
    assert offers and all("illustrative" in one["mark"] for one in offers), "what `inv offers` shows without a key"
    (row,) = dict(zip(names, replies, strict=True))["data"].json()["artifacts"]
    assert row["name"] == "text/few" and row["about"] == {"documents": 3} and row["has_report"]


def test_stream_reads_many_runs_in_steps_and_sends_the_first_at_once(context, monkeypatch):
    names = ["calm-1", "calm-2", "calm-3"]
    record = json.dumps({"step": 1, "tokens": 8, "loss": 2.0, "at": 1.0}).encode() + b"\n"
    monkeypatch.setattr(runs, "READ_S", -1.0)
    monkeypatch.setattr(
        runs,
        "source_of",
        lambda context, run, *_: context.cached(run, lambda: runs.FigureSource(run, run, False, {"base": {}})),
    )
    monkeypatch.setattr(runs, "marks_of", lambda *_: [])
    monkeypatch.setattr(run_sources, "_bytes_of", lambda *_: (lambda offset: record[offset:], 3600.0))
    asked = {"runs": ",".join(names), "phase": "base"}
    looks = [runs.curves(context, ViewQuery({**asked, "live": "1"})) for _ in names]
    assert [one["about"]["unread"] for one in looks] == [2, 1, 0]
    assert [[name for name in names if f"run {name}" in one] for one in looks] == [names[:1], names[:2], names]
    assert runs.curves(context, ViewQuery(asked))["about"]["unread"] == 0


def test_refresh_without_changes_reads_no_run_again(context, monkeypatch):
    asked, found = ViewQuery({"runs": "calm-1,calm-2"}), []
    with context.journal() as journal:
        rows = [
            journal.plan(token=f"token-{run}", run=run, vendor="local", job=Job(run, f"token-{run}", ()).to_json())
            for run in ("calm-1", "calm-2")
        ]
        find = run_sources.find_run
        monkeypatch.setattr(run_sources, "find_run", lambda journal, run: found.append(run) or find(journal, run))
        first = runs.curves(context, asked)
        assert found == ["calm-1", "calm-2"]
        assert runs.curves(context, asked) == first and found == ["calm-1", "calm-2"]
        journal.note(rows[1], recoveries=1)
        runs.curves(context, asked)
    assert found == ["calm-1", "calm-2"] * 2


def test_published_artifact_is_shown_within_a_second(context, tmp_path, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("packs.page.views.page_context.time.monotonic", lambda: clock[0])

    def shown() -> list[list[str]]:
        data, models = VIEWS["data"].render(context, ViewQuery({})), chat.VIEW.render(context, ViewQuery({}))
        return [[one["name"] for one in data["artifacts"]], models["models"]]

    assert shown() == [["text/few"], []]
    Store(tmp_path / "artifacts").publish(tmp_path / "made", "chatsft_checkpoints/tiny", "e" * 16, {})
    clock[0] += 1.0
    assert shown() == [["chatsft_checkpoints/tiny", "text/few"], ["chatsft_checkpoints/tiny"]]
    slow = {name for name, view in VIEWS.items() if view.every_s > 1}
    assert slow == {"offers", "data_report"}, "which vendors are asked for, and what hardly changes"


def test_what_is_wrong_is_said_and_a_report_on_shards_is_shown(context, tmp_path):
    asks = [("GET", path, {}) for path in ("/api/curves?runs=nobody-1", "/api/data_report?name=text/few")]
    unknown, ours = talk(context, *asks)
    assert unknown.status_code == 400 and "no runs exist yet" in unknown.json()["error"]
    assert ours.json()["report"] == REPORT and ours.json()["command"].startswith("inv shard --report ")


@pytest.mark.parametrize(
    ("report", "said"),
    [
        ("[", "Expecting value"),
        ({"accuracy": 0.5}, "missing required field `source`"),
        (changed({}, "parts"), r"\$\.parts"),
        (changed(1, "read"), r"\$\.read"),
        (changed("3", "documents"), r"\$\.documents"),
        (changed([1, 9], "lengths", 0), r"\$\.lengths\[0\]"),
        (changed("many", "lines", 0, 1), r"\$\.lines\[0\]\[1\]"),
        (changed(None, "samples", 0, "text"), r"\$\.samples\[0\]\.text"),
        (changed(["0"], "scores", "score", "counts"), r"\$\.scores\[\.\.\.\]\.counts\[0\]"),
        (changed(None, "parts", 0, "shards"), r"\$\.parts\[0\]\.shards"),
        (changed(7, "parts", 0, "shards", 0, "sha256"), r"\$\.parts\[0\]\.shards\[0\]\.sha256"),
    ],
)
def test_unusable_report_on_shards_is_refused_with_the_place(tmp_path, report, said):
    path = tmp_path / "report.json"
    path.write_text(report if isinstance(report, str) else json.dumps(report))
    with pytest.raises(UsageError, match=f"{said}.*write the report again"):
        artifacts.read_report(path)


def test_stream_sends_each_part_only_after_a_change():
    parts, known = {"a": 1, "b": [1, 2]}, {}
    view = View(lambda context, asked: dict(parts))

    def news():
        return [json.loads(one.split(b"data: ", 1)[1]) for one in app._pieces(view, None, ViewQuery({}), known)]

    end = {"part": "", "value": None}
    assert [one["part"] for one in news()] == ["error", "a", "b", ""]
    assert news() == []
    parts["b"] = [1, 2, 3]
    assert news() == [{"part": "b", "value": [1, 2, 3]}, end]
    del parts["a"]
    assert news() == [{"part": "a", "value": None}, end]


def test_action_asks_first_and_its_confirmation_is_valid_once(context, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(acts.Acts, "_down", lambda self, said: acts._question("End it?", "inv down it", done.set))
    headers = {"Origin": BASE, "Slipway-Act": "1"}

    def act(**said):
        return "POST", "/api/acts", {"json": said, "headers": headers}

    off, unknown = talk(context, act(act="down", name="it")), talk(context, act(act="launch"), acts_allowed=True)
    assert off[0].status_code == 403 and unknown[0].status_code == 400
    asking = acts.Acts(context)
    said = asking.handle({"act": "down", "name": "it"})
    assert said["question"] == "End it?" and not done.is_set()
    assert asking.handle({"word": said["word"]}) == {"begun": "inv down it"}
    assert done.wait(5)
    for word in (said["word"], "guessed"):
        with pytest.raises(Exception, match="ask again"):
            asking.handle({"word": word})


def test_action_that_fails_at_once_reports_the_error_to_its_caller(context, monkeypatch):
    def refuse() -> None:
        raise UsageError("no scaling target is set")

    monkeypatch.setattr(
        acts.Acts, "_scale", lambda self, said: acts._question("Scale it?", "inv serve.scale it", refuse)
    )
    asking = acts.Acts(context)
    word = asking.handle({"act": "scale"})["word"]
    with pytest.raises(UsageError, match="no scaling target"):
        asking.handle({"word": word})
    assert context.notes[-1] == "inv serve.scale it: no scaling target is set"


RENTED = Offer(provider="runpod", offer_id="L40S", micro_usd_per_hour=500_000)
OWN = Offer(provider="ssh", offer_id="a/b", place="a/b")


@pytest.mark.parametrize(
    ("offers", "cost"),
    [
        ([RENTED], "3 replicas cost about 1.50 USD/h;"),
        ([OWN], "3 replicas (machines are available for 1 only) cost about 0.00 USD/h;"),
        ([], "No machine fits now, and the controller asks the vendors again;"),
    ],
)
def test_question_about_more_rented_replicas_names_their_price(context, monkeypatch, offers, cost):
    def find(*known):
        if not offers:
            raise NoOffer("no machine for a replica")
        return offers

    document = {"service": {"replicas": 1, "readiness_probe": "/health"}, "slipway": {"spend_limit": 40}}
    old = WantedService(versions=(Version(number=1, document=document, provider="runpod", model="hf://user/repo"),))
    with Journal.open(context.settings.state_file) as journal:
        service_rows.write_desired_state(journal, "demo", service_state.write(old), None)
    monkeypatch.setattr(acts.serve, "replica_offers", find)
    said = acts.Acts(context).handle({"act": "scale", "name": "demo", "least": 3, "most": 3})
    assert said["question"] == f"Let demo have 3 to 3 replicas? {cost} the limit for all replicas is 40.00 USD."


def test_actions_have_no_default_target(context):
    for said in ({"act": "down"}, {"act": "resume", "name": ""}, {"act": "scale", "name": "x", "least": 2, "most": 1}):
        with pytest.raises(Exception, match="needs the name|cannot exceed"):
            acts.Acts(context).handle(said)


def test_exported_page_contains_its_modules_and_data_and_sends_no_request(context, tmp_path):
    with Journal.open(context.settings.state_file):
        pass
    page = export.write(tmp_path / "page" / "index.html", export.whole(context)).read_text()
    assert 'import "slipway/app.js"' in page and "/static/" not in page.replace("data:text/javascript", "")
    shown = json.loads(page.split('id="kept">', 1)[1].split("</script>", 1)[0])
    assert shown["data"]["artifacts"][0]["name"] == "text/few"
    text = export._named("views/runs.js", 'import { h } from "../dom.js";\nimport { go } from "./curves.js";')
    assert text == 'import { h } from "slipway/dom.js";\nimport { go } from "slipway/views/curves.js";'


@pytest.mark.process
def test_unusable_port_is_reported_with_its_reason():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit, match=f"port {port} of this machine is taken; choose a free port"):
            listen(port)
    with pytest.raises(
        SystemExit, match="port 70000 of this machine cannot be used: the number must be between 0 and 65535"
    ):
        listen(70000)


def test_the_chat_of_the_page_samples_as_inv_chat():
    script = (app.STATIC / "views" / "chat.js").read_text()
    fields = dict(re.findall(r'value: "([\d.]+)", "aria-label": "(Temperature|Tokens at most)"', script))
    usual = ChatFlags()
    assert {name: float(value) for value, name in fields.items()} == {
        "Temperature": usual.temperature,
        "Tokens at most": usual.max_tokens,
    }
    assert chat._options({}) == {"temperature": usual.temperature, "max_tokens": usual.max_tokens}


@pytest.mark.process
def test_ctrl_c_ends_the_page_with_open_tabs_without_a_message(context):
    words = [sys.executable, "-m", "packs.page.views", "--port", "0"]
    with subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as page:
        try:
            base, _, token = re.search(r"http\S+", page.stdout.readline())[0].partition("/#")
            with httpx.Client(base_url=base, headers={"Origin": base}, timeout=30) as browser:
                assert browser.post("/api/session", json={"token": token}).status_code == 200
                with browser.stream("GET", "/api/runs", params={"live": "1"}) as tab:
                    assert next(tab.iter_bytes())
                    page.send_signal(signal.SIGINT)
                    assert page.wait(30) == 130
            said = page.stderr.read()
            assert said.startswith("the link works once; ") and said.count("\n") == 1, said
        finally:
            page.kill()


@pytest.mark.process
def test_ctrl_c_during_the_imports_of_the_page_ends_without_a_traceback(context, tmp_path):
    (tmp_path / "uvicorn.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    words = [sys.executable, "-m", "packs.page.views"]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
