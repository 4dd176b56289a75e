"""The command `desk`."""

from packs.desk.control.settings import DeskSettings
from scripts.cli import context
from scripts.cli.command import command


@command(world="", example="inv desk")
def desk() -> None:
    """Show who looks after our machines."""
    print(context.settings().for_pack(DeskSettings).desk_contact or "DESK_CONTACT is not set")
