"""The page. What this does stands in `page.py`; the page itself is the package `ui`."""

from scripts.cli.command import command


@command("scripts.ui.page", "scripts.ui.flags:UiFlags", listens="port", example="inv ui --open")
def ui(c, spec):
    """Show runs, services and costs as a page that is live.

    It listens on this machine only, and its link counts once; from a control host it is forwarded. Ctrl-C ends the
    page, and nothing else.
    """
