"""What the commands of `tasks.py` do: train a model here, talk to it, hand it on."""

import math
import os
from dataclasses import replace
from pathlib import Path

from flows import init_model, memory_check
from flows.find_model import model_folder
from flows.planning import Work, made_by_words, plan_for
from flows.run_leases import foreground, move_names
from infra.agent.job import Limits
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.providers import registry
from infra.records import Request
from scripts.cli import context, local_step, prompts, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.local_step import run as run_step
from trainer.records.phase_registry import PHASES


def train(profile, config, init, source, out, prepare, json, remake, keep_made, block_size, **wanted):
    if profile and config:
        raise UsageError("--profile and --config are two words for one recipe; choose one")
    settings = context.settings(profile=profile or config, source=source, store=out, block_size=block_size)
    found = init_model.look(init, settings) if init else None
    work = Work(**wanted, init=found, made=made_by_words(remake, keep_made))
    limits = Limits(reserve_bytes=settings.reserve_bytes)
    here = registry.provider(settings, "local")
    plan = plan_for(work, settings, Request(run="foreground"), here, limits)
    if made := prompts.ask_about_made(plan, yes=json):
        plan = plan_for(replace(work, made=made), settings, Request(run="foreground"), here, limits)
    if not json:
        render.show_plan(plan)
    move_names(plan)
    results = {}
    due = plan.job.steps if plan.job else ()
    if prepare:
        due = tuple(step for step in due if step.name not in PHASES)
    memory_check.check(memory_check.phases_of(due))
    with foreground(plan, render.say):
        for step in due:
            results[step.name] = run_step(step.name, step.words, step.config, settings, quiet=json)
    if json:
        print_json({"state": "succeeded", "ran": list(results), "results": results})
    elif not results:
        render.say("everything is here; nothing to do")
    elif init and not prepare:
        made = due[-1].config["making"]["name"]
        render.say(f"Next: ./inv chat {made}, or for transformers and vLLM: ./inv export {made} --out DIR")


def chat(model, tag, prompt, temperature, max_tokens, endpoint):
    from infra import train_env

    if prompt is not None and not prompt.strip():
        raise UsageError("--prompt is empty; leave it out for a conversation")
    if max_tokens < 1:
        raise UsageError(f"--max-tokens is {max_tokens}; it must be at least 1")
    if not 0 <= temperature < math.inf:
        raise UsageError(f"--temperature is {temperature}; it must be a number from 0 up")
    settings = context.settings()
    if endpoint:
        from scripts.services import endpoint_chat

        endpoint_chat.hold(endpoint, settings, model, prompt, temperature, max_tokens)
        return
    folder = model_folder(settings, model, tag, render.say)
    python = local_step.python(settings)
    said = ["-m", "trainer", "chat", "--model", str(folder), "--temperature", str(temperature)]
    said += ["--max-tokens", str(max_tokens), *(["--prompt", prompt] if prompt else [])]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    train_env.exec_interactive(said, root=ROOT, python=python)


def export(model, tag, out, dtype):
    if not out:
        raise UsageError("where to? --out DIR")
    if dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype is {dtype!r}; known: float32, bfloat16")
    settings = context.settings()
    folder = model_folder(settings, model, tag, render.say)
    said = ("-m", "trainer", "export", "--model", str(folder), "--out", str(Path(out).absolute()), "--dtype", dtype)
    from infra import train_env

    for _ in train_env.run(said, None, root=ROOT, python=local_step.python(settings)):
        pass
    print(Path(out).absolute())
