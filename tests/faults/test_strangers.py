"""A foreign machine at the address of a pod: every command stops before sending anything."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from infra.agent.process import end_all
from infra.ledger.journal import Journal
from infra.providers.ssh import SshPools
from infra.settings import Settings
from tests.faults.trial import COUNT, RUN, checkout, plan, rounds
from tests.hosts import Host, hosts  # noqa: F401 (a fixture)
from tests.street import launch_on
from tests.world import ROOT, World

pytestmark = pytest.mark.process

COMMANDS = {  # with the exit code of each command
    "status": 0,
    f"logs {RUN}": 1,
    f"logs {RUN} --follow": 1,
    f"pull {RUN}": 1,
    f"ssh {RUN} -- true": 1,
    f"pod.sync {RUN}": 1,
    f"pod.sync {RUN} --plan": 1,
    "pool.up": 1,
    "pool.check": 1,
    "launch --provider ssh --phase base --yes": 3,
    f"down {RUN}": 1,
}


def change_key(first: Host, _: Host) -> Host:
    first.change_key()
    return first


def take_address(first: Host, second: Host) -> Host:
    first.cut()
    second.take_address(first)
    return second


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("replace", [change_key, take_address])
@rounds(1, 10)
def test_commands_send_nothing_to_a_machine_with_a_changed_key(hosts, tmp_path, replace, rounds):  # noqa: F811
    first, second = hosts(2)
    machine = {"ip": first.address.host, "user": first.address.user, "identity_file": first.address.key}
    (tmp_path / "pools.yaml").write_text(json.dumps({"lab": {"hosts": [machine]}}))
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml")})
    settings = Settings.load(ROOT, environ=world.environ)
    provider = SshPools.from_settings(settings)
    with Journal.open(settings.state_file) as journal:
        root = checkout(tmp_path / "checkout")
        op = launch_on(provider, plan(tmp_path / "store", COUNT), journal, root)
    try:
        stranger = replace(first, second)
        for _ in range(rounds):
            seen = (stranger.folder / "sshd.log").stat().st_size
            with ThreadPoolExecutor(4) as threads:
                said = dict(zip(COMMANDS, threads.map(lambda words: result_of(world, words), COMMANDS), strict=True))
            for words, (code, text) in said.items():
                assert code == COMMANDS[words], (words, code, text)
                assert "a different machine answers at this address; no data was sent" in text, (words, text)
            heard = (stranger.folder / "sshd.log").read_text()[seen:]
            assert not any(word in heard for word in ("Accepted", "Postponed", "Failed", "session")), heard
            stranger.change_key()
    finally:
        assert not end_all(op.token, 0.0)


def result_of(world: World, words: str) -> tuple[int, str]:
    """Return the exit code and all output on one line."""
    process = world.run(*words.split())
    out, err = process.stdout, process.stderr
    assert "Traceback" not in err
    return process.returncode, " ".join((out + err).split())
