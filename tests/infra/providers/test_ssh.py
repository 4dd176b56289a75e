"""Own machines as a provider, on real hosts: network namespaces, each with an sshd and a home."""

import functools
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from infra.agent.job import Job, Limits, PodFolder, Step
from infra.agent.process import find
from infra.errors import Busy, NoOffer, SlipwayError
from infra.ledger.audit import CLAIMED, findings
from infra.ledger.journal import Journal
from infra.ledger.op import Leased
from infra.ledger.reconcile import Delete, RowEvent, prefix, reconcile, take_snapshot
from infra.machines import inventory as pools
from infra.machines import survey
from infra.machines.host_memory import HostMemory
from infra.names import new_token
from infra.providers.ssh import SshPools
from infra.records import Address, Offer, Request
from infra.runs import hand_over, pods
from infra.runs.acceptance import Thresholds, examine
from infra.transport.host_keys import HostKeyMismatch
from infra.transport.push import push
from infra.transport.ssh import Ssh
from tests.hosts import HOME, hosts, until  # noqa: F401 (a fixture)

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.%s)
subprocess.Popen([sys.executable, "-c", "import os, time; os.setsid(); time.sleep(600)"])
print("working", flush=True)
while True: time.sleep(0.1)
"""
# The process has a higher priority: two scans in a row without a process, between two of its children, are proof.
RESPAWN = """
import os, subprocess
if os.geteuid() == 0:
    os.setpriority(os.PRIO_PROCESS, 0, -20)
while True:
    subprocess.Popen(["sleep", "600"], env={"SLIPWAY_TOKEN": "%s"}).wait()
