"""The check of commit messages, run by git as a hook of a repository, and the size of tracked files."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
CHECK = Path(__file__).parent.parent / ".ci" / "commit-msg"
GOOD = "ssh: frame remote output\n\nStart-up files print before a command does.\n"


@pytest.fixture
def repository(tmp_path):
    """Return a function that runs git in a new repository with the check as a hook."""

    def git(*words: str) -> subprocess.CompletedProcess:
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "core.hooksPath=.ci"]
        return subprocess.run(["git", *names, *words], cwd=tmp_path, capture_output=True, text=True)

    git("init", "-q", "-b", "main")
    (tmp_path / ".ci").mkdir()
    shutil.copy(CHECK, tmp_path / ".ci" / "commit-msg")
    git("add", ".")
    assert git("commit", "-q", "-m", GOOD).returncode == 0
    return git


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (GOOD, ""),
        ("trainer/rl: process answers apart\n\nA reason.", ""),
        ("The log\n\nA reason.", "not `scope: change`"),
        ("ssh: frame remote output", "no blank line"),
        ("ssh: frame remote output\nA reason without a blank line.", "no blank line"),
        ("ssh: framed remote output\n\nA reason.", "'framed' is not imperative"),
        ("ssh: frames remote output\n\nA reason.", "'frames' is not imperative"),
        ("ssh: frame remote output.\n\nA reason.", "not `scope: change`"),
        (f"ssh: frame {'x' * 72}\n\nA reason.", "at most 72"),
    ],
)
def test_a_message_is_accepted_or_refused_with_the_reason(repository, message, words):
    done = repository("commit", "-q", "--allow-empty", "-m", message)
    assert (words in done.stderr) if words else (done.stderr == "")
    assert (done.returncode == 0) == (not words)


def test_the_history_check_names_merges_and_log_only_commits(repository, tmp_path):
    def check() -> list[str]:
        done = subprocess.run([".ci/commit-msg", "--history"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == (1 if done.stderr else 0)
        return done.stderr.splitlines()

    repository("commit", "-q", "--allow-empty", "-m", GOOD)
    assert check() == []
    log = tmp_path / "dev" / "log" / "2026-12.md"
    log.parent.mkdir(parents=True)
    log.write_text("x\n")
    repository("add", ".")
    repository("commit", "-q", "-m", "log: add an entry\n\nA reason.")
    repository("checkout", "-q", "-b", "side", "HEAD~1")
    repository("commit", "-q", "--allow-empty", "-m", GOOD)
    repository("merge", "-q", "--no-ff", "--no-verify", "-m", "Merge side", "main")
    wrong = check()
    assert len(wrong) == 4
    for words in ("only the log", "a merge", "not `scope: change`", "no blank line"):
        assert any(words in line for line in wrong), words


def test_no_tracked_file_exceeds_a_megabyte():
    root = CHECK.parents[1]
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True)
    if listed.returncode:  # an export without a repository
        return
    sizes = {
        name: (root / name).stat().st_size
        for name in filter(None, listed.stdout.split("\0"))
        if (root / name).is_file()
    }
    assert not {name: size for name, size in sizes.items() if size > 1_000_000}
