"""Commands in the environment `llama-cpp`: `python -m trainer.engines export|chat|serve`. No torch import.

export --model FOLDER --out FILE --type tq2_0      convert a Hugging Face folder to a GGUF file
chat --model FOLDER                                chat with the model in the terminal
serve --model FOLDER --name NAME --port PORT       serve the OpenAI API on loopback
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from data.errors import DataError
from data.tokens import tokenizer
from store.terminal import show_while
from trainer.engines import gguf_file
from trainer.engines.chat_flags import add_chat_flags, place_of
from trainer.engines.conversation import ChatSession
from trainer.errors import TrainerError
from trainer.terminal_chat import run_chat


def main(words: list[str] | None = None) -> int:
    flags = parser().parse_args(words)
    try:
        flags.run(flags)
    except (TrainerError, DataError) as error:
        print(f"trainer.engines {flags.command}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
    except OSError as error:  # such as a full disk or a read-only folder
        print(f"trainer.engines {flags.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m trainer.engines", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    one = commands.add_parser("export")
    one.set_defaults(run=export)
    one.add_argument("--model", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--type", choices=tuple(gguf_file.TYPES), default="tq2_0")
    one = commands.add_parser("chat")
    one.set_defaults(run=chat)
    one.add_argument("--model", type=Path, required=True)
    one.add_argument("--gguf", type=Path, help="GGUF file; created if missing (default: a file in the cache)")
    add_chat_flags(one)
    one = commands.add_parser("serve")
    one.set_defaults(run=serve)
    one.add_argument("--model", type=Path, required=True)
    one.add_argument("--gguf", type=Path, help="GGUF file; created if missing (default: a file in the cache)")
    one.add_argument(
        "--type", choices=tuple(gguf_file.TYPES), help="GGUF type of the matrices (default: depends on the model)"
    )
    one.add_argument("--name", required=True, help="name of the model for clients")
    one.add_argument("--port", type=int, default=0)
    for name, usual in (("max-seqs", 8), ("max-queued", 64), ("max-model-len", 0), ("max-tokens", 0)):
        one.add_argument(f"--{name}", type=int, default=usual)
    one.add_argument("--shutdown-s", type=float, default=60.0)
    return top


def folder_of_model(folder: Path) -> Path:
    """Return the Hugging Face folder: `hf/` inside a published artifact, else `folder`."""
    return folder / "hf" if (folder / "hf" / "config.json").is_file() else folder


def export(flags: argparse.Namespace) -> None:
    print(json.dumps(gguf_file.write(folder_of_model(flags.model), flags.out, flags.type)))


def chat(flags: argparse.Namespace) -> None:
    name = flags.name or flags.model.name
    with show_while(f"loading {name}"):
        from trainer.engines.llama_cpp import LlamaCpp

        folder = folder_of_model(flags.model)
        config = gguf_file.read_config(folder)
        kind = config.gguf_type
        gguf = flags.gguf or gguf_file.cached(folder, kind)
        gguf_file.ensure(folder, gguf, kind)
        how: dict[str, Any] = {"temperature": flags.temperature, "top_k": flags.top_k, "seed": flags.seed}
        engine = LlamaCpp(gguf, config.max_position_embeddings, **how)
        talk = ChatSession(engine, tokenizer.load(folder), flags.max_tokens, name)
    talk.system = flags.system
    run_chat(talk, flags.prompt, place_of(flags))


def serve(flags: argparse.Namespace) -> None:
    import asyncio

    from trainer.engines.llama_cpp import LlamaEngine
    from trainer.serving import server

    folder = folder_of_model(flags.model)
    kind = flags.type or gguf_file.read_config(folder).gguf_type
    gguf = flags.gguf or gguf_file.cached(folder, kind)
    limits = server.EngineLimits(
        max_seqs=flags.max_seqs,
        max_queued=flags.max_queued,
        max_model_len=flags.max_model_len,
        max_tokens=flags.max_tokens,
        shutdown_s=flags.shutdown_s,
    )
    model = LlamaEngine(folder, gguf, kind, flags.max_model_len, flags.max_seqs)
    asyncio.run(server.serve(model, flags.name, flags.port, limits))


if __name__ == "__main__":
    sys.exit(main())
