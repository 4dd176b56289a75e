"""The abilities of an account: as documented, lowered by reports and failed clauses, raised by kept clauses."""

import json
import time
from dataclasses import replace

import pytest

from infra.errors import NoOffer
from infra.providers import Abilities, market
from infra.providers.promises import (
    KEPT_FOR_S,
    DrillRecord,
    DrillVerdict,
    ReportedFault,
    abilities,
    account_of,
    api_of,
    folder_beside,
)
from infra.providers.shutdown_paths import caveats_of
from infra.records import Offer
from infra.selection import registry
from infra.selection.choose import without_failed_spot
from infra.settings import VENDORS, Settings
from tests.world import ROOT

NOW = 1_790_000_000
DAY_S = 86_400
LIUM = Abilities(time_limit=True, spot=True, tells_limits=True, self_terminate="native")
RUNPOD = Abilities(time_limit=True, start_timer=True, spot=True, self_terminate="pod_credential")
SECURE, COMMUNITY = "SECURE on demand", "COMMUNITY on demand"


def verdict(clause, is_kept, at=NOW - DAY_S, api=SECURE):
    return DrillVerdict(clause=clause, api=api, is_kept=is_kept, at=at)


def of(documented, *verdicts, faults=(), api=SECURE, now=NOW):
    return abilities(documented, faults, verdicts, api, now)


def test_abilities_without_a_drill_are_as_documented_minus_user_reports():
    fault = ReportedFault("time_limit", "a pull request")
    assert of(LIUM) == LIUM
    assert of(RUNPOD, faults=[fault]) == replace(RUNPOD, time_limit=False)


@pytest.mark.parametrize(("documented", "clause", "lowered"), [
    (LIUM, "timer", {"time_limit": False}),
    (RUNPOD, "timer", {"start_timer": False}),  # the drill waited for the timer of the container
    (RUNPOD, "self-end", {"self_terminate": "none", "start_timer": False}),  # both requests delete with the same key
    (LIUM, "spot", {"spot": False}),
    (replace(LIUM, spend_limit=True), "spend limit", {"spend_limit": False}),
    (LIUM, "price", {}),
])  # fmt: skip
def test_a_failed_clause_lowers_every_api_until_a_drill_keeps_it(documented, clause, lowered):
    failed = verdict(clause, False, at=NOW - 400 * DAY_S)
    for api in ("", SECURE, COMMUNITY):
        assert of(documented, failed, api=api) == replace(documented, **lowered)


def test_a_kept_clause_raises_its_own_api_for_thirty_days():
    fault = ReportedFault("time_limit", "a pull request")
    kept = verdict("timer", True, at=NOW - 29 * DAY_S)
    assert of(LIUM, kept, faults=[fault]) == replace(LIUM, drilled=frozenset({"timer"}))
    for api in ("", COMMUNITY):
        assert not of(LIUM, kept, faults=[fault], api=api).time_limit
    late = of(LIUM, kept, faults=[fault], now=kept.at + KEPT_FOR_S)
    assert not late.time_limit and not late.drilled


def test_a_clause_counts_separately_per_api():
    found = verdict("spot", False, api="COMMUNITY spot"), verdict("spot", True, api="SECURE spot")
    assert of(RUNPOD, *found, api="SECURE spot").spot
    assert not of(RUNPOD, *found, api="COMMUNITY spot").spot and not of(RUNPOD, *found, api="").spot


def test_the_v2_spot_listing_counts_only_after_a_drill_has_seen_it(tmp_path):
    vendor, settings = opened(tmp_path, "runpod")
    assert vendor.documented.lists_spot and not vendor.can_at("SECURE spot").lists_spot
    drilled(settings, "runpod", "kept", "spot in v2", api="SECURE spot")
    assert vendor.can_at("SECURE spot").lists_spot and not vendor.can_at("COMMUNITY spot").lists_spot


def test_a_drill_raises_only_documented_abilities():
    assert not of(Abilities(), verdict("timer", True)).time_limit


