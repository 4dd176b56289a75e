import contextlib
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from infra import journal_file
from infra.agent.job import Job
from infra.agent.limits import Clocks, read_clocks
from infra.errors import SlipwayError
from infra.journal_file import Fenced
from infra.ledger import op
from infra.ledger.journal import Journal, JournalError
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import AlreadyLive, Leased
from infra.names import new_token
from infra.records import Pod
from tests import seeds
from tests.programs import source

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def journal(environ):
    with Journal.open(environ=environ) as opened:
        yield opened


def plan(journal, run="brave-otter-1", **facts):
    return journal.plan(token=new_token(journal.installation), run=run, vendor="local", **facts)


def child(script, environ, *words):
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        env={**os.environ, **environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


# Persistence.


def test_a_pods_history_survives_reopening(environ):
    with Journal.open(environ=environ) as journal:
        op = plan(journal, target="t", store="s", job="{}", rate=2_500_000)
        op = journal.advance(op, "sending")
        op = journal.advance(op, "created", remote_id="p1", address="/pods/x")
        op = journal.advance(op, "armed")
        assert (op.state, op.epoch, op.remote_id, op.rate) == ("READY", 4, "p1", 2_500_000)
        assert op.intent_at <= op.sent_at <= op.last_seen_at
    with Journal.open(environ=environ) as journal:
        assert journal.op(op.token) == op and journal.ops(live=True) == [op]
        op = journal.advance(journal.advance(op, "end", reason="down"), "gone")
        assert (op.state, op.reason) == ("TERMINATED", "down") and op.del_requested_at
        assert journal.ops(live=True) == [] and journal.ops(live=False) == journal.ops(run=op.run) == [op]
    with sqlite3.connect(journal.path) as db:
        told = db.execute("SELECT event, state, epoch, length(boot_id) > 5, boottime_ms > 0 FROM events").fetchall()
        assert [one[0] for one in told] == ["plan", "sending", "created", "armed", "end", "gone"]
        assert [one[2:] for one in told] == [(epoch, 1, 1) for epoch in range(1, 7)]
        with pytest.raises(sqlite3.IntegrityError, match="events only grow"):
            db.execute("DELETE FROM events")
    db.close()


def test_runs_are_listed_in_order_of_rental(journal):
    first = plan(journal, "a-1")
    plan(journal, "b-2")
    journal.advance(first, "unsent")
    plan(journal, "a-1")
    assert journal.runs() == ["b-2", "a-1"]
    with pytest.raises(JournalError, match="no row has the token sw1-x"):
        journal.op("sw1-x")


def test_files_are_readable_by_the_owner_only(journal, environ):
    def mode(path):
        return stat.S_IMODE(path.stat().st_mode)

    plan(journal)
    assert mode(journal.path.parent) == 0o700
    files = list(journal.path.parent.iterdir())
    assert {path.name for path in files} >= {"journal.sqlite", "journal.sqlite-wal", "journal.sqlite.lock"}
    assert {mode(path) for path in files} == {0o600}


# A single winner.


def test_a_live_run_cannot_be_planned_again(journal):
    op = plan(journal, "a-1", target="t", store="s")
    for again in ({"run": "a-1"}, {"run": "b-2", "target": "t", "store": "s"}):
        with pytest.raises(AlreadyLive, match="a-1 already runs this work") as taken:
            plan(journal, **again)
        assert taken.value.op == op and taken.value.exit_code == 2
    others = [plan(journal, "a-1", rank=1), plan(journal, "c-3", target="t", store="s2"), plan(journal, "d-4")]
    assert [one.state for one in others] == ["PLANNED"] * 3
    journal.advance(op, "unsent")
    assert plan(journal, "a-1", target="t", store="s").is_live


def test_a_detached_row_frees_its_run_rank_and_target_under_table_constraints(journal):
    same = {"run": "a-1.1", "rank": 1, "target": "t", "store": "s"}
    for number in range(2):
        op = journal.advance(journal.advance(plan(journal, **same, place=f"box/{number}"), "sending"), "unclear")
        lost = journal.advance(op, "detach", reason="it is silent")
        assert (lost.state, lost.rank, lost.detached, lost.is_head) == ("TERMINATING", 1, True, False)
    with pytest.raises(Leased, match="box/1 is in use"):
        plan(journal, **same, place="box/1")
    plan(journal, **same, place="box/2")
    assert [op.detached for op in journal.ops(live=True)] == [True, True, False]
    for more in (same, {**same, "run": "b-2"}, {"run": "a-1.1", "rank": 1}):
        with pytest.raises(AlreadyLive):
            plan(journal, **more)
    for wrong in ({"detached": False}, {"detached": False, "rank": 2}, {"detached": False, "target": ""}, {"rank": -1}):
        with pytest.raises(JournalError, match="constraint failed"):
            journal.note(lost, **wrong)


def test_a_resurfaced_pod_is_detached_and_keeps_its_rank(journal):
    op = plan(journal, "a-1.1", rank=1, target="t", store="s", place="box/1")
    last = plan(journal, "a-1", target="u", store="s")
    ended = journal.advance(op, "unsent")
    again = plan(journal, "a-1.1", rank=1, target="t", store="s", place="box/1")
    found = journal.advance(ended, "resurfaced")
    assert (found.state, found.rank, found.detached, found.target, found.place) == ("TERMINATING", 1, True, "", "")
    assert journal.advance(found, "gone").detached and journal.ops(live=True) == [last, again]


@pytest.mark.parametrize(
    ("kind", "stays", "pod_set", "service"),
    [("", False, "", ""), ("held", True, "", ""), ("pod_set", True, "lab", ""), ("service", False, "", "lab")],
)
def test_an_owner_has_a_kind_and_a_name(journal, kind, stays, pod_set, service):
    op = plan(journal, owner_kind=kind, owner="lab" if pod_set or service else "")
    assert journal.op(op.token) == op and (op.outlives_run, op.pod_set, op.service) == (stays, pod_set, service)


RACE = source("journal_race")


@pytest.mark.process
def test_one_of_eight_competing_processes_wins(environ):
    racers = [child(RACE, environ, str(number)) for number in range(8)]
    try:
        assert [racer.stdout.readline() for racer in racers] == ["up\n"] * 8
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        said = [racer.communicate(timeout=30)[0] for racer in racers]
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()
    assert [racer.returncode for racer in racers] == [0] * 8
    assert sorted("".join(said).split("\n")[:-1]) == [f"won {number}" for number in range(5)]


def test_a_write_from_a_stale_row_is_fenced_off(journal, environ):
    op = plan(journal)
    with Journal.open(environ=environ) as other:
        moved = other.advance(other.op(op.token), "sending")
    with pytest.raises(Fenced, match="another process changed"):
        journal.advance(op, "sending")
    with pytest.raises(Fenced):
        journal.note(op, reason="x")
    assert journal.op(op.token) == moved


# Kills, damage, loss, newer schemas.

WRITE = source("journal_writer")


@pytest.mark.process
def test_a_killed_writer_leaves_a_whole_journal_with_all_reported_rows(environ):
    seed = seeds.seed()
    chance = random.Random(seed)
    for _ in range(6):
        writer = child(WRITE, environ)
        try:
            assert writer.stdout.readline() == "up\n"
            with pytest.raises(subprocess.TimeoutExpired):
                writer.wait(chance.uniform(0, 0.2))
        finally:
            writer.send_signal(signal.SIGKILL)
            said = writer.communicate()[0].split("\n")[:-1]
        with Journal.open(environ=environ) as journal:
            assert journal.problem == ""
            assert {op.token for op in journal.ops()} >= set(said)
            for op in journal.ops(live=True):
                journal.advance(op, "end")
                journal.advance(journal.op(op.token), "gone")


@pytest.mark.parametrize("where", [0, 4096])
def test_a_damaged_journal_is_read_only_and_keeps_its_installation(environ, where):
    with Journal.open(environ=environ) as journal:
        for number in range(50):
            plan(journal, f"run-{number}", job="x" * 500)
    content = bytearray(journal.path.read_bytes())
    content[where : where + 3000] = random.Random(1).randbytes(3000)
    journal.path.write_bytes(content)
    with Journal.open(environ=environ) as damaged:
        assert "is damaged" in damaged.problem and damaged.installation == journal.installation
        with pytest.raises(JournalError, match="is damaged"):
            plan(damaged)
    assert journal.path.read_bytes() == content


@pytest.mark.parametrize(("was", "now"), [(b"account_fp", b"account_fq"), (b"'FAILED'", b"'FAILEE'")])
def test_a_changed_letter_in_the_schema_counts_as_damage(environ, was, now):
    """SQLite's check accepts a renamed column and a changed rule of an index."""
    with Journal.open(environ=environ) as journal:
        plan(journal)
    content = journal.path.read_bytes()
    assert was in content
    journal.path.write_bytes(content.replace(was, now))
    with Journal.open(environ=environ) as damaged:
        assert "is damaged" in damaged.problem and damaged.installation == journal.installation


def test_a_journal_without_its_last_changes_is_damaged(environ, tmp_path):
    with Journal.open(environ=environ) as journal:
        plan(journal, "a-1")
    old = journal.path.read_bytes()
    with Journal.open(environ=environ) as journal:
        plan(journal, "b-2")
        log = journal.path.with_name("journal.sqlite-wal")
        content, log_content = journal.path.read_bytes(), log.read_bytes()
    for harm in (
        lambda: journal.path.write_bytes(old),  # restored from a copy
        lambda: journal.path.write_bytes(content),  # changes found only in the log are lost
        lambda: log.write_bytes(log_content[:100] + b"x" + log_content[101:]) and journal.path.write_bytes(content),
    ):
        harm()
        with Journal.open(environ=environ) as damaged:
            assert "the last 1 changes" in damaged.problem, harm
            assert [op.run for op in damaged.ops()] == ["a-1"]
            with pytest.raises(JournalError, match="mv "):
                plan(damaged, "c-3")


def test_cells_without_an_index_are_compared_with_the_events(environ):
    with Journal.open(environ=environ) as journal:
        journal.advance(plan(journal), "sending")
    content = journal.path.read_bytes()
    journal.path.write_bytes(content.replace(b"CREATING", b"CREATINH", 1))
    with Journal.open(environ=environ) as damaged:
        assert "rows and events disagree" in damaged.problem
    journal.path.write_bytes(content.replace(b"local", b"l\xffcal"))
    with Journal.open(environ=environ) as damaged:
        assert "is damaged" in damaged.problem


def test_a_journal_moved_while_open_accepts_no_more_writes(journal, environ):
    op = plan(journal, "a-1")
    journal.path.rename(journal.path.with_name("elsewhere"))
    with pytest.raises(JournalError, match="moved or replaced"):
        journal.advance(op, "sending")
    with Journal.open(environ=environ) as other:
        plan(other, "b-2")
        with pytest.raises(JournalError, match="moved or replaced"):
            plan(journal, "c-3")
        assert [one.run for one in other.ops()] == ["b-2"]


def test_a_pod_without_a_row_is_claimed_in_one_step_to_end_or_keep(journal):
    def stray(run):
        return Pod(
            provider="m",
            pod_id="id-1",
            token=new_token(journal.installation),
            run=run,
            address="x",
            micro_usd_per_hour=7,
        )

    orphan = journal.claim(stray("a-1"), "why")
    assert (orphan.state, orphan.run[:7], orphan.remote_id, orphan.rate) == ("TERMINATING", "orphan-", "id-1", 7)
    plan(journal, "b-2")
    kept = [journal.claim(stray(run), "why", "LOST") for run in ("a-1", "b-2", "")]
    assert [one.state for one in kept] == ["LOST"] * 3 and kept[0].run == "a-1"
    assert [one.run for one in kept[1:]] == [f"found-{one.token[-8:]}" for one in kept[1:]]
    assert Job.from_json(kept[0].job).token == kept[0].token
    # The vendor's clock is an hour ahead.
    ahead = journal.claim(replace(stray(""), created_at=int(time.time()) + 3600), "why", "LOST")
    assert ahead.sent_at <= ahead.intent_at
    with sqlite3.connect(journal.path) as db:
        assert db.execute("SELECT event, state FROM events WHERE token = ?", (orphan.token,)).fetchall() == [
            ("claim", "TERMINATING")
        ]
    db.close()


def test_a_lost_journal_is_replaced_under_the_same_installation_with_a_note(environ):
    with Journal.open(environ=environ) as journal:
        assert not journal.is_replacement
    journal.path.unlink()
    with Journal.open(environ=environ) as again:
        assert again.is_replacement and again.installation == journal.installation
        assert abs(again.replaced.wall_s - time.time()) < 60 and journal.replaced is None
        then, now = again.replaced, read_clocks()
        assert journal.replaced_ago_s(now) is None and 0 <= again.replaced_ago_s(now) < 60
        for set_s in (-90_000, 90_000):  # only the wall clock is set; the boot clock restarts at boot
            later = Clocks(then.boot_id, then.boot_s + 7, now.wall_s + set_s)
            assert again.replaced_ago_s(later) == 7
            assert again.replaced_ago_s(Clocks("the next one", 5, now.wall_s + set_s)) == 5
    with Journal.open(environ=environ) as third:
        assert not third.is_replacement and third.replaced == again.replaced


def test_a_second_journal_is_a_second_installation(journal, environ, tmp_path):
    with Journal.open(tmp_path / "other.sqlite", environ) as other:
        assert other.installation != journal.installation
        plan(other, "a-1", target="t", store="s")
    assert plan(journal, "a-1", target="t", store="s").is_live
    with Journal.open(tmp_path / "other.sqlite", environ) as again:
        assert again.installation == other.installation and len(again.ops()) == 1


def test_a_foreign_journal_is_refused(environ):
    with Journal.open(environ=environ) as journal:
        pass
    journal_file.installation_file(journal.path, environ).write_text("abcdefgh\n")
    with pytest.raises(JournalError, match="move one of the files away"):
        Journal.open(environ=environ)


@pytest.mark.parametrize("schema", [0, 1, journal_file.SCHEMA - 1, journal_file.SCHEMA + 1])
def test_a_journal_with_a_different_schema_is_refused_and_its_pods_are_kept(environ, schema):
    """Decision 12: a pod of the file set aside has no row, and counts as a pod at work, not as an orphan."""
    with Journal.open(environ=environ) as journal:
        path, installation = journal.path, journal.installation
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA user_version={schema}")
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = path.read_bytes()
    found = f"schema {schema}" if schema else "tables without a schema number"
    with pytest.raises(
        journal_file.SchemaMismatch, match=f"has {found}, .* no machine was touched.* mv .* vendors' list"
    ):
        Journal.open(environ=environ)
    assert path.read_bytes() == before
    path.rename(f"{path}.schema{schema}")
    with Journal.open(environ=environ) as journal:
        assert (journal.installation, journal.is_replacement, journal.problem) == (installation, True, "")
        assert journal.replaced_ago_s(read_clocks()) is not None


def test_tables_of_a_foreign_program_are_no_journal(environ):
    path = journal_file.default_path(environ)
    path.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE recipes (name TEXT)")
    before = path.read_bytes()
    with pytest.raises(journal_file.SchemaMismatch, match="tables without a schema number"):
        Journal.open(environ=environ)
    assert path.read_bytes() == before


def test_a_process_killed_while_making_the_tables_leaves_a_usable_file(environ, monkeypatch):
    """One transaction makes all tables: if the process dies before the end, no table exists."""
    monkeypatch.setattr(journal_file, "TABLES", (*journal_file.TABLES, "CREATE TABLE ops (name TEXT)"))
    with pytest.raises(JournalError, match="already exists"):
        Journal.open(environ=environ)
    monkeypatch.undo()
    with Journal.open(environ=environ) as journal:
        assert journal.ops() == [] and not journal.problem


def test_a_link_at_the_path_of_the_journal_is_not_followed(environ, tmp_path):
    (tmp_path / "link.sqlite").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JournalError, match="a symbolic link is not followed"):
        Journal.open(tmp_path / "link.sqlite", environ)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_a_path_that_is_no_file_is_refused_unchanged(environ, tmp_path, make):
    place = tmp_path / "place"
    make(place)
    place.chmod(0o755)
    with pytest.raises(JournalError, match="not a regular file"):
        Journal.open(place, environ)
    assert stat.S_IMODE(place.stat().st_mode) == 0o755
    assert not (tmp_path / "place.lock").exists()


