"""A user's pack: a folder copied into `packs/`, which no list of Slipway names."""

import re
import shutil

import pytest

from tests.test_without_packs import Apart, clone
from tests.world import ROOT

pytestmark = pytest.mark.process


def stderr_of(world: Apart, *words: str) -> str:
    process = world.run(*words)
    err = process.stderr
    assert process.returncode == 2 and "Traceback" not in err
    return err


@pytest.mark.nightly
def test_folder_in_packs_adds_a_command_settings_lines_and_a_phase_with_a_flag(tmp_path):
    checkout = clone(tmp_path / "checkout")
    world = Apart(tmp_path, {"DESK_CONTACT": ""}, checkout=checkout)
    pack = checkout / "packs" / "desk"
    shutil.copytree(ROOT / "examples" / "own" / "desk", pack)
    (checkout / "slipway.yaml").write_text("desk_contact: Ada\npolish_steps: 7\n")
    assert "  desk " in world.inv("--list") and world.inv("desk") == "Ada\n"
    assert world.json("config")["desk_contact"]["value"] == "Ada"
    doctor = world.run("doctor").stdout
    assert re.search("desk +ok +Ada", doctor)

    launch = ("launch", "--provider", "local", "--dry-run")
    assert "Phase polish\n  --polish-steps N" in world.inv("launch", "--help-all")
    plan = world.json(*launch, "--phase", "sft+polish", "--polish-steps", "3")
    assert plan["artifacts"][-1]["name"] == "polish_checkpoints/tiny" and plan["flags"]["polish-steps"] == 3
    assert "polish 3 of 1 steps" in " ".join(plan["notes"])
    assert "only for the phase polish; to add the phase: --phase sft+polish" in stderr_of(
        world, *launch, "--polish-steps", "3"
    )

    shutil.rmtree(pack)
    (checkout / "slipway.yaml").unlink()
    assert "no flag --polish-steps" in stderr_of(world, *launch, "--polish-steps", "3")
