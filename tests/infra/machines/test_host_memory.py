"""The memory of machines, and the commands about machines, typed into real `inv` processes."""

import json
import threading
from pathlib import Path

import pytest

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.machines.host_memory import HostFacts, HostMemory, map_parallel
from tests.hosts import hosts  # noqa: F401 (a fixture)
from tests.world import World


@pytest.fixture
def memory(tmp_path):
    return HostMemory(tmp_path / "state/journal-hosts.json")


def test_facts_and_failures_are_separate_and_forgiving_keeps_the_facts(memory):
    assert memory.all() == {} and memory.get("ssh:lab/a") == HostFacts()
    memory.save_facts("ssh:lab/a", {"cpus": 8})
    memory.record_failure("ssh:lab/a", "disk write: 3 MB/s")
    memory.record_failure("lium:exec-1", "GPUs: 8 promised, 7 there")
    known = memory.get("ssh:lab/a")
    assert (known.facts, known.failure) == ({"cpus": 8}, "disk write: 3 MB/s") and known.seen_at <= known.failed_at
    memory.save_facts("ssh:lab/a", {"cpus": 9})
    assert memory.get("ssh:lab/a").failure
    memory.clear_failure("ssh:lab/a")
    assert (memory.get("ssh:lab/a").facts, memory.get("ssh:lab/a").failure) == ({"cpus": 9}, "")
    assert memory.get("lium:exec-1").failure and memory.path.stat().st_mode & 0o777 == 0o600


def test_many_writers_lose_no_record(memory):
    record = memory.record_failure
    threads = [threading.Thread(target=record, args=(f"ssh:lab/{number}", "slow")) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(memory.all()) == 20


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": {"odd": 1}}', '{"a": 1}'])
def test_a_damaged_memory_is_named_and_never_counts_as_empty(memory, text):
    memory.path.parent.mkdir()
    memory.path.write_text(text)
    with pytest.raises(SlipwayError, match="journal-hosts.json is damaged .* remove the file, then run: inv pool.up"):
        memory.all()


@pytest.mark.slow
def test_parallel_work_keeps_its_order_and_does_not_wait_for_late_tasks():
    over = threading.Event()

    def work(number):
        if number == 1:
            over.wait(60)
        if number == 2:
            raise SlipwayError("refused")
        if number == 3:
            raise OSError("broken")
        if number == 5:
            raise ImportError("half a module")
        return number

    results = map_parallel(work, [0, 1, 2, 3, 4, 5], deadline_s=0.5)
    over.set()
    assert [str(one) for one in results] == [
        "0",
        "no answer in 0.5 s",
        "refused",
        "OSError: broken",
        "4",
        "ImportError: half a module",
    ]
    assert isinstance(results[5].__cause__, ImportError)  # with a traceback for the developer


# Commands.


@pytest.fixture
def inv(tmp_path):
    """`inv("pool.list")`: exit code, stdout and stderr of a real process, in a separate world."""
    world = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml")})
    (tmp_path / "state").mkdir()

    def run(*words):
        done = world.run(*words)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    run.environ = world.environ
    return run


@pytest.mark.process
def test_the_commands_show_the_current_state_of_machines(inv, hosts, tmp_path):  # noqa: F811
    good, off = hosts(2)
    off.stop()
    lines = [f"    - {{ip: {one.address.host}, identity_file: {one.address.key}}}" for one in (good, off)]
    pool = tmp_path / "pools.yaml"
    head = f"lab:\n  user: {good.address.user}\n  usd_per_hour: 0.35\n  hosts:\n"
    pool.write_text(head + "\n".join(lines))
    place = f"lab/{good.address.host}"

    code, out, err = inv("pool.up")
    table = out.splitlines()
    assert code == 1 and "1 of 2 machines cannot be used: lab/10.77.2.2" in err
    assert place in table[1] and table[1].endswith("ok") and f"port 22 with key {off.address.key}" in table[2]
    code, out, _ = inv("pool.up", place, "--json")
    (fact,) = json.loads(out)
    assert code == 0 and fact["host"] == place and fact["problem"] is None and fact["cpus"] >= 1
    code, out, _ = inv("pool.check")
    assert code == 1 and out.splitlines()[0].split() == [place, "ok"]

    with Journal.open(inv.environ["SLIPWAY_STATE_FILE"], inv.environ) as journal:
        journal.plan(token="sw1-abcdefgh-x", run="brave-otter-3", vendor="ssh", place=place)
    HostMemory.for_journal(Path(inv.environ["SLIPWAY_STATE_FILE"])).record_failure(
        "ssh:lab/10.77.2.2", "disk write: 3 MB/s"
    )
    code, out, _ = inv("pool.list")
    assert (
        code == 0 and "leased by brave-otter-3" in out and "free; failed: disk write: 3 MB/s" in out and "0.35" in out
    )
    rows = json.loads(inv("pool.list", "--json")[1])
    assert [(row["leased_by"], row["num_gpus"], row["usd_per_hour"]) for row in rows] == [
        ("brave-otter-3", 0, "0.35"),
        (None, None, "0.35"),
    ]

    forget = ("hosts", "--forget", "lab/10.77.2.2")
    code, out, err = inv("hosts", *forget, "hosts", *forget)
    assert out.splitlines()[1].split()[0] == "ssh:lab/10.77.2.2" and out.rstrip().endswith("disk write: 3 MB/s")
    assert "ssh:lab/10.77.2.2 can be offered again\nno machine has failed\n" in err
    assert code == 2 and "'lab/10.77.2.2' is not in the list of failed machines; available: none" in err


@pytest.mark.process
def test_an_import_is_shown_before_it_is_written(inv, tmp_path):
    made = tmp_path / "terraform.json"
    made.write_text(json.dumps({"ips": {"value": {"a": "192.0.2.1", "b": "192.0.2.2"}}}))
    words = ("pool.import", "--from", str(made), "--pool", "tf", "--user", "root", "--key", str(made))
    code, out, err = inv(*words, "--dry-run")
    assert code == 0 and "new  192.0.2.1  ips.a" in out and "2 machines would be added to tf" in err
    assert not (tmp_path / "pools.yaml").exists()
    assert inv(*words)[0] == 0
    assert [row["host"] for row in json.loads(inv("pool.list", "--json")[1])] == ["192.0.2.1", "192.0.2.2"]
    found = json.loads(inv("pool.import", "--from", str(made), "--pool", "tf", "--json")[1])
    assert found["new"] == [] and len(found["known"]) == 2


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pool.list",), "does not exist; copy ssh_node_pools.yaml.example"),
        (("pool.import", "--from", "none.json"), "none.json: "),
        (("pool.import",), "--from"),
        (("pool.lst",), "did you mean pool.list?"),
    ],
)
def test_wrong_arguments_give_one_line_and_exit_code_2(inv, words, said):
    code, out, err = inv(*words)
    assert code == 2 and said in err and out == "" and len(err.splitlines()) <= 2
