"""Command line of the trainer: `python -m trainer PHASE|import --config FILE`, and `chat`, `serve`, `eval`, `export`.

The config file of a phase holds {"making": Making, "spec": PhaseConfig, "keeping": Keeping}; of import {"making":
Making, "spec": ImportSpec or `PhaseConfig.imported_change`}; of eval {"spec": EvalSpec}. Exit codes: 0 success, 1
failure, 2 invalid flag, input or configuration, 75 stopped after a save (restart to resume), 130 interrupted by Ctrl-C
outside of training.
"""

import argparse
import faulthandler
import functools
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from data.config import ConfigError, StepContext, load
from data.errors import DataError
from data.events import emit, enter_part
from data.single_writer import PARENT, exit_with_parent
from store import extensions, packs, terminal, untrusted_input
from store.manifest import StoreError
from trainer.config import CheckpointOptions, EvalSpec, ImportSpec, load_phase
from trainer.engines.chat_flags import add_chat_flags, place_of
from trainer.errors import Refused, TrainerError
from trainer.parallel.allocator import enable_expandable_segments
from trainer.records.extension_phase import WORD, register_phase
from trainer.records.phase_registry import PHASES
from trainer.reporting.jsonl_log import FOLLOWED
from trainer.stop_signals import raise_on_sigterm


