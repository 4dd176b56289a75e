"""The pack `drill`: the promises of a vendor, tested on machines of the user's own account."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="drill",
    about="Test the promises of a vendor on rented machines",
    needs=("jobs",),
    commands={
        "drill": CommandEntry(
            where="packs.drill.commands.drill:drill", summary="Test the promises of a vendor on rented machines."
        ),
    },
    account_notes={"drills": "packs.drill.control.reports:notes"},
)
