"""The command `ckpt.verify`: comparison of every byte of checkpoints with their manifests."""

from dataclasses import dataclass

from invoke import Exit

from infra.flags import flag
from scripts.checkpoints.lookup import FROM, NAME, about, find_checkpoint, list_checkpoints, store_title
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from store import catalogue

FOUND = 5  # exit code of an audit with findings


@dataclass(frozen=True, kw_only=True)
class CkptVerifyFlags(Output):
    model: str = flag("", f"{NAME} (default: all)", word=True)
    from_: str = flag("", FROM)


@command(record=CkptVerifyFlags, example="inv ckpt.verify")
def verify(spec: CkptVerifyFlags) -> None:
    """Verify every byte of checkpoints.

    The checkpoints are read in the store. The exit code is 5 if a checkpoint is damaged.
    """
    found = list_checkpoints(context.settings(), spec.from_)
    chosen = [find_checkpoint(found, spec.model, spec.from_)] if spec.model else found
    results = [(one, one.trouble or catalogue.problem(one)) for one in chosen]
    if spec.json:
        print_json([{**about(one), "problem": problem} for one, problem in results])
    elif results:
        rows = [("checkpoint", "kind", "step", "state")]
        print(render.clean(columns([*rows, *((a.name, a.kind, str(a.step), b or "whole") for a, b in results)])))
    else:
        render.say(f"No checkpoints found in {store_title(spec.from_)}, so no checkpoint was verified")
    damaged = [one.name for one, problem in results if problem]
    if damaged:
        raise Exit(
            f"inv ckpt.verify: damaged: {', '.join(damaged)}. A resumed run skips damaged checkpoints and "
            "uses the previous checkpoint",
            code=FOUND,
        )
