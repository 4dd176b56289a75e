"""The records of this installation are sent to no pod, at any place and under any name."""

import json
import os
import re
import subprocess

import pytest

from infra.ledger.journal import Journal
from infra.transport import shipment
from infra.transport.protocol import ThisMachine
from infra.transport.push import push
from infra.transport.scan import inspector
from tests.world import ROOT

pytestmark = pytest.mark.process

TOKEN = "sw1-abcdefgh-0123456789abcdef"
STATE = ".lium_state_prod.json"
BESIDE = (
    *("-wal", "-shm", ".lock", "-pace-lium", ".moving", ".copy123", ".moved-20261128-000000"),
    *("-keys/a.key", "-hosts.json", "-prices.json", "-ssh-config", "-ssh-config.lock", "-rehearsal/world/store/x"),
    *("-timings/a.json", "-drills/a", "-notices/a", "-supervisor.json", "-supervisor.log", "-control/h/key"),
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Return a checkout with a journal, under the name of the state file of another tool."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "train.py").write_text("print()\n")
    (root / ".lium_state_prod.py").write_text("print()\n")
    subprocess.run(["git", "init", "-q", root], check=True)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    monkeypatch.delenv("SLIPWAY_REHEARSAL", raising=False)
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(root / STATE))
    monkeypatch.setenv("SLIPWAY_PODS", str(root / "machines" / "pods"))
    return root


def fill(root):
    with Journal.open(root / STATE, os.environ) as journal:
        assert journal.ops() == []
    for ending in BESIDE:
        base = STATE if not ending.startswith("-") or ending[1:5] in ("wal", "shm", "pace") else STATE[:-5]
        path = root / f"{base}{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for path in ("known_hosts/a", "machines/pods/a-1/logs/base.log", "machines/runs/a-1/pod/x"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("x")


def test_a_journal_in_the_checkout_is_not_sent_with_its_companion_files(root, tmp_path):
    fill(root)
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod" / "POD.json").write_text(json.dumps({"token": TOKEN, "run": "a-1"}))
    done = push(ThisMachine(), root, tmp_path / "pod" / "code", TOKEN, anyway=[STATE, "known_hosts/a"])
    there = {path.relative_to(tmp_path / "pod" / "code").as_posix() for path in (tmp_path / "pod" / "code").rglob("*")}
    assert there == {"train.py", ".lium_state_prod.py"}
    assert {one.path for one in done.refused} >= {STATE, f"{STATE}.lock", ".lium_state_prod-keys/a.key"}
    assert all("a record of this installation" in one.reason for one in done.refused)


def test_a_journal_of_an_earlier_command_is_not_sent(root, monkeypatch):
    fill(root)
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(root.parent / "other.sqlite"))
    refused = {one.path for one in shipment.pack(root).refused}
    assert {STATE, ".lium_state_prod-hosts.json"} <= refused


def test_a_journal_in_a_folder_of_a_job_is_not_sent(root):
    fill(root)
    assert shipment.measure(root, STATE).files == 0


def test_every_companion_file_of_a_journal_is_recognized():
    written = re.compile(r"with_name\(f\"\{[a-z_.]*(?:state_file|journal)[a-z_().]*\.(?:stem|name)\}([-.][a-z]+)")
    texts = [
        path.read_text() for folder in ("infra", "flows", "scripts", "serve") for path in (ROOT / folder).rglob("*.py")
    ]
    beside = {ending for text in texts for ending in written.findall(text)}
    assert len(beside) > 8
    known = {*inspector.OF_NAME, *inspector.OF_STEM} - {""}
    assert [one for one in beside if not any(name.startswith(one) for name in known)] == []
