"""A control host with a full disk: optional notes are omitted."""

import errno
import os

import pytest

from packs.control_host.control import host_side
from packs.control_host.control.host_paths import HostPaths


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_supervision_needs_no_note_on_disk(tmp_path, monkeypatch):
    places = HostPaths(tmp_path)
    monkeypatch.setattr(os, "fsync", no_room)
    host_side.note_start(places)
    assert host_side.is_due(places)  # So the next command starts the supervision again.
    monkeypatch.setattr(os, "fsync", lambda *_: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
    with pytest.raises(OSError, match="Too many"):  # This error does not come from the disk.
        host_side.note_start(places)
