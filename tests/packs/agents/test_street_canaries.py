"""A shell of the agent's user searches for planted secrets: no secret is in reach under `--user`."""

import json
import os
import shutil
import subprocess
import tempfile
import threading
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from infra.agent.environments import cache_folder
from tests.needs import PRIVILEGE
from tests.packs.agents.holder import Agent, market_of
from tests.world import ROOT, World

pytestmark = [pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(900), pytest.mark.needs(PRIVILEGE)]

SEARCH = Path(__file__).with_name("canaries.py")
SECONDS = float(os.environ.get("CANARY_SECONDS", "20"))
USER = "nobody"


@pytest.fixture
def open_world():
    """Yield an installation in folders that every user may enter: only the modes of Slipway's files protect."""
    folder = Path(tempfile.mkdtemp(prefix="owner-", dir="/tmp"))
    folder.chmod(0o755)
    one = World(folder, {"SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache())})
    mask = os.umask(0o022)
    try:
        yield one
    finally:
        os.umask(mask)
        one.inv("down", "--all", "--rehearse")
        one.inv("rehearse", "--stop")
        one.kill()
        shutil.rmtree(folder)


def search(secrets: dict[str, str], seconds: float, folders: list[str], user: str) -> dict[str, Any]:
    """Return the findings of a search as a user, "" = the owner."""
    line = ["/usr/bin/env", "-i", "/usr/bin/python3", "-I", "-", str(seconds), *folders]
    # The program comes on stdin of a shell, since the user cannot read every checkout; so do the secrets.
    program = f"import io, sys; sys.stdin = io.StringIO({json.dumps(secrets)!r})\n{SEARCH.read_text()}"
    more: dict[str, Any] = {"user": user, "group": "nogroup", "extra_groups": []} if user else {}
    done = subprocess.run(line, input=program, cwd="/", capture_output=True, text=True, check=True, **more)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_shell_of_the_user_of_an_allowance_finds_no_planted_secret(open_world):
    world = open_world
    agent = Agent(world, "apart", user=USER, machines="2")
    other = world.json("allow", "other", "--spend", "1", "--ttl", "1h", "--rehearse")
    about = market_of(world).about
    secrets = {f"key of {name}": about[name]["key"] for name in ("runpod", "lium", "shadeform")}
    stored = json.loads((agent.folder / "other.json").read_text())["token_sha256"]
    secrets |= {"other token": other["token"], "stored token": stored, "settings file": token_hex(20)}
    (world.folder / "env").write_text(f"RUNPOD_API_KEY={secrets['settings file']}\n")
    (world.folder / "env").chmod(0o600)
    agent.folder = agent.shared
    stop = threading.Event()

    def work() -> None:
        """Keep the broker busy, so that processes with keys come and go."""
        while not stop.is_set():
            plan = agent.ask("plan", spend_usd=0.5, phase="base", profile="tiny", steps=3)
            agent.ask("launch", plan_id=plan.get("result", {}).get("plan_id", "plan-aaaaaaaaaaaa"))
            agent.ask("status")

    busy = threading.Thread(target=work)
    busy.start()
    try:
        folders = [str(world.folder), str(ROOT), *(str(one) for one in Path(tempfile.gettempdir()).glob("slipway-*"))]
        said = search(secrets, SECONDS, folders, USER)
        ours = search(secrets, 1.0, folders[:1], "")
    finally:
        stop.set()
        busy.join()
    print(f"as {USER}: {len(said['found'])} secrets in {said['read']}; as the owner: {len(ours['found'])}")
    assert said["found"] == []
    assert min(said["read"][kind] for kind in ("files", "processes", "sockets")) > 0
    assert {name for _, name in ours["found"]} == {*secrets} - {"other token"}, "the search finds planted secrets"
