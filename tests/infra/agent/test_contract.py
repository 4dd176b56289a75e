"""`python -m infra.agent start|stop|status DIR` is a contract with pods that already run, of either side's age.

contract.json was recorded with the agent of 8284afb: a job as its control side wrote it, and the kinds of values in
what the three commands answered. Keys may be added; none may go or become another kind of value.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.agent.job import Job
from tests.infra.agent.world import World, until

pytestmark = pytest.mark.process

CONTRACT = json.loads(Path(__file__).with_name("contract.json").read_text(encoding="utf-8"))
KINDS = {bool: "true or false", int: "number", float: "number", str: "text", type(None): "nothing"}


def lacks(kinds: Any, answer: Any, where: str = "") -> list[str]:
    """Return what `answer` lacks of the kinds of values that were promised."""
    if isinstance(kinds, dict):
        if not isinstance(answer, dict):
            return [where]
        return [one for key, kind in kinds.items() for one in lacks(kind, answer.get(key, ...), f"{where}.{key}")]
    if isinstance(kinds, list):
        if not isinstance(answer, list) or len(answer) < len(kinds):
            return [where]
        return [one for kind, item in zip(kinds, answer, strict=False) for one in lacks(kind, item, f"{where}[]")]
    return [] if KINDS.get(type(answer)) == kinds else [where]


def part(whole: Any, like: Any) -> Any:
    """Return what `like` has, out of `whole`."""
    if isinstance(like, dict):
        return {key: part(whole[key], one) for key, one in like.items()}
    if isinstance(like, list):
        return [part(one, other) for one, other in zip(whole, like, strict=True)]
    return whole


@pytest.fixture
def world(tmp_path):
    found = World(tmp_path / "pod")
    found.token = CONTRACT["job"]["token"]
    found.program("work", f"import os, time\nwhile not os.path.exists({str(tmp_path / 'go')!r}): time.sleep(0.02)\n")
    found.pod.job.write_text(json.dumps(CONTRACT["job"]))
    yield found
    found.call("stop")


def test_a_job_of_an_older_control_side_runs_and_is_answered_as_it_was(world, tmp_path):
    assert lacks(CONTRACT["start"], world.start()) == []
    until(lambda: (world.call("status")["progress"] or {}).get("step") == "work", "a step")
    until(lambda: "disk_at" in world.call("status")["progress"]["machine"], "the machine's figures")
    assert lacks(CONTRACT["running"], world.call("status")) == []
    (tmp_path / "go").touch()
    assert world.verdict()["state"] == "succeeded"
    assert lacks(CONTRACT["over"], world.call("status")) == []
    assert lacks(CONTRACT["stop"], world.call("stop")) == []


def test_a_job_of_ours_has_all_that_an_older_agent_reads():
    ours = json.loads(Job.from_json(json.dumps(CONTRACT["job"])).to_json())
    assert part(ours, CONTRACT["job"]) == CONTRACT["job"]


def test_a_missing_key_and_another_kind_are_seen():
    assert lacks({"a": {"b": "text"}, "c": ["number"]}, {"a": {"b": 1}, "c": []}) == [".a.b", ".c"]
