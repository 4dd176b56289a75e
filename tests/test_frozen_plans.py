"""The plan of one job per source document, and of two sweeps, as JSON: a refactoring changes no plan.

python -m tests.test_frozen_plans write     after an intended change
"""

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.world import World

pytestmark = pytest.mark.process
FILE = Path(__file__).with_name("frozen_plans.json")
TOY = "examples/jobs/profiles/toy.yaml"
LINES = {
    "SkyPilot's jobs": f"launch examples/jobs/train.yaml -e MODEL={TOY} -e STAGE=1+1.9 -e INIT= --provider local",
    "SkyPilot's training guide": "launch examples/jobs/smoke_test.yaml --provider local",
    "Lium's sweeps": "launch --phase rl --task sort --provider local",
    "RunPod's setup": "launch --phase base --profile m3_medium --steps 3 --seed 7 --provider local",
    "Shadeform's guide": "launch --phase all --provider local",
}
SWEEPS = {
    "Lium's learning rates": "sweep lr_sweep --rehearse",
    "the example's learning rates": "sweep examples/sweeps/rates.yaml --provider local",
}
OF_HERE = ("machine: ", "neither --ttl", "the store holds")  # notes about this machine and the time


def plan(line: str, folder: Path) -> dict:
    """Return the plan of a launch without machine-dependent parts: times, and digests of Python's own text."""
    found = World(folder).json(*line.split(), "--dry-run")
    artifacts = []
    for one in found["artifacts"]:
        spec, version, _ = one["fingerprint"].split("-")
        of_python = one["step"] in ("text", "questions")
        artifacts.append([one["name"], one["state"], one["step"], version if of_python else f"{spec}-{version}"])
    notes = [note for note in found["notes"] if not note.startswith(OF_HERE)]
    mounts = [[one["at"], one["files"]] for one in found["mounts"]]
    return {"steps": found["steps"], "artifacts": artifacts, "mounts": mounts, "notes": notes, "flags": found["flags"]}


def sweep(line: str, folder: Path) -> dict:
    """Return the plan of a sweep without times and prices: the runs in order, each with arm and pod."""
    world = World(folder)
    found = world.json(*line.split(), "--dry-run")
    if "--rehearse" in line:
        world.inv("rehearse", "--stop")
    lanes = [[one["pod"], one["runs"], one["devices"]] for one in found["lanes"]]
    return {"lanes": lanes, "runs": [[one["run"], one["arm"], one["toy_of"], one["pod"]] for one in found["runs"]]}


@pytest.mark.pack("sweeps")
@pytest.mark.parametrize("name", SWEEPS)
def test_the_plan_of_a_sweep_is_unchanged(tmp_path, name):
    assert sweep(SWEEPS[name], tmp_path) == json.loads(FILE.read_text())[name]


def packs_of(line: str) -> list[pytest.MarkDecorator]:
    """Return marks for the packs with words in a line."""
    words = {"STAGE=": "bits", "examples/jobs": "jobs"}
    return [pytest.mark.pack(pack) for word, pack in words.items() if word in line]


@pytest.mark.parametrize("name", [pytest.param(name, marks=packs_of(LINES[name])) for name in LINES])
def test_the_plan_of_a_job_is_unchanged(tmp_path, name):
    assert plan(LINES[name], tmp_path) == json.loads(FILE.read_text())[name]


if __name__ == "__main__" and sys.argv[1:] == ["write"]:
    with tempfile.TemporaryDirectory() as scratch:
        plans = {name: plan(line, Path(scratch, str(number))) for number, (name, line) in enumerate(LINES.items())}
        plans |= {name: sweep(line, Path(scratch, name.replace(" ", "-"))) for name, line in SWEEPS.items()}
    FILE.write_text(json.dumps(plans, indent=1) + "\n")
