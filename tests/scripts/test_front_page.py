"""The first screen, the list of commands, the version, and Tab in real shells."""

import contextlib
import os
import pty
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import tasks
from infra.ledger.journal import Journal
from scripts.cli import front_page
from scripts.cli.value_completion import values
from store import packs
from tests import fork_server

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
INV = ROOT / "inv"


def inv(*words: str) -> str:
    """Return the output of `./inv`, which must exit with 0."""
    done = fork_server.run(words, os.environ)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def before_any_environment(*words: str, code: int = 0) -> str:
    """Return the output of `./inv` under the system's Python, without creating .venv."""
    done = subprocess.run(["python3", INV, *words], cwd="/", capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stdout


def test_inv_alone_introduces_the_project_with_six_commands_in_twenty_lines():
    screen = inv()
    assert len(screen.splitlines()) <= 20 and max(map(len, screen.splitlines())) <= 80
    shown = re.findall(r"^  \./inv ([a-z.]+) ", screen, re.MULTILINE)
    assert shown[:6] == ["launch", "chat", "status", "down", "serve.up", "rehearse"]
    assert set(shown) <= set(tasks.namespace.task_names)
    assert all((ROOT / page).is_file() for page in re.findall(r"docs/[a-z/-]+\.md", screen))


def test_help_is_a_word_too():
    assert inv("help").startswith("Slipway trains")
    assert "--rehearse" in inv("help", "hosts")


def test_list_has_24_lines_of_the_core_and_one_per_pack():
    *lines, foot = inv("--list").splitlines()
    rows = [line for line in lines if line.startswith("  ")]
    assert len(rows) - len(packs.installed()) <= 24 and max(map(len, lines)) <= 80
    shown = {line.split()[0] for line in rows}
    collections = {name.rpartition(".")[0] for name in tasks.namespace.task_names} & set(front_page.COLLECTIONS)
    assert shown == {*front_page.FIRST, *(f"{name}.*" for name in collections), *packs.installed()}
    assert "--list --all" in foot


def test_list_of_all_groups_every_command_by_noun_in_eighty_columns():
    *lines, foot = inv("--list", "--all").splitlines()
    assert max(map(len, lines)) <= 80
    titles = [line for line in lines if not line.startswith(" ")]
    assert titles == [*dict.fromkeys(front_page.ROOMS.values()), *([front_page.PACKS] if packs.installed() else [])]
    listed = {line.split()[0] for line in lines if line.startswith(" ")}
    assert listed == set(tasks.namespace.task_names) - set(front_page.REFUSED)
    assert "docs/reference/commands.md" in foot


def test_folder_of_scripts_unknown_to_the_list_is_listed_all_the_same(monkeypatch):
    monkeypatch.delitem(front_page.ROOMS, "store")
    lines = list(front_page.listing(tasks.namespace))
    assert any(line.startswith("  store.gc ") for line in lines[lines.index("Other") :])


def test_part_of_the_list_and_json_equal_invoke():
    assert ".gc" in inv("--list", "store")
    assert '"name": "launch"' in inv("--list", "--list-format", "json")


def test_version_is_the_version_of_the_project_and_names_invoke():
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    pinned = re.search(r"^invoke==(.+)$", (ROOT / "constraints" / "control.txt").read_text(), re.MULTILINE)
    for flag in ("--version", "-V"):
        assert before_any_environment(flag) == f"Slipway {declared[1]} (invoke {pinned[1]})\n"


@pytest.mark.day_cases(3)
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        (["la"], {"launch"}),
        (["tokenizer"], {"tokenizer", "tokenizer.train", "tokenizer.eval"}),
        (["launch", "--pha"], {"--phase"}),
        (["launch", "--phase", "sft", "--pha"], set()),  # The word exists.
        (["logs", "brave-otter-3", "--fol"], {"--follow"}),
        (["pod.create", "--gpu", "H100", "pod.sy"], {"pod.sync"}),
        (["status", "--watch", "sta"], {"status"}),  # The value is optional.
        (["launch", "--seed", ""], set()),  # A value: the shell offers files.
        (["launch", "--phase", "sf"], {"sft"}),
        (["launch", "--phase", "mid+sf"], {"mid+sft"}),
        (["launch", "--profile=tin"], {"--profile=tiny"}),  # zsh keeps the word together.
        (["offers", "--gpu", "H100,B2"], {"H100,B200"}),
        (["launch", "--profile", "launch", "--dr"], {"--dry-run"}),
        (["launch", "--profile", "=", "tin"], {"tiny"}),  # bash's words of --profile=tin.
        (["ssh", "RUN", "--", "la"], set()),
        (["--lis"], {"--list", "--list-depth", "--list-format"}),
    ],
)
def test_tab_offers_matching_words(line, offered):
    found = set(inv("--complete", "--", "./inv", *line).split())
    assert {one for one in found if one.startswith(line[-1])} == offered


