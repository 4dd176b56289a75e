"""A control host whose disk is full: what is only a note is left out."""

import errno
import os

import pytest

from packs.control_host.control import host_side
from packs.control_host.control.places import HostPlaces


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_that_it_is_looked_after_need_not_be_written_down(tmp_path, monkeypatch):
    places = HostPlaces(tmp_path)
    monkeypatch.setattr(os, "fsync", no_room)
    host_side.note_start(places)
    assert host_side.is_due(places)  # so the next command looks after it again
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(OSError, match="Too many"):  # which is no matter of the disk
        host_side.note_start(places)
