"""`inv init` at a separate terminal, with a vendor on loopback: output, questions, and written files."""

import os
import pty
import select
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.infra.market import runpod_stand
from tests.infra.market.stand import Answer, Stand

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys
from pathlib import Path
from invoke import Exit
from scripts.cli import context
from scripts.cli.invoke_patch import convert_errors
from scripts.project import init
from scripts.project.init import InitFlags
init.ROOT = context.ROOT = Path(sys.argv[1])
try:
    with convert_errors(Path(sys.argv[1], "var", "logs"), "init"):
        init.init.work(InitFlags(provider=sys.argv[2] if sys.argv[2:] else ""))
except Exit as leaving:
    print(leaving.message, file=sys.stderr)
    sys.exit(leaving.code)
"""
GOOD, BAD = "rpa_GOOD" + "x" * 20, "rpa_BAD" + "y" * 20


class Terminal:
    """The command on a terminal; input is typed after each question."""

    def __init__(self, folder: Path, environ: dict[str, str], *words: str) -> None:
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.execve(sys.executable, [sys.executable, "-c", PROGRAM, str(folder), *words], environ)
        self.seen, self.read = "", 0

    def until(self, text: str) -> str:
        """Return the output since the last call, up to this text."""
        deadline = time.monotonic() + 60
        while text not in self.seen[self.read :]:
            assert select.select([self.terminal], [], [], max(0.0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        end = self.seen.index(text, self.read) + len(text)
        found, self.read = self.seen[self.read : end], end
        return found

    def answer(self, question: str, line: str) -> None:
        self.until(question)
        time.sleep(0.05)  # getpass discards input typed before its question.
        os.write(self.terminal, f"{line}\n".encode())

    def end(self) -> int:
        try:
            while piece := os.read(self.terminal, 4096):
                self.seen += piece.decode(errors="replace")
        except OSError:  # The terminal closes with the program.
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])


@pytest.fixture
def environ(tmp_path):
    me = {"data": {"myself": {"id": "u1", "email": "you@example.com", "clientBalance": 12.5}}}

    with Stand(("Authorization", f"Bearer {GOOD}"), paths=["/graphql"], document=runpod_stand.DOCUMENT) as runpod:
        runpod.on("POST /graphql", Answer(200, me))
        plain = {name: value for name, value in os.environ.items() if "API_KEY" not in name}
        yield {
            **plain,
            "HOME": str(tmp_path),
            "PYTHONPATH": str(ROOT),
            "TERM": "dumb",
            "SLIPWAY_RUNPOD_URL": runpod.url,
            "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.sqlite"),
        }


def test_key_is_checked_stored_privately_and_never_shown(tmp_path, environ):
    (tmp_path / ".env").write_text("# mine\nSHADEFORM_API_KEY=sf-there\n")
    one = Terminal(tmp_path, environ, "runpod")
    one.answer("RUNPOD_API_KEY: ", BAD)
    one.until("refused")
    one.answer("RUNPOD_API_KEY: ", GOOD)
    assert "you@example.com, a balance of 12.50 USD" in one.until("written")
    assert one.end() == 0
    assert GOOD not in one.seen and BAD not in one.seen
    assert (tmp_path / ".env").read_text() == f"# mine\nSHADEFORM_API_KEY=sf-there\nRUNPOD_API_KEY={GOOD}\n"
    assert stat.S_IMODE((tmp_path / ".env").stat().st_mode) == 0o600
    before = (tmp_path / ".env").stat()
    again = Terminal(tmp_path, environ, "runpod")
    again.answer("(Enter keeps it): ", "")
    assert again.end() == 0 and "good: you@example.com" in again.seen
    assert (tmp_path / ".env").stat().st_mtime_ns == before.st_mtime_ns


def test_store_is_tried_and_the_end_of_the_input_ends_the_questions(tmp_path, environ):
    (tmp_path / "~").touch()  # A store in the home folder is not tried here.
    one = Terminal(tmp_path, environ)
    for name in ("RUNPOD", "LIUM", "SHADEFORM"):
        one.answer(f"{name}_API_KEY: ", "")
    one.answer("SLIPWAY_STORE (Enter keeps it): ", "/proc/nowhere")
    one.answer("[y/N] ", "n")
    one.answer("SLIPWAY_STORE (Enter keeps it): ", "~/models")
    one.until("good: the store is writable")
    assert one.end() == 0 and "./inv launch --phase sft" in one.seen
    assert (tmp_path / ".env").read_text() == "SLIPWAY_STORE=~/models\n"
    two = Terminal(tmp_path, environ)
    two.until("RUNPOD_API_KEY: ")
    time.sleep(0.05)
    os.write(two.terminal, b"\x04")
    assert two.end() == 0


def test_ctrl_c_ends_the_questions_on_a_line_of_its_own(tmp_path, environ):
    one = Terminal(tmp_path, environ, "lium")
    one.until("LIUM_API_KEY: ")
    os.write(one.terminal, b"\x03")
    assert one.end() == 130
    assert "\r\nstopped; earlier answers are kept in .env\r\n" in one.seen, one.seen


def test_init_without_a_terminal_explains_the_next_command_and_changes_no_file(tmp_path, environ):
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(words, env=environ, input="x\n", capture_output=True, text=True)
    assert done.returncode == 2 and "cp .env.example .env && chmod 600 .env" in done.stderr
    assert not (tmp_path / ".env").exists()
