"""The commands `train`, `chat` and `export`: train a model here, talk to it, export it."""

import math
import os
import subprocess
from dataclasses import replace
from pathlib import Path

from invoke import Exit

from flows.models.find_model import GGUF_TYPES, find_model, gguf_problem, shape_of
from flows.planning import memory_check
from flows.planning.training_plan import Work, plan_for
from flows.runs.run_leases import foreground, move_names
from flows.specs import variables
from infra.agent import host
from infra.agent.job import Limits
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.records import Request
from infra.selection import registry
from infra.settings import Settings
from scripts.cli import context, local_step, plan_text, prompts, render
from scripts.cli.invoke_patch import print_json, words_after_dashes
from scripts.cli.local_step import run as run_step
from scripts.models.flags import ChatFlags, ExportFlags, TrainFlags
from store import packs
from trainer.config import phases_for
from trainer.records.phase_registry import PHASES
from trainer.talk import TalkPlace

LLAMA = "llama.cpp"
ENGINES = ("torch", LLAMA)
HISTORY = "chat-history"


def run_script(script: str) -> None:
    """Run somebody's own file as `inv launch --script` does, here and now."""
    path = Path(script).expanduser()
    if not path.is_file():
        raise UsageError(f"--script: there is no file {script}")
    settings = context.settings()
    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={max(1, len(host.nvidia()[0]))}"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "sdk")}
    done = subprocess.run([str(local_step.python(settings)), *words, str(path), *words_after_dashes()], env=environ)
    if done.returncode:
        raise Exit(f"{script} ended with exit code {done.returncode}", code=1)


def train(spec: TrainFlags) -> None:
    if spec.script:
        run_script(spec.script)
        return
    if spec.profile and spec.config:
        raise UsageError("--profile and --config mean the same; choose one")
    spec = variables.applied(spec, context.settings().given)
    settings = context.settings(profile=spec.profile or spec.config, source=spec.source, store=spec.store)
    work = Work.of(spec, settings)
    limits = Limits(reserve_bytes=settings.reserve_bytes)
    here = registry.provider(settings, "local")
    plan = plan_for(work, settings, Request(run="foreground"), here, limits)
    if made := prompts.ask_about_made(plan, yes=spec.json):
        plan = plan_for(replace(work, made=made), settings, Request(run="foreground"), here, limits)
    if not spec.json:
        plan_text.show_plan(plan)
    move_names(plan)
    results = {}
    due = plan.job.steps if plan.job else ()
    if plan.job and plan.job.trackers:
        say = "a training in the foreground has no trackers; for those: ./inv launch --track"
        if spec.track:
            raise UsageError(f"--track {spec.track}: {say} {spec.track}")
        render.say(say)
    if spec.prepare:
        due = tuple(step for step in due if step.name not in PHASES)
    memory_check.check(memory_check.phases_of(due))
    with foreground(plan, render.say):
        for step in due:
            results[step.name] = run_step(step.name, step.words, step.config, settings, quiet=spec.json)
    if spec.json:
        print_json({"state": "succeeded", "ran": list(results), "results": results})
    elif not results:
        render.say("everything is here; nothing to do")
    elif spec.init and not spec.prepare:
        made = due[-1].config["making"]["name"]
        render.say(f"Next: ./inv chat {made}, or for transformers and vLLM: ./inv export {made} --out DIR")


def chat(spec: ChatFlags) -> None:
    from infra import train_env

    if spec.prompt is not None and not spec.prompt.strip():
        raise UsageError("--prompt is empty; leave it out for a conversation")
    if spec.max_tokens < 1:
        raise UsageError(f"--max-tokens is {spec.max_tokens}; it must be at least 1")
    if not 0 <= spec.temperature < math.inf:
        raise UsageError(f"--temperature is {spec.temperature}; it must be a number from 0 up")
    if spec.engine not in ENGINES:
        raise UsageError(f"--engine is {spec.engine!r}; known: {', '.join(ENGINES)}")
    settings = context.settings()
    if spec.endpoint:
        from scripts.services import endpoint_chat

        endpoint_chat.hold(
            spec.endpoint, settings, spec.model, spec.prompt, spec.temperature, spec.max_tokens, spec.system,
            place_of(settings),
        )  # fmt: skip
        return
    first = () if spec.engine == "torch" else phases_for(LLAMA)
    found, folder = find_model(settings, spec.model, spec.tag, render.say, first)
    name = found.name if found else folder.name
    if spec.engine == "torch":
        python, said = local_step.python(settings), ["-m", "trainer", "chat"]
    else:
        refuse_gguf(folder, name, instead="leave out --engine llama.cpp")
        python, said = local_step.python(settings, "llama-cpp"), ["-m", "trainer.engines", "chat"]
    place = place_of(settings)
    values = {"model": folder, "name": name, "system": spec.system, "temperature": spec.temperature,
              "max-tokens": spec.max_tokens, "history": place.history, "folder": place.folder}  # fmt: skip
    said += [f"--{word}={value}" for word, value in values.items()]  # a value may begin with dashes
    said += [f"--prompt={spec.prompt}"] if spec.prompt else []
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    train_env.exec_interactive(said, root=ROOT, python=python)