"""


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def journal(environ):
    with Journal.open(environ=environ) as opened:
        yield opened


@pytest.fixture
def inventory(hosts, tmp_path):  # noqa: F811
    """`inventory(2, gpu="H100")`: a provider over as many fresh hosts, available as `inventory.hosts`."""
    opened = []

    def make(count, **about):
        inventory.hosts = hosts(count)
        machines = [
            pools.Host(pool="lab", name=one.address.host, address=one.address, **about) for one in inventory.hosts
        ]

        @functools.cache
        def connect(machine):
            opened.append(Ssh(machine.address, tmp_path / f"pins-{machine.name}"))
            return opened[-1]

        return SshPools(tuple(machines), connect, HostMemory(tmp_path / "memory.json"))

    inventory = make
    yield make
    for one in opened:
        one.close()


def job(script=""):
    return Job(run="", token="", steps=(Step(name="work", words=("-c", script)),), limits=Limits(time_s=300))


def rent(provider, journal, run, what=None, place=""):
    request = Request(run=run, provider="ssh", host=place)
    return pods.rent(provider, request, provider.offers(request)[0], what or job(), journal)


def take(provider, run, host, token=None):
    """Make a pod without a journal, as a foreign installation does."""
    request = Request(run=run, host=host)
    return provider.create(request, provider.offers(request)[0], token or new_token("otherone"), Limits())


def on(provider, number):
    return provider.connect(provider.hosts[number])


def test_pods_with_separate_gpus_share_a_machine_across_installations(inventory):
    provider = inventory(1)
    place = provider.hosts[0].place
    offer = Offer(provider="ssh", offer_id=place, place=place)

    def make(run, devices):
        request = Request(run=run, devices=devices)
        return provider.create(request, offer, new_token("otherone"), Limits())

    made = [make("a-1", "0,1"), make("b-2", "2")]
    for devices in ("", "1", "2,3"):
        with pytest.raises(Busy, match="is not free: the machine holds the pod of .* on device"):
            make("c-3", devices)
    with pytest.raises(NoOffer, match="the machine has no device 0: no GPUs are installed"):
        provider.offers(Request(run="c-3", devices="0"))
    with pytest.raises(Busy, match="the machine holds the pod of a-1"):
        provider.offers(Request(run="c-3"))
    provider.delete(made[0].pod_id)
    assert [one.run for one in provider.list()] == ["b-2"] and make("c-3", "1").run == "c-3"


def test_free_machines_are_offered_and_a_pod_exists_from_create_to_delete(inventory):
    provider = inventory(2, micro_usd_per_hour=350_000)
    first, second = (host.place for host in provider.hosts)
    offers = provider.offers(Request(run="a-1"))
    assert [(one.place, one.micro_usd_per_hour, one.num_gpus) for one in offers] == [
        (first, 350_000, 0),
        (second, 350_000, 0),
    ]
    assert offers[0].cpus >= 1 and offers[0].memory_bytes > 1 << 28
    pod = take(provider, "a-1", first)
    folder = Address.parse(pod.address).folder
    assert folder == f"{HOME}/.slipway/pods/a-1"
    assert provider.find(pod.pod_id) == provider.find(pod.token) == pod and provider.list() == [pod]
    assert [one.place for one in provider.offers(Request(run="b-2"))] == [second]
    on(provider, 0).put(b"precious", PodFolder(Path(folder)).work / "checkpoint")
    on(provider, 0).put(b"{}", f"{folder}/secrets.json")
    for _ in range(2):
        provider.delete(pod.pod_id)
        assert provider.find(pod.pod_id) is None and provider.list() == []
    again = take(provider, "a-1", first)
    assert again.address == pod.address and again.pod_id != pod.pod_id
    assert on(provider, 0).get(PodFolder(Path(folder)).work / "checkpoint") == b"precious"
    with pytest.raises(FileNotFoundError):
        on(provider, 0).get(f"{folder}/secrets.json")
    provider.delete(pod.pod_id)
    assert provider.find(again.pod_id) == again


def test_the_reason_against_each_machine_is_reported(inventory):
    provider = inventory(2)
    first, second = (host.place for host in provider.hosts)
    pod = take(provider, "a-1", first)
    provider.memory.record_failure(f"ssh:{second}", "disk write: 3.0 MB/s")
    with pytest.raises(NoOffer) as none:
        provider.offers(Request(run="b-2"))
    assert f"{first}: the machine holds the pod of a-1 ({pod.token})" in str(none.value)
    assert f"{second}: the machine failed before: disk write: 3.0 MB/s; run: inv hosts --forget {second}" in str(
        none.value
    )
    provider.memory.clear_failure(f"ssh:{second}")
    assert [one.place for one in provider.offers(Request(run="b-2"))] == [second]
    with pytest.raises(NoOffer, match="2 machines wanted, 1 free and fit"):
        provider.offers(Request(run="b-2", nodes=2))
    with pytest.raises(NoOffer, match=f"{second}: the machine has no GPUs"):
        provider.offers(Request(run="b-2", num_gpus=1))


def test_a_machine_below_its_inventory_entry_is_not_offered(inventory):
    provider = inventory(1, gpu="H100", num_gpus=8)
    with pytest.raises(NoOffer, match="the inventory promises 8 GPUs, the machine has 0"):
        provider.offers(Request(run="a-1"))


def test_one_of_many_competing_installations_gets_a_machine(inventory):
    provider = inventory(1)
    (offer,) = provider.offers(Request(run="a-1"))
    outcomes = []

    def attempt(number):
        try:
            outcomes.append(provider.create(Request(run=f"a-{number}"), offer, new_token("otherone"), Limits()).token)
        except NoOffer as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=attempt, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (winner,) = [one for one in outcomes if one.startswith("sw1-")]
    assert [pod.token for pod in provider.list()] == [winner]
    assert sum(winner in one and "is not free" in one for one in outcomes) == 5


def test_a_machine_is_leased_to_its_live_row(inventory, journal):
    provider = inventory(1)
    (offer,) = provider.offers(Request(run="b-2"))
    op = rent(provider, journal, "a-1")
    assert op.place == offer.place and op.remote_id == f"{op.token}@{offer.place}"
    with pytest.raises(Leased, match="is in use by a-1 .BOOTING.; wait in line: --wait; see: inv status a-1"):
        pods.rent(provider, Request(run="b-2"), offer, job(), journal)
    assert [one.run for one in journal.ops()] == ["a-1"]
    assert pods.end(provider, op, journal).state == "TERMINATED"
    assert rent(provider, journal, "b-2").is_live


def test_settling_frees_the_machine_of_a_dead_launch(inventory, journal, environ):
    """Kill a launch with a row before or after the request: the process is dead, so the row is ended."""
    provider = inventory(1)
    (offer,) = provider.offers(Request(run="a-1"))
    script = """
