"""The control host in plans, in the question about offers, and in `inv status`."""

import json

import pytest

from infra.installation import this_machine
from infra.journal_file import JournalMoved
from infra.providers import Abilities
from infra.providers.shutdown_paths import caveats_of
from infra.settings import Settings
from packs.control_host.control.always_on import ControlHostMachine
from scripts.market import offers_table
from store import packs
from tests.world import ROOT


@pytest.fixture
def settings(tmp_path):
    state_file = tmp_path / "host" / "state" / "journal.sqlite"
    state_file.parent.mkdir(parents=True)
    return Settings.load(ROOT, environ={"SLIPWAY_STATE_FILE": str(state_file)})


def test_laptop_is_advised_to_use_a_control_host_and_a_control_host_is_not(settings, capsys):
    assert offers_table.always_on_here(settings) == ControlHostMachine().this_machine_status(settings) == ""
    offers_table.print_laptop_options([offers_table.ITSELF])
    said = " ".join(capsys.readouterr().err.split())
    assert said.replace("./inv", "inv") == (
        "If the laptop will be off: Add --self-end, and the pod deletes itself when its work is done. An always-on "
        "machine of yours can follow the run: inv control.up HOST"
    )
    places = settings.state_file.parent.parent
    (places / "about.json").write_text(json.dumps({"boot": "cron"}))
    (places / "started.json").write_text(json.dumps({"at": 0}))
    assert offers_table.always_on_here(settings) == "this control host"
    said = ControlHostMachine().this_machine_status(settings)
    assert said.startswith(f"on the control host {this_machine().host}, alive now; ") and said.endswith(": cron")


def test_plan_lists_the_control_host_as_an_end_of_a_hanging_machine():
    can = Abilities(start_timer=True, self_terminate="pod_credential")
    assert caveats_of("runpod", can, can)[-1] == (
        "Only a process on a different machine ends a hanging machine of runpod: the launch while running on this "
        "machine, the supervisor of this machine, or an always-on machine (inv control.up), which also works with the "
        "laptop off. A shorter limit (--ttl, --spend-limit) does not help."
    )


def test_answer_to_the_question_names_the_next_command():
    said = ControlHostMachine().setup_hint(lambda *more: " ".join(["./inv launch", *more]))
    assert said == (
        "set up the machine as a control host once: ./inv control.up HOST; then launch on that host: "
        "./inv launch --control HOST"
    )


def test_moved_journal_is_refused_with_the_name_of_the_missing_pack(tmp_path, monkeypatch):
    assert str(JournalMoved(tmp_path, "box")).endswith(
        "add --control box, or move the journal back: ./inv control.down"
    )
    assert str(JournalMoved(tmp_path, "box", is_home=True)).endswith(
        "is moving back to box; wait for ./inv control.down on box, or run the command again"
    )
    monkeypatch.setattr(packs, "installed", lambda: {})
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    assert "control.down belongs to the pack control_host" in str(JournalMoved(tmp_path, "box"))
