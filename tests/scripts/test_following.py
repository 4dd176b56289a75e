"""The followed run on the screen: the message after an error."""

import contextlib

import pytest
from invoke import Exit

from flows.runs import follow
from infra.agent.job import Job, Limits, Step
from infra.errors import LimitHit, SlipwayError
from infra.ledger.journal import Journal
from infra.providers.local import Local
from infra.records import Request
from infra.runs import pods
from infra.settings import Settings
from scripts.runs import following, logs

pytestmark = pytest.mark.process
JOB = Job(run="", token="", steps=(Step(name="work", words=("-m", "work")),), limits=Limits(time_s=600.0))
AMOUNTS = [(3_590_000, "the pod still bills 3.59 USD/h"), (0, "the pod costs nothing")]


@pytest.mark.parametrize(("rate", "says"), AMOUNTS)
@pytest.mark.parametrize("error", [SlipwayError("progress.json: it is too large"), LimitHit("no more")])
def test_error_that_ends_the_watch_shows_the_cost_of_the_pod_and_how_to_end_it(
    tmp_path, monkeypatch, error, rate, says
):
    @contextlib.contextmanager
    def fails(*_):
        raise error
        yield

    monkeypatch.setattr(follow, "keep_run", fails)
    vendor, request = Local(tmp_path / "pods"), Request(run="a-1")
    with Journal.open(tmp_path / "journal.db", {"XDG_CONFIG_HOME": str(tmp_path)}) as journal:
        op = pods.rent(vendor, request, vendor.offers(request)[0], JOB, journal, pods.RowDraft())
        op = journal.note(op, rate=rate)
        settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path)})
        with pytest.raises(Exit) as seen:
            following.follow_to_end(op, journal, settings, as_json=False)
        told = f"{error}\na-1 was not ended; {says}. Look: ./inv status a-1; end the run: ./inv down a-1"
        assert (seen.value.message, seen.value.code) == (told, error.exit_code)
        pods.end(vendor, op, journal)
        with pytest.raises(Exit, match=f"^{error}$"):
            following.follow_to_end(op, journal, settings, as_json=False)


def test_each_state_of_a_progress_bar_is_a_line_of_the_output(tmp_path, capsys):
    (path := tmp_path / "run.log").write_bytes(b"1 of 2\r2 of 2\r\nend\n")
    assert logs.write(path, 0) == path.stat().st_size
    assert capsys.readouterr().out == "1 of 2\n2 of 2\nend\n"