def test_a_network_file_system_is_recognized_by_the_longest_mount(tmp_path):
    mounts = (
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw\n"
        "40 22 0:40 / /home rw,relatime shared:9 - nfs4 server:/home rw\n"
        "41 40 0:41 / /home/with\\040space rw - xfs /dev/vdb rw\n"
    )
    kinds = {
        place: journal_file.file_system_of(Path(place), mounts) for place in ("/var", "/home/me", "/home/with space/x")
    }
    assert kinds == {"/var": "ext4", "/home/me": "nfs4", "/home/with space/x": "xfs"}
    assert {"nfs4", "cifs", "9p", "fuse.sshfs"} <= journal_file.NETWORK_FILE_SYSTEMS
    assert journal_file.file_system_of(tmp_path) not in journal_file.NETWORK_FILE_SYSTEMS


# Leases.


@pytest.mark.process
def test_a_process_holds_its_lease_until_death_or_release(journal, environ):
    script = """
import sys
from infra.ledger.journal import Journal
Journal.open().leases.acquire("run:a")
print("up", flush=True)
sys.stdin.read()
"""
    holder = child(script, environ)
    try:
        assert holder.stdout.readline() == "up\n"
        with pytest.raises(LeaseHeld, match=f"run:a is held by process {holder.pid}"):
            journal.leases.acquire("run:a")
    finally:
        holder.kill()
        holder.communicate()
    lease = journal.leases.acquire("run:a")
    assert lease.epoch == 2
    with pytest.raises(LeaseHeld):
        journal.leases.acquire("run:a")
    renewed = journal.leases.renew(lease)
    with pytest.raises(Fenced, match="another process has taken over"):
        journal.leases.release(lease)
    journal.leases.release(renewed)
    assert journal.leases.acquire("run:a").epoch == 5


