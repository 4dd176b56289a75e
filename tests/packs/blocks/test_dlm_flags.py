"""Flags and settings of the phase dlm: typed, in training files, and without the pack."""

import subprocess
import sys

import pytest

import tasks
from flows.planning.training_plan import PlannedWork
from flows.specs import files
from flows.specs.launch import LaunchSpec
from flows.specs.work import filled
from infra.errors import UsageError
from infra.flags import command_words, flags_of, given_flag_names
from infra.settings import Settings, table
from packs.blocks.control.sizes import DLM as GROUP
from packs.blocks.control.sizes import DlmFlags, DlmSettings
from packs.blocks.records.phases import DLM
from tests.world import ROOT


def typed(phase: str, **flags) -> LaunchSpec:
    return LaunchSpec(phase=phase, added=(DlmFlags(**flags),))


def test_sizes_are_flags_that_override_settings_and_apply_to_dlm_only():
    settings = Settings.load(ROOT, {}, ("BLOCK_SIZE=16", "TOKENS=2048"), environ={})

    def sizes(phase: str, **flags):
        wanted = PlannedWork.from_spec(typed(phase, **flags), settings).training_request(settings)
        return tuple(wanted.sizes.values())

    assert sizes("sft+dlm") == (16, 0, 0, 2048)
    assert sizes("sft+dlm", block_size=32, batch_size=4, grad_accum=2, tokens=0) == (32, 4, 2, 0)
    # A setting may stay in .env for later use.
    assert sizes("sft") == (16, 0, 0, 2048)
    refusal = "--tokens, --batch-size: only for the phase dlm; to add the phase: --phase sft.dlm"
    with pytest.raises(UsageError, match=refusal):
        sizes("sft", tokens=2048, batch_size=4)


def test_flags_settings_and_sizes_of_the_phase_have_the_same_names():
    assert {*DLM.sizes} == {one.name for one in flags_of(DlmFlags)} == {one.name for one in table(DlmSettings)}
    assert settings_of("BATCH_SIZE=3") == DlmSettings(block_size=0, batch_size=3, grad_accum=0, tokens=0)


def settings_of(*words: str) -> DlmSettings:
    found = Settings.load(ROOT, {}, words, environ={}).for_pack(DlmSettings)
    return DlmSettings(**{name: getattr(found, name) for name in DLM.sizes})


@pytest.mark.parametrize("command", ["launch", "rehearse", "train", "pod.run"])
def test_training_commands_have_the_flags_in_the_group_of_the_phase(command):
    task = tasks.namespace[command]
    assert {one.name for one in task.flags if one.group == GROUP} == {*DLM.sizes}
    assert not {*DLM.sizes} & {one.name for one in flags_of(task.record)}


def test_training_file_sets_the_flags_that_were_not_typed():
    values = files.read("job.yaml", {"block_size": 8, "batch-size": 2, "seed": 7}, LaunchSpec)
    spec = filled(typed("dlm", tokens=5), values)
    assert (spec.phase, spec.seed, spec.added_record(DlmFlags)) == (
        "dlm",
        7,
        DlmFlags(tokens=5, block_size=8, batch_size=2),
    )
    assert filled(LaunchSpec(), {"tokens": 5}).added == (DlmFlags(tokens=5),)
    assert filled(LaunchSpec(), {"seed": 7}) == LaunchSpec(seed=7)
    assert command_words(spec) == ["--phase=dlm", "--seed=7", "--tokens=5", "--block-size=8", "--batch-size=2"]
    assert given_flag_names(spec) == {"phase", "seed", "tokens", "block_size", "batch_size"}


@pytest.mark.pack("sweeps")
def test_sweep_varies_a_size_and_its_toy_recipes_drop_sizes():
    from packs.sweeps.control import rehearsed, sweep_file

    said = {"each": {"phase": "dlm", "tokens": 9}, "axes": {"block-size": [8, 16]}}
    specs = [one.spec for one in sweep_file.read("sizes.yaml", said, "sizes").trials.values()]
    assert [one.added_record(DlmFlags) for one in specs] == [DlmFlags(tokens=9, block_size=size) for size in (8, 16)]
    assert rehearsed.toy_of(specs[0]).added == ()


@pytest.mark.process
def test_flags_without_the_pack_are_hidden_and_refused_with_the_name_of_the_pack(tmp_path):
    """An empty packs folder stands for a deleted pack folder."""
    program = "import sys; from pathlib import Path; from store import packs; packs.FOLDER = Path(sys.argv.pop(1)); "
    program += "from invoke.main import program; program.run(['inv', *sys.argv[1:]])"

    def inv(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path), *words], cwd=ROOT, capture_output=True, text=True
        )
        return done.stdout + done.stderr

    shown = inv("launch", "--help-all")
    assert "--phase TEXT" in shown and "--block-size" not in shown and GROUP not in shown
    assert "launch --tokens belongs to the pack blocks, and packs/blocks is missing" in inv("launch", "--tokens", "5")
