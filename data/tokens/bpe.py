"""Text shards -> a byte-level BPE tokenizer, as a Hugging Face folder.

From text shards and a `TokenizerSpec`, `make` writes training.yaml and training.toml (the request, written first),
tokenizer.json with companion files, and tokenizer_manifest.json last. The same text gives the same bytes on any number
of processors.

`rustbpe` (nanochat's trainer) counts words on all processors, in about half of the CPU seconds of Hugging Face's
trainer (bench/RESULTS.md). Memory grows with the number of distinct words, so the spec limits the amount of text.
"""

import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data.config import LEAST_VOCAB, TokenizerSpec
from data.errors import DataError, InputError
from data.events import emit
from data.manifest import TOOL, read_manifest, sync_path, write_json
from data.shards.shards import read, shard_paths
from data.tokens.tokenizer import BOS, END, PATTERN, SPECIALS, load
from store import untrusted_input

if TYPE_CHECKING:
    import tokenizers

KIND, SCHEMA = "tokenizer", 1
MANIFEST = "tokenizer_manifest.json"
FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"),
    *("training.yaml", "training.toml"),
)
BUFFER = 1024  # number of documents counted together
CHAT_TEMPLATE = """\
{%- set ns = namespace(lead='', turn=0) -%}
{{- '<|bos|>' -}}
{%- for message in messages -%}
{%- if message.role == 'system' and loop.first -%}
{%- set ns.lead = (message.content if message.content is string else message.content | map(attribute='text') | join) -%}
{%- set ns.lead = ns.lead + '\\n\\n' -%}
{%- elif message.role != ('user', 'assistant')[ns.turn % 2] -%}
{{- raise_exception('roles must alternate user/assistant, after at most one system message') -}}
{%- elif message.role == 'user' -%}
{{- '<|user_start|>' + ns.lead -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}{%- for part in message.content -%}{{- part.text -}}{%- endfor -%}{%- endif -%}
{{- '<|user_end|>' -}}
{%- set ns.lead = '' -%}{%- set ns.turn = ns.turn + 1 -%}
{%- else -%}
{{- '<|assistant_start|>' -}}
{%- if message.content is string -%}{{- message.content -}}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'python' -%}{{- '<|python_start|>' + part.text + '<|python_end|>' -}}
{%- elif part.type == 'python_output' -%}{{- '<|output_start|>' + part.text + '<|output_end|>' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{{- '<|assistant_end|>' -}}
{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant_start|>' -}}{%- endif -%}
"""