def test_tab_offers_runs_and_models_for_values_and_bare_words(tmp_path, monkeypatch):
    store, journal = tmp_path / "store", tmp_path / "journal.sqlite"
    for model in ("base_checkpoints/mine", "chatsft_checkpoints/mine", "chatsft_checkpoints/other"):
        (store / model).mkdir(parents=True)
    monkeypatch.setenv("SLIPWAY_STORE", str(store))
    monkeypatch.setenv("SLIPWAY_STATE_FILE", str(journal))

    assert values("run", "", []) == []  # There is no journal yet.
    with Journal.open(journal) as opened:
        opened.plan(token="sw1-aaaaaaaa-bbbbbbbb", run="calm-owl-1", vendor="local")
    assert inv("--complete", "--", "./inv", "status", "").split() == values("run", "ca", []) == ["calm-owl-1"]
    assert "calm-owl-1" not in inv("--complete", "--", "./inv", "status", "calm-owl-1", "ca").split()
    of_sft = ["chatsft_checkpoints/mine", "chatsft_checkpoints/other"]
    assert values("model", "", []) == ["base", "base_checkpoints/mine", *of_sft, "mine", "other", "sft"]
    assert values("tag", "o", []) == ["other"]


def test_tab_completion_creates_no_environment(tmp_path):
    copy = tmp_path / "inv"
    copy.write_text(INV.read_text())
    done = subprocess.run(["python3", copy, "--complete", "--", "./inv", "la"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert os.listdir(tmp_path) == ["inv"]


class Shell:
    """An interactive shell on a separate terminal, in a folder with this checkout's `inv`."""

    def __init__(self, folder: Path, *words: str) -> None:
        checkout = folder / "checkout"
        checkout.mkdir()
        (checkout / "inv").write_text(
            f'#!/bin/sh\n[ "$1" = --print-completion-script ] && exec python3 {INV} "$@"\n'
            f'cd {ROOT} && exec {sys.executable} -m invoke "$@"\n'
        )
        (checkout / "inv").chmod(0o755)
        environ = {**os.environ, "HOME": str(folder), "TERM": "dumb", "PS1": "ready> ", "PROMPT": "ready> "}
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.chdir(checkout)
            os.execvpe(words[0], words, environ)
        self.seen = ""

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self.terminal, text.encode())

    def wait_for(self, text: str) -> str:
        """Read until the terminal has shown `text` after the last keys; return all of the output."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            assert select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        return self.seen

    def end(self) -> None:
        os.close(self.terminal)  # The shell receives SIGHUP.
        os.waitpid(self.child, 0)


@contextlib.contextmanager
def shell(folder: Path, *words: str) -> Iterator[Shell]:
    one = Shell(folder, *words)
    try:
        yield one
    finally:
        one.end()


SHELLS = {"bash": ("bash", "--norc", "--noprofile", "-i"), "zsh": ("zsh", "-f", "-i")}


@pytest.mark.parametrize("name", [pytest.param("bash"), pytest.param("zsh", marks=pytest.mark.needs("zsh"))])
def test_tab_completes_typed_words_in_a_real_shell(tmp_path, name):
    with shell(tmp_path, *SHELLS[name]) as one:
        one.wait_for("ready> ")
        one.type(f"source <(./inv --print-completion-script {name}); echo sourced=$?\n")
        one.wait_for("sourced=0")
        one.wait_for("ready> ")
        for typed, completed in (
            ("./inv la\t", "./inv launch "),
            ("--no-acc\t", "--no-accept "),
            ("pod.sy\t", "pod.sync "),
        ):
            one.type(typed)
            said = one.wait_for(completed.split()[-1] + " ")
            assert "rror" not in said and "not found" not in said
        one.type("\x15./inv launch --env-file in\t")  # The whole line is erased; a value is a file.
        one.wait_for("--env-file inv ")


MAKING = """
import sys, types
inv = types.ModuleType("inv")
inv.__file__ = sys.argv[1]
exec(compile(open(sys.argv[1]).read(), "inv", "exec"), inv.__dict__)
def work():
    sys.stdin.readline()
    inv.say("Resolved 46 packages")
    sys.stdin.readline()
    return 7
sys.exit(inv.with_progress_line(work))
"""


def test_progress_line_moves_while_the_first_command_creates_its_environment():
    ours, theirs = pty.openpty()
    child = subprocess.Popen(["python3", "-c", MAKING, INV], stdin=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    seen = b""
    try:
        while len(set(re.findall(rb"\r([-|/\\\\]) inv: creating the environment, \d+ s", seen))) < 2:
            seen += os.read(ours, 4096)
        child.stdin.write(b"\n")
        child.stdin.flush()
        # The moving line returns after the message.
        while not re.search(rb"\r +\rinv: Resolved 46 packages\r\n.*creating the environment", seen, re.DOTALL):
            seen += os.read(ours, 4096)
        child.communicate(b"\n", timeout=60)
        with contextlib.suppress(OSError):  # No process has the terminal open any more.
            while part := os.read(ours, 4096):
                seen += part
        assert re.search(rb"\r +\r\Z", seen)
        assert child.returncode == 7
    finally:
        child.kill()
        child.wait(60)
        os.close(ours)


def test_progress_line_needs_a_terminal():
    done = subprocess.run(["python3", "-c", MAKING, INV], input=b"\n\n", capture_output=True)
    assert (done.returncode, done.stderr) == (7, b"inv: Resolved 46 packages\n")
