"""The command `ckpt.init`: creation of a store's bucket, repository or folder."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import flag
from scripts.checkpoints.found import lend_for
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.json_output import print_json
from store.backends.by_uri import open_place


@dataclass(frozen=True, kw_only=True)
class CkptInitFlags(Output):
    to: str = flag("", "the store to make")
    dry_run: bool = flag(False, "show the vendor's own command, and stop")


@command(record=CkptInitFlags, world="", example="inv ckpt.init --to s3://bucket/runs")
def init(spec: CkptInitFlags) -> None:
    """Make the bucket, repository or folder of a store."""
    if not spec.to:
        raise UsageError("--to is missing: hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    lend_for(spec.to, context.settings())
    place = open_place(spec.to)
    if spec.dry_run:
        made = None
        render.say("dry run: nothing was made; by hand it would be:")
        if not spec.json:
            print(place.creation())
    else:
        made = place.create()
        render.say(
            f"{spec.to} {'is made' if made else 'was there already'}; "
            f"use it: --store {spec.to}, or SLIPWAY_STORE={spec.to}"
        )
    if spec.json:
        print_json({"uri": spec.to, "made": made, "command": place.creation()})
