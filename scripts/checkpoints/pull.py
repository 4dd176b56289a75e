"""The command `ckpt.pull`: a verified download of a checkpoint from a store."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.flags import flag
from scripts.checkpoints.lookup import FROM, NAME, about, find_checkpoint, list_checkpoints, newest
from scripts.cli import context
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from store import catalogue
from store.artifacts.artifacts import Store


@dataclass(frozen=True, kw_only=True)
class CkptPullFlags(Output):
    model: str = flag("", NAME, word=True)
    from_: str = flag("", FROM)
    to: str = flag("", "folder for the checkpoint")
    latest: bool = flag(False, "the newest one")


@command(record=CkptPullFlags, example="inv ckpt.pull --latest --from s3://bucket/runs --to model")
def pull(spec: CkptPullFlags) -> None:
    """Download a checkpoint from a store, and verify the copy."""
    if not spec.to:
        raise UsageError("--to DIR is missing; give the folder for the checkpoint")
    if bool(spec.model) == spec.latest:
        raise UsageError("give the name of a checkpoint (listed by inv ckpt.list), or --latest")
    away = [one for one in list_checkpoints(context.settings(), spec.from_) if one.kind != "here"]
    one = newest(away, spec.from_) if spec.latest else find_checkpoint(away, spec.model, spec.from_)
    out = Path(spec.to).expanduser().absolute() / (one.name if one.kind == "final" else Path(one.path).name)
    if out.exists():
        raise UsageError(f"{out} already exists. Give a different folder: --to DIR")
    if one.kind == "final":
        store = Store(one.uri)
        shutil.copytree(store.path(one.name, store.manifest(one.name).fingerprint), out)
    else:
        catalogue.download(one, out)
    if spec.json:
        print_json({**about(one), "folder": str(out)})
    else:
        print(out)
