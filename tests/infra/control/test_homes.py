"""The copies of what is kept of runs: all of a run at work, of one that is over only the files."""

import json
from pathlib import Path

import pytest

from infra.control import homes
from infra.errors import UsageError
from infra.transport.protocol import ThisMachine

pytestmark = pytest.mark.process


def names(folder):
    return sorted(str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file())


def test_a_run_at_work_goes_whole_and_one_that_is_over_without_its_folders_there_and_back(tmp_path):
    here, there, back = (tmp_path / name for name in ("here", "there", "back"))
    for run in ("works", "is-over", "of-somebody"):
        for path in ("base.log", "verdict.json", "code/tasks.py"):
            (here / run / path).parent.mkdir(parents=True, exist_ok=True)
            (here / run / path).write_text(f"{run} {path}")
    (here / "works" / "carried.json").write_text(json.dumps([{"name": "data", "source": str(here / "works" / "data")}]))
    whole = [f"works/{name}" for name in ("base.log", "carried.json", "code/tasks.py", "verdict.json")]
    kept = ["is-over/base.log", "is-over/verdict.json", *whole]
    homes.send(ThisMachine(), there, here, ["works", "has-nothing"], ["is-over", "is-gone"])
    assert names(there) == kept
    homes.fetch(ThisMachine(), there, back, ["works", "has-nothing"], ["is-over", "is-gone"])
    assert names(back) == kept and names(there) == kept
    assert (back / "is-over" / "base.log").read_text() == "is-over base.log"
    (carried,) = json.loads((back / "works" / "carried.json").read_bytes())
    assert carried["source"] == str(back / "works" / "data")
    homes.fetch(ThisMachine(), there, tmp_path / "none", [], [])
    homes.send(ThisMachine(), tmp_path / "none", here, [], ["is-gone"])
    homes.fetch(ThisMachine(), tmp_path / "nowhere", tmp_path / "none", ["works"], ["is-over"])
    assert not (tmp_path / "none").exists()


def test_a_file_goes_into_a_folder_that_is_here_and_nothing_of_another_kind_is_replaced(tmp_path):
    there, drafts, here = (tmp_path / name for name in ("there", "drafts", "here"))
    (there / "folder").mkdir(parents=True)
    drafts.mkdir()
    for path in (there / "one.txt", there / "folder" / "two.txt"):
        path.write_text(path.name)

    def fetch(name, to):
        return homes.fetch_path(ThisMachine(), there / name, to, drafts)

    assert fetch("folder", here) == here and fetch("one.txt", here) == here / "one.txt"
    assert names(here) == ["one.txt", "two.txt"]
    assert fetch("one.txt", here / "more" / "uno.txt").read_text() == "one.txt"
    (here / "two.txt").write_text("older")
    fetch("folder", here)
    assert (here / "two.txt").read_text() == "two.txt"
    with pytest.raises(UsageError, match="one.txt is a file, and .*/folder is a folder; name another place: --to PATH"):
        fetch("folder", here / "one.txt")
    (here / "folder" / "one.txt").mkdir(parents=True)
    with pytest.raises(UsageError, match="one.txt is a folder, and .*/one.txt is a file"):
        fetch("one.txt", here / "folder")
    with pytest.raises(UsageError, match="there is no .*/none on the control host"):
        fetch("none", here)
    assert not list(drafts.iterdir()) and not list(there.glob(".*"))


def test_a_large_file_comes_by_itself_and_whole_with_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(homes.large_files, "LARGE_BYTES", 1000)
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
        here = homes.fetch_path(Machine(), there / name, tmp_path / name, drafts)
        assert names(here) == ["link", "odd [*] ü/weights", "same", "small"]
        assert (here / "same").read_bytes() == (here / "odd [*] ü" / "weights").read_bytes() == large.read_bytes()
        assert (here / "link").readlink() == Path("small") and (here / "same").stat().st_mode & 0o777 == 0o600
    assert {name for name, _ in asked if not name.endswith(".tgz")} == {"weights", "same"}
    alone = homes.fetch_path(Machine(), large, tmp_path / "alone", drafts)
    assert alone.read_bytes() == large.read_bytes() and not list(drafts.iterdir())
