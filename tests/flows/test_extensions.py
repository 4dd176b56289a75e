"""Extensions in a plan: phases, sources, rewards and trackers of files that are read and not run."""

from pathlib import Path

import pytest

from data.config import ConfigError, Persona
from flows.planning import extensions
from infra.errors import UsageError
from infra.records import HeldArtifact, Inventory, Request
from infra.settings import Settings
from store.extensions import read
from trainer import plan
from trainer.plan.compare import plain, why_other

ROOT = Path(__file__).parents[2]
OWN = ROOT / "examples" / "own"
PHASE = "raise SystemExit('run')\nPHASE = {'like': 'sft', 'follows': ('base',)}\ndef phase(run): ...\n"
SOURCE = "raise SystemExit('run')\ndef source(): yield 'one'\n"


@pytest.fixture
def settings_of(tmp_path):
    def make(source="", **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        words = ",".join(str(tmp_path / f"{name}.py") for name in files)
        return Settings.load(tmp_path, {"source": source}, environ={"SLIPWAY_EXTENSIONS": words, "HOME": str(tmp_path)})

    return make


def planned(settings, phase, **more):
    extensions.use_phases(phase, settings)
    extensions.use_source(settings.source, settings)
    wanted = plan.TrainingRequest(
        phases=plan.parse_phases(phase), profile="tiny", source=settings.source, persona=Persona(**PERSONA), **more
    )
    return plan.resolve(wanted, Inventory("s"), ROOT, run="r", request=Request(run="r"))


PERSONA = {"name": "Ann", "maker": "Ben", "purpose": "to help"}


def step(found, name):
    return next(one for one in found.job.steps if one.name == name)


def test_an_extension_phase_is_planned_with_inherited_settings_and_shipped_code(settings_of):
    settings = settings_of(slow=PHASE)
    found = planned(settings, "base+slow", options={"slow.steps": "7"})
    one = step(found, "slow")
    assert (one.words, one.config["making"]["name"]) == (("-m", "trainer", "own"), "slow_checkpoints/tiny")
    assert one.config["extensions"] == {"slow": PHASE}
    assert set(one.config["making"]["inputs"]) >= {"base", "tokenizer"} and one.config["spec"]["steps"] == 7
    assert one.together == ("-m", "trainer.spread") and "slow.steps 7" in " ".join(found.notes)
    assert not any("extensions" in each.config for each in found.job.steps if each is not one)


def test_an_edited_file_changes_its_artifact_and_is_named(settings_of, tmp_path):
    settings = settings_of(source="words", slow=PHASE, words=SOURCE)
    assert settings.source == "words"
    before = {one.name: one for one in planned(settings, "slow").artifacts}
    again = {one.name: one for one in planned(settings, "slow").artifacts}
    assert before == again and "datasets/words/text" in before
    (tmp_path / "words.py").write_text(f"{SOURCE}# edited\n")
    now = {one.name: one for one in planned(settings, "slow").artifacts}
    assert now["datasets/words/text"].fingerprint != before["datasets/words/text"].fingerprint
    (tmp_path / "slow.py").write_text(f"{PHASE}# edited\n")
    changed = planned(settings, "slow")
    prints = {one.name: one.fingerprint for one in changed.artifacts}
    assert prints["slow_checkpoints/tiny"] != now["slow_checkpoints/tiny"].fingerprint
    assert prints["base_checkpoints/tiny"] == now["base_checkpoints/tiny"].fingerprint


def test_the_reason_for_a_stale_artifact_names_the_file(settings_of, tmp_path):
    settings = settings_of(slow=PHASE)
    old = step(planned(settings, "slow"), "slow").config["making"]
    (tmp_path / "slow.py").write_text(f"{PHASE}# edited\n")
    new = step(planned(settings, "slow"), "slow").config["making"]
    held = HeldArtifact(old["name"], old["fingerprint"], about={"spec": old["spec"]})
    profile = plan.profile_named("tiny").phases["slow"]
    assert plain(profile)["extension"] == new["spec"]["extension"]
    said = why_other(held, new["fingerprint"], profile)
    assert f"extension {old['spec']['extension']} -> {new['spec']['extension']}" in said
    assert "slow.py" in said


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("sft", PHASE, "is also a phase of Slipway"),
        ("tokens", PHASE, "is also a phase of Slipway"),
        ("slow", "def phase(run): ...\n", "must define PHASE = "),
        ("slow", "PHASE = {'lik': 'sft'}\ndef phase(run): ...\n", r"slow\.py:1: PHASE.*did you mean 'like'"),
        ("slow", "PHASE = {'like': 'rl'}\ndef phase(run): ...\n", "like is 'rl'; known: base, mid, sft"),
        ("slow", "PHASE = {'like': 'sft', 'follows': ['bas']}\ndef phase(run): ...\n", "did you mean 'base'"),
        ("slow", "PHASE = {'like': 'sft'}\ndef phases(run): ...\n", r"did you mean phases in line 2\?"),
    ],
)
def test_an_invalid_phase_is_refused_with_a_message(settings_of, name, text, said):
    with pytest.raises((UsageError, ConfigError), match=said):
        extensions.use_phases(name, settings_of(**{name: text}))


