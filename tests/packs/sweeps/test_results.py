"""An unreadable file of results is skipped: the other sweeps are listed."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.reading import status
from infra.settings import Settings
from packs.sweeps.control.groups import Sweeps
from packs.sweeps.control.trials import results
from tests.hostile import mistyped, spliced

TRIAL = {"run": "s.a", "arm": "a", "seed": 1, "asked": {}, "flags": {}, "env": {}, "pod": "", "state": "succeeded",
         "reason": "", "seconds": 1.0, "steps": 2, "at": 2, "score": 0.5, "beside": {}, "micro_usd": 3, "phase": "base",
         "made": ["n", "f"]}  # fmt: skip
SWEEP = {"name": "s", "about": "", "rank": {}, "against": "", "provider": "local", "limit_micro_usd": None,
         "trials": [TRIAL], "beside": [], "saved_s": 0.0, "saved_micro_usd": 0, "version": 1}  # fmt: skip


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    for group in Sweeps().on_record(found):
        status.expand_group(group, [])
        json.dumps([{"state": one.state, **one.details} for one in group.runs.values()])
