"""The command `ckpt.verify`: every byte of checkpoints, compared with their manifests."""

from invoke import Exit

from scripts.checkpoints.flags import CkptVerifyFlags
from scripts.checkpoints.found import about, everything, named, where
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from store import catalogue

FOUND = 5  # an audit found something


def ckpt_verify(spec: CkptVerifyFlags) -> None:
    found = everything(context.settings(), spec.from_)
    chosen = [named(found, spec.model, spec.from_)] if spec.model else found
    results = [(one, one.trouble or catalogue.problem(one)) for one in chosen]
    if spec.json:
        print_json([{**about(one), "problem": problem} for one, problem in results])
    elif results:
        rows = [("checkpoint", "kind", "step", "state")]
        print(render.clean(columns([*rows, *((a.name, a.kind, str(a.step), b or "whole") for a, b in results)])))
    else:
        render.say(f"No checkpoints found in {where(spec.from_)}; there is nothing to verify")
    damaged = [one.name for one, problem in results if problem]
    if damaged:
        raise Exit(f"inv ckpt.verify: damaged: {', '.join(damaged)}; a run passes over them and takes the one before",
                   code=FOUND)  # fmt: skip
