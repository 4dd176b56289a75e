"""The words of `inv drill`: what cannot be planted is said before a machine is looked for."""

import pytest

from infra.errors import UsageError
from packs.drill.commands.drill import DrillFlags, drill


@pytest.mark.parametrize(("name", "why"), [
    ("late-tmer", "--plant late-tmer: known: all, price, token, no-timer, late-timer"),
    ("late-timer", "--plant needs a rehearsal"),
])  # fmt: skip
def test_what_cannot_be_planted_is_refused_before_anything_is_planned_or_asked(name, why, tmp_path, monkeypatch):
    for variable, path in (("SLIPWAY_STATE_FILE", "journal.db"), ("SLIPWAY_STORE", "store"), ("HOME", ".")):
        monkeypatch.setenv(variable, str(tmp_path / path))
    with pytest.raises(UsageError, match=why):
        drill.work(DrillFlags(provider="lium", plant=name))
    assert not list(tmp_path.iterdir())
