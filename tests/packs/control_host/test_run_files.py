"""Copies of run files: whole folders for live runs, only files for ended runs."""

import contextlib
import io
import json
import os
import tarfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.errors import SlipwayError, UsageError
from infra.transport.protocol import Result, ThisMachine
from packs.control_host.control import bounded_tar, run_files
from tests import seeds
from tests.hostile import mistyped, spliced

pytestmark = pytest.mark.process


def names(folder):
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def test_live_run_is_copied_whole_and_an_ended_run_without_its_folders(tmp_path):
    here, there, back = (tmp_path / name for name in ("here", "there", "back"))
    for run in ("works", "is-over", "of-somebody"):
        for path in ("run.json", "pod/logs/base.log", "pod/state/verdict.json", "pod/work/large", "kept/code/tasks.py"):
            (here / run / path).parent.mkdir(parents=True, exist_ok=True)
            (here / run / path).write_text(f"{run} {path}")
    small = ["pod/logs/base.log", "pod/state/verdict.json", "run.json"]
    whole = [f"works/{name}" for name in sorted([*small, "kept/code/tasks.py", "pod/work/large"])]
    kept = [*(f"is-over/{name}" for name in small), *whole]
    run_files.send(ThisMachine(), there, here, ["works", "has-nothing"], ["is-over", "is-gone"])
    assert names(there) == kept
    run_files.fetch(ThisMachine(), there, back, ["works", "has-nothing"], ["is-over", "is-gone"])
    assert names(back) == kept and names(there) == kept
    assert (back / "is-over" / "run.json").read_text() == "is-over run.json"
    run_files.fetch(ThisMachine(), there, tmp_path / "none", [], [])
    run_files.send(ThisMachine(), tmp_path / "none", here, [], ["is-gone"])
    run_files.fetch(ThisMachine(), tmp_path / "nowhere", tmp_path / "none", ["works"], ["is-over"])
    assert not (tmp_path / "none").exists()


def test_file_goes_into_an_existing_folder_and_replaces_no_other_kind(tmp_path):
    there, drafts, here = (tmp_path / name for name in ("there", "drafts", "here"))
    (there / "folder").mkdir(parents=True)
    drafts.mkdir()
    for path in (there / "one.txt", there / "folder" / "two.txt"):
        path.write_text(path.name)

    def fetch(name, to):
        return run_files.fetch_path(ThisMachine(), there / name, to, drafts)

    assert fetch("folder", here) == here and fetch("one.txt", here) == here / "one.txt"
    assert names(here) == ["one.txt", "two.txt"]
    assert fetch("one.txt", here / "more" / "uno.txt").read_text() == "one.txt"
    (here / "two.txt").write_text("older")
    fetch("folder", here)
    assert (here / "two.txt").read_text() == "two.txt"
    with pytest.raises(
        UsageError, match="one.txt is a file, but .*/folder is a folder; choose another place: --to PATH"
    ):
        fetch("folder", here / "one.txt")
    (here / "folder" / "one.txt").mkdir(parents=True)
    with pytest.raises(UsageError, match="one.txt is a folder, but .*/one.txt is a file"):
        fetch("one.txt", here / "folder")
    with pytest.raises(UsageError, match=".*/none does not exist on the control host"):
        fetch("none", here)
    assert not list(drafts.iterdir()) and not list(there.glob(".*"))


