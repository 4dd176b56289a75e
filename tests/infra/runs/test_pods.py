import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent.job import Job, Limits, PodFolder, Step
from infra.errors import Ambiguous, NoOffer, SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import AlreadyLive
from infra.providers.local import Local
from infra.records import Request
from infra.runs import observation, pods, run_rows
from infra.transport.protocol import ThisMachine
from tests.programs import source

pytestmark = pytest.mark.process

REPOSITORY = Path(__file__).parents[3]
JOB = Job(run="", token="", steps=(Step(name="work", words=("-m", "work")),), limits=Limits(time_s=60))
here = ThisMachine()


class LosesAnswers(Local):
    """Creates a pod, and loses the answer."""

    def create(self, *words):
        super().create(*words)
        raise Ambiguous("no reply in 30 s")


class LosesRequests(Local):
    """Loses the request, which is unknown for ten minutes."""

    settle_s = 600.0

    def create(self, *words):
        raise Ambiguous("no reply in 30 s")


class Interrupted(Local):
    def create(self, *words):
        super().create(*words)
        raise KeyboardInterrupt


class Refuses(Local):
    def create(self, *words):
        raise NoOffer("someone else took it")


class KeepsAll(Local):
    def delete(self, pod_id):
        return None


class KeepsAllAndLags(KeepsAll):
    settle_s = 600.0


@pytest.fixture
def environ(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


@pytest.fixture
def journal(environ):
    with Journal.open(environ=environ) as opened:
        yield opened


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "pods")


def rent(provider, journal, run="a-1", **aim):
    request = Request(run=run)
    return pods.rent(provider, request, provider.offers(request)[0], JOB, journal, pods.RowDraft(**aim))


def test_a_rented_pod_has_a_row_with_the_job_to_hand_over(local, journal):
    op = rent(local, journal, target="t", store="s")
    (pod,) = local.list()
    assert (op.state, op.ttl_s, op.target, op.store) == ("BOOTING", 60, "t", "s") and observation.pod_of(op) == pod
    job = Job.from_json(op.job)
    assert (job.run, job.token, job.steps) == ("a-1", pod.token, JOB.steps)
    assert pod.token.startswith(f"sw1-{journal.installation}-")


def test_a_second_rent_of_the_same_run_sends_no_request(local, journal):
    first = rent(local, journal, target="t", store="s")
    with pytest.raises(AlreadyLive) as taken:
        rent(local, journal, run="b-2", target="t", store="s")
    assert taken.value.op == first and [pod.run for pod in local.list()] == ["a-1"]


def test_ending_proves_absence_and_may_be_repeated(local, journal):
    op = rent(local, journal)
    over = pods.end(local, op, journal, "down")
    assert (over.state, over.reason) == ("TERMINATED", "down") and local.list() == []
    assert pods.end(local, over, journal) == over
    assert rent(local, journal).is_live


def test_a_requested_end_works_for_any_later_state_of_the_row(local, journal):
    seen = rent(local, journal)
    journal.note(seen, rate=7)  # as the launch does at the same time
    assert pods.end(local, seen, journal).outcome == "asked"
    dying = journal.advance(rent(local, journal), "end", reason="it is gone")
    assert not run_rows.is_over(dying) and run_rows.is_over(pods.ask_to_end(dying, journal))
    gone = pods.end(local, dying, journal)
    assert (gone.state, gone.reason, gone.outcome) == ("TERMINATED", "it is gone", "asked")
    between = pods.end(local, rent(local, journal), journal, "taken away")
    assert not run_rows.is_over(between) and run_rows.is_over(pods.ask_to_end(between, journal))
    done = pods.end(local, rent(local, journal), journal, "the work has ended: succeeded", "succeeded")
    assert pods.ask_to_end(done, journal) == done


def test_a_definite_refusal_leaves_a_failed_row_and_allows_a_new_rent(local, journal):
    with pytest.raises(NoOffer, match="someone else took it"):
        rent(Refuses(local.pods), journal)
    assert [(op.state, op.reason) for op in journal.ops()] == [("FAILED", "someone else took it")]
    assert rent(local, journal).is_live


def test_a_lost_answer_is_looked_up_and_no_pod_is_rented_twice(local, journal):
    op = rent(LosesAnswers(local.pods), journal)
    assert op.state == "BOOTING" and [pod.token for pod in local.list()] == [op.token]


def test_a_lost_request_stays_unknown_and_does_not_count_as_gone_too_early(local, journal):
    provider = LosesRequests(local.pods)
    with pytest.raises(Ambiguous, match="no reply"):
        rent(provider, journal)
    (op,) = journal.ops(live=True)
    assert op.state == "UNKNOWN"
    with pytest.raises(
        SlipwayError,
        match="the pod may still appear in the listing for .* s; the pod may still run. Run again: inv down a-1",
    ):
        pods.end(provider, op, journal)
    op = journal.note(journal.op(op.token), boot_s=op.boot_s - 601)
    assert op.state == "TERMINATING" and pods.end(provider, op, journal).state == "TERMINATED"


