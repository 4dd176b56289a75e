"""The command `train`: the steps of a launch, run in the foreground of this terminal."""

import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from invoke import Exit

from flows.planning import estimates
from flows.planning.training_plan import PlannedWork, plan_for
from flows.runs.run_leases import hold_inputs, move_names
from flows.specs import variables
from flows.specs.work import WORK, WorkSpec
from infra.agent import host
from infra.agent.job import Limits
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import copy_flag, flag
from infra.records import Request
from infra.selection import registry
from scripts.cli import context, local_step, plan_text, prompts, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.invoke_patch import words_after_dashes
from scripts.cli.local_step import run as run_step
from scripts.cli.render import print_json
from trainer.records.phase_registry import PHASES


@dataclass(frozen=True, kw_only=True)
class TrainFlags(Output, WorkSpec):
    phase: str = copy_flag(WorkSpec, "phase", default="base")
    config: str = flag("", "the same as --profile", group=WORK)
    script: str = flag(
        "",
        "run this Python file with torchrun instead, on all GPUs of this machine; arguments after -- go to the file",
        unit="FILE",
        group=WORK,
    )
    prepare: bool = flag(False, "only make the inputs of the phases, and stop before the training", group=WORK)


@command(record=TrainFlags, world="", env=True, example="inv train --phase base --profile tiny")
def train(spec: TrainFlags) -> None:
    """Train in this terminal, without a pod.

    The command runs the steps of `inv launch` in the foreground.
    """
    if spec.script:
        run_script(spec.script)
        return
    if spec.profile and spec.config:
        raise UsageError("--profile and --config mean the same; choose one")
    spec = variables.applied(spec, context.settings().given)
    profile = spec.profile or spec.config
    settings = context.settings(provider="local", profile=profile, source=spec.source, store=spec.store)
    work = PlannedWork.from_spec(spec, settings)
    limits = Limits(reserve_bytes=settings.reserve_bytes)
    here = registry.provider(settings, "local")
    plan = plan_for(work, settings, Request(run="foreground"), here, limits)
    if made := prompts.ask_about_made(plan, yes=spec.json):
        plan = plan_for(replace(work, remake_policy=made), settings, Request(run="foreground"), here, limits)
    if not spec.json:
        plan_text.show_plan(plan)
    move_names(plan)
    results = {}
    due = plan.job.steps if plan.job else ()
    if plan.job and plan.job.trackers:
        say = "inv train sends no metrics to trackers. To use trackers: ./inv launch --track"
        if spec.track:
            raise UsageError(f"--track {spec.track}: {say} {spec.track}")
        render.say(say)
    if spec.prepare:
        due = tuple(step for step in due if step.name not in PHASES)
    estimates.check_memory(estimates.phases_of(due))
    with hold_inputs(plan, render.say):
        for step in due:
            environ = plan.job.environ if plan.job else {}
            results[step.name] = run_step(step.name, step.words, step.config, settings, spec.json, environ)
    if spec.json:
        print_json({"state": "succeeded", "ran": list(results), "results": results})
    elif not results:
        render.say("every artifact exists; nothing to do")
    elif spec.init and not spec.prepare:
        made = due[-1].config["making"]["name"]
        render.say(f"Next: ./inv chat {made}, or export for transformers and vLLM: ./inv export {made} --out DIR")


def run_script(script: str) -> None:
    """Run a user's script with torchrun on all GPUs of this machine, as `inv launch --script` does on a pod."""
    path = Path(script).expanduser()
    if not path.is_file():
        raise UsageError(f"--script: the file {script} does not exist")
    settings = context.settings()
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={max(1, len(host.nvidia()[0]))}"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "sdk")}
    done = subprocess.run([str(local_step.python(settings)), *words, str(path), *words_after_dashes()], env=environ)
    if done.returncode:
        raise Exit(f"{script} ended with exit code {done.returncode}", code=1)
