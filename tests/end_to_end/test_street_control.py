"""A control host: a real sshd with a home of its own, and laptops whose commands all run there."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from infra import journal_moves
from infra.control.places import Places
from infra.ledger.journal import Journal
from tests.hosts import sshd as sshd
from tests.world import ROOT, World, until

pytestmark = [pytest.mark.process, pytest.mark.needs("sshd", "ssh-keygen"), pytest.mark.timeout(300)]


class Laptop(World):
    """An installation that knows one machine, `host`."""

    host = ""

    @property
    def journal(self):
        return self.folder / "state" / "journal.db"

    def on_terminal(self, *words, rows=31, columns=117):
        """Begin a command on a terminal of its own; its process and our end."""
        ours, theirs = pty.openpty()
        import fcntl
        import struct
        import termios

        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-c", "import os, sys; os.login_tty(0) if hasattr(os, 'login_tty') else None; "
             "os.execv(sys.executable, [sys.executable, '-m', 'invoke', *sys.argv[1:]])", *words],
            cwd=ROOT, env=self.environ, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        return process, ours


def laptop_of(folder, sshd, **more):
    folder.mkdir(exist_ok=True)
    python = getattr(sys, "_base_executable", sys.executable)
    address = sshd.address
    box = {"ip": address.host, "port": address.port, "identity_file": address.key, "python": python}
    (folder / "pools.yaml").write_text(json.dumps({"box": {"user": address.user, "hosts": [box]}}))
    (folder / "home").mkdir()
    one = Laptop(folder, {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "HOME": str(folder / "home"), **more})
    one.host = f"{address.host}:{address.port}"
    return one


@pytest.fixture
def laptop(tmp_path, sshd):
    one = laptop_of(tmp_path / "laptop", sshd)
    yield one
    end_all(sshd)


def places_of(sshd):
    return Places(sshd.folder / ".slipway" / "control")


def end_all(sshd):
    """End every process that works for the control host."""
    mine = f"HOME={sshd.folder}".encode()
    for path in [one for one in os.scandir("/proc") if one.name.isdigit()]:
        try:
            with open(f"/proc/{path.name}/environ", "rb") as file:
                if mine in file.read().split(b"\0"):
                    os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue


def read_until(terminal, pattern, within_s=60.0):
    """What the terminal shows until the pattern is in it."""
    shown, deadline = b"", time.monotonic() + within_s
    while not re.search(pattern, shown):
        assert time.monotonic() < deadline, shown.decode(errors="replace")
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 1 << 16)
    return shown.decode(errors="replace")


def test_commands_run_on_the_control_host_and_everything_comes_home(laptop, sshd, tmp_path):
    places = places_of(sshd)
    up = laptop.json("control.up", laptop.host)
    with pytest.raises(Exception, match=f"moved to {laptop.host}.*--control"), Journal.open(laptop.journal):
        pass
    assert [one.stat().st_mode & 0o777 for one in (places.env, places.state_file)] == [0o600, 0o600]
    # The run is begun, followed and seen there; its exit code and its JSON are as at home.
    (ROOT / "var").mkdir(exist_ok=True)
    done = laptop.json("launch", "--phase", "base", "--provider", "local", "--yes")
    assert (done["state"], done["ran"][-1]) == ("succeeded", "base")
    assert (places.var / "pods" / done["run"] / "state" / "verdict.json").exists()
    assert not (laptop.folder / "pods").exists()
    assert [row["state"] for row in laptop.json("status")] == ["succeeded"]
    assert "nothing is called 'nowhere'; available" in failed(laptop, "logs", "nowhere")
    assert failed(laptop, "nosuch", code=2)
    # Another laptop works through it with words alone, and keeps its own journal.
    other = laptop_of(tmp_path / "other", sshd, SLIPWAY_CONTROL=laptop.host)
    assert [row["run"] for row in other.json("status")] == [done["run"]]
    assert not other.journal.exists()
    assert "another installation" in failed(other, "control.up", laptop.host)
    # Where the connection cannot be made, what was known last is told.
    sshd.stop()
    said = failed(laptop, "status", code=1)
    assert "last seen alive" in said and "control.down --lost" in said
    assert "another machine" not in said
    sshd.start()
    assert laptop.json("control.down")["host"] == laptop.host
    assert not places.env.exists() and not places.about.exists()
    with Journal.open(laptop.journal) as journal:
        assert journal.installation == up["installation"]
        assert journal.runs() == [done["run"]]
    assert "no control host" in failed(other, "status", code=2)
    assert laptop.json("control.up", laptop.host)["installation"] == up["installation"]  # and there again


def failed(world, *words, code=2):
    """What a command says on stderr that leaves with `code`."""
    process = world.begin(*words)
    _, err = process.communicate(timeout=120)
    assert process.returncode == code and "Traceback" not in err, (process.returncode, err)
    return err
