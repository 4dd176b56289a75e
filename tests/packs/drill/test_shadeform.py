"""Drills of the rehearsed shadeform."""

import json

from tests.packs.drill.drills import MARKS, Drills

pytestmark = MARKS


class TestShadeform(Drills):
    vendor = "shadeform"

    def test_single_rate_limit_makes_no_difference(self, user):
        user.world.send_command("/faults", {"requests": [{"call": "create", "kind": "throttle", "skip": 1}]})
        process = user.run("drill", "--provider", "shadeform", "--rehearse", "--yes", "--json", timeout_s=600)
        out, err = process.stdout, process.stderr
        user.world.send_command("/faults", {})
        states = {one["clause"]: one["state"] for one in json.loads(out)["findings"]}
        assert process.returncode == 0 and set(states.values()) == {"kept"} and "throttle" in states, err
