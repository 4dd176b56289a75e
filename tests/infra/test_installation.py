"""One installation is one journal on one machine: a configuration copied to a second machine is a new installation."""

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
    """Homes on separate machines; tests switch between the machines."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch

    def switch_to(self, name, key=None, host=""):
        """Switch to a machine. `key`: the id of its system, which machines from one image may share."""
        self.monkeypatch.setattr(installation.socket, "gethostname", lambda: host or name)
        file = self.folder / f"{name}-machine-id"
        file.write_text(f"{name if key is None else key}\n")
        self.monkeypatch.setattr(installation, "MACHINE_IDS", (file,))
        return {
            "XDG_STATE_HOME": str(self.folder / name / "state"),
            "XDG_CONFIG_HOME": str(self.folder / name / "config"),
        }

    def open(self, name, **more):
        return Journal.open(environ=self.switch_to(name, **more))

    def copy_files(self, what, source, target):
        shutil.copytree(self.folder / source / what, self.folder / target / what, dirs_exist_ok=True)


@pytest.fixture
def machines(tmp_path, monkeypatch):
    return Machines(tmp_path, monkeypatch)


@pytest.mark.parametrize("key", [None, "the same image"])
def test_a_configuration_copied_to_a_second_machine_is_a_new_installation(machines, key):
    with machines.open("laptop", key=key) as laptop:
        pass
    machines.copy_files("config", "laptop", "desk")
    with machines.open("desk", key=key) as desk:
        assert desk.installation != laptop.installation and not desk.is_replacement and desk.replaced is None
        assert [(one.id, one.machine.host) for one in desk.others] == [(laptop.installation, "laptop")]
    machines.copy_files("config", "desk", "laptop")  # and back: each machine keeps its installation
    for name, was in (("laptop", laptop), ("desk", desk)):
        with machines.open(name, key=key) as again:
            assert again.installation == was.installation and len(again.others) == 1


def test_copies_and_foreign_files_beside_the_configuration_have_no_effect(machines):
    """Add files as left by programs that synchronize folders between machines."""
    with machines.open("laptop") as laptop:
        pass
    own = journal_file.installation_file(laptop.path, machines.switch_to("laptop"))
    shutil.copy(own, f"{own}.sync-conflict-20261122")
    own.with_name("installation_id.d").mkdir()
    own.with_name("installation_id@0").write_bytes(b"\xff\xfe\0")
    for _ in range(2):
        with machines.open("laptop") as again:
            assert again.installation == laptop.installation and not again.is_replacement
        own.unlink()


def test_a_lost_journal_is_replaced_even_if_other_machines_have_the_configuration(machines):
    with machines.open("laptop") as laptop:
        pass
    machines.copy_files("config", "laptop", "desk")
    with machines.open("desk"):
        pass
    machines.copy_files("config", "desk", "laptop")
    laptop.path.unlink()
    with machines.open("laptop") as again:
        assert again.is_replacement and again.installation == laptop.installation


def test_a_copied_home_is_refused_on_one_machine_until_the_user_decides(machines):
    with machines.open("laptop") as laptop:
        pass
    machines.copy_files("config", "laptop", "desk")
    machines.copy_files("state", "laptop", "desk")
    with pytest.raises(JournalError, match="is also used by .*/laptop/state/.* on laptop") as refused:
        machines.open("desk")
    copy = journal_file.default_path(machines.switch_to("desk"))
    assert f"mv {copy} {copy}.copy" in str(refused.value)
    copy.rename(f"{copy}.copy")
    with machines.open("desk") as desk:
        assert desk.installation != laptop.installation and not desk.is_replacement
    with machines.open("laptop") as again:
        assert again.installation == laptop.installation


def test_a_moved_home_continues_on_the_new_machine_after_the_old_is_given_up(machines):
    with machines.open("laptop") as laptop:
        pass
    machines.copy_files("config", "laptop", "desk")
    machines.copy_files("state", "laptop", "desk")
    with pytest.raises(JournalError, match="If .* is no longer used: rm ") as refused:
        machines.open("desk")
    Path(str(refused.value).partition("rm ")[2].partition(";")[0]).unlink()
    with machines.open("desk") as desk:
        assert desk.installation == laptop.installation and not desk.is_replacement


def test_a_renamed_machine_or_a_machine_without_id_stays_the_same(machines):
    for key in ("one", ""):
        name = f"box-{key}"
        with machines.open(name, key=key) as before:
            pass
        with machines.open(name, key=key, host="renamed") as after:
            assert after.installation == before.installation and not after.is_replacement


@pytest.mark.process
def test_a_sweep_on_a_second_machine_spares_the_pods_of_the_first(machines, tmp_path):
    with world(tmp_path / "world", speed=SPEED) as running:
        vendor = open_market("runpod", settings_of(running, tmp_path))
        request, job = Request(run="otter", gpu="L40S", num_gpus=1), Job("", "", (), Limits(time_s=86400))
        with machines.open("laptop"):
            pass
        machines.copy_files("config", "laptop", "desk")
        with machines.open("desk") as desk:
            running.move(7200)
            with machines.open("laptop") as laptop:  # rents after the second machine has opened its journal
                op = pods.rent(vendor, request, vendor.offers(request)[0], job, laptop)
            running.move(7200)
            for _ in range(3):
                reconcile(vendor, desk)
                running.move(600)
            assert vendor.find(op.remote_id or "") is not None and desk.ops() == []
        vendor.delete(op.remote_id or "")
