"""Drills of the rehearsed vendors: honest vendors break no clause, and planted faults are found."""

import json
import re

import pytest

from packs.drill.control import differences
from tests.end_to_end.test_street_market import VENDORS, world_of

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(3600),  # Guard against hangs: all tests take minutes, with separate machines each.
]


@pytest.fixture(scope="module")
def user(tmp_path_factory):
    yield from world_of(tmp_path_factory.mktemp("drilled"), 20)


@pytest.mark.parametrize("vendor", list(VENDORS))
def test_drill_of_an_honest_vendor_breaks_no_clause_leaves_no_machine_and_is_cited(user, vendor):
    process = user.run("drill", "--provider", vendor, "--rehearse", "--yes", "--json", timeout_s=600)
    out, err = process.stdout, process.stderr
    assert process.returncode == 0, err
    said = json.loads(out)
    states = {one["clause"]: one["state"] for one in said["findings"]}
    refused = {"self-delete by DELETE /v2/pods": "refused"} if vendor == "runpod" else {}
    assert states == {**dict.fromkeys(states, "kept"), **refused}, said
    assert ("spot" in states) is (vendor != "shadeform")
    assert ("self-end" in states) is (vendor == "runpod") and ("spend limit" in states) is (vendor == "shadeform")
    assert user.truth()["billing"] == user.truth()["running"] == 0
    assert not user.json("audit", "--rehearse")["machines"]
    cited = user.json("offers", "--rehearse", "--provider", vendor)["drills"][vendor]
    shown = user.run("status", "--rehearse")
    assert re.search(rf"{vendor}: drilled \S+ .*ago \(.*\) in a rehearsal", shown.stdout + shown.stderr), shown.stderr
    assert cited["broken"] == [] and set(cited["kept"]) == states.keys() - refused.keys()


def test_single_rate_limit_makes_no_difference(user):
    user.world.send_command("/faults", {"requests": [{"call": "create", "kind": "throttle", "skip": 1}]})
    process = user.run("drill", "--provider", "shadeform", "--rehearse", "--yes", "--json", timeout_s=600)
    out, err = process.stdout, process.stderr
    user.world.send_command("/faults", {})
    states = {one["clause"]: one["state"] for one in json.loads(out)["findings"]}
    assert process.returncode == 0 and set(states.values()) == {"kept"} and "throttle" in states, err


@pytest.mark.parametrize("vendor", list(VENDORS))
def test_planted_faults_are_found(user, vendor):
    process = user.run("drill", "--provider", vendor, "--rehearse", "--yes", "--json", "--plant", "all", timeout_s=3500)
    out, err = process.stdout, process.stderr
    assert process.returncode == 0, err
    found = json.loads(out)
    assert len(found) == len(differences.chosen("all", vendor)) and all(
        one["found"]["expected"] and one["found"]["seen"] for one in found
    )
    assert user.truth()["billing"] == user.truth()["running"] == 0
