"""Nodes of a run find addresses by connection attempts; failed connections are reported."""

from pathlib import Path

import pytest

from infra.errors import SlipwayError
from infra.machines.node_addresses import choose, exchange_addresses
from infra.transport.protocol import ThisMachine
from infra.transport.ssh import Ssh
from tests.hosts import Host, call
from tests.hosts import hosts as hosts

LISTED = [{"10.0.0.1": "eth0", "172.17.0.1": "docker0"}, {"172.17.0.1": "docker0", "10.0.0.2": "ens3"}]


def reachable(host: Host, folder: Path) -> Ssh:
    one = Ssh(host.address, folder / f"pin-{host.network}")
    one.python = ThisMachine.python
    return one


def test_an_address_reached_by_all_other_nodes_is_chosen():
    assert choose(LISTED, [{"1": ["10.0.0.2"]}, {"0": ["10.0.0.1"]}], ["a", "b"]) == [
        ("10.0.0.1", "eth0"),
        ("10.0.0.2", "ens3"),
    ]


def test_a_node_reached_by_only_some_nodes_is_refused_with_each_observation():
    reached = [{"1": ["10.0.0.2"], "2": ["10.0.0.3"]}, {"0": [], "2": []}, {"0": ["10.0.0.1"], "1": ["10.0.0.2"]}]
    with pytest.raises(SlipwayError) as refused:
        choose([*LISTED, {"10.0.0.3": "eth0"}], reached, ["a", "b", "c"])
    assert str(refused.value).splitlines()[:3] == [
        "a (10.0.0.1, 172.17.0.1) cannot be reached by all other nodes:",
        "  from b: none answers",
        "  from c: 10.0.0.1",
    ]


@pytest.mark.process
def test_nodes_on_one_machine_use_loopback_and_free_ports():
    groups = exchange_addresses("brave-otter-1", [ThisMachine(), ThisMachine()], ["a", "b"])
    assert [group.rank for group in groups] == [0, 1] and len({group.key for group in groups}) == 1
    assert groups[0].addresses == ("127.0.0.1", "127.0.0.1") and groups[1].interface.startswith("lo")
    assert 0 < groups[0].port != groups[0].words_port > 0


@pytest.mark.process
def test_machines_find_their_common_network_and_skip_duplicate_addresses(hosts, tmp_path):
    found = hosts(2)
    for host in found:  # as docker assigns addresses: the same address on every machine, without a peer
        call("ip", "-n", host.network, "link", "add", "docker0", "type", "bridge")
        call("ip", "-n", host.network, "addr", "add", "172.17.0.1/16", "dev", "docker0")
        call("ip", "-n", host.network, "link", "set", "docker0", "up")
    groups = exchange_addresses("brave-otter-1", [reachable(host, tmp_path) for host in found], ["a", "b"])
    assert groups[0].addresses == tuple(host.address.host for host in found)
    assert {group.interface for group in groups} == {"eth0"}


@pytest.mark.nightly
@pytest.mark.process
def test_a_firewall_between_two_machines_is_named(hosts, tmp_path):
    found = hosts(3)
    wall = ["-s", found[2].address.host, "-j", "DROP"]
    call("ip", "netns", "exec", found[1].network, "iptables", "-A", "INPUT", *wall)
    with pytest.raises(SlipwayError) as refused:
        exchange_addresses("brave-otter-1", [reachable(host, tmp_path) for host in found], ["a", "b", "c"])
    lines = str(refused.value).splitlines()
    assert lines[0] == f"b ({found[1].address.host}) cannot be reached by all other nodes:"
    assert lines[1:3] == [f"  from a: {found[1].address.host}", "  from c: none answers"]
