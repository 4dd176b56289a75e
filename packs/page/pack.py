"""The pack `page`: runs, services and costs as a live page on this machine."""

from store.packs import Pack, PackCommand

PACK = Pack(
    name="page",
    about="Show runs, services and costs as a live page in a browser",
    commands={
        "ui": PackCommand(where="packs.page.commands.ui:ui", summary="Show runs, services and costs as a live page."),
    },
)
