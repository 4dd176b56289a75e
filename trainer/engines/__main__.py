"""What runs in the environment `llama-cpp`: `python -m trainer.engines export|chat`. No torch here.

export --model FOLDER --out FILE --type tq2_0      a Hugging Face folder as a GGUF file
chat --model FOLDER --gguf FILE                    talk to it; the file is made where there is none
"""

import argparse
import json
import sys
from pathlib import Path

from data.errors import DataError
from data.tokens import tokenizer
from store.moving_line import waiting
from trainer.engines import gguf_file
from trainer.engines.conversation import Talk
from trainer.engines.words import add_talk, place_of
from trainer.errors import TrainerError
from trainer.talk import hold


def main(words: list[str] | None = None) -> int:
    flags = parser().parse_args(words)
    try:
        flags.run(flags)
    except (TrainerError, DataError) as error:
        print(f"trainer.engines {flags.command}: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 1)
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
    one.add_argument("--gguf", type=Path, required=True)
    add_talk(one)
    return top


def folder_of_model(folder: Path) -> Path:
    """Return the Hugging Face folder: `folder` itself, or `hf/` of a published artifact."""
    return folder / "hf" if (folder / "hf" / "config.json").is_file() else folder


def export(flags: argparse.Namespace) -> None:
    print(json.dumps(gguf_file.write(folder_of_model(flags.model), flags.out, flags.type)))


def chat(flags: argparse.Namespace) -> None:
    name = flags.name or flags.model.name
    with waiting(f"{name} is loaded"):
        from trainer.engines.llama_cpp import LlamaCpp

        folder = folder_of_model(flags.model)
        config = gguf_file.read_config(folder)
        if not flags.gguf.exists():
            flags.gguf.parent.mkdir(parents=True, exist_ok=True)
            gguf_file.write(folder, flags.gguf, "tq2_0" if config.ternary else "f16")
        engine = LlamaCpp(flags.gguf, config.max_position_embeddings, flags.temperature, flags.top_k, flags.seed)
        talk = Talk(engine, tokenizer.load(folder), flags.max_tokens, name)
    talk.system = flags.system
    hold(talk, flags.prompt, place_of(flags))


if __name__ == "__main__":
    sys.exit(main())
