"""A line of `inv doctor`, and a line below `inv status` and `inv offers`."""

from collections.abc import Sequence
from pathlib import Path

from flows.installation.doctor import DoctorLine
from infra.settings import Settings
from packs.desk.control.settings import DeskSettings
from store.packs import AccountNotes


def check(root: Path, settings: Settings) -> DoctorLine:
    """Report whether a contact is set."""
    contact = settings.for_pack(DeskSettings).desk_contact
    return DoctorLine("desk", "ok" if contact else "off", contact or "DESK_CONTACT is not set")


def notes(settings: Settings, vendors: Sequence[str], now: float) -> AccountNotes:
    """Name the contact."""
    contact = settings.for_pack(DeskSettings).desk_contact
    return AccountNotes(lines=(f"our machines: ask {contact}",) if contact else (), document={"contact": contact})
