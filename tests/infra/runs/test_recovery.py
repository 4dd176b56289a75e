"""The decision about a run: every possible view of up to three nodes, and the actions that silence must never cause."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.runs.keepers.recovery import POD, REPLICA, RUN, RecoveryAction, RecoveryDecision, decide
from infra.runs.observation import Observation

LOST = {"state": "lost", "lost": 1, "reason": "node 1 (10.0.0.2) has not answered for 61 s"}
FAILED = {"state": "failed", "lost": None, "reason": "step base failed with exit code 2"}
WORKS, DEAD, GONE, SILENT = (
    Observation(True, True),
    Observation(True, False),
    Observation(False),
    Observation(None, why="no route to host"),
)
SAYS_LOST, SAYS_FAILED = Observation(True, False, LOST), Observation(True, False, FAILED)
UNREADABLE = Observation(True, None, why="its report is damaged")
SIGHTS = (WORKS, DEAD, GONE, SILENT, UNREADABLE, SAYS_LOST, SAYS_FAILED)
ALL = [nodes for size in (1, 2, 3) for nodes in itertools.product(SIGHTS, repeat=size)]


@pytest.mark.parametrize(
    ("nodes", "course"),
    [
        # one machine
        ([WORKS], RecoveryDecision(RecoveryAction.LEAVE)),
        ([SAYS_FAILED], RecoveryDecision(RecoveryAction.LEAVE)),
        ([SILENT], RecoveryDecision(RecoveryAction.WAIT, silent_ranks=(0,))),
        ([DEAD], RecoveryDecision(RecoveryAction.RESUME)),
        ([GONE], RecoveryDecision(RecoveryAction.BEGIN_ANEW, gone_ranks=(0,))),
        # several machines
        ([WORKS, SILENT], RecoveryDecision(RecoveryAction.LEAVE)),  # node 0 will report the node, if lost
        ([SILENT, WORKS], RecoveryDecision(RecoveryAction.WAIT, silent_ranks=(0,))),
        ([DEAD, SILENT], RecoveryDecision(RecoveryAction.WAIT, silent_ranks=(1,))),
        ([SILENT, SAYS_FAILED], RecoveryDecision(RecoveryAction.LEAVE)),
        ([DEAD, WORKS], RecoveryDecision(RecoveryAction.RESUME)),
        (
            [SAYS_LOST, SILENT],
            RecoveryDecision(RecoveryAction.BEGIN_ANEW, silent_ranks=(1,), lost_reason=LOST["reason"]),
        ),
        ([SAYS_LOST, GONE], RecoveryDecision(RecoveryAction.BEGIN_ANEW, gone_ranks=(1,), lost_reason=LOST["reason"])),
        (
            [SILENT, SAYS_LOST],
            RecoveryDecision(RecoveryAction.BEGIN_ANEW, silent_ranks=(0,), lost_reason=LOST["reason"]),
        ),
        (
            [SAYS_LOST, DEAD],
            RecoveryDecision(RecoveryAction.RESUME, lost_reason=LOST["reason"]),
        ),  # the machine answers again
        # Without node 0 no node works.
        ([GONE, SILENT], RecoveryDecision(RecoveryAction.BEGIN_ANEW, silent_ranks=(1,), gone_ranks=(0,))),
        ([GONE, SAYS_FAILED], RecoveryDecision(RecoveryAction.BEGIN_ANEW, gone_ranks=(0,))),
    ],
)
def test_observations_decide_the_action(nodes, course):
    assert decide(nodes) == course


def broken_rules(decision) -> set[str]:
    """Return the rules broken by a decision, over all possible observations."""
    broken = set()
    for nodes in ALL:
        course, first = decision(nodes), nodes[0]
        acts = course.action in (RecoveryAction.RESUME, RecoveryAction.BEGIN_ANEW)
        said = [first.verdict] if first.exists else [one.verdict for one in nodes if one.verdict]
        is_lost = said[:1] == [LOST]
        if acts and first.exists is None and not is_lost:
            broken.add("silence of node 0 alone begins nothing")
        if acts and first.is_alive:
            broken.add("a run at work is left alone")
        if acts and first.verdict == FAILED:
            broken.add("what is over stays over")
        if acts and first is UNREADABLE:
            broken.add("what cannot be read is not begun again")
        if course.action is RecoveryAction.RESUME and any(one.exists is not True for one in nodes):
            broken.add("what is not there is not resumed")
        if course.action is RecoveryAction.BEGIN_ANEW and all(one.exists and one is not UNREADABLE for one in nodes):
            broken.add("what is there is not left behind")
        if is_lost and not acts and not (first.exists and first.is_alive):
            broken.add("a lost node leaves nobody waiting")
        if course.action is RecoveryAction.BEGIN_ANEW:
            named = {rank for rank, one in enumerate(nodes) if not one.exists or one is UNREADABLE}
            if {*course.silent_ranks, *course.gone_ranks} != named or any(
                nodes[rank].exists is False for rank in course.silent_ranks
            ):
                broken.add("each that is not there is named, as gone only when that is proven")
    return broken


def test_no_observation_leads_to_a_forbidden_action():
    assert broken_rules(decide) == set()


def test_a_decision_that_takes_silence_for_absence_breaks_a_rule():
    def hasty(nodes):
        return decide([GONE if one.exists is None else one for one in nodes])

    assert "silence of node 0 alone begins nothing" in broken_rules(hasty)


@pytest.mark.parametrize(
    ("seen", "run", "replica"),
    [
        (WORKS, RecoveryAction.LEAVE, RecoveryAction.LEAVE),
        (SILENT, RecoveryAction.WAIT, RecoveryAction.WAIT),
        (UNREADABLE, RecoveryAction.WAIT, RecoveryAction.WAIT),
        (DEAD, RecoveryAction.RESUME, RecoveryAction.BEGIN_ANEW),  # an engine is never restarted
        (SAYS_FAILED, RecoveryAction.LEAVE, RecoveryAction.BEGIN_ANEW),  # and has no end of its own
        (GONE, RecoveryAction.BEGIN_ANEW, RecoveryAction.BEGIN_ANEW),
    ],
)
def test_a_replica_is_replaced_in_cases_where_a_run_is_resumed(seen, run, replica):
    assert [decide([seen], spec).action for spec in (RUN, POD, REPLICA)] == [run, run, replica]


@given(st.sampled_from((RUN, REPLICA, POD)), st.lists(st.floats(0, 3e4), max_size=60))
def test_restarts_respect_the_budget_and_the_backoff(spec, failures_after_s):
    """Fail at any time: each start comes after its wait, and a full window allows no further start."""
    now, begun = 0.0, list[float]()
    for after_s in failures_after_s:
        now += after_s
        course = decide([GONE], spec, begun, now)
        lately = [at for at in begun if now - at < spec.retries.window_s]
        assert (course.action is RecoveryAction.GIVE_UP) == (len(lately) >= spec.retries.most)
        if course.action is RecoveryAction.GIVE_UP:
            continue
        now += course.wait_s
        if lately:
            assert now - max(lately) >= min(300.0, spec.retries.backoff.first_s * 2 ** (len(lately) - 1)) * 0.999 or (
                spec is REPLICA and now - max(lately) >= 60.0 * 0.999
            )
        begun.append(now)
        assert decide([WORKS], spec, begun, now).action is RecoveryAction.LEAVE


def test_the_observation_decides_independently_of_earlier_starts():
    """The budget does not affect nodes that are left alone or waited for."""
    spent = [float(second) for second in range(100)]
    for nodes in ALL:
        fresh, late = decide(nodes), decide(nodes, RUN, spent, 99.0)
        assert late.action is (
            RecoveryAction.GIVE_UP
            if fresh.action in (RecoveryAction.RESUME, RecoveryAction.BEGIN_ANEW)
            else fresh.action
        )