def test_a_misspelt_phase_of_a_file_is_reported(settings_of):
    with pytest.raises(UsageError, match=r"did you mean 'gentle', of SLIPWAY_EXTENSIONS"):
        extensions.use_phases("gentel", settings_of(gentle=PHASE))


def test_extension_sources_mix_with_ours_and_do_not_replace_ours(settings_of):
    settings = settings_of(source="words=0.5,pydocs=0.5", words=SOURCE)
    assert settings.source == "words=0.5,pydocs=0.5"
    assert extensions.use_source(settings.source, settings) == {"words": SOURCE}
    with pytest.raises(UsageError, match="is also a source of Slipway"):
        extensions.use_source("fineweb", settings_of(fineweb=SOURCE))


def test_a_reward_is_a_name_or_a_file(settings_of, tmp_path):
    text = (ROOT / "examples" / "reward.py").read_text()
    settings = settings_of(short=text)
    assert extensions.reward_text("short", settings) == text == extensions.reward_text(f"{tmp_path}/short.py", settings)
    assert extensions.reward_text("", settings) == ""
    with pytest.raises(UsageError, match="did you mean 'short'"):
        extensions.reward_text("shor", settings)
    with pytest.raises(UsageError, match="no such file"):
        extensions.reward_text(f"{tmp_path}/none.py", settings)


def test_a_tracker_is_a_name_or_a_file_and_duplicates_are_refused(settings_of, tmp_path):
    text = (ROOT / "examples" / "tracker.py").read_text()
    settings = settings_of(table=text, plain=text)
    work = planned(settings, "base").job.steps
    found = extensions.tracker_steps(extensions.requested_trackers("table,plain", settings), work)
    assert [one.name for one in found] == ["track-table", "track-plain"] and found[0].config["code"] == text
    odd = tmp_path / "mes données"
    odd.mkdir()
    (odd / "le tableau.py").write_text(text)
    (odd / "table.py").write_text(text)
    (named,) = extensions.tracker_steps(extensions.requested_trackers(str(odd / "le tableau.py"), settings), work)
    assert (named.name, named.config["tracker"]) == ("track-le-tableau", "le-tableau")
    with pytest.raises(UsageError, match="two trackers have the same name"):
        extensions.requested_trackers(f"table,{odd / 'table.py'}", settings)
    with pytest.raises(UsageError, match="SLIPWAY_EXTENSIONS has table, plain"):
        extensions.requested_trackers("tabel", settings)


def test_a_receipt_names_the_code_that_ran_and_later_changes(settings_of, tmp_path):
    settings = settings_of(source="words", slow=PHASE, words=SOURCE)
    job = planned(settings, "slow").job
    recorded = extensions.of_job({"steps": [{"config": one.config} for one in job.steps]}, "local", settings)
    assert {(one["name"], one["kind"]) for one in recorded} == {("slow", "phase"), ("words", "source")}
    assert extensions.changed_extensions(recorded) == []
    (tmp_path / "slow.py").write_text(f"{PHASE}# edited\n")
    (tmp_path / "words.py").unlink()
    edited, gone = sorted(extensions.changed_extensions(recorded), key=lambda said: "source" in said)
    assert "phase slow: " in edited and "slow.py has changed: sha256" in edited
    assert "source words: " in gone and "words.py: no such file" in gone


def test_the_examples_match_their_page():
    added = {name: read(str(OWN / f"{name}.py")).adds for name in ("lab", "sentences", "smooth")}
    assert added == {"lab": ("provider",), "sentences": ("source",), "smooth": ("phase",)}
