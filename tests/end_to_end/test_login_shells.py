"""A launch on a machine with a chatty login shell, or a login shell other than `sh`: commands read only their own
output.
"""

import json

import pytest

from tests.end_to_end.test_street_ssh import with_machines
from tests.shells import SHELLS, machine

pytestmark = [pytest.mark.pack("jobs"), pytest.mark.process]

BY_DAY = ("bash that prints 1", "fish that greets", "tcsh that greets")


@pytest.fixture(params=[name if name in BY_DAY else pytest.param(name, marks=pytest.mark.nightly) for name in SHELLS])
def machine_world(request, tmp_path):
    """Return a world with one machine that has the login shell, and the shell."""
    with machine(tmp_path, request.param) as host:
        world = with_machines(tmp_path, host)
        yield world, SHELLS[request.param]
        world.inv("down", "--all")


@pytest.mark.day_cases(1)
@pytest.mark.timeout(600)
def test_launch_and_later_commands_ignore_the_output_of_a_login_shell(machine_world, tmp_path):
    world, shell = machine_world
    looked = world.inv("pool.up") + world.inv("pool.check") + world.inv("doctor", "--provider", "ssh")
    assert looked.count(f"shell prints: {shell.says}") >= (3 if shell.says in ("1", "busy") else 0)
    assert ("shell prints" in looked) is bool(shell.says) and shell.says in looked and "\x1b" not in looked

    work = tmp_path / "project"
    work.mkdir()
    (work / "data.txt").write_text("of the project\n")
    (place,) = world.json("pool.list")
    where = ("--provider", "ssh", "--host", f"{place['pool']}/{place['host']}", "--no-accept")
    world.inv("launch", "--cmd", "echo one; cat data.txt", "--workdir", str(work), *where, "--yes")
    (row,) = world.json("status")
    assert row["state"] == "succeeded"
    log = world.inv("logs", row["run"])
    assert {"one", "of the project"} <= set(log.splitlines())
    assert not [line for line in log.splitlines() if line in ("1", "-1", "busy", "12345", "LOGGED", "Welcome to fish")]
    assert "says hello" not in log and "3 messages" not in log

    world.inv("pod.create", "--run-name", "a", *where)
    assert "files" in world.inv("pod.sync", "a", "--plan")
    (told,) = json.loads(world.inv("on", "--json", "a", "--", "echo", "it is here"))["machines"]
    assert told["stdout"] == "it is here\n"
    world.inv("pull", "a")
