"""The flag --pairs: the mixture of dpo, the steps that read the pairs, and the message without the pack."""

from pathlib import Path

import pytest

from data.config import Persona
from flows.specs.work import phase_changes
from infra.errors import UsageError
from infra.records import Inventory, Request
from packs.preferences.control.flags import PreferenceFlags
from store import packs
from tests.world import ROOT
from trainer.plan import TrainingRequest, recipe, resolve
from trainer.plan.training_request import parse_phases
from trainer.recipes import PROFILES

WANTED = TrainingRequest(
    phases=("sft", "dpo"), profile="tiny", persona=Persona(name="Ada", maker="us", purpose="to help")
)


def wanted(pairs: str, **changes) -> TrainingRequest:
    changed = {**vars(WANTED), "changes": phase_changes([PreferenceFlags(pairs=pairs)]), **changes}
    return TrainingRequest(**changed)


def pairs_file(folder: Path) -> Path:
    path = folder / "mine.jsonl"
    path.write_text('{"prompt": "x", "chosen": "a", "rejected": "b"}\n')
    return path


def test_the_plan_reads_pairs_for_dpo_and_conversations_for_sft(tmp_path):
    file = pairs_file(tmp_path)
    nodes = recipe(wanted(f"{file}=0.75,other=0.25", mixture={str(file): 1.0}))
    pairs, talk = nodes["mine-pairs"], nodes["mine"]
    assert pairs.spec.reader == "pairs" and pairs.artifact == "conversations/mine-pairs" and talk.spec.reader == ""
    assert nodes["dpo"].spec.mixture == {"mine-pairs": 0.75, "other": 0.25}
    assert nodes["dpo"].inputs.keys() == {"tokenizer", "sft", "mine-pairs", "questions"}
    assert nodes["sft"].spec.mixture == {"mine": 1.0}
    assert recipe(wanted(str(file)))["dpo"].spec.mixture == {"mine-pairs": 1.0}
    assert recipe(WANTED)["dpo"].inputs.keys() == {"tokenizer", "sft", "questions"}
    plan = resolve(wanted(str(file)), Inventory("x"), ROOT, run="r", request=Request(run="r"))
    names = [step.name for step in plan.job.steps]
    assert names[-3:] == ["mid", "sft", "dpo"] and "mine-pairs" in names


def test_pairs_without_the_phase_dpo_are_refused(tmp_path):
    with pytest.raises(UsageError, match="--pairs: no effect on the phase sft"):
        recipe(wanted(str(pairs_file(tmp_path)), phases=("sft",)))


@pytest.mark.pack("adapters")
@pytest.mark.parametrize("phases", [("sft",), ("dpo",), ("sft", "dpo")])
def test_pairs_without_the_phase_dpo_are_refused_beside_a_flag_with_an_effect(tmp_path, phases):
    from packs.adapters.control.flags import AdapterFlags

    flags = [AdapterFlags(adapter="lora"), PreferenceFlags(pairs=str(pairs_file(tmp_path)))]
    asked = TrainingRequest(**{**vars(WANTED), "phases": phases, "changes": phase_changes(flags)})
    if "dpo" in phases:
        spec = recipe(asked)["dpo"].spec
        assert spec.mixture == {"mine-pairs": 1.0} and spec.adapter.kind == "lora"
        return
    with pytest.raises(UsageError, match="^--pairs: no effect on the phase sft$"):
        recipe(asked)


def test_every_profile_has_the_phase_and_a_launch_of_other_phases_loads_no_recipe_of_a_pack():
    for make in PROFILES.values():
        phase = make().phases["dpo"]
        assert phase.rows % phase.micro_rows == 0 and phase.optimizer.lr < make().phases["sft"].optimizer.lr
    assert {*PROFILES["tiny"](("sft",)).phases} == {"base", "mid", "sft", "rl"}
    assert {*PROFILES["tiny"](("dpo",)).phases} == {"base", "mid", "sft", "rl", "dpo", "opd"}


def test_the_phase_without_the_pack_is_refused_with_the_name_of_the_pack(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "installed", dict)
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    with pytest.raises(UsageError, match="dpo belongs to the pack preferences, and packs/preferences is missing"):
        parse_phases("sft+dpo")