def main(words: list[str] | None = None) -> int:
    """Run a command and return the exit code.

    0 success, 1 failure, 2 invalid flag, input or configuration, 4 missing key of the store, 75 restart to resume, 130
    interrupted.
    """
    flags = parser().parse_args(words)
    parent = os.environ.pop(PARENT, "")
    if parent:  # the parent displays the figures, so the log omits them
        os.environ[FOLLOWED] = "1"
    exit_with_parent(parent)  # when the parent inv is killed, save and exit
    # Number of spins of a waiting OpenMP thread before sleeping. At the default, two programs sharing the cores each
    # run at a sixth of their speed; without spinning, a single program loses a fifth.
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    terminal.replace_unencodable()
    enable_expandable_segments()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # lets a watcher dump the stacks of a silent trainer
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # httpx logs every request of the hub client
    try:
        flags.run(flags)
    except (ConfigError, TrainerError, DataError, StoreError) as error:
        print(f"trainer {flags.command}: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else getattr(error, "exit_code", 1)
    except KeyboardInterrupt:
        print(f"trainer {flags.command}: interrupted. To resume, run the same command again", file=sys.stderr)
        return 130
    return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m trainer", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    for phase in (*PHASES, WORD):
        one = command(commands, phase, train, f"train the phase {phase} and publish the model")
        one.add_argument("--config", type=Path, required=True)
    one = command(
        commands, "import", adopt_model, "import a Hugging Face model or a change of a model, and publish the result"
    )
    one.add_argument("--config", type=Path, required=True)
    one = command(commands, "tokenizer", take_tokenizer, "convert a tokenizer in a pack's format to tokenizer.json")
    one.add_argument("--format", required=True)
    one.add_argument("--file", type=Path, required=True)
    one.add_argument("--out", type=Path, required=True)
    one = command(commands, "chat", talk, "talk to a model")
    one.add_argument("--model", type=Path, required=True, help="an artifact or a Hugging Face folder")
    add_chat_flags(one)
    one = command(commands, "serve", serve, "serve a model with OpenAI's protocol on loopback")
    one.add_argument("--model", type=Path, required=True, help="an artifact or a Hugging Face folder")
    one.add_argument("--name", required=True, help="name of the model for clients")
    one.add_argument("--port", type=int, default=0)
    one.add_argument("--dtype", choices=("auto", "float32", "bfloat16", "float16"), default="auto")
    for name, usual in (("max-seqs", 8), ("max-queued", 64), ("max-model-len", 0), ("max-tokens", 0)):
        one.add_argument(f"--{name}", type=int, default=usual)
    one.add_argument("--shutdown-s", type=float, default=60.0)
    one = command(commands, "eval", evaluate, "measure a model on held-out text and questions")
    one.add_argument("--config", type=Path, help='JSON file {"spec": ...}, instead of the other flags')
    one.add_argument("--model", help="an artifact or a Hugging Face folder")
    one.add_argument("--text", default="", help="a text artifact: measures bits per byte on the val shards")
    one.add_argument("--identity", default="", help="folder with identity_conversations.heldout.jsonl")
    one.add_argument("--questions", default="", help="an artifact with questions")
    one.add_argument("--name", default="", help="name of the persona, expected in answers")
    one.add_argument("--task", action="append", default=[], help="a .jsonl of questions; repeatable")
    one.add_argument(
        "--as-text", action="store_true", help="ask questions as plain text, for a model without chat training"
    )
    one.add_argument("--shots", type=int, default=0, help="number of few-shot examples, taken from the same task")
    one.add_argument("--core", default="", help="folder with the CORE tasks, as unpacked by nanochat")
    one.add_argument("--core-most", type=int, default=0, help="maximum number of questions per CORE task; 0 = all")
    one = command(commands, "export", write_folder, "write a Hugging Face folder")
    one.add_argument("--model", type=Path, required=True, help="an artifact or a Hugging Face folder")
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    one.add_argument(
        "--layout", choices=tuple(packs.entries("exports")), help="layout of the weights, written by a pack"
    )
    return top


def command(commands: Any, name: str, run: Callable[[argparse.Namespace], None], words: str) -> argparse.ArgumentParser:
    one = commands.add_parser(name, help=words)
    one.set_defaults(run=run)
    return one


def train(flags: argparse.Namespace) -> None:
    import importlib

    from trainer.parallel.process_group import join_process_group
    from trainer.publishing import make_if_missing, place_of_stage

    raw = read_config(flags.config, {"making", "spec", "keeping", "extensions"})
    extensions.receive(raw.get("extensions", {}))
    if flags.command == WORD:
        own = extensions.used(str(raw.get("spec", {}).get("phase")))
        if own is None:
            raise Refused(f"{flags.config}: the extension that defines the phase is missing from the file")
        register_phase(own)
    making = load(StepContext, raw.get("making", {}), "making")
    config = load_phase(raw.get("spec", {}), "spec")
    keeping = load(CheckpointOptions, raw.get("keeping", {}), "keeping")
    if config.phase != flags.command and not config.extension:
        raise Refused(f"{flags.config} configures the phase {config.phase!r}")
    phase = importlib.import_module(PHASES[config.phase].module)
    with raise_on_sigterm(), join_process_group() as ranks:
        enter_part("data")  # imports are done; now the inputs are read
        second_name = place_of_stage(making, config, keeping)
        about = make_if_missing(making, ranks, lambda: phase.run(config, making, keeping, ranks), second_name)
    if "bits_per_byte" in about:
        print(side_by_side(about))


def take_tokenizer(flags: argparse.Namespace) -> None:
    from trainer.records import model_formats

    packs.load(model_formats.find_format(flags.format).convert_tokenizer)(flags.file, flags.out)


def adopt_model(flags: argparse.Namespace) -> None:
    from trainer import import_model
    from trainer.model import changes
    from trainer.parallel.process_group import Ranks
    from trainer.publishing import make_if_missing

    raw = read_config(flags.config, {"making", "spec"})
    making, said = load(StepContext, raw.get("making", {}), "making"), raw.get("spec", {})
    if marker := said.get("marker"):
        change = changes.kind_of(str(marker), str(flags.config))
        publish = functools.partial(change.publish_imported, said, making)
    else:
        publish = functools.partial(import_model.run, load(ImportSpec, said, "spec"), making)
    with raise_on_sigterm():
        make_if_missing(making, Ranks(), publish)


def talk(flags: argparse.Namespace) -> None:
    from store.terminal import show_while
    from trainer.terminal_chat import run_chat

    name = flags.name or flags.model.name
    with show_while(f"loading {name}"):
        from trainer.chat import open_talk

        one = open_talk(flags.model, name, flags.temperature, flags.top_k, flags.max_tokens, flags.seed)
    one.system = flags.system
    try:
        run_chat(one, flags.prompt, place_of(flags))
    except BrokenPipeError:  # the output is closed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python reports a second error at exit
        sys.exit(141)


def serve(flags: argparse.Namespace) -> None:
    import asyncio

    from trainer.serving import server
    from trainer.serving.torch_engine import TorchEngine

    limits = server.EngineLimits(
        max_seqs=flags.max_seqs,
        max_queued=flags.max_queued,
        max_model_len=flags.max_model_len,
        max_tokens=flags.max_tokens,
        shutdown_s=flags.shutdown_s,
    )
    model = TorchEngine(flags.model, flags.dtype, flags.max_model_len)
    asyncio.run(server.serve(model, flags.name, flags.port, limits))


def evaluate(flags: argparse.Namespace) -> None:
    from trainer.evaluation.scores import scores

    if flags.config:
        spec = load(EvalSpec, read_config(flags.config, {"spec"}).get("spec", {}), "spec")
    elif flags.model:
        names = ("model", "text", "identity", "questions", "name", "as_text", "shots", "core", "core_most")
        spec = EvalSpec(**{name: getattr(flags, name) for name in names}, tasks=tuple(flags.task))
    else:
        raise Refused("eval needs --model or --config")
    found = scores(spec)
    emit("result", **found)
    if not flags.config:  # with --config, the caller reads the result event
        print(json.dumps(found, indent=1))


def write_folder(flags: argparse.Namespace) -> None:
    import torch

    from trainer.checkpoints.checkpoint import master_weights
    from trainer.model import changes, export

    dtype = getattr(torch, flags.dtype)
    if flags.layout:
        packs.load(packs.entries("exports")[flags.layout])(flags.model, flags.out, dtype)
        return
    # The checkpoint of a change holds the learning parameters only.
    is_whole = changes.change_in(export.folder_of_model(flags.model)) is None
    masters = master_weights(flags.model) if is_whole and dtype == torch.float32 else None
    export.copy(flags.model, flags.out, dtype, masters)


def read_config(path: Path, known: set[str]) -> Mapping[str, Any]:
    try:
        raw = untrusted_input.load(path, half_pairs="surrogateescape")  # may contain non-UTF-8 file names
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: {error}") from None
    if set(raw) - known:
        raise Refused(f"{path}: unknown key; known: {', '.join(sorted(known))}")
    return raw


def side_by_side(about: Mapping[str, Any]) -> str:
    others = ", ".join(
        f"{name} {about[key]:.2f}" for key, name in (("gzip", "gzip -9"), ("xz", "xz -9")) if key in about
    )
    return f"held-out text: {about['bits_per_byte']:.3f} bits per byte ({others})"


def exit_process(code: int) -> NoReturn:
    """Exit the process with `code`; use `os._exit` when several processes train together.

    Threads of a process group with lost peers sometimes abort the interpreter at a normal exit. The resulting code -6
    would count as a reason to restart.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    try:
        exit_code = main()
    except Exception:  # a bug in Slipway
        traceback.print_exc()
        exit_code = 1
    exit_process(exit_code)
