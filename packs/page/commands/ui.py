"""The command `inv ui`: it becomes the server of the page, in the environment that has one."""

from pathlib import Path

from infra import train_env
from infra.checkout import ROOT
from scripts.cli import context, local_step
from scripts.cli.session import open_journal
from scripts.runs.flags import UiFlags


def ui(spec: UiFlags) -> None:
    settings = context.settings()
    with open_journal(settings):  # which says what is wrong with it
        pass
    words = ["-m", "packs.page.views"]
    words += [] if spec.port is None else ["--port", str(spec.port)]
    words += ["--export", str(Path(spec.export).expanduser().absolute())] if spec.export else []
    words += ["--allow-acts"] * spec.allow_acts + ["--open"] * spec.open
    train_env.exec_interactive(words, root=ROOT, python=local_step.python(settings, "ui"))
