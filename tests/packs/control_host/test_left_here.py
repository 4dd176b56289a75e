"""Files in a command line that stay on this machine when the command runs on a control host."""

from packs.control_host.commands.run_there import left_here
from tests.world import ROOT


def test_files_outside_of_the_checkout_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    mine, folder = tmp_path / "job.yaml", tmp_path / "out"
    mine.write_text("run: true")
    folder.mkdir()
    words = ["launch", str(mine), f"--reward={mine}", "~/job.yaml", str(ROOT / "tasks.py"), str(folder), "--json", ""]
    assert left_here(words) == [str(mine), "~/job.yaml"]
    monkeypatch.chdir(tmp_path)
    assert left_here(["launch", "job.yaml", "no.yaml"]) == ["job.yaml"]
    monkeypatch.chdir(ROOT)
    assert left_here(["launch", "tasks.py", "x" * 5000, "~nobody/x"]) == []
