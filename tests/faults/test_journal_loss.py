"""A damaged or lost journal: Slipway never starts a new journal silently, and no pod is forgotten or ended."""

import contextlib
import random
import shutil
from collections import Counter

import pytest

from infra.errors import SlipwayError
from infra.ledger.journal import Journal, JournalError
from infra.ledger.leases import Lease
from infra.ledger.op import LOST
from infra.ledger.reconcile import reconcile
from infra.runs import pods
from tests import seeds
from tests.faults import known_bad, rented
from tests.faults.crash import Desk, Renting
from tests.faults.rented import VENDORS, Judge, Wrong, environ, hold_still, order
from tests.faults.test_crash import rig
from tests.faults.trial import rounds

pytestmark = pytest.mark.process


def flip(path, chance):
    content = bytearray(path.read_bytes())
    for _ in range(chance.choice([1, 1, 3, 50])):
        if content:
            content[chance.randrange(len(content))] ^= chance.randrange(1, 256)
    path.write_bytes(content)


def truncate(path, chance):
    with open(path, "r+b") as file:
        file.truncate(chance.randrange(path.stat().st_size + 1))


def remove(path, chance):
    path.unlink()


def overwrite(path, chance):
    at = chance.randrange(path.stat().st_size + 1)
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(chance.randbytes(chance.choice([10, 5000])))


HARMS = (flip, flip, truncate, overwrite, remove)
FILES = (["journal.sqlite"], ["journal.sqlite-wal"], ["journal.sqlite", "journal.sqlite-wal"])


def damage(folder, chance, number) -> str:
    """Damage random bytes; return a description. The first two trials damage everything, then nothing."""
    if number == 1:
        return "nothing"
    if number == 0 or chance.random() < 0.1:
        shutil.rmtree(folder)
        return "the whole folder is gone"
    harm, names = chance.choice(HARMS), chance.choice(FILES)
    hit = [name for name in names if (folder / name).exists() and (folder / name).stat().st_size]
    for name in hit:
        harm(folder / name, chance)
    return f"{harm.__name__} {hit}"


def open_as_advised(path, environ) -> Journal:
    """Open the journal as a user who follows the message about damage."""
    try:
        opened = Journal.open(path, environ)
        if not opened.problem:
            return opened
        said = opened.problem
        with pytest.raises(JournalError, match="is damaged"):
            opened.leases.acquire("anything")
        opened.close()
        assert f"mv {path} {path}.damaged" in said
    except JournalError as error:
        said = str(error)
    path.rename(f"{path}.damaged")
    again = Journal.open(path, environ)
    assert again.problem == "" and again.is_replacement, said
    return again


def gone(journal) -> None:
    """Release all leases, as if the holders had died."""
    for name in journal.leases.held_names():
        journal.leases.release(Lease(name, journal.leases._lease(name)[0]))


def rest(here, vendor, journal, judge, sweep) -> None:
    for _ in range(30):
        done = sweep(vendor, journal)
        judge.at_any_time(journal.ops())
        if hold_still(journal.ops(), done):
            return
        here.move(130)
    raise Wrong(f"no rest: {done}")


def lose_journals(here, tmp_path, trials: int, sweep=reconcile) -> Counter[str]:
    """Lose journals. Raises Wrong for a lost pod."""
    seed = seeds.seed()
    chance, told = random.Random(seed), Counter[str]()
    for number in range(trials):
        name = VENDORS[number % len(VENDORS)]
        desk = Desk(here, Renting(), tmp_path / str(number), name, [])
        vendor, folder, saved = desk.vendor(), desk.path.parent, tmp_path / f"{number}-saved"
        offers = vendor.offers(order(name, "r")[0])
        desk.folder.mkdir()
        with desk.journal() as journal:
            judge = Judge(here, f"sw1-{journal.installation}-")
            for run in range(chance.randint(1, 3)):
                request, job = order(name, f"run-{run}")
                op = pods.rent(vendor, request, offers[run % len(offers)], job, journal)
                judge.acknowledged.add(op.token)
                if chance.random() < 0.6:
                    journal.advance(op, "armed")
            if number and chance.random() < 0.3:
                judge.acknowledged.discard(op.token)
                with contextlib.suppress(SlipwayError):  # a vendor takes a while
                    pods.end(vendor, journal.op(op.token), journal)
            gone(journal)
            shutil.copytree(folder, saved)  # as a kill would leave the file
        if chance.random() < 0.6:
            shutil.rmtree(folder)
            saved.rename(folder)
        what = damage(folder, chance, number)
        here.move(chance.choice([1, 3600, 7200]))
        try:
            with open_as_advised(desk.path, environ(desk.folder)) as journal:
                rest(here, vendor, journal, judge, sweep)
                judge.at_rest(journal.ops())
                told["begun anew" if journal.replaced is not None else "went on"] += 1
                told["found"] += sum(op.state == LOST and op.vendor == name for op in journal.ops())
                judge.acknowledged.clear()
                rented.end_all(here, vendor, journal, pods.end)
        except Wrong as wrong:
            raise Wrong(f"{name}, {what}: {wrong}") from None
    return told


@rounds(3, 150)
def test_a_lost_journal_loses_no_pod(here, tmp_path, rounds):
    told = lose_journals(here, tmp_path, rounds)
    print(dict(told))
    assert told["begun anew"] and told["found"] and told["went on"]


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("name", VENDORS)
def test_a_pod_with_a_damaged_id_is_found_again(here, tmp_path, name):
    """No checksum of SQLite tells one letter from a different letter."""
    desk = Desk(here, Renting(), tmp_path / "desk", name, [])
    vendor = desk.vendor()
    desk.folder.mkdir()
    with desk.journal() as journal:
        judge = Judge(here, f"sw1-{journal.installation}-")
        request, job = order(name, "run")
        op = pods.rent(vendor, request, vendor.offers(request)[0], job, journal)
        judge.acknowledged.add(op.token)
        journal.note(op, remote_id=f"{op.remote_id[:-1]} ")
        gone(journal)
        here.move(3600)
        rest(here, vendor, journal, judge, reconcile)
        judge.at_rest(journal.ops())
        judge.acknowledged.clear()
        rented.end_all(here, vendor, journal, pods.end)


def test_journal_rig_rejects_code_that_ends_unknown_pods(here, tmp_path):
    with pytest.raises(Wrong, match="lost work"):
        lose_journals(here, tmp_path, 1, known_bad.forget_that_rows_were_lost)


@rounds(1, 100)
def test_a_full_disk_loses_no_pod(rounds):
    done = rig("crash", "--full", "--trials", str(rounds))
    assert done.returncode == 0 and "kills, 0 orphans, 0 duplicates" in done.stdout
