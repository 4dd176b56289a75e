"""Kept runs on rented machines while a vendor cannot report the result of a request yet."""

import contextlib
from unittest.mock import patch

import pytest

from infra.agent.job import Job, Limits
from infra.ledger.journal import Journal
from infra.ledger.op import TERMINATING
from infra.providers.by_name import open_market
from infra.records import Request
from infra.runs import observation, pods, run_rows
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.run_home import RunHome
from tests.infra.market.test_boot import SPEED, settings_of
from tests.infra.rehearsal.worlds import world

REQUEST = Request(run="otter", provider="shadeform", gpu="A6000", num_gpus=1)


class Found(Exception):
    """The keeper looked for a new machine."""


def look(request):
    raise Found


@pytest.mark.process
def test_a_run_with_a_machine_requested_by_a_dead_process_is_continued(tmp_path, monkeypatch):
    """The machine may exist for a while: the keeper ends the machine first, and then looks for a new machine."""
    with world(tmp_path / "world", speed=SPEED) as running, Journal.open(tmp_path / "journal.db") as journal:
        monkeypatch.setenv("SHADEFORM_API_KEY", running.about["shadeform"]["key"])
        monkeypatch.setenv("SLIPWAY_SHADEFORM_URL", running.about["shadeform"]["url"])
        vendor = open_market("shadeform", settings_of(running, tmp_path))
        offer, job = vendor.offers(REQUEST)[0], Job("", "", (), Limits(time_s=1e6, spend_micro_usd=20_000_000))
        first = journal.advance(pods.rent(vendor, REQUEST, offer, job, journal), "armed")
        pods.end(vendor, first, journal, observation.GONE)
        with (
            patch.object(type(vendor), "create", side_effect=KeyboardInterrupt),
            contextlib.suppress(KeyboardInterrupt),
        ):
            pods.rent(vendor, REQUEST, offer, job, journal)
        with pytest.raises(pods.StillBills, match="may still appear in the listing"):
            pods.settle(vendor, journal.ops(run="otter")[-1], journal)
        now = journal.ops(run="otter")[-1]
        assert now.state == TERMINATING and not run_rows.is_over(now)
        said: list[str] = []
        keeper = RunKeeper(journal, lambda _: vendor, look, RunHome(tmp_path / "home"), {}, said.append)
        keeper.home.snapshot.code.mkdir(parents=True)
        with keeper.hold_lease("otter"), pytest.raises(Found):
            list(keeper.follow_run(now))
        assert any("may still appear in the listing" in line for line in said)
        assert not journal.op(now.token).is_live