def test_a_new_pod_denied_by_its_provider_is_not_gone_yet(local, journal):
    class Lags(Local):
        settle_s = 600.0
        shows = False

        def find(self, pod):
            return super().find(pod) if self.shows else None

        def list(self):
            return super().list() if self.shows else []

    lagging = Lags(local.pods)
    op = rent(lagging, journal)
    assert not pods.is_absent(lagging, op)
    with pytest.raises(
        SlipwayError, match="the pod was rented just now, and the pod may still appear in the listing for [12] min"
    ):
        pods.end(lagging, op, journal)
    lagging.shows = True
    with pytest.raises(SlipwayError, match="local still has the pod"):
        pods.end(KeepsAllAndLags(local.pods), journal.op(op.token), journal)
    assert journal.op(op.token).last_seen_at
    local.delete(op.remote_id)
    assert pods.end(lagging, journal.op(op.token), journal).state == "TERMINATED"  # the pod was listed, and is gone


def test_unknown_pods_go_to_sweeps_at_once_and_rented_pods_stay_with_the_renter(local, journal):
    with pytest.raises(Ambiguous):
        rent(LosesRequests(local.pods), journal)
    assert journal.leases.held_names() == set()
    op = rent(local, journal, run="b-2")
    assert journal.leases.held_names() == {f"rent:{op.token}"}


def test_ctrl_c_during_a_request_leaves_a_row_that_finds_and_ends_its_pod(local, journal):
    with pytest.raises(KeyboardInterrupt):
        rent(Interrupted(local.pods), journal)
    (op,) = journal.ops(live=True)
    assert op.state == "UNKNOWN" and len(local.list()) == 1
    assert pods.end(local, op, journal).state == "TERMINATED" and local.list() == []


def test_a_pod_that_does_not_end_stays_terminating(local, journal):
    op = rent(local, journal)
    with pytest.raises(
        SlipwayError, match="ending a-1: local still has the pod; the pod may still run. Run again: inv down a-1"
    ):
        pods.end(KeepsAll(local.pods), op, journal)
    op = journal.op(op.token)
    assert op.state == "TERMINATING" and pods.end(local, op, journal).state == "TERMINATED"


def test_two_concurrent_ends_of_a_pod_both_report_that_it_is_gone(local, journal, environ):
    op = journal.advance(rent(local, journal), "end")

    class MeanwhileEnded(Local):
        def delete(self, pod_id):
            super().delete(pod_id)
            with Journal.open(environ=environ) as other:
                other.advance(op, "gone")

    assert pods.end(MeanwhileEnded(local.pods), op, journal).state == "TERMINATED"


# Settling.

RENTER = source("rent_and_stop")


@pytest.mark.parametrize("moment", ["before", "within", "after"])
def test_a_dead_renter_blocks_no_rent_and_a_living_renter_is_not_disturbed(local, journal, environ, moment):
    words = [sys.executable, "-c", RENTER, str(local.pods), moment]
    renter = subprocess.Popen(
        words,
        env={**os.environ, **environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert renter.stdout.readline() == b"stopped\n"
        (op,) = journal.ops(live=True)
        assert pods.settle(local, op, journal) == op and len(local.list()) == (moment != "before")
    finally:
        renter.kill()
        renter.communicate()
    assert pods.settle(local, op, journal).state == "TERMINATED" and local.list() == []
    assert rent(local, journal, target="t", store="s").is_live


def test_a_pod_with_a_verdict_is_settled_and_a_working_pod_is_not(local, journal):
    op = journal.advance(rent(local, journal), "armed")
    verdict = PodFolder(Path(op.address)).verdict
    for token in (None, "sw1-of-an-earlier-pod"):
        if token:
            verdict.write_text(json.dumps({"token": token, "state": "succeeded"}))
        assert pods.settle(local, op, journal) == op
    verdict.write_text(json.dumps({"token": op.token, "state": "succeeded"}))
    over = pods.settle(local, op, journal)
    assert (over.state, over.reason) == ("TERMINATED", "the work has ended: succeeded")


def test_a_gone_or_ending_pod_is_settled(local, journal):
    gone = journal.advance(rent(local, journal), "armed")
    local.delete(gone.remote_id)
    assert pods.settle(local, gone, journal).state == "TERMINATED"
    ending = journal.advance(rent(local, journal, run="b-2"), "end")
    assert pods.settle(local, ending, journal).state == "TERMINATED" and local.list() == []
