"""`inv pull` of a large artifact over an interrupted link: the download resumes at the last byte."""

import hashlib
import json
import random
import sys
import time

import pytest

from infra.agent.job import Job, Step
from infra.ledger.journal import Journal
from store.artifacts.artifacts import Store
from tests.hosts import hosts as hosts
from tests.world import World, until

pytestmark = [pytest.mark.process, pytest.mark.nightly]

NAME, FINGERPRINT = "base_checkpoints/tiny", "f" * 16


@pytest.fixture
def world(tmp_path, hosts, request):
    """Return a world with pod `a` on a machine, and the machine; the programs named in the mark are hidden on the
    machine.
    """
    (machine,) = hosts(1, hidden=request.param)
    python = getattr(sys, "_base_executable", sys.executable)
    known = [{"ip": machine.address.host, "identity_file": machine.address.key, "python": python}]
    (tmp_path / "pools.yaml").write_text(json.dumps({"lab": {"user": machine.address.user, "hosts": known}}))
    one = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml")})
    one.inv("pod.create", "--provider", "ssh", "--run-name", "a", "--no-accept")
    yield one, machine
    one.inv("down", "--all")


def make_there(world, machine, megabytes):
    """Write an artifact into the machine's store like a pod; return the sha256 of the one large file."""
    draft = world.folder / "made"
    draft.mkdir()
    content = b"".join(random.Random(number).randbytes(4 << 20) for number in range(megabytes // 4))
    (draft / "model.safetensors").write_bytes(content)
    (draft / "config.json").write_text("{}")
    Store(str(machine.folder / "home" / ".slipway" / "artifacts")).publish(draft, NAME, FINGERPRINT, {})
    making = {"name": NAME, "fingerprint": FINGERPRINT, "store": "", "inputs": {}, "code": ""}
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        op = journal.ops(run="a")[-1]
        step = Step(name="base", words=("-V",), config={"making": making})
        journal.note(
            op, job=Job(run="a", token=op.token, steps=(step,)).to_json(), store=world.environ["SLIPWAY_STORE"]
        )
    return hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("world", "by", "megabytes", "mbit_per_s", "cuts"),
    [
        ([], "rsync", 40, 100, 2),
        ([], "rsync", 300, 100, 5),
        (["rsync"], "pieces", 300, 100, 5),
    ],
    indirect=["world"],
)
@pytest.mark.timeout(600)
def test_pull_over_a_link_that_is_cut_resumes_at_the_last_byte(world, by, megabytes, mbit_per_s, cuts):
    world, machine = world
    sha = make_there(world, machine, megabytes)
    machine.slow_down(mbit_per_s)
    process = world.begin("pull", "a", "--json")

    def held():
        found = list(world.folder.rglob("incoming/*/model.safetensors"))
        return sum(path.stat().st_blocks * 512 for path in found)

    for number in range(1, cuts + 1):
        until(lambda: held() > number * (megabytes << 20) / (cuts + 2), f"part {number}")  # noqa: B023
        if megabytes < 100:
            machine.kill_sessions()
        else:
            machine.cut()
            time.sleep(15)  # The link is silent for longer than the timeout.
            machine.restore()
    out, err = process.communicate(timeout=400)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert (told["brought"], told["by"], told["cuts"] >= cuts) == ([NAME], [by], True)
    assert megabytes << 20 <= told["bytes_moved"] < 1.5 * (megabytes << 20)
    here = Store(world.environ["SLIPWAY_STORE"]).path(NAME, FINGERPRINT) / "model.safetensors"
    assert hashlib.sha256(here.read_bytes()).hexdigest() == sha
    assert list(world.folder.rglob("incoming/*/*")) == []
    assert world.json("pull", "a")["brought"] == []
