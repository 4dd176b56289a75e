"""The command `ckpt.list`: the checkpoints of a store and of this machine."""

from scripts.checkpoints.flags import CkptListFlags
from scripts.checkpoints.found import about, everything, where
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from store.catalogue import FoundCheckpoint


def ckpt_list(spec: CkptListFlags) -> None:
    found = everything(context.settings(), spec.from_, spec.job)
    if spec.json:
        print_json([about(one) for one in found])
    elif found:
        rows = [("checkpoint", "kind", "phase", "step", "size", "saved (UTC)", "loss")]
        print(render.clean(columns([*rows, *(row(one) for one in found)])))
    else:
        render.say(f"No checkpoints found in {where(spec.from_)}; make one: inv train --phase base")


def row(one: FoundCheckpoint) -> tuple[str, ...]:
    loss = (one.manifest.get("metrics") or {}).get("loss")
    shown = "?" if loss is None else f"{loss:.4f}"
    size = f"{one.num_bytes / 1e6:.1f} MB"
    phase = one.trouble or str(one.manifest.get("phase", "?"))
    return one.name, one.kind, phase, str(one.step), size, one.saved_at.partition("+")[0] or "?", shown
