import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.errors import SlipwayError, UsageError
from infra.transport.protocol import Result, ThisMachine, TimedOut
from infra.transport.push import PushResult, push
from infra.transport.shipment import pack
from infra.transport.ssh import Ssh
from tests.hosts import sshd  # noqa: F401
from tests.processes import command_lines, is_running
from tests.world import ROOT, until

pytestmark = pytest.mark.process

TOKEN = "sw1-abcdefgh-0123456789abcdef"
KEY = "-----BEGIN OPENSSH " + "PRIVATE KEY-----\nAAAA\n"


@pytest.fixture(params=["this machine", "ssh"])
def way(request, tmp_path):
    """Return both implementations of the protocol: each test holds for both."""
    if request.param == "this machine":
        yield ThisMachine()
    else:
        with Ssh(request.getfixturevalue("sshd").address, tmp_path / "pins/known_hosts") as pod:
            yield pod


@pytest.fixture
def dest(tmp_path):
    """Return the code folder of a pod of ours."""
    (tmp_path / "pod").mkdir()
    (tmp_path / "pod/POD.json").write_text(json.dumps({"token": TOKEN, "run": "a-1"}))
    return tmp_path / "pod/code"


@pytest.fixture
def root(tmp_path):
    """Return a git checkout with a tracked, a new and an ignored file."""
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


def contents(dest: Path) -> dict[str, str]:
    return {path.relative_to(dest).as_posix(): path.read_text() for path in dest.rglob("*") if path.is_file()}


# Run, put, get.


def test_a_program_returns_its_exit_code_and_output(way, tmp_path):
    env = {"WORD": "'a'  \"b\"\n$(c)"}
    done = way.run(["sh", "-c", "cat; echo $WORD; pwd >&2; exit 7"], stdin=b"in\n", timeout_s=20, cwd=tmp_path, env=env)
    assert done == Result(7, "in\n'a' \"b\" $(c)\n", f"{tmp_path}\n")
    assert way.run(["cat"], timeout_s=20) == Result(0, "", "")


def test_a_program_beyond_its_timeout_is_ended_with_its_children(way, tmp_path):
    script = f"sleep 300 & echo $! > {tmp_path}/child; mkfifo {tmp_path}/never; cat {tmp_path}/never"
    with pytest.raises(TimedOut, match="no end after 1.5 s"):
        way.run(["sh", "-c", script], timeout_s=1.5)
    child, deadline = int((tmp_path / "child").read_text()), time.monotonic() + 10
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def test_a_missing_program_is_named():
    with pytest.raises(SlipwayError, match="no-such-program cannot be run"):
        ThisMachine().run(["no-such-program"], timeout_s=1)


def test_a_file_is_put_atomically_with_its_mode_and_read_back(way, tmp_path):
    place = tmp_path / "de ep/it's"
    for content in (b"one", b"\x00two" * 200_000):
        way.put(content, place, 0o600)
        assert way.get(place) == content and place.stat().st_mode & 0o777 == 0o600
    assert os.listdir(place.parent) == ["it's"] and place.parent.stat().st_mode & 0o777 == 0o755
    with pytest.raises(FileNotFoundError):
        way.get(tmp_path / "absent")


def test_arguments_arrive_unchanged(way):
    words = ["a b", "", "$HOME", "`id`", "'", '"', "\\", "line\nbreak", "*", "-n", "ü", "!x", "a;b&c|d>e"]
    done = way.run(["printf", "<%s>", *words], timeout_s=20)
    assert done.stdout == "".join(f"<{word}>" for word in words)


def test_large_input_and_output_pass_at_the_same_time(way):
    text = os.urandom(300_000).hex().encode()
    done = way.run(["sh", "-c", "tee /dev/stderr"], stdin=(text for _ in range(5)), timeout_s=30)
    assert done.stdout.encode() == done.stderr.encode() == text * 5


def test_a_program_ended_by_a_signal_reports_the_signal(way):
    assert way.run(["sh", "-c", "kill -TERM $$"], timeout_s=20).exited == -15


def test_unread_input_is_no_failure(way):
    assert way.run(["true"], stdin=b"x" * 5_000_000, timeout_s=20).exited == 0


def test_an_exception_of_the_input_generator_is_raised(way):
    def pieces():
        yield b"one"
        raise UsageError("no more")

    with pytest.raises(UsageError, match="no more"):
        way.run(["cat"], stdin=pieces(), timeout_s=20)


