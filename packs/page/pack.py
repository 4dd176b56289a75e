"""The pack `page`: runs, services and costs as a live page on this machine."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="page",
    about="Show runs, services and costs as a live page in a browser",
    commands={
        "ui": CommandEntry(where="packs.page.commands.ui:ui", summary="Show runs, services and costs as a live page."),
    },
)
