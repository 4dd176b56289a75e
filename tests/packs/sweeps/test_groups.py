"""Sweeps in the core: resumption, and text in `status` and `down`."""

import os
import time

import pytest

from flows.runs import run_groups
from flows.supervisor import due
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.sweeps.control.trials import results as kept_sweeps
from packs.sweeps.control.trials import resume_sweep
from packs.sweeps.control.trials.results import SweepResult, TrialResult
from packs.sweeps.control.trials.resume_sweep import SweepCommand
from tests.flows.test_supervisor import begun, die


def test_sweep_with_a_dead_process_resumes_unless_it_is_over_running_or_a_week_old(tmp_path):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "SLIPWAY_PODS": str(tmp_path / "pods")}
    settings = Settings.load(ROOT, environ=environ)
    folder = kept_sweeps.folder_of("rates", settings)
    trial = TrialResult(run="rates.a", arm="a")
    result = SweepResult(
        name="rates",
        folder=folder,
        about="",
        rank={},
        against="",
        provider="lium",
        limit_micro_usd=None,
        trials={"rates.a": trial},
    )
    command = SweepCommand("rates", ("sweep", "rates.yaml"), "./inv sweep rates.yaml", False)
    with Journal.open(settings.state_file) as journal:
        with resume_sweep.hold_sweep_lease(command, journal, settings):
            assert due.is_needed(journal, settings) and resume_sweep.due(journal, settings) == {}
            with (
                pytest.raises(UsageError, match="already running"),
                resume_sweep.hold_sweep_lease(command, journal, settings),
            ):
                pass
        result.write()
        assert not due.is_needed(journal, settings)  # The process has exited by itself.
        die(journal, "sweep:rates")
        assert list(resume_sweep.due(journal, settings)) == ["rates"] and due.is_needed(journal, settings)
        a_week_ago = time.time() - 7 * 86400
        os.utime(folder / "sweep.json", (a_week_ago, a_week_ago))
        told = {"rates": "./inv sweep rates.yaml"}
        assert (
            not resume_sweep.due(journal, settings) and resume_sweep.how_to_go_on(journal, settings, ["rates"]) == told
        )
        kind = next(one for one in run_groups.kinds() if one.lease == resume_sweep.LEASE)
        assert run_groups.commands(journal, settings, ["rates"]) == told
        assert run_groups.recorded_groups(settings)["rates"].runs["rates.a"].reason == "waits for a pod of its sweep"
        op = begun(journal, "rates.pod-1", vendor="lium", owner_kind="pod_set", owner="rates")
        trial.state = "succeeded"
        result.write()
        assert list(resume_sweep.due(journal, settings)) == ["rates"]  # The pod still has to be returned.
        assert [one.run for one in kind.stop("rates", journal, settings, print)] == ["rates.pod-1"]
        assert not resume_sweep.known(journal, settings) and not resume_sweep.due(journal, settings)
        journal.advance(op, "gone")
