"""A durable write on a full disk leaves no draft."""

import errno
import os

import pytest

from infra.agent.job import write_durably


def no_room(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_failed_draft_is_removed_and_the_old_text_stays(tmp_path, monkeypatch):
    write_durably(tmp_path / "told.json", "old")
    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(OSError, match="No space left"):
        write_durably(tmp_path / "told.json", "new")
    assert [(one.name, one.read_text()) for one in tmp_path.iterdir()] == [("told.json", "old")]
