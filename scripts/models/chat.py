"""The command `chat`: a conversation with a model on this machine or with a service."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from flows.models.find_model import find_model
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flag
from infra.settings import Settings
from scripts.cli import context, local_step, render
from scripts.cli.command import command
from scripts.models.gguf_files import LLAMA, refuse_gguf
from trainer.config import phases_for
from trainer.records.phase_registry import phase_names
from trainer.terminal_chat import ConversationFiles

ENGINES = ("torch", LLAMA)
HISTORY = "chat-history"


@dataclass(frozen=True, kw_only=True)
class ChatFlags:
    model: str = flag(
        "",
        f"{phase_names()}, the name or tag of an artifact, or a Hugging Face folder (default: the last trained phase)",
        word=True,
    )
    tag: str = flag("", "name of the checkpoints in the store")
    prompt: str | None = flag(None, "ask a single question; without this flag, start a conversation")
    system: str = flag("", "system prompt, like /system in a conversation")
    temperature: float = flag(0.0, "0 = greedy decoding")
    max_tokens: int = flag(256, "longest answer")
    endpoint: str = flag(
        "", "a service of inv serve.status, or an address, instead of a model; SLIPWAY_ENDPOINT_KEY holds the API key"
    )
    engine: str = flag("torch", "torch, or llama.cpp, which runs without a GPU and without PyTorch")


@command(record=ChatFlags, env=True, example="inv chat sft --prompt 'Who are you?'")
def chat(spec: ChatFlags) -> None:
    """Talk to a model."""
    from infra import train_env

    if spec.prompt is not None and not spec.prompt.strip():
        raise UsageError("--prompt is empty. Leave --prompt out for a conversation")
    if spec.max_tokens < 1:
        raise UsageError(f"--max-tokens is {spec.max_tokens}; it must be at least 1")
    if not 0 <= spec.temperature < math.inf:
        raise UsageError(f"--temperature is {spec.temperature}; expected a number of at least 0")
    if spec.engine not in ENGINES:
        raise UsageError(f"--engine is {spec.engine!r}; known: {', '.join(ENGINES)}")
    settings = context.settings()
    if spec.endpoint:
        from scripts.services import endpoint_chat

        endpoint_chat.run_chat(
            spec.endpoint,
            settings,
            spec.model,
            spec.prompt,
            spec.temperature,
            spec.max_tokens,
            spec.system,
            place_of(settings),
        )
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
    values = {
        "model": folder,
        "name": name,
        "system": spec.system,
        "temperature": spec.temperature,
        "max-tokens": spec.max_tokens,
        "history": place.history,
        "folder": place.folder,
    }
    said += [f"--{word}={value}" for word, value in values.items()]  # `=` keeps values with leading dashes intact
    said += [f"--prompt={spec.prompt}"] if spec.prompt else []
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    train_env.exec_interactive(said, root=ROOT, python=python)


def place_of(settings: Settings) -> ConversationFiles:
    """Return the place of a conversation: history beside the journal, saved files in the current folder."""
    return ConversationFiles(str(settings.state_file.with_name(HISTORY).absolute()), str(Path.cwd()))
