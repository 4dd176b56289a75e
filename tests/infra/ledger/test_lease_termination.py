"""Processes asked to leave: the leases are named, and the remaining processes continue."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra import checkout
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.lease_termination import terminate_holders

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def journal(tmp_path, monkeypatch):
    """Return the journal file in the state directory of this process and of its children."""
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    with Journal.open() as opened:
        return opened.path


@pytest.fixture
def begin():
    """Start tests/infra.ledger.holder.py: a process that holds the given leases under the given version of the code."""
    started = []

    def start(code: str, *leases: str, stays: bool = False) -> subprocess.Popen:
        words = [sys.executable, "-m", "tests.infra.ledger.holder", code, "stays" if stays else "leaves", *leases]
        started.append(subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout.readline() == "held\n"
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_dismissed_processes_have_left_and_their_leases_are_named(journal, begin):
    older = [begin("0" * 12, "keep:brave-otter-1"), begin("", "serve:demo")]
    ours, told = begin(checkout.stamp(), "keep:quick-hare-2"), []
    with Journal.open() as opened:
        holders = opened.leases.holders()
        assert [(one.lease, one.code) for one in holders] == [
            ("keep:brave-otter-1", "0" * 12),
            ("keep:quick-hare-2", checkout.stamp()),
            ("serve:demo", ""),
        ]
        leaving = [one for one in holders if one.code != checkout.stamp()]
        assert terminate_holders(leaving, "runs other code", told.append) == ["keep:brave-otter-1", "serve:demo"]
        assert [one.wait() for one in older] == [-signal.SIGTERM] * 2 and ours.poll() is None
        assert [line.split()[1] for line in told] == [str(one.pid) for one in older]
        assert opened.leases.held_names() == {"keep:quick-hare-2"} and terminate_holders(leaving, "", told.append) == [
            "keep:brave-otter-1",
            "serve:demo",
        ]


def test_a_process_that_stays_is_named_and_continues(journal, begin):
    stays = begin("0" * 12, "serve:demo", stays=True)
    with Journal.open() as opened, pytest.raises(SlipwayError, match=rf"process {stays.pid} \(serve:demo\)"):
        terminate_holders(opened.leases.holders(), "runs other code", lambda _: None, patience_s=0.3)
    assert stays.poll() is None


def test_a_lease_taken_by_code_without_a_stamp_has_no_known_code(journal, begin):
    with Journal.open() as opened:
        opened.leases.release(opened.leases.acquire("keep:brave-otter-1", checkout.stamp()))
    holder = begin("", "keep:brave-otter-1")
    with Journal.open() as opened:
        (one,) = opened.leases.holders()
    assert (one.process.pid, one.code) == (holder.pid, "")


def test_the_code_stamp_is_the_same_in_every_process(journal):
    words = [sys.executable, "-c", "from infra import checkout; print(checkout.stamp())"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == checkout.stamp() and len(checkout.stamp()) == 12
