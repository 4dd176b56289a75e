"""The plan lists every file that a job sends, and hidden folders of the home are sent only on request."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.world import ROOT, World

pytestmark = [pytest.mark.pack("jobs"), pytest.mark.process]

JOB = """
name: stranger
workdir: {folder}/work
file_mounts:
  ~/data: {folder}/data
  ~/keys: ~/.aws
  ~/history: ~/.bash_history
run: ls -A ~/data ~/keys
"""


@pytest.fixture
def world(tmp_path):
    home = tmp_path / "home"
    files = {
        ".aws/config": "region = x",
        ".aws/sso/cache.json": "{}",
        ".bash_history": "ls",
        "data/a": "12345",
        "data/.envrc": "A=1",
        "work/main.py": "print()",
    }
    for name, text in files.items():
        path = home / name if name.startswith(".") else tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path))
    cache = {"XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))}
    environments = {"SLIPWAY_ENVIRONMENTS": str(Path(cache["XDG_CACHE_HOME"]) / "slipway" / "environments")}
    one = World(tmp_path / "world", {"HOME": str(home), **cache, **environments})
    yield one
    one.inv("down", "--all")


def launch(world: World, tmp_path: Path, *words: str) -> list[str]:
    return ["launch", str(tmp_path / "job.yaml"), "--provider", "local", *words]


def test_dry_run_lists_every_mount_with_files_and_bytes(world, tmp_path):
    process = world.run(*launch(world, tmp_path, "--dry-run"))
    told = process.stderr
    assert process.returncode == 0, told
    told = " ".join(told.split())
    assert f"sends {tmp_path}/work as the working folder of the job: 1 file, 7 B" in told
    assert (
        f"sends {tmp_path}/data to ~/data: 1 file, 5 B not sent: .envrc: the name says that the file holds secrets"
        in told
    )
    assert (
        "sends ~/.aws to ~/keys: 2 files, 12 B; "
        "~/.aws is a hidden folder of your home: the launch asks before the upload" in told
    )
    assert "sends ~/.bash_history to ~/history: no file; ~/.bash_history is a hidden folder of your home" in told


def test_dry_run_lists_every_mount_in_json(world, tmp_path):
    mounts = world.json(*launch(world, tmp_path, "--dry-run"))["mounts"]
    assert [(one["source"], one["at"], one["files"], one["bytes"], one["asks"]) for one in mounts] == [
        (f"{tmp_path}/work", "", 1, 7, False),
        (f"{tmp_path}/data", "~/data", 1, 5, False),
        ("~/.aws", "~/keys", 2, 12, True),
        ("~/.bash_history", "~/history", 0, 0, True),
    ]
    assert mounts[1]["refused"] == [".envrc: the name says that the file holds secrets"]


def test_hidden_folder_is_sent_only_when_named_and_not_by_yes(world, tmp_path):
    said = world.json(*launch(world, tmp_path, "--yes"), code=2)
    assert "no file of ~/.bash_history would be sent" in said["error"] and "nothing was rented" in said["error"]
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path).replace("  ~/history: ~/.bash_history\n", ""))
    for words in ([], ["--yes"], ["--yes", "--send-anyway", "~"], ["--yes", "--send-anyway", "~/.ssh"]):
        said = world.json(*launch(world, tmp_path, *words), code=2)
        assert "~/.aws (2 files, 12 B)" in said["error"] and "--send-anyway '~/.aws'" in said["error"]
    assert not (world.folder / "pods").exists()
    done = world.json(*launch(world, tmp_path, "--yes", "--send-anyway", "~/.aws", "-n", "mine"))
    assert done["state"] == "succeeded"
    log = (world.folder / "pods" / "mine" / "logs" / "run.log").read_text()
    assert "config" in log and "sso" in log and ".envrc" not in log


def test_each_hidden_folder_is_a_question_at_a_terminal_with_default_no(world, tmp_path):
    (tmp_path / "job.yaml").write_text(JOB.format(folder=tmp_path).replace("  ~/history: ~/.bash_history\n", ""))
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "invoke", *launch(world, tmp_path)]
    process = subprocess.Popen(
        words,
        cwd=ROOT,
        env=world.environ,
        stdin=theirs,
        stderr=subprocess.PIPE,
        text=True,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(theirs)
    os.write(ours, b"\n")
    _, told = process.communicate(timeout=200)
    os.close(ours)
    told = " ".join(told.split())
    assert process.returncode == 2 and "~/.aws is in a hidden folder" in told and "was not sent" in told
    assert not (world.folder / "pods").exists()
