"""A control host whose disk is full: what is only a note is left out, and no draft stays."""

import errno
import os

import pytest

from infra.agent.job import write_durably
from infra.control import host_side
from infra.control.places import HostPlaces


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_draft_that_could_not_be_written_is_removed_and_the_old_text_stays(tmp_path, monkeypatch):
    write_durably(tmp_path / "told.json", "old")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "told.json", "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("told.json", "old")]


def test_that_it_is_looked_after_need_not_be_written_down(tmp_path, monkeypatch):
    places = HostPlaces(tmp_path)
    monkeypatch.setattr(os, "fsync", no_room)
    host_side.note_start(places)
    assert host_side.is_due(places)  # so the next command looks after it again
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(OSError, match="Too many"):  # which is no matter of the disk
        host_side.note_start(places)
