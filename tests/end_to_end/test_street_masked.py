"""The secrets of a job are in no local copy of the logs, and in no output of a command."""

import stat
from pathlib import Path

import pytest

from store import packs
from tests.world import World, until

pytestmark = [pytest.mark.pack("jobs"), pytest.mark.process, pytest.mark.nightly]

SECRET = "pg://admin:" + "s3cr3t-Zq8vT3" + "@db"
RUN = """python -u -c '
import base64, os, pathlib, sys, time
value = os.environ["DB_DSN"]
print("begin", value, base64.b64encode(value.encode()).decode(), flush=True)
sys.stdout.write("half " + value[:9]); sys.stdout.flush()
while not pathlib.Path("GO").exists():
    time.sleep(0.05)
print(value[9:]); sys.exit(value)
'"""


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path / "world")
    yield one
    one.inv("down", "--all")


def files_with(folder: Path, text: str) -> list[str]:
    """Return the local files that contain a text; files on the pod do not count."""
    files = [path for path in folder.rglob("*") if path.is_file() and "pods" not in path.relative_to(folder).parts]
    return [str(path) for path in files if text.encode() in path.read_bytes()]


def test_secret_printed_by_a_job_is_masked_in_every_log(world, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text("a")
    words = ["launch", "--cmd", RUN, "--workdir", str(tmp_path / "work"), "--provider", "local", "-n", "leaky"]
    world.inv(*words, "--secret", f"DB_DSN={SECRET}", "--detach")
    pod = world.folder / "pods" / "leaky"
    until(lambda: (log := pod / "logs" / "run.log").exists() and b"half " in log.read_bytes(), "half of a secret")
    told = world.inv("logs", "leaky")  # A different shell, which never received the secret.
    assert "begin " + "*" * len(SECRET) + " " in told and told.endswith("half ")
    (pod / "workdir" / "GO").touch()
    until(lambda: world.verdicts(), "the end of the job")
    export = tmp_path / "page"
    said = [
        world.inv("logs", "leaky"),
        world.inv("logs", "leaky", "--errors"),
        world.inv("why", "leaky"),
        world.inv("status", "--json"),
    ]
    if "page" in packs.installed():
        said.append(world.inv("ui", "--export", str(export)))
    page = "".join(path.read_text(errors="replace") for path in export.rglob("*") if path.is_file())
    assert "half " + "*" * len(SECRET) + "\n" in said[0] and ("begin " in page) is ("page" in packs.installed())
    assert [one for one in (*said, page) if SECRET in one or SECRET[11:24] in one] == []
    assert files_with(world.folder, SECRET[11:24]) == [] and files_with(world.folder, "half ****")
    for log in (pod / "logs" / "run.log", *(one for one in world.folder.rglob("run.log") if "pods" not in one.parts)):
        assert stat.S_IMODE(log.stat().st_mode) == 0o600, log
