"""The outputs of each step of a recipe at a tiny size, and the version of the step at the time of recording.

    python -m tests.golden          compare with tests/golden.json
    python -m tests.golden write    record new entries: a step, or a version raised in trainer/fingerprints.py

The record of a version never changes: different output from the same settings and inputs needs a new version.
"""

import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.chat import imported as talk
from data.chat import persona, questions
from data.config import IdentitySpec, Persona, ProblemsSpec, QuestionsSpec, TalkSpec, TextSpec, TokenizerSpec
from data.problems import make as problems
from data.shards.pipeline import RunOptions, shard
from data.shards.shards import Writer
from data.tokens import bpe, token_file, tokenize
from tests.trainer import curves
from trainer.fingerprints import VERSIONS
from trainer.records.phase_registry import PHASES

FILE = Path(__file__).with_name("golden.json")
VERBS, THINGS = ("reads", "writes", "opens", "closes", "joins"), ("paths", "files", "lines", "sockets", "words")
TOLD = ("manifest.json", "tokenizer_manifest.json", "training.yaml", "training.toml")  # names the source
NAMES = ("len", "open", "json.loads", "json.dumps", "os.remove", "math.sqrt", "nobody.knows", "odd.one", "un.taught")


def step_digests(folder: Path) -> dict[str, str]:
    """Run every step in an empty folder; return a digest of the output by step."""
    lines = [f"{v} {t}: {v} the {t} of {n} and returns {n * 7}." for n in range(24) for v in VERBS for t in THINGS]
    (folder / "corpus.txt").write_text("\n".join(lines), encoding="utf-8")
    words = [{"role": "user", "content": "Hello\u00e9?"}, {"role": "assistant", "content": "Hello."}]
    (folder / "talk.jsonl").write_text(json.dumps({"messages": words}) + "\n[]\n" + json.dumps({"messages": words}))
    who = Persona(name="Bosun", maker="the yard", purpose="to answer questions")
    text = TextSpec(source=str(folder / "corpus.txt"), val_ratio=0.1, lines_per_shard=200)
    steps: dict[str, Callable[[Path], Any]] = {
        "text": lambda out: shard(text, out, True, RunOptions(workers=1)),
        "tokenizer": lambda out: bpe.make(TokenizerSpec(vocab_size=320), folder / "text", out),
        "tokens": lambda out: tokenize.make(folder / "text", folder / "tokenizer", out),
        "identity": lambda out: persona.make(IdentitySpec(persona=who), out),
        "questions": lambda out: questions.make(QuestionsSpec(), documented(folder / "docs"), out),
        "talk": lambda out: talk.make(TalkSpec(source=str(folder / "talk.jsonl")), out),
        "problems": lambda out: problems.make(ProblemsSpec(task="sort"), out),
    }
    found = {}
    for step, make in steps.items():
        (folder / step).mkdir()
        make(folder / step)
        found[step] = content(second_version_tokens(folder / step) if step == "tokens" else folder / step)
    return found | {phase: losses(phase) for phase in PHASES} | {"import": imported(folder)}


def documented(folder: Path) -> Path:
    """Return text shards marked as docstrings, independent of the Python version."""
    writer = Writer(folder / "train", 100)
    for name in NAMES:
        writer.add(f"{name}(value)\n\nReturn what {name} makes of the value.")
    writer.finish("pydocs", {})
    return folder


def second_version_tokens(made: Path) -> Path:
    """Return a folder of token shards in the format of version 2, without Arrow messages before the ids.

    A version of the step promises the ids and their positions, which have not changed.
    """
    folder = made.with_name(f"{made.name}-plain")
    folder.mkdir()
    for path in token_file.token_files(made):
        header = token_file.read_header(path)
        body = path.read_bytes()[header.body :]
        fields = replace(header, version=token_file.PLAIN).fields
        whole = fields + hashlib.sha256(body + fields).digest() + body
        (folder / path.with_suffix(".bin").name).write_bytes(whole)
    return folder


def content(made: Path) -> str:
    """Return a digest over the files of a folder, without paths and times."""
    digest = hashlib.sha256()
    for file in sorted(one for one in made.rglob("*") if one.is_file() and one.name not in TOLD):
        digest.update(f"{file.relative_to(made)} {file.stat().st_size}\n".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def losses(phase: str) -> str:
    """Return a digest of the recorded curves of a phase, which tests/trainer/test_curves.py compares with today's
    curves.
    """
    kept = {name: one["losses"] for name, one in curves.recorded().items() if one["config"]["phase"] == phase}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def imported(folder: Path) -> str:
    """Return a digest of a tiny model with a foreign tokenizer, as imported by `adopt`."""
    import tokenizers as library
    import torch

    from trainer import import_model
    from trainer.model import export
    from trainer.model.decoder import Decoder
    from trainer.model.huggingface import config_json
    from trainer.records.model_config import ModelConfig

    plain = library.Tokenizer(library.models.BPE())
    plain.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=260, initial_alphabet=alphabet, show_progress=False)
    plain.train_from_iterator(["reads the paths and returns the words"] * 4, trainer)
    plain.save(str(folder / "foreign.json"))
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    shape = ModelConfig(vocab_size=262, **sizes, num_key_value_heads=1, head_dim=8, max_position_embeddings=32)
    model = Decoder(shape, torch.float32)
    model.load_state_dict(
        {name: torch.arange(one.numel()).reshape(one.shape) % 37 / 64 for name, one in model.state_dict().items()}
    )
    new = import_model.with_chat_tokens(folder / "foreign.json", folder / "words")
    config, weights = import_model.grown(model, import_model.tokenizers.load(folder / "words").vocab_size, new)
    export.write(folder / "import", config, weights, folder / "words", torch.float32)
    assert config_json(config, "float32", 0, [0])["vocab_size"] == config.vocab_size
    return content(folder / "import")


def recorded() -> dict[str, dict[str, str]]:
    """Return the digests by step and version."""
    return dict(json.loads(FILE.read_text(encoding="utf-8"))) if FILE.exists() else {}


def complaints(found: dict[str, str], versions: dict[str, int], known: dict[str, dict[str, str]]) -> list[str]:
    """Return the mismatches, as text."""
    said = []
    for step, version in versions.items():
        before = known.get(step, {}).get(str(version))
        if before is None:
            said.append(f"{step}: nothing is recorded of version {version}; run: python -m tests.golden write")
        elif before != found[step]:
            said.append(
                f"{step}: what it makes has changed, and its version is still {version}; if that is meant, raise it in "
                "VERSIONS of trainer/fingerprints.py, then run: python -m tests.golden write"
            )
    return said


def run(write: bool) -> int:
    with tempfile.TemporaryDirectory(prefix="slipway-") as scratch:
        found = step_digests(Path(scratch).resolve())
    known = recorded()
    if write:
        for step, version in VERSIONS.items():
            known.setdefault(step, {}).setdefault(str(version), found[step])
        FILE.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    said = complaints(found, VERSIONS, known)
    print("\n".join(said) or "all is as it was recorded")
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(run("write" in sys.argv[1:]))
