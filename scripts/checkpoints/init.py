"""The command `ckpt.init`: creation of a store's bucket, repository or folder."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import flag
from scripts.checkpoints.lookup import lend_credentials
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from store.backends.backend import open_place


@dataclass(frozen=True, kw_only=True)
class CkptInitFlags(Output):
    to: str = flag("", "address of the new store")
    dry_run: bool = flag(False, "print the vendor's command for the same store, and stop")


@command(record=CkptInitFlags, world="", example="inv ckpt.init --to s3://bucket/runs")
def init(spec: CkptInitFlags) -> None:
    """Create the bucket, repository or folder of a store."""
    if not spec.to:
        raise UsageError("--to is missing. Give hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    lend_credentials(spec.to, context.settings())
    place = open_place(spec.to)
    if spec.dry_run:
        made = None
        render.say("dry run: nothing was created; the vendor's own command:")
        if not spec.json:
            print(place.create_command())
    else:
        made = place.create()
        render.say(
            f"{spec.to} {'was created' if made else 'already exists'}. "
            f"Use the store: --store {spec.to}, or SLIPWAY_STORE={spec.to}"
        )
    if spec.json:
        print_json({"uri": spec.to, "made": made, "command": place.create_command()})