def make(
    spec: TokenizerSpec,
    text: Path,
    folder: Path,
    retrain: bool = False,
    others: Sequence[Path] = (),
    partial: bool = False,
) -> dict[str, Any]:
    """Train a tokenizer on the training shards of `text` into `folder`, or reuse an existing tokenizer.

    A tokenizer in `folder` or in `others` is reused, unless `retrain`, if the text, the settings and all files are
    identical; the location of the text does not matter. Raises InputError, DataError.
    """
    _check_size(spec.vocab_size)
    paths = shard_paths(text, partial=partial)
    asked = _asked(spec, text, partial)
    what = {key: value for key, value in asked.items() if key != "source"}
    fingerprint = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
    there = [] if retrain else [one for one in (folder, *others) if _is_made(one, fingerprint)]
    reused = bool(there)
    if folder not in there:
        _begin(folder, asked)
        if there:
            for name in FILES:
                shutil.copyfile(there[0] / name, folder / name)
        else:
            save(train(_heads(read(paths), spec), spec.vocab_size), folder)
        _finish(folder, fingerprint)
    made = load(folder)
    return {"vocab_size": made.vocab_size, "tokenizer_sha256": made.sha256, "reused": reused}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A tokenizer published by a third party."""

    path: str
    """Path of the tokenizer.json, or of the parent folder. The chat tokens must be the last ids."""


def adopt(published: Published, folder: Path) -> dict[str, Any]:
    """Copy a published tokenizer.json unchanged, and write the companion files. Raises InputError."""
    source = Path(published.path)
    source = source / "tokenizer.json" if source.is_dir() else source
    if source.name != "tokenizer.json":
        raise InputError(f"{source}: expected a tokenizer.json, or a folder with a tokenizer.json")
    try:
        theirs = load(source.parent)
    except DataError as error:
        raise InputError(str(error)) from None
    if max(theirs.inner.get_vocab().values()) >= theirs.vocab_size:
        raise InputError(f"{source}: the tokenizer has {theirs.vocab_size} ids, but some ids are larger")
    asked = {"kind": KIND, "tool": TOOL, "vocab_size": theirs.vocab_size, "tokenizer_json": str(source)}
    reused = _is_made(folder, theirs.sha256)
    if not reused:
        _begin(folder, asked)
        if source.resolve() != (folder / "tokenizer.json").resolve():
            shutil.copyfile(source, folder / "tokenizer.json")
        _save_companions(theirs.inner, folder)
        _finish(folder, theirs.sha256)
    return {"vocab_size": theirs.vocab_size, "tokenizer_sha256": load(folder).sha256, "reused": reused}


def train(texts: Iterable[str], vocab_size: int) -> "tokenizers.Tokenizer":
    """Return a tokenizer of exactly `vocab_size` ids: the 256 bytes, the merges in order, the special tokens.

    Raises InputError if the texts yield fewer ids.
    """
    import rustbpe

    _check_size(vocab_size)
    trainer = rustbpe.Tokenizer()
    trainer.train_from_iterator(iter(texts), vocab_size - len(SPECIALS), buffer_size=BUFFER, pattern=PATTERN)
    words = [bytes(word) for word, _ in sorted(trainer.get_mergeable_ranks(), key=lambda row: row[1])]
    if len(words) + len(SPECIALS) != vocab_size:
        most = len(words) + len(SPECIALS)
        raise InputError(
            f"vocab_size is {vocab_size}, but this text yields only {most}; give more text, or a smaller vocabulary: "
            f"--set model.vocab_size={most}, or for inv tokenizer --vocab-size {most}"
        )
    return assemble(words)


def assemble(words: list[bytes]) -> "tokenizers.Tokenizer":
    """Return the tokenizer with `words[n]` as id n: the 256 bytes, each merge after its parts; then special tokens."""
    import tokenizers
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers

    ranks = {word: rank for rank, word in enumerate(words)}
    assert len(ranks) == len(words), "a word with two ids"
    letters = byte_letters()
    merges = [tuple(map(letters, _parts(word, ranks))) for word in words[256:]]
    vocab = {letters(word): rank for word, rank in ranks.items()}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    return made


def _parts(word: bytes, ranks: Mapping[bytes, int]) -> list[bytes]:
    """Return the two words merged into `word`, found by replaying the earlier merges."""
    halves = [at for at in range(1, len(word)) if word[:at] in ranks and word[at:] in ranks]
    if len(halves) == 1:  # true for a third of all words, and faster
        return [word[: halves[0]], word[halves[0] :]]
    parts = [word[at : at + 1] for at in range(len(word))]
    never = len(ranks)
    joins = [ranks.get(word[at : at + 2], never) for at in range(len(word) - 1)]  # rank of each part with the next
    while len(parts) > 2:
        at = joins.index(min(joins))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
        del joins[at]
        if at:
            joins[at - 1] = ranks.get(parts[at - 1] + parts[at], never)
        if at < len(joins):
            joins[at] = ranks.get(parts[at] + parts[at + 1], never)
    return parts


def byte_letters() -> Any:
    """Return the spelling of bytes in `tokenizers`, one printable character each. Source: GPT-2's encoder."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    table = {**{byte: chr(byte) for byte in plain}, **{byte: chr(256 + n) for n, byte in enumerate(others)}}
    return lambda word: "".join(table[byte] for byte in word)