import os, signal, sys
from infra.ledger.journal import Journal
from infra.names import new_token
journal = Journal.open()
token = new_token(journal.installation)
journal.leases.acquire(f"rent:{token}")
op = journal.plan(token=token, run="a-1", vendor="ssh", place=sys.argv[1], remote_id=f"{token}@{sys.argv[1]}")
journal.advance(op, "sending")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, offer.place], cwd=REPOSITORY, env={**environ, "PYTHONPATH": "."})
    (op,) = journal.ops(live=True)
    provider.create(Request(run="a-1"), offer, op.token, Limits())  # the lost answer
    with pytest.raises(Leased):
        pods.rent(provider, Request(run="b-2"), offer, job(), journal)
    assert pods.settle(provider, op, journal).state == "TERMINATED"
    assert provider.list() == [] and rent(provider, journal, "b-2").is_live


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("shared", ["machine", "home"])
def test_a_pod_of_a_machine_with_two_names_or_a_shared_home_is_listed_once(inventory, journal, shared):
    provider = inventory(1 if shared == "machine" else 2)
    first = provider.hosts[0]
    second = provider.hosts[1] if shared == "home" else replace(first, pool="another")
    provider = replace(provider, hosts=(second, first))
    op = rent(provider, journal, "a-1", place=first.place)
    folder = PodFolder(Path(Address.parse(op.address).folder))
    if shared == "home":
        provider.connect(second).put(provider.connect(first).get(folder.marker), folder.marker)
    assert [one.pod_id for one in provider.list()] == [op.remote_id]
    for _ in range(2):
        assert not [one for one in reconcile(provider, journal).actions if not isinstance(one, RowEvent)]
    seen = take_snapshot(provider, journal)
    assert [one.kind for one in findings(seen, provider="ssh", prefix=prefix(journal), now=0)] == [CLAIMED]
    with pytest.raises(Busy):
        provider.offers(Request(run="b-2"))
    alone = replace(provider, hosts=(second,))
    if shared == "machine":  # the first name left the inventory
        assert not [one for one in reconcile(alone, journal).actions if isinstance(one, Delete)]
    pods.end(provider, op, journal)
    assert first.place not in [one.pod_id.partition("@")[2] for one in provider.list()]


def test_a_run_ends_while_a_second_machine_is_switched_off(inventory, journal):
    provider = inventory(2)
    op = rent(provider, journal, "a-1", place=provider.hosts[0].place)
    inventory.hosts[1].stop()
    assert pods.end(provider, op, journal).state == "TERMINATED"


def test_an_unreachable_machine_is_an_error_and_does_not_prove_absence(inventory, journal):
    provider = inventory(2)
    op = rent(provider, journal, "a-1", place=provider.hosts[0].place)
    inventory.hosts[0].stop()
    to = provider.hosts[0].address
    said = f"cannot be reached as {to.user}@{to.host} port 22 with key {to.key}: .*takes 2 to 5 minutes to boot"
    with pytest.raises(SlipwayError, match=said):
        provider.find(op.remote_id)
    with pytest.raises(SlipwayError, match=f"some machines have not answered: {provider.hosts[0].place}: {said}"):
        provider.list()
    with pytest.raises(SlipwayError, match="ending a-1: .*Run again: inv down a-1"):
        pods.end(provider, op, journal)
    assert journal.op(op.token).state == "TERMINATING"
    assert [one.place for one in provider.offers(Request(run="b-2"))] == [provider.hosts[1].place]
    inventory.hosts[0].start()
    assert pods.end(provider, journal.op(op.token), journal).state == "TERMINATED"


def test_a_changed_host_key_means_a_foreign_machine(inventory):
    provider = inventory(1)
    pod = take(provider, "a-1", "")
    inventory.hosts[0].change_key()
    with pytest.raises(HostKeyMismatch, match="no data was sent"):
        provider.find(pod.pod_id)


