"""An unreadable file of results is skipped: the other sweeps are listed."""

import contextlib
import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from flows.reading import status
from infra.errors import UsageError
from infra.settings import Settings
from packs.sweeps.commands import sweep_text
from packs.sweeps.control.groups import Sweeps
from packs.sweeps.control.trials import results
from store import packs
from tests import seeds
from tests.hostile import mistyped, spliced

TRIAL = {"run": "s.a", "arm": "a", "seed": 1, "asked": {}, "flags": {}, "env": {}, "pod": "", "state": "succeeded",
         "reason": "", "seconds": 1.0, "steps": 2, "at": 2, "score": 0.5, "beside": {}, "micro_usd": 3, "phase": "base",
         "made": ["n", "f"]}  # fmt: skip
SWEEP = {"name": "s", "about": "", "rank": {}, "against": "", "provider": "local", "limit_micro_usd": None,
         "trials": [TRIAL], "beside": [], "saved_s": 0.0, "saved_micro_usd": 0, "version": 1}  # fmt: skip


@settings(max_examples=seeds.examples(60, 200))
@given(mistyped(SWEEP) | spliced(SWEEP) | st.binary(max_size=50))
def test_any_file_of_a_sweep_is_read_or_skipped(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("any")
    environ = {"HOME": str(folder), "SLIPWAY_STATE_FILE": str(folder / "state" / "journal.db")}
    found = Settings.load(folder, environ=environ)
    for name, content in (("good", json.dumps(SWEEP).encode()), ("s", raw)):
        path = results.folder_of(name, found) / "sweep.json"
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
    assert [one.folder.name for one in results.kept(found) if one.folder.name == "good"] == ["good"]
    for group in Sweeps().recorded_groups(found):
        status.expand_group(group, [])
        json.dumps([{"state": one.state, **one.details} for one in group.runs.values()])
        with contextlib.suppress(UsageError):  # the page shows the reason
            json.dumps(group.evaluate(), allow_nan=False)


def test_the_page_of_a_sweep_is_written_by_the_pack_that_makes_pages(tmp_path, monkeypatch, capsys):
    environ = {"HOME": str(tmp_path), "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db")}
    found = Settings.load(tmp_path, environ=environ)
    path = results.folder_of("s", found) / "sweep.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({**SWEEP, "rank": {"by": "loss", "mode": "min"}}))
    result, asked = results.load("s", found), []

    def write(settings: Settings, name: str, folder: Path, tell: object) -> Path:
        asked.append((settings, name))
        return folder / "page.html"

    monkeypatch.setattr(packs, "load", lambda where: write)
    monkeypatch.setattr(
        packs, "entries", lambda kind: {"theirs": "packs.theirs:write"} if kind == "group_pages" else {}
    )
    assert sweep_text.write_page(result, found) == str(result.folder / "page.html") and asked == [(found, "s")]
    monkeypatch.setattr(packs, "entries", lambda kind: {})
    monkeypatch.setattr(packs, "missing_pack_message", lambda kind, word: f"{word} belongs to the pack page")
    assert sweep_text.write_page(result, found) == ""
    assert "the page of the sweep is left out: report belongs to the pack page" in capsys.readouterr().err
    (group,) = Sweeps().recorded_groups(found)
    (arm,) = group.evaluate()["arms"]
    assert (arm["arm"], arm["mean"], arm["state"]) == ("a", 0.5, "succeeded")
    assert group.evaluate()["promote"] == "./inv sweep s --promote s.a --tag s"
