"""The commands on the pages, run every night: each page in a fresh world, from the first line to the last."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.settings import VENDORS, Settings
from tests.docs.pages import ACCOUNT, BY_HAND, INTERRUPT, ROOT, blocks, name

pytestmark = pytest.mark.nightly

RUNNABLE = [page for page in BY_HAND if any(block.mark != ACCOUNT for block in blocks(page))]
LONGEST_S = 1200  # Timeout of one command; no command should need a tenth of the time.


class Reader:
    """A user who has cloned the project and types the commands of a page."""

    def __init__(self, folder: Path) -> None:
        self.checkout = folder / "slipway"
        listed = subprocess.check_output(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, text=True)
        for one in filter(None, listed.split("\0")):
            if (ROOT / one).is_file():
                (self.checkout / one).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / one, self.checkout / one)
        subprocess.run(["git", "init", "-q"], cwd=self.checkout, check=True)
        subprocess.run(["git", "add", "-A"], cwd=self.checkout, check=True)
        hidden = {"CI", "PYTHONPATH", "VIRTUAL_ENV", *(key.upper() for key in VENDORS.values())}
        kept = {key: value for key, value in os.environ.items() if key not in hidden and not key.startswith("SLIPWAY_")}
        self.environ = {
            **kept,
            "SLIPWAY_STATE_FILE": str(folder / "state" / "journal.sqlite"),
            "SLIPWAY_ENVIRONMENTS": str(Settings.load(ROOT).environments),  # These take minutes to make.
            "SLIPWAY_PROFILE": "tiny",  # Pages show the default, which trains for minutes.
            "SLIPWAY_RESERVE_BYTES": "0",
            "XDG_CONFIG_HOME": str(folder / "config"),
        }

    def begin(self, line: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=self.checkout,
            env=self.environ,
            text=True,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def type(self, line: str, mark: str) -> None:
        """Run a line of a page, which must exit with 0. Interrupt an endless line after the first output."""
        process = self.begin(line)
        try:
            if mark == INTERRUPT:
                assert process.stdout and process.stdout.readline()
                os.killpg(process.pid, signal.SIGINT)
            out, err = process.communicate(timeout=LONGEST_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == (130 if mark == INTERRUPT else 0), f"{line}\n{out}\n{err}"
        assert "Traceback" not in err, f"{line}\n{err}"


@pytest.fixture
def reader(tmp_path) -> Iterator[Reader]:
    one = Reader(tmp_path)
    yield one
    for line in ("./inv serve.down --all", "./inv rehearse --stop", "./inv down --all"):
        one.begin(line).communicate(timeout=LONGEST_S)


@pytest.mark.needs("sshd", "ssh-keygen")
@pytest.mark.timeout(4 * LONGEST_S)
@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_commands_of_a_page_run(page, reader):
    for block in blocks(page):
        for line in block.lines if block.mark != ACCOUNT else ():
            reader.type(line, block.mark)
