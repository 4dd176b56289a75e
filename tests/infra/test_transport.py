import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from infra.errors import SlipwayError, UsageError
from infra.shipment import pack
from infra.transport import Pushed, Result, ThisMachine, TimedOut

here = ThisMachine()
TOKEN = "sw1-abcdefgh-0123456789abcdef"
KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nAAAA\n"


@pytest.fixture
def dest(tmp_path):
    """The code folder of a pod that is ours."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/POD.json").write_text(json.dumps({"token": TOKEN, "run": "a-1"}))
    return tmp_path / "pod/code"


@pytest.fixture
def root(tmp_path):
    """A git checkout with something tracked, something new, something ignored."""
    root = tmp_path / "checkout"
    files = {
        "tracked.py": "1",
        "sub/run.sh": "#!/bin/sh",
        ".gitignore": "/var/\n",
        "var/big.bin": "x",
        "new.txt": "new",
    }
    write(root, files)
    (root / "sub/run.sh").chmod(0o755)
    subprocess.run(["git", "init", "-q", root], check=True)
    subprocess.run(["git", "-C", root, "add", "tracked.py", "sub", ".gitignore"], check=True)
    return root


def write(root: Path, files: dict[str, str]) -> None:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)


def held(dest: Path) -> dict[str, str]:
    return {path.relative_to(dest).as_posix(): path.read_text() for path in dest.rglob("*") if path.is_file()}


# run, put, get


def test_a_program_reports_its_exit_code_and_its_words(tmp_path):
    words = ["sh", "-c", "cat; echo $WORD; pwd >&2; exit 7"]
    done = here.run(words, stdin=b"in\n", timeout_s=20, cwd=tmp_path, env={"WORD": "a b"})
    assert done == Result(7, "in\na b\n", f"{tmp_path}\n")
    assert here.run(["cat"], timeout_s=20) == Result(0, "", "")


def test_a_program_that_takes_too_long_is_ended_with_its_children(tmp_path):
    script = f"sleep 300 & echo $! > {tmp_path}/child; mkfifo {tmp_path}/never; cat {tmp_path}/never"
    with pytest.raises(TimedOut, match="no end after 0.5 s"):
        here.run(["sh", "-c", script], timeout_s=0.5)
    child, deadline = int((tmp_path / "child").read_text()), time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_program_that_is_not_there_is_named():
    with pytest.raises(SlipwayError, match="no-such-program cannot be run"):
        here.run(["no-such-program"], timeout_s=1)


def test_a_file_is_put_whole_with_its_mode_and_read_back(tmp_path):
    place = tmp_path / "deep/secrets.json"
    for content in (b"one", b"\x00two"):
        here.put(content, place, 0o600)
        assert here.get(place) == content and place.stat().st_mode & 0o777 == 0o600
    assert os.listdir(place.parent) == ["secrets.json"]
    with pytest.raises(FileNotFoundError):
        here.get(tmp_path / "absent")


# push


def test_a_push_sends_what_git_would_keep_and_a_second_one_touches_nothing(root, dest):
    assert here.push(root, dest, TOKEN) == Pushed(4, 0, 0)
    assert held(dest) == {"tracked.py": "1", "sub/run.sh": "#!/bin/sh", ".gitignore": "/var/\n", "new.txt": "new"}
    assert os.access(dest / "sub/run.sh", os.X_OK) and not os.access(dest / "new.txt", os.X_OK)
    before = {path: path.stat() for path in dest.rglob("*")}
    assert here.push(root, dest, TOKEN) == Pushed(0, 4, 0)
    assert {path: path.stat() for path in dest.rglob("*")} == before


def test_a_push_follows_changes_and_deletions_but_keeps_what_the_pod_made(root, dest):
    here.push(root, dest, TOKEN)
    write(dest, {"made.txt": "by the pod", "__pycache__/x.pyc": "compiled"})
    (root / "tracked.py").write_text("2")
    (root / "new.txt").unlink()
    (root / "sub/run.sh").unlink()
    assert here.push(root, dest, TOKEN) == Pushed(1, 1, 2)
    assert not (dest / "sub").exists()
    assert held(dest) == {
        "tracked.py": "2", ".gitignore": "/var/\n", "made.txt": "by the pod", "__pycache__/x.pyc": "compiled"
    }  # fmt: skip


def test_a_file_may_become_a_folder_and_a_folder_a_file(root, dest):
    here.push(root, dest, TOKEN)
    (root / "new.txt").unlink()
    (root / "sub/run.sh").unlink()
    (root / "sub").rmdir()
    write(root, {"new.txt/inner": "i", "sub": "s"})
    here.push(root, dest, TOKEN)
    assert held(dest) == {"tracked.py": "1", ".gitignore": "/var/\n", "new.txt/inner": "i", "sub": "s"}


def test_a_folder_that_is_no_checkout_is_walked(tmp_path, dest):
    write(tmp_path / "plain", {"a.py": "a", "b/c.py": "c", "var/x": "x", ".venv/y": "y", "__pycache__/z": "z"})
    (tmp_path / "plain/link").symlink_to("b")
    here.push(tmp_path / "plain", dest, TOKEN)
    assert set(held(dest)) == {"a.py", "b/c.py"} and os.readlink(dest / "link") == "b"


def test_only_a_folder_with_the_marker_of_this_pod_is_written(root, dest, tmp_path):
    with pytest.raises(UsageError, match="is the pod of sw1-abcdefgh-0123456789abcdef, not of other"):
        here.push(root, dest, "other")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UsageError, match="carries no marker of ours"):
        here.push(root, tmp_path / "elsewhere/code", TOKEN)
    (dest.parent / "POD.json").write_text("{")
    with pytest.raises(UsageError, match="carries no marker of ours"):
        here.push(root, dest, TOKEN)
    assert not dest.exists() and list((tmp_path / "elsewhere").iterdir()) == []


def test_an_empty_or_missing_source_is_refused_and_deletes_nothing(root, dest, tmp_path):
    here.push(root, dest, TOKEN)
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(UsageError, match="no file to send"):
            here.push(source, dest, TOKEN)
    assert len(held(dest)) == 4


def test_a_checkout_that_git_cannot_read_is_refused(root, dest):
    (root / ".git/HEAD").write_text("nonsense")
    with pytest.raises(UsageError, match="git cannot list its files"):
        here.push(root, dest, TOKEN)


def test_secrets_stay_behind_by_name_and_by_content(root, dest):
    named = {".env": "A=1", ".env.local": "A=1", "tls/server.pem": "x", ".netrc": "machine x", "journal.sqlite": "x"}
    filled = {
        "keys/id_rsa": KEY,
        "notes.md": "my token is hf_" + "a" * 34,
        "run.sh": "export AWS_ACCESS_KEY_ID=AKIA" + "A" * 16,
        "gh.yaml": "token: ghp_" + "b" * 36,
    }
    sent = {".env.example": "A=", "id_rsa.py": "x = 1", "pem.py": "", "id_rsa": "no key at all", "a.env.md": "x"}
    write(root, named | filled | sent)
    refusals = here.push(root, dest, TOKEN).refused
    assert str(refusals[0]) == ".env: its name says that it holds secrets"
    refused = {one.path: one.reason for one in refusals}
    assert refused.keys() == named.keys() | filled.keys()
    assert refused["keys/id_rsa"] == "it holds a private key" and refused["notes.md"] == "it holds a Hugging Face token"
    assert not refused.keys() & held(dest).keys() and held(dest).keys() >= sent.keys()


def test_no_source_file_of_this_repository_looks_like_a_secret():
    repository = Path(__file__).parents[2]
    assert [one for one in pack(repository).refused if one.path.endswith((".py", ".toml", ".txt"))] == []


def test_a_file_that_turned_secret_is_removed_from_the_pod(root, dest):
    here.push(root, dest, TOKEN)
    (root / "new.txt").write_text(KEY)
    assert here.push(root, dest, TOKEN).removed == 1
    assert "new.txt" not in held(dest)


def test_links_inside_stay_links_and_links_out_stay_behind(root, dest, tmp_path):
    (root / "inside").symlink_to("sub/run.sh")
    (root / "outside").symlink_to("../secret")
    (root / "absolute").symlink_to(root / "tracked.py")
    refused = {one.path: one.reason for one in here.push(root, dest, TOKEN).refused}
    assert refused.keys() == {"outside", "absolute"} and "a link out of the folder" in refused["outside"]
    assert os.readlink(dest / "inside") == "sub/run.sh" and not (dest / "outside").is_symlink()


def test_nothing_is_written_or_removed_through_a_link_on_the_pod(root, dest, tmp_path):
    here.push(root, dest, TOKEN)
    victim = tmp_path / "victim"
    write(victim, {"run.sh": "precious"})
    (dest / "sub/run.sh").unlink()
    (dest / "sub").rmdir()
    (dest / "sub").symlink_to(victim)
    with pytest.raises(UsageError, match="lies behind a link"):
        here.push(root, dest, TOKEN)
    (root / "sub/run.sh").unlink()
    here.push(root, dest, TOKEN)
    assert (victim / "run.sh").read_text() == "precious"