def test_a_growing_file_is_read_on_from_the_last_offset(way, tmp_path):
    log, contents = tmp_path / "log", b""
    for number in range(3):
        with open(log, "ab") as file:
            file.write(b"line %d\n" % number)
        contents += way.read(log, len(contents))
    assert contents == b"line 0\nline 1\nline 2\n" and way.read(log, len(contents)) == b""
    with pytest.raises(FileNotFoundError):
        way.read(tmp_path / "absent", 0)


# Push.


def test_a_push_sends_files_known_to_git_and_a_second_push_changes_nothing(way, root, dest):
    assert push(way, root, dest, TOKEN) == PushResult(4, 0, 0)
    assert contents(dest) == {"tracked.py": "1", "sub/run.sh": "#!/bin/sh", ".gitignore": "/var/\n", "new.txt": "new"}
    assert os.access(dest / "sub/run.sh", os.X_OK) and not os.access(dest / "new.txt", os.X_OK)
    before = {path: path.stat() for path in dest.rglob("*")}
    assert push(way, root, dest, TOKEN) == PushResult(0, 4, 0)
    assert {path: path.stat() for path in dest.rglob("*")} == before


def test_a_push_applies_changes_and_deletions_but_keeps_files_of_the_pod(way, root, dest):
    push(way, root, dest, TOKEN)
    write(dest, {"made.txt": "by the pod", "__pycache__/x.pyc": "compiled"})
    (root / "tracked.py").write_text("2")
    (root / "new.txt").unlink()
    (root / "sub/run.sh").unlink()
    assert push(way, root, dest, TOKEN) == PushResult(1, 1, 2)
    assert not (dest / "sub").exists()
    assert contents(dest) == {
        "tracked.py": "2",
        ".gitignore": "/var/\n",
        "made.txt": "by the pod",
        "__pycache__/x.pyc": "compiled",
    }


def test_a_file_may_become_a_folder_and_a_folder_a_file(way, root, dest):
    push(way, root, dest, TOKEN)
    (root / "new.txt").unlink()
    (root / "sub/run.sh").unlink()
    (root / "sub").rmdir()
    write(root, {"new.txt/inner": "i", "sub": "s"})
    push(way, root, dest, TOKEN)
    assert contents(dest) == {"tracked.py": "1", ".gitignore": "/var/\n", "new.txt/inner": "i", "sub": "s"}


def test_a_folder_outside_git_is_walked(way, tmp_path, dest):
    write(tmp_path / "plain", {"a.py": "a", "b/c.py": "c", "var/x": "x", ".venv/y": "y", "__pycache__/z": "z"})
    (tmp_path / "plain/link").symlink_to("b")
    push(way, tmp_path / "plain", dest, TOKEN)
    assert set(contents(dest)) == {"a.py", "b/c.py"} and os.readlink(dest / "link") == "b"


def test_only_a_folder_with_the_marker_of_this_pod_is_written(way, root, dest, tmp_path):
    with pytest.raises(UsageError, match="is the pod of sw1-abcdefgh-0123456789abcdef, not of other"):
        push(way, root, dest, "other")
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(UsageError, match="has no valid POD.json"):
        push(way, root, tmp_path / "elsewhere/code", TOKEN)
    (dest.parent / "POD.json").write_text("{")
    with pytest.raises(UsageError, match="has no valid POD.json"):
        push(way, root, dest, TOKEN)
    assert not dest.exists() and list((tmp_path / "elsewhere").iterdir()) == []


def test_an_empty_or_missing_source_is_refused_and_deletes_nothing(way, root, dest, tmp_path):
    push(way, root, dest, TOKEN)
    (tmp_path / "empty").mkdir()
    for source in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(UsageError, match="no file to send"):
            push(way, source, dest, TOKEN)
    assert len(contents(dest)) == 4


def test_a_checkout_unreadable_by_git_is_refused(way, root, dest):
    (root / ".git/HEAD").write_text("nonsense")
    with pytest.raises(UsageError, match="git cannot list the files"):
        push(way, root, dest, TOKEN)


