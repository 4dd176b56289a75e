"""One installation is one journal on one machine: a configuration that was carried elsewhere begins another one."""

import shutil
from pathlib import Path

import pytest

from infra import installation, journal_file
from infra.agent.job import Job, Limits
from infra.journal_file import JournalError
from infra.ledger.journal import Journal
from infra.ledger.reconcile import reconcile
from infra.providers.by_name import open_market
from infra.records import Request
from infra.runs import pods
from tests.infra.market.test_boot import SPEED, settings_of
from tests.infra.rehearsal.worlds import world


class Machines:
    """Homes on machines of their own, in turn this one."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch

    def sit_at(self, name, key=None, host=""):
        """`key`: the id of its system, which machines made from one image may share."""
        self.monkeypatch.setattr(installation.socket, "gethostname", lambda: host or name)
        file = self.folder / f"{name}-machine-id"
        file.write_text(f"{name if key is None else key}\n")
        self.monkeypatch.setattr(installation, "MACHINE_IDS", (file,))
        return {
            "XDG_STATE_HOME": str(self.folder / name / "state"),
            "XDG_CONFIG_HOME": str(self.folder / name / "config"),
        }

    def open(self, name, **more):
        return Journal.open(environ=self.sit_at(name, **more))

    def carry(self, what, source, target):
        shutil.copytree(self.folder / source / what, self.folder / target / what, dirs_exist_ok=True)


@pytest.fixture
def machines(tmp_path, monkeypatch):
    return Machines(tmp_path, monkeypatch)


@pytest.mark.parametrize("key", [None, "the same image"])
def test_a_configuration_that_was_carried_to_another_machine_is_another_installation_there(machines, key):
    with machines.open("laptop", key=key) as laptop:
        pass
    machines.carry("config", "laptop", "desk")
    with machines.open("desk", key=key) as desk:
        assert desk.installation != laptop.installation and not desk.is_replacement and desk.replaced is None
        assert [(one.id, one.machine.host) for one in desk.others] == [(laptop.installation, "laptop")]
    machines.carry("config", "desk", "laptop")  # and back: each goes on as itself
    for name, was in (("laptop", laptop), ("desk", desk)):
        with machines.open(name, key=key) as again:
            assert again.installation == was.installation and len(again.others) == 1


def test_copies_and_strange_things_beside_it_change_nothing(machines):
    """Add files as programs leave them that synchronise folders between machines."""
    with machines.open("laptop") as laptop:
        pass
    own = journal_file.installation_file(laptop.path, machines.sit_at("laptop"))
    shutil.copy(own, f"{own}.sync-conflict-20261122")
    own.with_name("installation_id.d").mkdir()
    own.with_name("installation_id@0").write_bytes(b"\xff\xfe\0")
    for _ in range(2):
        with machines.open("laptop") as again:
            assert again.installation == laptop.installation and not again.is_replacement
        own.unlink()


def test_a_journal_lost_on_its_machine_is_replaced_as_before_though_others_have_the_configuration(machines):
    with machines.open("laptop") as laptop:
        pass
    machines.carry("config", "laptop", "desk")
    with machines.open("desk"):
        pass
    machines.carry("config", "desk", "laptop")
    laptop.path.unlink()
    with machines.open("laptop") as again:
        assert again.is_replacement and again.installation == laptop.installation


def test_a_whole_home_that_was_copied_is_refused_on_one_of_both_until_somebody_decides(machines):
    with machines.open("laptop") as laptop:
        pass
    machines.carry("config", "laptop", "desk")
    machines.carry("state", "laptop", "desk")
    with pytest.raises(JournalError, match="is also used by .*/laptop/state/.* on laptop") as refused:
        machines.open("desk")
    copy = journal_file.default_path(machines.sit_at("desk"))
    assert f"mv {copy} {copy}.copy" in str(refused.value)
    copy.rename(f"{copy}.copy")
    with machines.open("desk") as desk:
        assert desk.installation != laptop.installation and not desk.is_replacement
    with machines.open("laptop") as again:
        assert again.installation == laptop.installation


def test_a_home_that_has_moved_to_another_machine_goes_on_there_when_the_first_one_is_given_up(machines):
    with machines.open("laptop") as laptop:
        pass
    machines.carry("config", "laptop", "desk")
    machines.carry("state", "laptop", "desk")
    with pytest.raises(JournalError, match="If .* is no longer used: rm ") as refused:
        machines.open("desk")
    Path(str(refused.value).partition("rm ")[2].partition(";")[0]).unlink()
    with machines.open("desk") as desk:
        assert desk.installation == laptop.installation and not desk.is_replacement


def test_a_machine_that_is_renamed_or_has_no_id_of_its_own_stays_the_same(machines):
    for key in ("one", ""):
        name = f"box-{key}"
        with machines.open(name, key=key) as before:
            pass
        with machines.open(name, key=key, host="renamed") as after:
            assert after.installation == before.installation and not after.is_replacement


@pytest.mark.process
def test_a_sweep_on_another_machine_lets_the_pods_of_the_first_one_live(machines, tmp_path):
    with world(tmp_path / "world", speed=SPEED) as running:
        vendor = open_market("runpod", settings_of(running, tmp_path))
        request, job = Request(run="otter", gpu="L40S", num_gpus=1), Job("", "", (), Limits(time_s=86400))
        with machines.open("laptop"):
            pass
        machines.carry("config", "laptop", "desk")
        with machines.open("desk") as desk:
            running.move(7200)
            with machines.open("laptop") as laptop:  # which rents while the other one has its journal already
                op = pods.rent(vendor, request, vendor.offers(request)[0], job, laptop)
            running.move(7200)
            for _ in range(3):
                reconcile(vendor, desk)
                running.move(600)
            assert vendor.find(op.remote_id or "") is not None and desk.ops() == []
        vendor.delete(op.remote_id or "")
