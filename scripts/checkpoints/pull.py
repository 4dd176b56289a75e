"""The command `ckpt.pull`: a checkpoint of a store -> a folder here."""

import shutil
from pathlib import Path

from infra.errors import UsageError
from scripts.checkpoints.flags import CkptPullFlags
from scripts.checkpoints.found import about, everything, named, newest
from scripts.cli import context
from scripts.cli.invoke_patch import print_json
from store import catalogue
from store.artifacts.artifacts import Store


def ckpt_pull(spec: CkptPullFlags) -> None:
    if not spec.to:
        raise UsageError("--to DIR is missing: the folder that the checkpoint goes to")
    if bool(spec.model) == spec.latest:
        raise UsageError("give the name of one checkpoint (inv ckpt.list shows them), or --latest")
    away = [one for one in everything(context.settings(), spec.from_) if one.kind != "here"]
    one = newest(away, spec.from_) if spec.latest else named(away, spec.model, spec.from_)
    out = Path(spec.to).expanduser().absolute() / (one.name if one.kind == "final" else Path(one.path).name)
    if out.exists():
        raise UsageError(f"{out} is there already; give another folder: --to DIR")
    if one.kind == "final":
        store = Store(one.uri)
        shutil.copytree(store.path(one.name, store.manifest(one.name).fingerprint), out)
    else:
        catalogue.bring(one, out)
    if spec.json:
        print_json({**about(one), "folder": str(out)})
    else:
        print(out)
