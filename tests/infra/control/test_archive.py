"""An installation that moves: one journal at most may be written to, and everything arrives."""

import os
import re

import pytest

from infra import journal_moves
from infra.agent.limits import read_clocks
from infra.control import archive
from infra.control.ties import refuse_ties
from infra.errors import UsageError
from infra.journal_file import JournalError, Moved
from infra.ledger.journal import Journal
from infra.ledger.reconcile import Claim, Listing, decide
from infra.names import new_token
from infra.providers.pod_keys import PodKeys
from infra.records import Address, Pod


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def laptop(tmp_path, environ):
    return tmp_path / "laptop" / "journal.db"


@pytest.fixture
def host(tmp_path):
    return tmp_path / "host" / "journal.sqlite"


def begin(path, run="brave-otter-1", vendor="runpod"):
    """A journal with one pod at work, whose key lies beside it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Journal.open(path) as journal:
        token = new_token(journal.installation)
        keys = PodKeys.beside(path)
        keys.folder.mkdir(mode=0o700, exist_ok=True)
        keys.private(token).write_text("a private key")
        address = Address("root", "192.0.2.7", 22, str(keys.private(token)), f"/root/.slipway/pods/{token}")
        op = journal.plan(token=token, run=run, vendor=vendor)
        op = journal.advance(op, "sending")
        return journal.advance(op, "created", remote_id="pod-1", address=str(address)), journal.installation


def test_an_installation_arrives_whole_and_is_not_written_to_where_it_was(laptop, host):
    op, installation = begin(laptop)
    old = Journal.open(laptop)  # a process that has it open all the while
    journal_moves.move_away(laptop, "box")
    assert journal_moves.moved_to(laptop) == "box"
    with pytest.raises(JournalError, match="moved away or replaced"):
        old.note(op, reason="by somebody who did not know")
    with pytest.raises(Moved, match=re.escape("has moved to box, and nothing is written here; add --control box")):
        Journal.open(laptop)
    text = archive.pack(laptop)
    assert archive.installation_of(text) == installation and archive.runs_at_work(text) == [op.run]
    archive.unpack(text, host)
    old.close()
    with Journal.open(host) as journal:
        (there,) = journal.ops()
        assert (there.token, there.state, journal.installation) == (op.token, op.state, installation)
        key = Address.parse(there.address).key
        assert key == str(PodKeys.beside(host).private(op.token))
        assert os.stat(key).st_mode & 0o777 == 0o600
        journal.note(there, reason="by the control host")
    assert archive.digest(archive.pack(host)) == archive.digest(archive.pack(host)) != archive.digest(text)


def test_a_journal_in_use_is_not_replaced_and_one_that_moved_comes_back(laptop, host):
    op, _ = begin(laptop)
    text = archive.pack(laptop)
    with pytest.raises(JournalError, match="in use"):
        archive.unpack(text, laptop)
    journal_moves.move_away(laptop, "box")
    archive.unpack(archive.pack(laptop), host)
    with Journal.open(host) as journal:
        journal.note(journal.ops()[0], reason="by the control host")
    journal_moves.move_away(host, "laptop", is_home=True)
    with pytest.raises(Moved, match=r"is on its way home to laptop; wait for \./inv control\.down there, or type it"):
        Journal.open(host)
    archive.unpack(archive.pack(host), laptop)
    with Journal.open(laptop) as journal:
        (home,) = journal.ops()
        assert home.reason == "by the control host"
        assert Address.parse(home.address).key == str(PodKeys.beside(laptop).private(op.token))
        journal.note(home, reason="at home")


def test_what_a_copy_does_not_know_is_kept_and_not_ended(laptop):
    _, installation = begin(laptop)
    text = archive.pack(laptop)
    journal_moves.move_away(laptop, "box")
    archive.unpack(text, laptop, journal_moves.note_replacement)
    with Journal.open(laptop) as journal:
        now = read_clocks()
        unknown = Pod(provider="runpod", pod_id="x", token=new_token(installation), run="", address="",
                      micro_usd_per_hour=1, created_at=int(now.wall_s) - 3600)  # fmt: skip
        (claim,) = decide((), Listing(began=now, pods=(unknown,)), prefix=f"sw1-{installation}-", settle_s=600.0,
                          replaced_ago_s=journal.replaced_ago_s(now))  # fmt: skip
        assert claim == Claim(unknown, is_kept=True)


def test_what_only_this_machine_can_look_after_keeps_the_installation_here(laptop):
    begin(laptop)
    begin(laptop, run="calm-heron-2", vendor="local")
    with Journal.open(laptop) as journal, pytest.raises(UsageError, match=r"calm-heron-2 \(local\)"):
        refuse_ties(journal, "this machine")
