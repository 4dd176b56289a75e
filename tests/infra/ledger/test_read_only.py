"""A journal in a read-only folder is read, and reports the limitation."""

import json
import subprocess
import sys

import pytest

from infra.ledger.journal import Journal
from infra.names import new_token
from tests.world import ROOT, World

pytestmark = pytest.mark.process
# A private mount, visible to this process only.
FIXED = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && shift && exec "$@"'
ASK = """
import sys
from infra.journal_file import JournalError
from infra.ledger.journal import Journal
with Journal.open(sys.argv[1]) as journal:
    print(journal.installation, [op.run for op in journal.ops()], journal.problem)
    try:
        journal.plan(token="sw1-aaaaaaaa-bbbbbbbb", run="new", vendor="local")
    except JournalError as error:
        print("refused:", error)
"""


def fixed(folder, *words, **more):
    line = ["unshare", "-m", "sh", "-c", FIXED, "sh", str(folder), *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, **more)


@pytest.fixture
def world(tmp_path):
    (tmp_path / "state").mkdir()
    if fixed(tmp_path / "state", "true").returncode:
        pytest.skip("this process may mount nothing")
    return World(tmp_path)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_journal_in_a_read_only_folder_is_only_read(world, is_open):
    path = world.environ["SLIPWAY_STATE_FILE"]
    with Journal.open(path, world.environ) as journal:
        journal.plan(token=new_token(journal.installation), run="brave-otter-1", vendor="local")
        installation = journal.installation
        if is_open:  # the log of commits exists
            found = fixed(world.folder / "state", sys.executable, "-c", ASK, path, env=world.environ)
    if not is_open:
        found = fixed(world.folder / "state", sys.executable, "-c", ASK, path, env=world.environ)
    assert found.returncode == 0, found.stderr
    first, second = found.stdout.splitlines()
    problem = f"journal {path} is read-only: Read-only file system; "
    assert first.startswith(f"{installation} ['brave-otter-1'] {problem}")
    assert second.startswith("refused: ")


@pytest.mark.pack("jobs")
def test_status_works_read_only_and_says_so(world):
    run = world.json("launch", "--cmd", "echo hello", "--provider", "local", "--yes")["run"]
    done = fixed(world.folder / "state", sys.executable, "-m", "invoke", "status", "--json", env=world.environ)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    assert [(row["run"], row["state"]) for row in json.loads(done.stdout)] == [(run, "succeeded")]
    assert done.stderr.count("is read-only: Read-only file system") == 1
    words = ("launch", "--cmd", "true", "--provider", "local", "--yes")
    done = fixed(world.folder / "state", sys.executable, "-m", "invoke", *words, env=world.environ)
    assert done.returncode != 0 and "is read-only" in done.stderr, done.stderr
    assert "bug in inv" not in done.stderr
