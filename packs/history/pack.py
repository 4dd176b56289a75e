"""The pack `history`: repeat a run from the receipt, or export a run as plain files."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="history",
    about="Repeat a run from the receipt, or write the run as a script",
    commands={
        "again": CommandEntry(
            where="packs.history.commands.again:again", summary="Repeat a run on this machine; show what differs today."
        ),
        "eject": CommandEntry(
            where="packs.history.commands.eject:eject",
            summary="Write a run as a shell script that needs no Slipway.",
        ),
    },
)
