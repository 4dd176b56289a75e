"""Files in a command line that stay on this machine when the command runs on a control host."""

from packs.control_host.commands.run_on_host import files_outside_checkout
from tests.world import ROOT


def test_files_outside_of_the_checkout_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    mine, folder = tmp_path / "job.yaml", tmp_path / "out"
    mine.write_text("run: true")
    folder.mkdir()
    words = ["launch", str(mine), f"--reward={mine}", "~/job.yaml", str(ROOT / "tasks.py"), str(folder), "--json", ""]
    assert files_outside_checkout(words) == [str(mine), "~/job.yaml"]
    monkeypatch.chdir(tmp_path)
    assert files_outside_checkout(["launch", "job.yaml", "no.yaml"]) == ["job.yaml"]
    monkeypatch.chdir(ROOT)
    assert files_outside_checkout(["launch", "tasks.py", "x" * 5000, "~nobody/x"]) == []
