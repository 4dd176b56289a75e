"""Atomic writes of files, and locks between processes."""

import os
import stat
import subprocess
import sys
import threading
import time

import pytest

from infra.agent import shortage
from store import local_files
from store.backoff import Backoff

HOLD = """
import sys
from store import local_files
with local_files.holding_lock(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path):
    """Return a process that holds `tmp_path/lock` until the end of its stdin."""
    words = [sys.executable, "-c", HOLD, str(tmp_path / "lock")]
    child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "held\n"
        yield child
    finally:
        if not child.stdin.closed:
            child.stdin.close()
        child.wait(30)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_file_is_replaced_atomically_with_the_requested_permissions(tmp_path):
    path = tmp_path / "new" / "secret"
    local_files.replace(path, b"first", mode=0o600)
    path.chmod(0o644)
    before = os.umask(0o077)
    try:
        local_files.replace(path, b"second", mode=0o640)
        assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"second", 0o640)
        local_files.replace(path, b"third")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600  # like any new file under this umask
    assert names(path.parent) == ["secret"]


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    local_files.replace(tmp_path / "a", b"old")

    def pieces():
        yield b"new"
        raise OSError("the other side went away")

    with pytest.raises(OSError, match="went away"):
        local_files.write_whole(tmp_path / "a", pieces())
    assert (tmp_path / "a").read_bytes() == b"old" and names(tmp_path) == ["a"]


def test_a_link_in_place_of_a_draft_is_not_followed(tmp_path):
    (tmp_path / "theirs").write_bytes(b"theirs")
    (tmp_path / ".a.draft").symlink_to(tmp_path / "theirs")
    local_files.write_whole(tmp_path / "a", [b"ours"], draft_name=".a.draft")
    assert (tmp_path / "theirs").read_bytes() == b"theirs" and not (tmp_path / "a").is_symlink()


def test_a_file_with_the_longest_possible_name_can_be_replaced(tmp_path):
    local_files.replace(tmp_path / ("n" * 255), b"1")
    assert names(tmp_path) == ["n" * 255]


def test_threads_that_replace_a_file_do_not_interfere(tmp_path):
    contents = [bytes([number]) * 200_000 for number in range(4)]
    failed = []

    def work(content):
        try:
            for _ in range(20):
                local_files.replace(tmp_path / "a", content)
        except OSError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed and (tmp_path / "a").read_bytes() in contents and names(tmp_path) == ["a"]


def test_one_of_two_concurrent_creators_gets_a_file(tmp_path):
    local_files.create(tmp_path / "a", b"first", mode=0o600)
    with pytest.raises(FileExistsError):
        local_files.create(tmp_path / "a", b"second")
    assert (tmp_path / "a").read_bytes() == b"first" and names(tmp_path) == ["a"]


@pytest.mark.process
def test_a_lock_of_a_second_process_is_refused_awaited_and_taken(tmp_path, holder):
    busy = RuntimeError("somebody else")
    assert local_files.acquire_lock(tmp_path / "lock") is None
    began = time.monotonic()
    with (
        pytest.raises(RuntimeError, match="somebody else"),
        local_files.holding_lock(tmp_path / "lock", busy, wait_s=0.3),
    ):
        pass
    assert time.monotonic() - began >= 0.3
    threading.Timer(0.2, holder.stdin.close).start()
    with local_files.holding_lock(tmp_path / "lock"):  # waits without a limit
        assert local_files.acquire_lock(tmp_path / "lock") is None
    descriptor = local_files.acquire_lock(tmp_path / "lock")
    assert descriptor is not None
    os.close(descriptor)


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        local_files.acquire_lock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("kind", [Backoff, shortage.Backoff])
@pytest.mark.parametrize("certain", [0.0, 0.5, 1.0])
def test_waits_double_up_to_a_maximum_with_limited_randomness(certain, kind):
    backoff = kind(first_s=1.0, longest_s=60.0, certain=certain)
    for failures, whole_s in enumerate([1, 2, 4, 8, 16, 32, 60, 60], 1):
        found = [backoff.wait_s(failures) for _ in range(50)]
        assert all(certain * whole_s <= one <= whole_s for one in found)
        assert len(set(found)) == 1 if certain == 1.0 else len(set(found)) > 1
    assert backoff.wait_s(100_000) <= 60.0