def test_large_file_is_fetched_separately_and_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(run_files.large_files, "LARGE_BYTES", 1000)
    asked = []

    class Machine(ThisMachine):
        def read(self, path, offset):
            asked.append((Path(path).name, offset))
            return super().read(path, offset)

    there, drafts = tmp_path / "there", tmp_path / "drafts"
    (there / "model" / "odd [*] ü").mkdir(parents=True)
    drafts.mkdir()
    large, again = there / "model" / "odd [*] ü" / "weights", there / "model" / "same"
    large.write_bytes(bytes(range(256)) * 8)
    large.chmod(0o600)
    again.hardlink_to(large)
    (there / "model" / "small").write_text("small")
    (there / "model" / "link").symlink_to("small")
    (there / "newest").symlink_to("model")
    for name in ("model", "newest"):
        here = run_files.fetch_path(Machine(), there / name, tmp_path / name, drafts)
        assert names(here) == ["link", "odd [*] ü/weights", "same", "small"]
        assert (here / "same").read_bytes() == (here / "odd [*] ü" / "weights").read_bytes() == large.read_bytes()
        assert (here / "link").readlink() == Path("small") and (here / "same").stat().st_mode & 0o777 == 0o600
    assert {name for name, _ in asked if not name.endswith(".tgz")} == {"weights", "same"}
    alone = run_files.fetch_path(Machine(), large, tmp_path / "alone", drafts)
    assert alone.read_bytes() == large.read_bytes() and not list(drafts.iterdir())


def test_links_arrive_as_links_and_local_files_stay(tmp_path, caplog):
    there, drafts, here = (tmp_path / name for name in ("there", "drafts", "here"))
    drafts.mkdir()
    (there / "otter" / "3").mkdir(parents=True)
    (there / "otter" / "3" / "page.html").write_text("page")
    own = tmp_path / "own"  # On the control host and on this machine.
    own.mkdir()
    (own / "thesis.txt").write_text("mine")
    (there / "otter" / "latest").symlink_to("3")
    (there / "otter" / "mine").symlink_to(own)
    (there / "otter" / "above").symlink_to("../../own")
    (there / "otter" / "3" / "back").symlink_to("../latest/page.html")
    os.mkfifo(there / "otter" / "pipe")
    for _ in range(2):  # The second time every file is here already.
        run_files.fetch_path(ThisMachine(), there / "otter", here, drafts)
        assert sorted(one.name for one in here.iterdir()) == ["3", "latest"]
        assert os.readlink(here / "latest") == "3" and (here / "3" / "back").read_text() == "page"
        assert [one.name for one in own.iterdir()] == ["thesis.txt"]
    said = [one.getMessage() for one in caplog.records]
    assert f"left out: otter/mine, a link to {own}: the target is an absolute path on the other machine" in said
    assert "left out: otter/above, a link to ../../own: the target may lie outside of the requested path" in said
    (here / "latest").unlink()
    (here / "latest").mkdir()
    with pytest.raises(
        UsageError, match="latest is a folder on this machine but a file on the control host; no file was changed"
    ):
        run_files.fetch_path(ThisMachine(), there / "otter", here, drafts)
    (here / "latest").rmdir()
    (here / "3").rename(here / "kept")
    (here / "3").symlink_to(own)
    with pytest.raises(UsageError, match="3 is a link on this machine but a folder on the control host"):
        run_files.fetch_path(ThisMachine(), there / "otter", here, drafts)
    assert [one.name for one in own.iterdir()] == ["thesis.txt"]


class LyingHost(ThisMachine):
    """A control host that lies: an arbitrary output of `pack`, and arbitrary bytes for every file."""

    def __init__(self, said, content=b"", piece=b""):
        self.said, self.content, self.piece = said, content, piece

    def run(self, words, **more):
        return Result(0, self.said if isinstance(self.said, str) else json.dumps(self.said), "")

    def read(self, path, offset):
        return self.content[offset:] or self.piece


def small(name="top/x", kind=tarfile.REGTYPE, target=""):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        one = tarfile.TarInfo("top")
        one.type, one.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(one)
        one = tarfile.TarInfo(name)
        one.type, one.linkname = kind, target
        tar.addfile(one)
    return file.getvalue()


