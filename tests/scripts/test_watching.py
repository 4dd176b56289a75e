"""The view of `inv status --watch`: intervals, questions to vendors, and the size of the terminal."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from flows.supervisor import supervisor_client
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.names import new_token
from infra.providers.local import Local
from infra.records import PodView
from infra.settings import Settings
from scripts.runs import watching
from scripts.runs.status import refresh_rows
from scripts.runs.watching import FittedScreen, SlowProvider, Watcher, seconds_between
from scripts.services import services_text
from tests.world import ROOT

STEPS = [{"name": f"step-{number}", "state": "done", "record": None, "result": None} for number in range(8)]
AT_WORK = PodView(
    run="calm-owl-1", provider="local", state="running", progress={"steps": STEPS}, ends=("guard alive, no limit",)
)
ENDED = [PodView(run=f"old-heron-{number}", provider="local", state="succeeded", ended_at=1.0) for number in range(9)]


@pytest.mark.parametrize(("height", "left_out"), [(60, 0), (30, 1), (21, 9), (8, 9)])
def test_a_screen_fits_the_terminal_and_keeps_the_last_lines_of_the_run_at_work(height, left_out):
    out = io.StringIO()
    console = Console(file=out, width=80, height=height, force_terminal=True, color_system=None)
    console.print(FittedScreen([AT_WORK, *ENDED], 1.0), height=height)
    lines = out.getvalue().rstrip("\n").split("\n")
    assert len(lines) <= height and "refreshed every 1.0 s" in lines[0]
    assert any("guard alive, no limit" in line for line in lines)
    assert any("ended run" in line for line in lines) == bool(left_out)
    assert any("left out; a larger terminal" in line for line in lines) == (height < 21)


@pytest.mark.parametrize(("replicas", "width", "height"), [(2, 120, 50), (12, 60, 20), (12, 60, 8)])
def test_screen_of_services_fits_the_terminal_and_keeps_the_causes_of_the_last_replicas(replicas, width, height):
    cause = "the engine ended with exit code 3: ValueError: out of memory"
    row = {"version": 1, "state": "FAILED", "where": "lium", "kind": "spot", "usd_per_hour": "0.25", "age_s": 5.0}
    rows = [{**row, "id": number, "run": f"demo-{number}", "at": "", "why": cause} for number in range(replicas)]
    one = {"service": "demo", "state": "READY", "versions": [1], "endpoint": "http://127.0.0.1:8000", "ready": 0}
    one |= {"target": replicas, "held": f"no machine fits: {'x' * 70}", "replicas": rows}
    text = services_text.watch_screen([one], 5.0)
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=True, color_system=None)
    console.print(services_text.FittedText(text), height=height)
    lines = out.getvalue().rstrip("\n").split("\n")
    assert len(lines) <= height and max(map(len, lines)) <= width and "refreshed every" in lines[0]
    words = "".join("".join(lines).split())
    assert words.endswith("ValueError:outofmemory") and ("leftout" in words) == (replicas == 12)
    assert replicas == 12 or "".join(text.split()) == words


def test_runs_on_this_machine_are_redrawn_every_second():
    rented = replace(AT_WORK, provider="lium")
    assert seconds_between([AT_WORK, *ENDED]) == 1.0
    assert seconds_between([AT_WORK, rented]) == seconds_between([rented]) == seconds_between(ENDED) == 5.0


class Vendor(Local):
    """A provider elsewhere that counts the questions, and refuses every second question about a pod."""

    is_here = False
    asked = 0

    def find(self, pod):
        self.asked += 1
        if self.asked % 2 == 0:
            raise SlipwayError("busy")


def test_answers_of_a_vendor_are_reused_errors_too(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(watching.time, "monotonic", lambda: now[0])
    vendor = Vendor(tmp_path)
    slow = SlowProvider(vendor, 60.0)
    assert slow.find("a") is None and slow.find("a") is None and vendor.asked == 1
    for _ in range(2):
        with pytest.raises(SlipwayError, match="busy"):
            slow.find("b")
    assert vendor.asked == 2 and slow.name == vendor.name
    now[0] = 61.0
    assert slow.find("b") is None and vendor.asked == 3


@pytest.mark.process
def test_a_redraw_reads_the_journal_anew_and_asks_a_vendor_once_a_minute(tmp_path, monkeypatch):
    mine = {"SLIPWAY_STATE_FILE": "journal.db", "SLIPWAY_PODS": "pods", "SLIPWAY_STORE": "store"}
    environ = {**{name: str(tmp_path / path) for name, path in mine.items()}, "HOME": str(tmp_path)}
    settings, vendor = Settings.load(ROOT, {}, environ=environ), Vendor(tmp_path)
    monkeypatch.setattr(watching.registry, "provider", lambda _, name: vendor)
    monkeypatch.setattr(supervisor_client, "ensure", lambda *_, **__: None)
    with Journal.open(settings.state_file) as journal:

        def begin(run):
            op = journal.plan(token=new_token(journal.installation), run=run, vendor="lium")
            journal.advance(journal.advance(op, "sending"), "created", remote_id=run)

        begin("calm-owl-1")
        watcher = Watcher(journal, settings, "", 60.0, refresh_rows)
        watcher.views()  # Settles the runs, as the command without --watch does.
        before = vendor.asked
        for _ in range(3):
            assert [view.run for view in watcher.views()] == ["calm-owl-1"]
        assert vendor.asked == before >= 1
        begin("warm-gull-2")
        assert [view.run for view in watcher.views()] == ["warm-gull-2", "calm-owl-1"]
        assert vendor.asked == before + 1
