"""The words of `inv drill`: an unknown fault to plant is refused before any search for a machine."""

import pytest

from infra.errors import UsageError
from packs.drill.commands.drill import DrillFlags, drill


@pytest.mark.parametrize(("name", "why"), [
    ("late-tmer", "--plant late-tmer: known: all, price, token, no-timer, late-timer"),
    ("late-timer", "--plant needs a rehearsal"),
])  # fmt: skip
def test_unknown_planted_fault_is_refused_before_any_plan_or_question(name, why, tmp_path, monkeypatch):
    for variable, path in (("SLIPWAY_STATE_FILE", "journal.db"), ("SLIPWAY_STORE", "store"), ("HOME", ".")):
        monkeypatch.setenv(variable, str(tmp_path / path))
    with pytest.raises(UsageError, match=why):
        drill.work(DrillFlags(provider="lium", plant=name))
    assert not list(tmp_path.iterdir())
