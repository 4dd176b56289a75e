"""The move of an installation: at most one writable journal, and complete files."""

import base64
import contextlib
import json
import os
import re
import sqlite3
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings

from infra.agent.limits import read_clocks
from infra.errors import SlipwayError, UsageError
from infra.journal_file import JournalError, JournalMoved
from infra.ledger.journal import Journal
from infra.ledger.reconcile import AdoptedRow, Listing, decide
from infra.names import new_token
from infra.providers.pod_keys import PodKeys
from infra.records import Address, Pod
from packs.control_host.control import archive, journal_moves
from packs.control_host.control.host import JournalCopy
from packs.control_host.control.local_pods import refuse_local_pods
from tests import seeds
from tests.hostile import mistyped, spliced


@pytest.fixture
def environ(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def laptop(tmp_path, environ):
    return tmp_path / "laptop" / "journal.db"


@pytest.fixture
def host(tmp_path):
    return tmp_path / "host" / "journal.sqlite"


def write_journal(path, run="brave-otter-1", vendor="runpod"):
    """Write a journal with one pod at work, with the pod's key beside the journal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with Journal.open(path) as journal:
        token = new_token(journal.installation)
        keys = PodKeys.for_journal(path)
        keys.folder.mkdir(mode=0o700, exist_ok=True)
        keys.private_key_path(token).write_text("a private key")
        address = Address("root", "192.0.2.7", 22, str(keys.private_key_path(token)), f"/root/.slipway/pods/{token}")
        op = journal.plan(token=token, run=run, vendor=vendor)
        op = journal.advance(op, "sending")
        return journal.advance(op, "created", remote_id="pod-1", address=str(address)), journal.installation


def test_installation_arrives_complete_and_the_old_one_is_read_only(laptop, host):
    op, installation = write_journal(laptop)
    old = Journal.open(laptop)  # A process that keeps the journal open all the while.
    journal_moves.mark_moved(laptop, "box")
    assert journal_moves.moved_to(laptop) == "box"
    with pytest.raises(JournalError, match="moved or replaced"):
        old.note(op, reason="by somebody who did not know")
    with pytest.raises(
        JournalMoved, match=re.escape("has moved to box, and this copy is read-only; add --control box")
    ):
        Journal.open(laptop)
    text = archive.pack(laptop)
    assert archive.installation_of(text) == installation and archive.runs_at_work(text) == [op.run]
    archive.unpack(text, host)
    old.close()
    with Journal.open(host) as journal:
        (there,) = journal.ops()
        assert (there.token, there.state, journal.installation) == (op.token, op.state, installation)
        key = Address.parse(there.address).key
        assert key == str(PodKeys.for_journal(host).private_key_path(op.token))
        assert os.stat(key).st_mode & 0o777 == 0o600
        journal.note(there, reason="by the control host")
    assert archive.digest(archive.pack(host)) == archive.digest(archive.pack(host)) != archive.digest(text)


def test_journal_in_use_is_not_replaced_and_a_moved_journal_returns(laptop, host):
    op, _ = write_journal(laptop)
    text = archive.pack(laptop)
    with pytest.raises(JournalError, match="in use"):
        archive.unpack(text, laptop)
    journal_moves.mark_moved(laptop, "box")
    archive.unpack(archive.pack(laptop), host)
    with Journal.open(host) as journal:
        journal.note(journal.ops()[0], reason="by the control host")
    journal_moves.mark_moved(host, "laptop", is_home=True)
    with pytest.raises(
        JournalMoved,
        match=r"is moving back to laptop; wait for \./inv control\.down on laptop, or run the command again",
    ):
        Journal.open(host)
    archive.unpack(archive.pack(host), laptop)
    with Journal.open(laptop) as journal:
        (home,) = journal.ops()
        assert home.reason == "by the control host"
        assert Address.parse(home.address).key == str(PodKeys.for_journal(laptop).private_key_path(op.token))
        journal.note(home, reason="at home")


def test_machines_unknown_to_a_copy_are_kept_and_not_ended(laptop):
    _, installation = write_journal(laptop)
    text = archive.pack(laptop)
    journal_moves.mark_moved(laptop, "box")
    archive.unpack(text, laptop, journal_moves.note_replacement)
    with Journal.open(laptop) as journal:
        now = read_clocks()
        unknown = Pod(
            provider="runpod",
            pod_id="x",
            token=new_token(installation),
            run="",
            address="",
            micro_usd_per_hour=1,
            created_at=int(now.wall_s) - 3600,
        )
        (claim,) = decide(
            (),
            Listing(began=now, pods=(unknown,)),
            prefix=f"sw1-{installation}-",
            settle_s=600.0,
            replaced_ago_s=journal.replaced_ago_s(now),
        )
        assert claim == AdoptedRow(unknown, is_kept=True)


def test_work_bound_to_this_machine_keeps_the_installation_here(laptop):
    write_journal(laptop)
    write_journal(laptop, run="calm-heron-2", vendor="local")
    with Journal.open(laptop) as journal, pytest.raises(UsageError, match=r"calm-heron-2 \(local\)"):
        refuse_local_pods(journal, "this machine")


GOOD = {"keys_folder": "/k", "journal": "YQ==", "keys": {"a": "YQ=="}, "known_hosts": {}, "hosts": None}


def text_of(document):
    raw = document if isinstance(document, bytes) else json.dumps(document).encode()
    return base64.b64encode(zlib.compress(raw)).decode()


def test_oversized_archive_is_refused_before_it_fills_the_memory(laptop, host, monkeypatch):
    assert archive.MOST_UNPACKED == 256 << 20
    monkeypatch.setattr(archive, "MOST_UNPACKED", 32 << 20)
    bomb = base64.b64encode(zlib.compress(b" " * (archive.MOST_UNPACKED + (8 << 20)), 9)).decode()
    for read in (archive.installation_of, archive.check, lambda text: archive.unpack(text, host)):
        tracemalloc.start()
        with pytest.raises(SlipwayError, match="the copy of the journal cannot be read: the unpacked copy exceeds"):
            read(bomb)
        assert tracemalloc.get_traced_memory()[1] < archive.MOST_UNPACKED * 1.3
        tracemalloc.stop()
    with pytest.raises(SlipwayError, match="the copy has .*; the limit is"):
        archive.check("A" * (archive.MOST_TEXT + 4))
    write_journal(laptop)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(JournalError, match="the limit for a move between machines is 1.0 kB"),
    ):
        patch.setattr(archive, "MOST_UNPACKED", 1000)
        archive.pack(laptop)


@pytest.mark.parametrize("name", ["../authorized_keys", "/etc/x", "", "..", "a/b", "a\0"])
@pytest.mark.parametrize("kind", ["keys", "known_hosts"])
def test_files_of_an_archive_have_plain_names(host, kind, name):
    with pytest.raises(SlipwayError, match="the copy of the journal cannot be read"):
        archive.unpack(text_of({**GOOD, kind: {name: "YQ=="}}), host)
    assert not host.parent.exists()


@settings(max_examples=seeds.examples(60, 300))
@given(mistyped(GOOD) | spliced(GOOD))
def test_any_archive_is_read_or_refused_with_a_reason(raw):
    for read in (archive.check, archive.live_rows, archive.runs_over):
        with contextlib.suppress(SlipwayError):
            read(text_of(raw))


def test_journal_with_foreign_views_as_tables_is_refused(laptop):
    write_journal(laptop)
    document = json.loads(zlib.decompress(base64.b64decode(archive.pack(laptop))))
    path = laptop.with_name("odd")
    path.write_bytes(base64.b64decode(document["journal"]))
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("DROP TABLE ops")
        db.execute(
            "CREATE VIEW ops AS WITH RECURSIVE n(run) AS (SELECT 1 UNION ALL SELECT run FROM n) SELECT run FROM n"
        )
        db.commit()
    text = text_of({**document, "journal": base64.b64encode(path.read_bytes()).decode()})
    with pytest.raises(SlipwayError, match="expected the tables ops and meta"):
        archive.runs_over(text)


def test_unreadable_copy_does_not_replace_the_previous_copy(laptop, tmp_path):
    write_journal(laptop)
    copy = JournalCopy(tmp_path / "box")
    copy.folder.mkdir()
    copy.save(archive.pack(laptop))
    before = copy.digest
    with pytest.raises(SlipwayError, match="cannot be read"):
        copy.save("no archive")
    assert copy.digest == before