def test_secrets_are_not_sent_by_name_and_by_content(way, root, dest):
    named = {".env": "A=1", ".env.local": "A=1", "tls/server.pem": "x", ".netrc": "machine x", "journal.sqlite": "x"}
    filled = {
        "keys/deploy": KEY,
        "notes.md": "my token is hf_" + "a" * 34,
        "run.sh": "export AWS_ACCESS_KEY_ID=AKIA" + "A" * 16,
        "gh.yaml": "token: ghp_" + "b" * 36,
    }
    sent = {".env.example": "A=", "id_rsa.py": "x = 1", "pem.py": "", "id_rsa.md": "no key at all", "a.env.md": "x"}
    write(root, named | filled | sent)
    refusals = push(way, root, dest, TOKEN).refused
    assert str(refusals[0]) == ".env: the name says that the file holds secrets"
    refused = {one.path: one.reason for one in refusals}
    assert refused.keys() == named.keys() | filled.keys()
    assert refused["keys/deploy"] == "holds a private key" and refused["notes.md"] == "holds a Hugging Face token"
    assert not refused.keys() & contents(dest).keys() and contents(dest).keys() >= sent.keys()


def test_no_source_file_of_this_repository_looks_like_a_secret():
    repository = Path(__file__).parents[3]
    assert [one for one in pack(repository).refused if one.path.endswith((".py", ".toml", ".txt"))] == []


def test_a_file_that_became_secret_is_removed_from_the_pod(way, root, dest):
    push(way, root, dest, TOKEN)
    (root / "new.txt").write_text(KEY)
    assert push(way, root, dest, TOKEN).removed == 1
    assert "new.txt" not in contents(dest)


def test_inner_links_stay_links_and_outer_links_are_not_sent(way, root, dest, tmp_path):
    (root / "inside").symlink_to("sub/run.sh")
    (root / "outside").symlink_to("../secret")
    (root / "absolute").symlink_to(root / "tracked.py")
    refused = {one.path: one.reason for one in push(way, root, dest, TOKEN).refused}
    assert refused.keys() == {"outside", "absolute"} and "a link out of the folder" in refused["outside"]
    assert os.readlink(dest / "inside") == "sub/run.sh" and not (dest / "outside").is_symlink()


def test_nothing_is_written_or_removed_through_a_link_on_the_pod(way, root, dest, tmp_path):
    push(way, root, dest, TOKEN)
    victim = tmp_path / "victim"
    write(victim, {"run.sh": "precious"})
    (dest / "sub/run.sh").unlink()
    (dest / "sub").rmdir()
    (dest / "sub").symlink_to(victim)
    with pytest.raises(UsageError, match="is behind a symbolic link"):
        push(way, root, dest, TOKEN)
    (root / "sub/run.sh").unlink()
    push(way, root, dest, TOKEN)
    assert (victim / "run.sh").read_text() == "precious"


def test_a_background_program_ends_with_its_caller_and_reports_an_early_end(way, tmp_path):
    told = tmp_path / "pid"
    with way.run_in_background(["sh", "-c", 'echo $$ > "$1"; exec sleep 600', "sh", str(told)]) as look:
        pid = int(until(lambda: told.exists() and told.read_text().strip(), "its number", 30))
        assert Path(f"/proc/{pid}").exists() and look() is None
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end", 30)
    with way.run_in_background(["sh", "-c", 'pwd >&2; exit "$1"', "sh", "7", str(told)], cwd=tmp_path) as look:
        ending = until(look, "its end", 30)
        # the caller also stops waiting for the process: a later process with the same number must get no signal
        until(lambda: not any(bytes(told) in line for line in command_lines()), "the end of its watch", 30)
    assert (ending.exited, ending.stderr.strip()) == (7, str(tmp_path))


def test_a_background_program_does_not_outlive_its_parent(tmp_path):
    told = tmp_path / "pid"
    script = (
        "import sys, time\nfrom infra.transport.protocol import ThisMachine\n"
        "words = ['sh', '-c', 'echo $$ > \"$1\"; exec sleep 600', 'sh', sys.argv[1]]\n"
        "with ThisMachine().run_in_background(words): time.sleep(600)"
    )
    owner = subprocess.Popen([sys.executable, "-c", script, str(told)], cwd=ROOT)
    try:
        pid = int(until(lambda: told.exists() and told.read_text().strip(), "its number", 30))
    finally:
        owner.kill()
        owner.wait()
    until(lambda: not Path(f"/proc/{pid}").exists(), "its end", 30)