# The state table.


def test_the_table_has_every_state_and_final_states_are_final():
    assert {state for pair in op.TRANSITIONS.items() for state in (pair[0][0], pair[1])} == set(op.STATES)
    assert {event for state, event in op.TRANSITIONS if state in op.ENDED} == {"resurfaced"}
    with pytest.raises(SlipwayError, match="'armed' is not possible in state PLANNED"):
        op.after("PLANNED", "armed")


class Histories(RuleBasedStateMachine):
    """Any events in any order, from writers with stale rows: the journal follows the table, or changes nothing."""

    rows = Bundle("rows")

    def __init__(self):
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.journal = Journal.open(environ={"XDG_STATE_HOME": self.folder.name, "XDG_CONFIG_HOME": self.folder.name})
        self.truth = {}  # token -> Op

    def teardown(self):
        self.journal.close()
        self.folder.cleanup()

    @rule(target=rows, run=st.sampled_from("ab"), aim=st.sampled_from(["", "t"]))
    def plan(self, run, aim):
        live = [op for op in self.truth.values() if op.is_live]
        taken = [op for op in live if not op.detached and (op.run == run or (aim and op.target == aim))]
        try:
            op = plan(self.journal, run, target=aim, store="s")
        except AlreadyLive as error:
            assert error.op in taken
            return error.op
        assert not taken
        self.truth[op.token] = op
        return op

    @rule(target=rows, row=rows, event=st.sampled_from(op.EVENTS))
    def advance(self, row, event):
        return self._try(row, event, (row.state, event) in op.TRANSITIONS)

    @rule(target=rows, row=consumes(rows), choice=st.integers(0, 5))
    def advance_as_allowed(self, row, choice):
        row = self.truth[row.token]
        allowed = sorted(event for state, event in op.TRANSITIONS if state == row.state)
        return self._try(row, allowed[choice % len(allowed)], True) if allowed else row

    def _try(self, row, event, is_allowed):
        try:
            moved = self.journal.advance(row, event)
        except Fenced:
            assert row != self.truth[row.token]
            return self.truth[row.token]
        except SlipwayError:
            assert not is_allowed
            return row
        assert is_allowed and row == self.truth[row.token]
        assert moved.state == op.TRANSITIONS[row.state, event] and moved.epoch == row.epoch + 1
        self.truth[row.token] = moved
        return moved

    @invariant()
    def the_journal_has_every_reported_row(self):
        assert {op.token: op for op in self.journal.ops()} == self.truth
        live = [op for op in self.truth.values() if op.is_live]
        attached = [op for op in live if not op.detached]
        assert len(attached) == len({(op.run, op.rank) for op in attached})
        aimed = [op.target for op in attached if op.target]
        assert len(aimed) == len(set(aimed))
        assert all(op.state == "TERMINATING" for op in live if op.detached)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=25, stateful_step_count=20, database=None)