def save(made: "tokenizers.Tokenizer", folder: Path) -> None:
    """Write the three files read by `transformers` and vLLM."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(made.to_str(pretty=True), encoding="utf-8")
    _save_companions(made, folder)


def _save_companions(made: "tokenizers.Tokenizer", folder: Path) -> None:
    roles = {"bos_token": BOS, "eos_token": END, "pad_token": END}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **roles,
        "add_bos_token": False,  # the template emits the token
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(made.token_to_id(name)): {"content": name, **flags} for name in SPECIALS},
        "additional_special_tokens": [name for name in SPECIALS if name not in roles.values()],
        "chat_template": CHAT_TEMPLATE,
    }
    for name, values in (("tokenizer_config.json", config), ("special_tokens_map.json", roles)):
        (folder / name).write_text(json.dumps(values, indent=1), encoding="utf-8")


def _begin(folder: Path, asked: Mapping[str, Any]) -> None:
    """Write training.yaml and training.toml with equal content, and mark the folder as unfinished.

    `asked` is flat, and both formats accept JSON scalars.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    for name, between in (("training.yaml", ": "), ("training.toml", " = ")):
        lines = [f"{key}{between}{_scalar(value)}\n" for key, value in asked.items()]
        (folder / name).write_text("".join(lines), encoding="utf-8")


def _scalar(value: Any) -> str:
    """Return a value as JSON, with characters escaped that YAML or TOML cannot read."""
    text = json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    return re.sub("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]", lambda found: f"\\u{ord(found[0]):04x}", text)


def _asked(spec: TokenizerSpec, text: Path, partial: bool) -> dict[str, Any]:
    """Return all settings and hashes that determine the tokenizer, and the origin of the text."""
    folder = text / "train" if (text / "train").is_dir() else text
    manifest = read_manifest(folder, finished=not partial)
    shards = [one["sha256"] for one in manifest["shards"]]
    return {
        "kind": KIND,
        "tool": TOOL,
        "trainer": f"rustbpe {version('rustbpe')}",
        **asdict(spec),
        "pattern": PATTERN,
        "specials": list(SPECIALS),
        "source": str(manifest.get("source", "")),
        "text_lines": manifest["total_lines"],
        "text_sha256": hashlib.sha256("".join(shards).encode()).hexdigest(),
    }


def _heads(texts: Iterator[str], spec: TokenizerSpec) -> Iterator[str]:
    """Yield the beginning of each document, up to `document_chars` each and `max_chars` in total."""
    left = spec.max_chars
    for done, text in enumerate(texts, 1):
        head = text[: min(spec.document_chars, left)]
        yield head
        left -= len(head)
        if done % 2000 == 0:
            emit("progress", done=done, unit="documents")
        if left <= 0:
            return


def _check_size(vocab_size: int) -> None:
    if vocab_size < LEAST_VOCAB:
        raise InputError(f"vocab_size is {vocab_size}; the bytes and the chat tokens alone are {LEAST_VOCAB}")


def _finish(folder: Path, fingerprint: str) -> None:
    """Write the manifest after all listed files are on disk."""
    for name in FILES:
        sync_path(folder / name)
    files = {name: _sha256(folder / name) for name in FILES}
    write_json(folder / MANIFEST, {"kind": KIND, "schema": SCHEMA, "fingerprint": fingerprint, "files": files})


def _is_made(folder: Path, fingerprint: str) -> bool:
    """Return True if `folder` holds the files listed by `_finish` under this fingerprint, unchanged."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        manifest = untrusted_input.load(folder / MANIFEST)
        files = {name: _sha256(folder / name) for name in FILES}
        known = (manifest["kind"], manifest["schema"], manifest["fingerprint"], manifest["files"])
        return known == (KIND, SCHEMA, fingerprint, files)
    return False


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
