"""Drills of a rehearsed vendor: an honest vendor breaks no clause, and planted faults are found.

A file for each vendor runs these tests, so that the vendors are drilled at the same time.
"""

import json
import re

import pytest

from packs.drill.control import differences
from tests.end_to_end.test_street_market import world_of

MARKS = [
    pytest.mark.nightly,
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(3600),  # Guard against hangs: a vendor takes minutes, with separate machines for each test.
]


class Drills:
    """Tests of the vendor `vendor`, in a single world."""

    vendor: str

    @pytest.fixture(scope="class")
    def user(self, tmp_path_factory):
        yield from world_of(tmp_path_factory.mktemp("drilled"), 20)

    def test_drill_of_an_honest_vendor_breaks_no_clause_leaves_no_machine_and_is_cited(self, user):
        vendor = self.vendor
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
        said = shown.stdout + shown.stderr
        assert re.search(rf"{vendor}: drilled \S+ .*ago \(.*\) in a rehearsal", said), said
        assert cited["broken"] == [] and set(cited["kept"]) == states.keys() - refused.keys()

    def test_planted_faults_are_found(self, user):
        words = ("drill", "--provider", self.vendor, "--rehearse", "--yes", "--json", "--plant", "all")
        process = user.run(*words, timeout_s=3500)
        out, err = process.stdout, process.stderr
        assert process.returncode == 0, err
        found = json.loads(out)
        assert len(found) == len(differences.chosen("all", self.vendor)) and all(
            one["found"]["expected"] and one["found"]["seen"] for one in found
        )
        assert user.truth()["billing"] == user.truth()["running"] == 0
