"""Notes on accounts: only for vendors known by packs."""

from infra.providers import by_name
from infra.settings import Settings
from store import packs
from store.packs import AccountNotes


def notes(settings: Settings, vendors: list[str], now: float) -> AccountNotes:
    """Return notes as a pack makes them."""
    return AccountNotes(lines=tuple(vendors), document={})


def test_notes_exist_for_vendors_and_not_for_own_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "entries", lambda kind: {"seen": f"{__name__}:notes"})
    settings = Settings.load(tmp_path, environ={"HOME": str(tmp_path)})
    found = by_name.account_notes(settings, ["local", "runpod", "ssh", "lium", "held"])
    assert found["seen"].lines == ("runpod", "lium")
    monkeypatch.setattr(packs, "entries", lambda kind: {})
    assert by_name.account_notes(settings, ["runpod"]) == {}
