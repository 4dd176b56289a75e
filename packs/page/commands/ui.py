"""The command `inv ui`: replaces its process with the page server, in the environment `ui`."""

from dataclasses import dataclass
from pathlib import Path

from infra import train_env
from infra.checkout import ROOT
from infra.flags import flag
from scripts.cli import context, local_step
from scripts.cli.command import command
from scripts.cli.session import open_journal


@dataclass(frozen=True, kw_only=True)
class UiFlags:
    port: int | None = flag(None, "port on this machine; 0: any free port (default: 7331, or the next free port)")
    allow_acts: bool = flag(False, "let the page end and resume runs and scale services, after a confirmation")
    export: str = flag("", "write a snapshot of the page to this folder, as one file that needs no server", unit="DIR")
    open: bool = flag(False, "open the page in the browser")


@command(record=UiFlags, listens="port", example="inv ui --open")
def ui(spec: UiFlags) -> None:
    """Show runs, services and costs as a live page.

    It listens on this machine only, and its link works once; a control host's page is forwarded. Ctrl-C ends the
    page, and nothing else.
    """
    settings = context.settings()
    with open_journal(settings):  # opening reports journal errors before the server starts
        pass
    words = ["-m", "packs.page.views"]
    words += [] if spec.port is None else ["--port", str(spec.port)]
    words += ["--export", str(Path(spec.export).expanduser().absolute())] if spec.export else []
    words += ["--allow-acts"] * spec.allow_acts + ["--open"] * spec.open
    train_env.exec_interactive(words, root=ROOT, python=local_step.python(settings, "ui"))
