"""Kinds of work that packs add to launches: claimed by flags and by keys of a file; a missing pack is named."""

import sys
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from flows.installation import doctor
from flows.runs import work_kinds
from flows.runs.work_kinds import EstimatedWork, FileFinding, RequestedWork, WorkKind
from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.flags import Typed, command_words, flag, nondefault_flags
from infra.selection.machine_spec import MachineSpec
from store import packs
from store.packs import Pack, PackWork

WORDS = {"needs": [], "works": ["dance"], "file_keys": ["waltz"], "command_flags": ["launch --steps-of"]}


@dataclass(frozen=True, kw_only=True)
class DanceFlags:
    steps_of: str = flag("", "what is danced")


class Dance(RequestedWork):
    """Work of a pack."""


class Dances(WorkKind):
    def work_of_command(self, spec, file):
        return Dance() if file or spec.added_record(DanceFlags).steps_of else None

    def work_to_estimate(self, spec, wanted, settings):
        return EstimatedWork(words="a dance", spec=wanted, machine=MachineSpec())

    def findings(self, path, provider):
        return [FileFinding(1, "too fast")]


@pytest.fixture
def dances(monkeypatch):
    """Return a pack `ball` with a kind of work, with the parts that the core uses."""
    monkeypatch.setattr(DanceFlags, "__module__", "packs.ball.control.flags")
    monkeypatch.setitem(sys.modules, "packs.ball", SimpleNamespace(kind=Dances))
    work = PackWork(where="packs.ball:kind", file_keys=("waltz",))
    pack = Pack(name="ball", about="Dance", works={"dance": work}, command_flags={"launch": "packs.ball:flags"})
    monkeypatch.setattr(packs, "installed", lambda: {"ball": pack})
    monkeypatch.setattr(packs, "known", lambda: {"ball": WORDS})


@pytest.fixture
def no_dances(monkeypatch, tmp_path):
    """Return the same pack without the folder."""
    monkeypatch.setattr(packs, "installed", dict)
    monkeypatch.setattr(packs, "known", lambda: {"ball": WORDS})
    monkeypatch.setattr(packs, "FOLDER", tmp_path / "packs")


def spec(**flags) -> LaunchSpec:
    return LaunchSpec(added=(DanceFlags(**flags),))


def test_a_kind_is_used_if_its_flag_is_given_or_a_file_has_its_key(dances, tmp_path):
    ours, theirs = tmp_path / "flags.yaml", tmp_path / "dance.yaml"
    ours.write_text("gpu: H100")
    theirs.write_text("name: one\n---\nwaltz: {}")
    assert (
        type(work_kinds.work_of_command(spec(), ""))
        is type(work_kinds.work_of_command(spec(), str(ours)))
        is RequestedWork
    )
    assert type(work_kinds.work_of_command(spec(), str(tmp_path / "none.yaml"))) is RequestedWork
    assert isinstance(work_kinds.work_of_command(spec(steps_of="waltz"), str(ours)), Dance)
    assert isinstance(work_kinds.work_of_command(spec(), str(theirs)), Dance)
    assert work_kinds.work_to_estimate(spec(), LaunchSpec(), None) is None
    assert work_kinds.work_to_estimate(spec(steps_of="waltz"), LaunchSpec(), None).words == "a dance"
    assert [one.text for one in doctor.file_findings(ours, "")] == ["too fast"]


def test_work_of_phases_matches_the_typed_flags():
    typed = LaunchSpec(provider="local", phase="base")
    assert RequestedWork().with_provider(typed) == typed and RequestedWork().variables(None) == {}


def test_a_record_of_a_pack_is_found_by_type_and_shown_with_the_command_flags():
    typed = spec(steps_of="waltz")
    assert typed.added_record(DanceFlags).steps_of == "waltz" and Typed().added_record(DanceFlags) == DanceFlags()
    assert nondefault_flags(typed) == {"steps-of": "waltz"} and command_words(typed) == ["--steps-of=waltz"]


def test_a_file_or_request_of_a_missing_pack_names_the_pack(no_dances, tmp_path):
    path = tmp_path / "dance.yaml"
    path.write_text("waltz: {}")
    for asked in (
        lambda: work_kinds.kind_of_file(path),
        lambda: work_kinds.work_of_command(LaunchSpec(), str(path)),
        lambda: doctor.file_findings(path, ""),
    ):
        with pytest.raises(UsageError, match="belongs to the pack ball, and packs/ball is missing"):
            asked()
    assert packs.missing_pack_message("command_flags", "launch --steps-of").startswith(
        "launch --steps-of belongs to the pack ball"
    )
    path.write_text("gpu: H100")
    assert work_kinds.kind_of_file(path) is None and "launch --steps-of" in packs.words("command_flags")