def place_of(settings: Settings) -> TalkPlace:
    """Return the place of a conversation: its history beside the journal, saved files in the current folder."""
    return TalkPlace(str(settings.state_file.with_name(HISTORY).absolute()), str(Path.cwd()))


def refuse_gguf(folder: Path, name: str, kind: str = "", instead: str = "") -> None:
    """Raise UsageError where a model cannot become such a file, before an environment is made for that.

    kind: "" = the usual one of its shape. instead: what to type then; "" = the types that fit.
    """
    try:
        config = shape_of(folder)
        problem = gguf_problem(folder, config, kind)
        fitting = [one for one in GGUF_TYPES if problem and not gguf_problem(folder, config, one)]
    except (OSError, ValueError):
        return  # what reads it next says what is wrong with it
    if problem:
        types = f"known to fit: --gguf-type {' or '.join(fitting)}" if fitting else "leave out --bits gguf"
        said = f"{name} cannot become a GGUF file of {kind or config.gguf_type}: {problem}"
        raise UsageError(f"{said}; {instead or types}")


def check_export(spec: ExportFlags) -> None:
    """Raise UsageError for flags of an export that mean nothing together."""
    if said := packs.lacking("exports", spec.bits):
        raise UsageError(f"--bits {said}")
    if spec.bits not in ("", "gguf", *packs.entries("exports")):
        raise UsageError(f"--bits is {spec.bits!r}; known: {', '.join(('gguf', *packs.entries('exports')))}")
    if spec.dtype not in ("float32", "bfloat16"):
        raise UsageError(f"--dtype is {spec.dtype!r}; known: float32, bfloat16")
    if spec.bits == "gguf" and spec.gguf_type not in GGUF_TYPES:
        raise UsageError(f"--gguf-type is {spec.gguf_type!r}; known: {', '.join(GGUF_TYPES)}")
    if spec.bits == "gguf" and (spec.dtype != "float32" or "dtype" in spec.typed):
        raise UsageError("--dtype is for folders; a GGUF file takes --gguf-type bf16")
    if spec.bits != "gguf" and (spec.gguf_type != "tq2_0" or "gguf_type" in spec.typed):
        raise UsageError(f"--gguf-type {spec.gguf_type} is for --bits gguf")
    if not spec.out and spec.bits != "gguf":
        raise UsageError("--out is missing: the folder that the model goes to")


def export(spec: ExportFlags) -> None:
    check_export(spec)
    settings = context.settings()
    is_ternary = spec.bits in packs.entries("exports") or spec.bits == "gguf" and spec.gguf_type == "tq2_0"
    found, folder = find_model(settings, spec.model, spec.tag, render.say, phases_for(LLAMA) if is_ternary else ())
    kind, _, tag = found.name.partition("/") if found else (folder.name, "", "")
    if spec.bits == "gguf":
        refuse_gguf(folder, found.name if found else folder.name, spec.gguf_type)
    named = f"{tag}-{kind.removesuffix('_checkpoints')}" if tag else kind
    to = Path(spec.out or f"{named}.{spec.gguf_type}.gguf").absolute()
    group, said = "train", ["-m", "trainer", "export", "--dtype", spec.dtype]
    if spec.bits == "gguf":
        group, said = "llama-cpp", ["-m", "trainer.engines", "export", "--type", spec.gguf_type]
    elif spec.bits:
        said += ["--layout", spec.bits]
    from infra import train_env

    said += ["--model", str(folder), "--out", str(to)]
    for _ in train_env.run(said, None, root=ROOT, python=local_step.python(settings, group)):
        pass
    print(to)
