"""The pack `page`: runs, services and costs as a live page on this machine, and as a file."""

from store.packs import CommandEntry, Pack

PACK = Pack(
    name="page",
    about="Show runs, services and costs as a page: live, or as a file",
    commands={
        "ui": CommandEntry(where="packs.page.commands.ui:ui", summary="Show runs, services and costs as a live page."),
        "report": CommandEntry(
            where="packs.page.commands.report:report", summary="Write a page about runs: curves, cost, samples."
        ),
    },
    group_pages={"page": "packs.page.views.export:write_group"},
)
