"""The command `ckpt.list`: the checkpoints of a store and of this machine."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.checkpoints.lookup import FROM, about, list_checkpoints, store_title
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from store.catalogue import FoundCheckpoint


@dataclass(frozen=True, kw_only=True)
class CkptListFlags(Output):
    from_: str = flag("", FROM)
    job: str = flag("", "list only checkpoints with this text in the name")


@command(record=CkptListFlags, example="inv ckpt.list")
def list_(spec: CkptListFlags) -> None:
    """List every checkpoint, published or of a live run."""
    found = list_checkpoints(context.settings(), spec.from_, spec.job)
    if spec.json:
        print_json([about(one) for one in found])
    elif found:
        rows = [("checkpoint", "kind", "phase", "step", "size", "saved (UTC)", "loss")]
        print(render.clean(columns([*rows, *(row(one) for one in found)], least=(1, 5, 4))))
    else:
        render.say(f"No checkpoints found in {store_title(spec.from_)}. Create a checkpoint: inv train --phase base")


def row(one: FoundCheckpoint) -> tuple[str, ...]:
    loss = (one.manifest.get("metrics") or {}).get("loss")
    shown = "?" if loss is None else f"{loss:.4f}"
    size = f"{one.num_bytes / 1e6:.1f} MB"
    phase = one.trouble or str(one.manifest.get("phase", "?"))
    return one.name, one.kind, phase, str(one.step), size, one.saved_at.partition("+")[0] or "?", shown