GOOD = {"is_folder": True, "large": [["top/weights", 40, 0o644]], "bytes": len(small())}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"large": [["../../victim", 5, 511]]}, "is not a path inside a folder"),
        ({"large": [["/etc/victim", 5, 511]]}, "is not a path inside a folder"),
        ({"large": [["other/victim", 5, 511]]}, "was not requested"),
        ({"large": [["top/x", 5, 511]]}, "holds 'top/x' twice"),
        ({"large": [["top/x/y", 5, 511]]}, "is both a file and a folder in the archive"),
        ({"large": [["top/w", -5, 511]]}, "no size"),
        ({"large": [["top/w", 10**15, 511]]}, "but .* has room for .*; no file was copied"),
        ({"large": [["top/w"]]}, "expected a name, a size and a mode"),
        ({"large": None}, "large is of the wrong kind"),
        ({"bytes": 10**15}, "has room for"),
        ({"bytes": 10**30}, "no size|64 bits"),
        ({"is_folder": "yes"}, "is_folder is of the wrong kind"),
        ({"is_folder": False}, "does not hold 'top'"),
    ],
)
def test_lying_control_host_is_refused_and_no_file_is_written(tmp_path, change, words):
    here = tmp_path / "a" / "b" / "here"
    with pytest.raises(SlipwayError, match=words):
        run_files.fetch_path(LyingHost({**GOOD, **change}, small()), Path("/srv/top"), here, Path("/srv"))
    assert not [one for one in tmp_path.rglob("*") if not one.is_dir()]


def test_files_longer_than_declared_are_cut_at_the_declared_size(tmp_path):
    said = {"is_folder": True, "large": [["top/weights", 100_000, 0o7777]], "bytes": len(small())}

    class Endless(LyingHost):
        def read(self, path, offset):
            return super().read(path, offset) if path.endswith(".tgz") else bytes(8 << 20)

    run_files.fetch_path(Endless(said, small()), Path("/srv/top"), tmp_path / "here", Path("/srv"))
    assert (tmp_path / "here" / "weights").stat().st_size == 100_000
    assert (tmp_path / "here" / "weights").stat().st_mode & 0o7777 == 0o755
    with pytest.raises(SlipwayError, match="became shorter during the copy"):
        run_files.fetch_path(LyingHost(said, b"short"), Path("/srv/top"), tmp_path / "short", Path("/srv"))


def test_files_of_runs_contain_only_these_runs_and_no_other_path(tmp_path):
    here = tmp_path / "runs"

    def fetch(content, runs=("top",), over=()):
        run_files.fetch(LyingHost(str(len(content)), content), Path("/srv"), here, runs, over)

    for content in (
        small("../x"),
        small("/tmp/x"),
        small("other/run.json"),
        small("top/k", tarfile.LNKTYPE, "/etc/passwd"),
    ):
        with pytest.raises(
            SlipwayError, match="the answer of the control host cannot be used: .*; no file was changed on this machine"
        ):
            fetch(content)
    for name in ("top/kept/x", "top/pod/work/x/y", "top/pod/logs/x/y"):
        with pytest.raises(SlipwayError, match="was not requested"):
            fetch(small(name), (), ("top",))
    assert not [one for one in tmp_path.rglob("*") if not one.is_dir()]
    fetch(small("top/pod/logs/base.log"), (), ("top",))
    assert names(here) == ["top/pod/logs/base.log"]


@settings(max_examples=seeds.examples(60, 200))
@given(
    mistyped(GOOD) | spliced(GOOD) | st.binary(max_size=200), st.sampled_from(["top/x", "../x", "top/../../x", "/x"])
)
def test_any_answer_of_a_control_host_is_an_error_or_stays_in_the_target(tmp_path_factory, said, name):
    base = tmp_path_factory.mktemp("any")
    machine = LyingHost(said.decode(errors="replace"), small(name))
    with contextlib.suppress(SlipwayError):
        run_files.fetch_path(machine, Path("/srv/top"), base / "a" / "target", Path("/srv"))
    assert {one.name for one in base.iterdir()} <= {"a"} and {one.name for one in (base / "a").glob("*")} <= {"target"}


def test_disk_keeps_its_reserve(tmp_path):
    assert bounded_tar.room_of(tmp_path) > 0
    with pytest.raises(SlipwayError, match="Free space on the disk, or choose a different place: --to PATH"):
        bounded_tar.refuse_without_room("it", bounded_tar.room_of(tmp_path) + (1 << 40), tmp_path)
