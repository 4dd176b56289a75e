"""An unusable entry of an inventory, and a machine removed from the inventory, disturb no other command."""

import contextlib
import json
import sqlite3
import sys

import pytest

from store import packs
from tests.hosts import sshd as sshd
from tests.world import World, until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(300),
]

BAD = {
    "words": {"password": "hunter2", "hosts": ["192.0.2.11"]},
    "keyless": {"identity_file": "/no/such/key", "hosts": ["192.0.2.12"]},
    "odd": {"hosts": [{"ip": "192.0.2.13", "usr": "x"}]},
    "broken": {"hosts": ["inner"]},
}


@pytest.fixture
def write_inventory(tmp_path, sshd):
    """Write the inventory with `write_inventory(pools)`, in which `ok` is a real machine; return the world."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    # `ssh -G` refuses this alias.
    (home / ".ssh" / "config").write_text("Host inner\n  Port nowhere\n")
    python = getattr(sys, "_base_executable", sys.executable)
    address = sshd.address
    ok = {"ip": address.host, "port": address.port, "identity_file": address.key, "python": python}
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml"), "HOME": str(home)})

    def write(**pools):
        machine = {"user": address.user, "hosts": [ok]}
        named = {name: machine if body is True else body for name, body in pools.items()}
        (tmp_path / "pools.yaml").write_text(json.dumps(named))
        return world

    yield write
    write(ok=True)
    world.inv("down", "--all")


def output(world, *words, code=0):
    process = world.run(*words)
    out, err = process.stdout, process.stderr
    assert process.returncode == code and "Traceback" not in err, (words, process.returncode, out, err)
    return out, err


def named_once(text):
    return [text.count(f"pool {pool}") for pool in BAD] == [1] * len(BAD)


def test_unusable_entries_do_not_stop_other_entries(write_inventory, sshd):
    world = write_inventory(ok=True)
    place = f"ok/{sshd.address.host}:{sshd.address.port}"
    run = world.json(
        "launch", "--cmd", "echo one; sleep 600", "--host", place, "--provider", "ssh", "--detach", "--yes"
    )
    write_inventory(**dict(list(BAD.items())[:2]), ok=True, **dict(list(BAD.items())[2:]))
    out, err = output(world, "status", "--json")
    assert [row["state"] for row in json.loads(out)] == ["running"] and named_once(err), err
    until(lambda: "one" in output(world, "logs", run["run"])[0], "its log")
    rows = world.json("pool.list")
    assert [row["pool"] for row in rows if row.get("problem") is None] == ["ok"] and len(rows) == 5
    assert named_once("\n".join(row["problem"] for row in rows if row.get("problem")))
    assert "cannot be used" in world.inv("pool.list")
    looks = {one["host"]: one["problem"] for one in world.json("pool.check", code=1)}
    assert looks[place] is None and len(looks) == 5
    output(world, "doctor")
    _, err = output(
        world, "launch", "--cmd", "true", "--host", "keyless/192.0.2.12", "--provider", "ssh", "--yes", code=2
    )
    assert "private key not found: /no/such/key" in err
    out, err = output(world, "down", run["run"], "--json")
    assert json.loads(out)["ended"] == [run["run"]]
    done = world.json("launch", "--cmd", "echo two", "--host", place, "--provider", "ssh", "--yes")
    assert done["state"] == "succeeded"
    assert world.json("launch", "--cmd", "echo here", "--provider", "local", "--yes")["state"] == "succeeded"


def test_machine_removed_from_the_inventory_disturbs_no_command(write_inventory, sshd):
    world = write_inventory(gone=True, kept=True)
    place = f"gone/{sshd.address.host}:{sshd.address.port}"
    words = ("launch", "--cmd", "echo one; sleep 600", "--yes", "--json")
    run = json.loads(output(world, *words, "--host", place, "--provider", "ssh", "--detach")[0])["run"]
    until(lambda: "one" in output(world, "logs", run)[0], "its log")
    output(world, "down", run)
    write_inventory(kept=True)
    again = json.loads(output(world, *words, "--provider", "local", "--detach")[0])["run"]
    assert again != run
    assert "one" in output(world, "logs", run)[0]
    output(world, "why", run)
    rows = {row["run"]: row["state"] for row in world.json("status")}
    assert rows == {run: "stopped", again: "running"}
    output(world, "down", again)


def damaged(row, number, **more):
    """Return a journal row like `row`, for a separate run."""
    prefix = row["token"].rpartition("-")[0]
    return {**row, "token": f"{prefix}-{number:016d}", "run": f"bad-{number}", "target": f"t{number}", **more}


def test_damaged_journal_rows_do_not_stop_other_rows(tmp_path):
    world = World(tmp_path)
    good = world.json("launch", "--cmd", "echo good", "--provider", "local", "--yes")["run"]
    odd = (
        {"job": "{"},
        {"job": '{"schema": 99}'},
        {"job": "[1]"},
        {"request": "{"},
        {"asked": "["},
        {"address": "ssh://u@h:x/?k"},
        {"vendor": "nobody"},
        {"vendor": "ssh"},
        {"vendor": "slurm"},
    )
    with contextlib.closing(sqlite3.connect(world.environ["SLIPWAY_STATE_FILE"])) as db:
        names = [one[1] for one in db.execute("PRAGMA table_info(ops)")]
        row = dict(zip(names, db.execute("SELECT * FROM ops").fetchone(), strict=True))
        for number, more in enumerate((*odd, *({**one, "state": "READY"} for one in odd))):
            new = damaged(row, number, **more)
            db.execute(f"INSERT INTO ops ({','.join(new)}) VALUES ({','.join('?' * len(new))})", [*new.values()])
        db.commit()
    page = (("ui", "--export", str(tmp_path / "page.html")),) if "page" in packs.installed() else ()
    for words in (
        ("status",),
        ("logs", good),
        ("why", good),
        ("cost",),
        ("supervisor",),
        ("pod.list",),
        ("doctor",),
        *page,
        ("down", good),
    ):
        output(world, *words)
    assert "good" in output(world, "logs", good)[0]
    assert {row["run"] for row in world.json("status")} >= {f"bad-{len(odd) + one}" for one in range(3)}
    done = world.json("launch", "--cmd", "echo new", "--provider", "local", "--yes")
    assert done["state"] == "succeeded"
    _, err = output(world, "logs", "bad-0")
    assert "bug in inv" not in err
    world.kill()  # The supervisor stays for the rows that look alive.
