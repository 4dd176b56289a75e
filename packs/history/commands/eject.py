"""The command `inv eject`: export a run as plain files."""

from dataclasses import dataclass
from pathlib import Path

from flows.runs import receipt
from infra.checkout import ROOT
from infra.flags import flag
from infra.runs.lookup import find_run
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from packs.history.control import eject as plain_files
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import OneRunFlags
from scripts.cli.render import print_json
from scripts.cli.session import open_journal


@dataclass(frozen=True, kw_only=True)
class EjectFlags(OneRunFlags):
    out: str = flag("", "folder to write (default: var/eject/RUN)", unit="FOLDER")


@command(record=EjectFlags, example="inv eject brave-otter-3 --out plain")
def eject(spec: EjectFlags) -> None:
    """Write a run as a shell script that needs no Slipway."""
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
        one = receipt.read(op, settings)
    folder = Path(spec.out).absolute() if spec.out else ROOT / "var" / "eject" / one.run
    kept = [RunHome.for_run(op.run, settings.homes).snapshot.code]
    kept += [folder_of(op).code] if op.address and not op.address.startswith("ssh://") else []
    code = next((path for path in kept if (path / "trainer").is_dir()), ROOT)
    files = plain_files.eject(one, folder, code)
    if spec.json:
        print_json({"run": one.run, "folder": str(folder), "files": files, "code": str(code)})
        return
    print(folder)
    render.say(f"{one.run} was written as plain files ({', '.join(files)}); to run: sh {folder}/run.sh")