def test_a_damaged_marker_is_an_error_and_does_not_prove_absence(inventory):
    provider = inventory(1)
    pod = take(provider, "a-1", "")
    on(provider, 0).put(b"{", f"{Address.parse(pod.address).folder}/POD.json")
    with pytest.raises(SlipwayError, match="POD.json is damaged: .*remove the file when no pod runs on the machine"):
        provider.find(pod.pod_id)
    with pytest.raises(NoOffer, match="POD.json is damaged"):
        provider.offers(Request(run="b-2"))


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("is_whole", "at_term"), [(True, "SIG_DFL"), (False, "SIG_IGN")], ids=["code there", "code gone, TERM ignored"]
)
def test_ending_a_pod_ends_only_its_own_processes(inventory, journal, is_whole, at_term):
    provider = inventory(1)
    op = rent(provider, journal, "a-1", job(STUBBORN % at_term))
    transport = on(provider, 0)
    pod = PodFolder(Path(Address.parse(op.address).folder))
    push(transport, REPOSITORY, pod.code, op.token)
    hand_over.hand_over(op, provider, journal, {})
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        until(lambda: working(transport, pod), "work on the host")
        assert len(find(op.token)) >= 3  # guard, agent, step, grandchild: namespaces share the process table
        if not is_whole:
            transport.run(["rm", "-r", str(pod.code)], timeout_s=20)
        provider.delete(op.remote_id)
        assert find(op.token) == [] and bystander.poll() is None and provider.list() == []
    finally:
        provider.delete(op.remote_id)
        bystander.kill()
        bystander.wait()


def working(transport, pod):
    try:
        return b"working" in transport.get(pod.log("work"))
    except FileNotFoundError:
        return False


def test_a_machine_with_surviving_processes_stays_leased(inventory, journal):
    provider = replace(inventory(1), end_s=0.5)
    op = rent(provider, journal, "a-1")
    stranger = subprocess.Popen([sys.executable, "-c", RESPAWN % op.token])  # no process of ours
    try:
        until(lambda: find(op.token), "a process of the pod")
        with pytest.raises(SlipwayError, match="processes .* could not be ended; .* inv down a-1"):
            pods.end(provider, op, journal)
        assert journal.op(op.token).state == "TERMINATING" and provider.find(op.remote_id) is not None
        place = provider.hosts[0].place
        assert provider.memory.get(f"ssh:{place}").failure.startswith("processes ")
        with pytest.raises(NoOffer, match=f"the machine failed before: processes .* run: inv hosts --forget {place}"):
            provider.offers(Request(run="b-2"))
    finally:
        stranger.kill()
        stranger.wait()
    assert pods.end(provider, journal.op(op.token), journal).state == "TERMINATED" and find(op.token) == []
    assert [offer.place for offer in provider.offers(Request(run="b-2"))] == [place]


def test_inspecting_records_each_machine_and_the_reason_against_unusable_machines(inventory):
    provider = inventory(3)
    inventory.hosts[1].stop()
    key = Path(provider.hosts[2].address.key)
    careless = replace(provider.hosts[2], address=replace(provider.hosts[2].address, key=str(key) + "-open"))
    Path(careless.address.key).write_text("not a key")
    Path(careless.address.key).chmod(0o644)
    hosts_ = (*provider.hosts[:2], careless)
    for _ in range(2):
        good, off, open_key = survey.survey_hosts(hosts_, provider.connect, provider.memory)
        assert good.problem == "" and good.facts["python"].startswith("3.") and good.facts["pods"] == []
        assert good.facts["cpus"] >= 1 and good.facts["free_bytes"] > 0 and good.facts["gpus"] == []
        assert f"port 22 with key {key.parents[1]}" in off.problem and "takes 2 to 5 minutes to boot" in off.problem
        assert f"has mode 644, so other users can read the key; run: chmod 600 {key}-open" in open_key.problem
        assert provider.memory.all().keys() == {f"ssh:{good.host.place}"}
    reached = survey.reachable(hosts_, provider.connect)
    assert [one.problem == "" for one in reached] == [True, False, False]


def test_a_machine_without_a_usable_python_is_named(inventory):
    provider = inventory(1, python="/opt/none/python3")
    (look,) = survey.survey_hosts(provider.hosts, provider.connect, provider.memory)
    assert "/opt/none/python3 was not found; install Python 3.9 or newer on this host, or set `python:`" in look.problem


def test_a_machine_is_examined_over_its_connection(inventory):
    provider = inventory(1)
    least = Thresholds(disk_write_bytes_per_s=1, free_bytes=1, disk_s=20)
    report = examine(on(provider, 0), Request(run="a-1"), least)
    assert report.is_accepted and {one.state for one in report.checks} == {"ok", "later"}
    assert not examine(on(provider, 0), Request(run="a-1", num_gpus=1), least).is_accepted
