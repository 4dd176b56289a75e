"""The money of a service, for any history of its replicas."""

from hypothesis import given
from hypothesis import strategies as st

from serve.budget import ServiceBudget, limit_of


@given(st.integers(1, 10**9), st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.floats(0, 1)), max_size=60))
def test_spent_and_armed_amounts_never_exceed_the_limit(limit, most, moves):
    spent, alive = 0, []
    for comes, part in moves:
        budget = ServiceBudget(limit=limit, most=most, spent=spent, armed=sum(alive))
        if comes and len(alive) < most and budget.affordable:
            alive.append(budget.cap(len(alive)))
        elif alive:
            spent += int(alive.pop(0) * part)
        assert spent + sum(alive) <= limit


def test_all_replicas_start_at_first_and_a_lost_one_is_replaced_from_the_remainder():
    fresh = ServiceBudget(limit=limit_of("$100"), most=4, spent=0, armed=0)
    assert fresh.cap(0) == 25_000_000 and fresh.affordable >= 4
    after = ServiceBudget(limit=limit_of("100"), most=4, spent=5_000_000, armed=75_000_000)
    assert (after.cap(3), after.affordable) == (20_000_000, 16)
    assert ServiceBudget(limit=limit_of("100"), most=4, spent=24_500_000, armed=75_000_000).affordable == 0