def report(folder, vendor, account, at, **states):
    folder.mkdir(parents=True, exist_ok=True)
    findings = [{"clause": clause.replace("_", "-"), "state": state, "api": SECURE} for clause, state in states.items()]
    stamp = f"{vendor}-202609{at:02d}T000000Z.json"
    (folder / stamp).write_text(json.dumps({"vendor": vendor, "account": account, "at": at, "findings": findings}))


def test_the_record_has_the_last_verdict_per_clause_of_an_account(tmp_path):
    folder = tmp_path / "journal-drills"
    record = DrillRecord(folder, "runpod", "mine")
    assert record.verdicts() == () == DrillRecord().verdicts()
    report(folder, "runpod", "mine", 10, timer="broken", self_end="kept", bill="untold")
    report(folder, "runpod", "theirs", 12, timer="broken", self_end="broken")
    report(folder, "lium", "mine", 13, self_end="broken")
    (folder / "runpod-20260914T000000Z.json").write_text("{")
    assert {(one.clause, one.is_kept, one.at) for one in record.verdicts()} == {
        ("timer", False, 10),
        ("self-end", True, 10),
    }
    report(folder, "runpod", "mine", 15, timer="kept")
    assert {(one.clause, one.is_kept, one.at) for one in record.verdicts()} == {
        ("timer", True, 15),
        ("self-end", True, 10),
    }


def opened(tmp_path, name, state="journal.db"):
    environ = {"SLIPWAY_STATE_FILE": str(tmp_path / state), **dict.fromkeys(VENDORS.values(), "x" * 32)}
    settings = Settings.load(ROOT, environ={key.upper(): value for key, value in environ.items()})
    return market(registry.open_provider(name, settings)), settings


def drilled(settings, name, state, *clauses, api, day=22):
    folder = folder_beside(settings.state_file)
    folder.mkdir(exist_ok=True)
    said = {
        "vendor": name,
        "account": account_of(name, settings),
        "at": int(time.time()),
        "findings": [{"clause": one, "state": state, "api": api} for one in clauses],
    }
    (folder / f"{name}-202609{day}T000000Z.json").write_text(json.dumps(said))


def test_every_client_reads_the_drills_of_its_own_account_on_request(tmp_path):
    vendor, settings = opened(tmp_path, "runpod")
    before = vendor.can_at(SECURE)
    assert vendor.documented.time_limit and not before.time_limit and before.start_timer
    assert any("count as one unproven end" in one for one in caveats_of("runpod", vendor.documented, before))
    drilled(settings, "runpod", "kept", "self-end", "self-delete by POST /graphql", api=SECURE)
    assert any(
        "count as one unproven end" in one for one in caveats_of("runpod", vendor.documented, vendor.can_at(SECURE))
    )
    both = [f"self-delete by {one}" for one in ("DELETE /v2/pods", "POST /graphql")]
    drilled(settings, "runpod", "kept", *both, api=SECURE, day=23)
    assert (
        caveats_of("runpod", vendor.documented, vendor.can_at(SECURE))
        == caveats_of("runpod", vendor.documented, vendor.can_at(COMMUNITY))[1:]
    )
    another, _ = opened(tmp_path, "lium")
    drilled(settings, "lium", "broken", "timer", api=" on demand")
    assert not another.can.time_limit and vendor.can.start_timer


def test_spot_machines_that_failed_a_drill_are_left_out_until_a_drill_succeeds(tmp_path):
    vendor, settings = opened(tmp_path, "runpod")
    spot = Offer(provider="runpod", offer_id="1", cloud="SECURE", spot=True)
    ours = replace(spot, spot=False)
    said = []
    assert without_failed_spot([spot], [vendor], said.append) == [spot] and not said
    drilled(settings, "runpod", "broken", "spot", api=api_of(spot))
    assert without_failed_spot([ours, spot], [vendor], said.append) == [ours] and "left out" in said[0]
    with pytest.raises(NoOffer, match="inv drill --provider runpod"):
        without_failed_spot([spot], [vendor], said.append)
