"""The choice of connections to close for new ones, and the size of the pool: the pure parts."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.gateway.http.connection_pool import ConnectionPool, address_of
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.open_files import PER_REQUEST, RESERVE, fitted
from serve.gateway.keys import WRONG_AT_ONCE, AuthThrottle

LIMITS = GatewayLimits(max_connections=16, max_strangers_per_address=6, max_connections_per_key=8)


@dataclass(eq=False)
class Connection:
    number: int
    key: str = ""
    is_idle: bool = True

    @property
    def idle_until(self) -> float:
        return self.number


@given(st.lists(st.tuples(st.sampled_from(["come", "let in", "work", "leave"]), st.integers(0, 3)), max_size=300))
def test_no_address_and_no_key_fills_the_pool_and_working_connections_stay(steps):
    there: list[Connection] = []
    gone: list[Connection] = []
    crowd: ConnectionPool[Connection] = ConnectionPool(LIMITS, gone.append)
    addresses: dict[int, str] = {}
    for number, (verb, which) in enumerate(steps):
        gone.clear()
        before, strangers = list(there), [one for one in there if not one.key]
        if verb == "come":
            one = Connection(number)
            addresses[number] = f"10.0.0.{which}"
            if crowd.add(one, addresses[number]):
                there.append(one)
            else:  # Only when all others work.
                assert not any(other.is_idle or not other.key for other in before)
        elif strangers and verb == "let in":
            one = strangers[which % len(strangers)]
            crowd.admit(one, f"key{which}")
            one.key = f"key{which}"
        elif there and verb == "work":
            one = there[number % len(there)]
            one.is_idle = not (one.key and one.is_idle)
        elif there:
            crowd.remove(there.pop(number % len(there)))
        for victim in gone:
            there.remove(victim)
            if victim.key:
                assert victim.is_idle
                assert verb == "let in" or not strangers
            else:  # The oldest of all, or of the address.
                older = [one for one in strangers if one.number < victim.number]
                assert all(addresses[one.number] != addresses[victim.number] for one in older)
        assert len(gone) <= 1 and len(crowd) == len(there) <= LIMITS.max_connections
        for address in set(addresses.values()):
            assert sum(not one.key and addresses[one.number] == address for one in there) <= 6


def test_idle_connections_of_one_key_leave_room_for_other_keys_and_strangers():
    gone: list[Connection] = []
    crowd: ConnectionPool[Connection] = ConnectionPool(LIMITS, gone.append)
    numbers = iter(range(1000))

    def let_in(key: str) -> None:
        one = Connection(next(numbers))
        assert crowd.add(one, "10.0.0.1")
        crowd.admit(one, key)

    for _ in range(20):
        let_in("ada")
    # The connections with the longest idle time.
    assert len(crowd) == 8 and [one.number for one in gone] == list(range(12))
    gone.clear()
    for _ in range(20):
        let_in("bob")
    assert len(crowd) == 12  # A quarter is kept for strangers.
    for number in range(100):
        assert crowd.add(Connection(next(numbers)), f"10.0.1.{number}")
    assert len(crowd) == 16 and sum(one.key == "" for one in gone) == len(gone)


@given(st.integers(16, 20_000), st.integers(1, 10_000), st.integers(1, 10_000))
def test_connections_and_requests_stay_below_the_file_limit(files, connections, inside):
    limits = fitted(GatewayLimits(max_connections=connections, max_in_flight=inside), files)
    needed = limits.max_connections + PER_REQUEST * limits.max_in_flight
    assert needed <= max(files - RESERVE, files // 2) or limits.max_connections == 1 or limits.max_in_flight == 1
    assert 1 <= limits.max_connections <= connections and 1 <= limits.max_in_flight <= inside
    assert fitted(limits, files) == limits or needed > files // 2


def test_sufficient_file_limit_lowers_no_bound():
    assert fitted(GatewayLimits(), 1 << 16) == GatewayLimits()


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        (("192.0.2.7", 80), "192.0.2.7"),
        (("::ffff:192.0.2.7", 80, 0, 0), "192.0.2.7"),
        (("2001:db8:1:2:3:4:5:6", 80, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 80, 0, 2), "fe80::/64"),
        (("::1", 80, 0, 0), "::/64"),
    ],
)
def test_one_client_has_one_address(peer, address):
    assert address_of(peer) == address


def test_wrong_keys_are_answered_in_a_burst_then_ten_a_second_without_delay_for_other_addresses():
    guesses, limits = AuthThrottle(), GatewayLimits()
    waits = [guesses.wait_s("a", 0.0, limits) for _ in range(1000)]
    assert waits[:WRONG_AT_ONCE] == pytest.approx([0.0] * WRONG_AT_ONCE)
    assert waits[WRONG_AT_ONCE : WRONG_AT_ONCE + 3] == pytest.approx([0.1, 0.2, 0.3])
    assert max(waits) == pytest.approx(limits.wrong_key_most_s)
    assert guesses.wait_s("b", 0.0, limits) == 0
    assert guesses.wait_s("a", 60.0, limits) == 0  # The address is forgotten.
