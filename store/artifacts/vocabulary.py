"""The check that a model and the tokenizer beside it match: enough ids, the same special ids, the trained tokenizer.

The input is a folder as read by `transformers` and vLLM, and the facts in the artifact about the tokenizer of training;
the result is the problem in words. The check reads JSON only, so that it runs at every publish, verify, export, load
and serve.
"""

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from store import untrusted_input
from store.artifacts import sentencepiece
from store.manifest import MANIFEST, Manifest

HF = "hf"  # folder within the artifact of a checkpoint
CONFIG, GENERATION, TOKENIZER, NAMED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "special_tokens_map.json",
)
ADDED = "added_tokens.json"  # tokens added to a tokenizer.model
# Tokenizer files in formats that this module does not read.
UNREAD = (
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "spm.model",
    "tekken.json",
    "tiktoken.model",
    "sentencepiece.bpe.model",
)
MOST_BYTES, MOST_VALUES = 64 << 20, 8_000_000
# Fields of a tokenizer.json, and the version that the tokenizers library reads.
FIELDS = (
    "version",
    "truncation",
    "padding",
    "added_tokens",
    "normalizer",
    "pre_tokenizer",
    "post_processor",
    "decoder",
    "model",
)
VERSION = "1.0"
SPECIAL = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "pad_token": "pad_token_id"}

SUPPORTED = "supported tokenizers: byte-level (Llama 3, Qwen, SmolLM), and BPE with byte fallback (Llama 2, 1bitLLM)"

Read = Callable[[str], bytes]
"""Reader of a file in the folder: takes a name, returns the bytes, raises FileNotFoundError."""


def problem(read: Read, about: Mapping[str, Any]) -> str:
    """Return why the model and the tokenizer do not match, or "" if they match or cannot be compared.

    A tokenizer.json with an unknown vocabulary format cannot be compared.

    about: facts of the artifact; `tokenizer_sha256` and `vocab` are compared if present.
    """
    try:
        config, content = _mapping(read(CONFIG)), read(TOKENIZER)
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return f"{CONFIG} cannot be read ({error})"
    try:
        ids = ids_of(untrusted_input.mapping(content, MOST_BYTES, MOST_VALUES, integer=untrusted_input.clamped))
    except untrusted_input.UnusableDocument as error:
        return f"{TOKENIZER} cannot be read ({error})"
    except (ValueError, TypeError, KeyError, AttributeError):
        ids = {}
    rows, told = config.get("vocab_size"), about.get("tokenizer_sha256")
    if isinstance(told, str) and told and sha256(content).hexdigest() != told:
        known = f"with {about['vocab']} ids" if isinstance(about.get("vocab"), int) else "of unknown size"
        return (
            f"the model was trained with a different tokenizer ({known}) than {TOKENIZER} in the folder ({len(ids)} "
            "ids)"
        )
    if type(rows) is int and ids and max(ids.values()) >= rows:
        return f"{TOKENIZER} has ids up to {max(ids.values())}, but the model has only {rows} rows"
    return _odd_special(read, config, ids) if ids else ""


def problem_in(folder: Path) -> str:
    """Return the problem of a local folder: an artifact of ours, the `hf` folder in an artifact, or any other model."""
    inner = folder / HF if (folder / HF / CONFIG).is_file() else folder
    return problem(lambda name: untrusted_input.content(inner / name, MOST_BYTES), about_of(inner))


def about_of(folder: Path) -> Mapping[str, Any]:
    """Return the facts of the artifact in this folder (or around this `hf` folder); {} for any other folder."""
    above = folder.parent if folder.name == HF else folder
    with contextlib.suppress(OSError, ValueError):
        return Manifest.from_json(untrusted_input.content(above / MANIFEST)).about
    return {}


def _mapping(raw: bytes) -> dict[str, Any]:
    return untrusted_input.mapping(raw, MOST_BYTES, integer=untrusted_input.clamped)


def ids_of(tokenizer: Mapping[str, Any]) -> dict[str, int]:
    """Return the ids by token. Raise ValueError, TypeError, KeyError or AttributeError for an invalid tokenizer."""
    vocab = tokenizer["model"]["vocab"]
    known = {str(pair[0]): number for number, pair in enumerate(vocab)} if type(vocab) is list else dict(vocab)
    ids = {**known, **{str(one["content"]): one["id"] for one in tokenizer.get("added_tokens") or ()}}
    if any(type(number) is not int or number < 0 for number in ids.values()):
        raise ValueError("an id is not a number")
    return ids


def difference(theirs: Path, ours: Path) -> str:
    """Return a token of a folder's tokenizer.json that has another id in the folder `ours`, as text; "" for none.

    Compares nothing unless both folders have the file. Raises UnusableDocument.
    """
    if not all((folder / TOKENIZER).is_file() for folder in (theirs, ours)):
        return ""
    wanted, known = _ids_in(theirs / TOKENIZER), _ids_in(ours / TOKENIZER)
    for token, number in wanted.items():
        if known.get(token) != number:
            said = f"id {known[token]}" if token in known else "no id"
            return f"{untrusted_input.printable_line(token)} has id {number}, and {said} in {ours}"
    return ""


def _ids_in(file: Path) -> dict[str, int]:
    said = untrusted_input.load(file, MOST_BYTES, MOST_VALUES, integer=untrusted_input.clamped)
    try:
        return ids_of(said)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise untrusted_input.UnusableDocument(f"{file}: the vocabulary cannot be read: {error}") from None


def file_of(names: Collection[str]) -> str:
    """Return the name of the tokenizer file among the files of a model, or "" without a tokenizer.

    Raise UnknownKind if only an unsupported tokenizer file is present.
    """
    if found := next((one for one in (TOKENIZER, sentencepiece.FILE) if one in names), ""):
        return found
    other = next((one for one in names if one in UNREAD or one.endswith((".tiktoken", ".spm"))), "")
    if other:
        raise sentencepiece.UnknownKind(
            f"the folder has {other}, but neither {TOKENIZER} nor {sentencepiece.FILE}, so the tokenizer cannot be "
            f"read. To write a {TOKENIZER}, use transformers' AutoTokenizer.from_pretrained(...).save_pretrained(...)"
        )
    return ""


def model_problem(raw: bytes) -> str:
    """Return the reason why a `tokenizer.model` is unsupported with the list of supported kinds, or ""."""
    wrong = sentencepiece.file_problem(raw)
    return f"{wrong}; {SUPPORTED}" if wrong else ""


def has_pieces(folder: Path) -> bool:
    """Return whether the folder has a SentencePiece-style tokenizer.json. Raise OSError or UnusableDocument."""
    path = folder / TOKENIZER
    if not path.is_file():
        return False
    raw = untrusted_input.content(path, MOST_BYTES)
    return sentencepiece.is_pieces(
        untrusted_input.mapping(raw, MOST_BYTES, MOST_VALUES, integer=untrusted_input.clamped)
    )


def _is_byte_level(tokenizer: Mapping[str, Any]) -> bool:
    return "ByteLevel" in json.dumps(tokenizer.get("decoder"))


def _odd_merge(model: Mapping[str, Any]) -> Any:
    """Return the first merge of a BPE without a token for its result, or None."""
    vocab, merges = model["vocab"], model.get("merges") or ()
    if not isinstance(vocab, dict) or model.get("continuing_subword_prefix"):
        return None
    parts = ((one, one.split(" ") if isinstance(one, str) else one) for one in merges)
    return next((one for one, pair in parts if len(pair) != 2 or f"{pair[0]}{pair[1]}" not in vocab), None)


def _odd_numbers(said: Mapping[str, Any], of_model: Mapping[str, int]) -> str:
    """Return which added token has a different id in the file than in libraries, which number the tokens, or ""."""
    after = len(of_model)
    for one in said.get("added_tokens") or ():
        number = of_model.get(str(one["content"]), after)
        after += number == after
        if one["id"] != number:
            name = untrusted_input.printable_line(one["content"])
            return f"the added token {name} has the id {one['id']}, and libraries give the token the id {number}"
    return ""


def other_ids(raw: bytes, tokenizer_config: Mapping[str, Any], added: Mapping[str, Any]) -> str:
    """Return which token of `added_tokens_decoder` has another id in tokenizer.json, or which added token is missing.

    added: content of added_tokens.json, in which `transformers` reads no ids of known tokens.
    """
    ids = ids_of(untrusted_input.mapping(raw, MOST_BYTES, MOST_VALUES, integer=untrusted_input.clamped))
    decoder = tokenizer_config.get("added_tokens_decoder")
    given: list[tuple[str, Any, Any]] = [
        (ADDED, token, number)
        for token, number in (() if isinstance(decoder, dict) else added.items())
        if token not in ids
    ]
    for number, one in decoder.items() if isinstance(decoder, dict) else ():
        token = one.get("content") if isinstance(one, dict) else one
        given.append(("tokenizer_config.json", token, int(number) if number.isdigit() else number))
    for file, token, number in given:
        if ids.get(str(token)) != number:
            name, known = untrusted_input.printable_line(token), ids.get(str(token), "no id")
            return f"{file} gives {name} the id {untrusted_input.printable_line(number)}, and {TOKENIZER} {known}"
    return ""


def import_problem(raw: bytes, ours: Sequence[str], keeps_ids: bool) -> str:
    """Return the reason why a tokenizer.json cannot be imported, or "".

    ours: our chat tokens, which the import adds unless `keeps_ids` is set.
    """
    try:
        said = untrusted_input.mapping(raw, MOST_BYTES, MOST_VALUES, integer=untrusted_input.clamped)
        ids = ids_of(said)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        return f"not a tokenizer: {str(error)[:200]}"
    if odd := [name for name in said if name not in FIELDS]:
        return f"not a tokenizer: unknown field {untrusted_input.printable_line(odd[0])}"
    if said.get("version", VERSION) != VERSION:
        return f"its version is {untrusted_input.printable_line(said['version'])}; known: {VERSION}"
    if not _is_byte_level(said):
        try:
            sentencepiece.spaces_of(said)
        except sentencepiece.UnknownKind as error:
            return f"{error}; {SUPPORTED}"
    elif (kind := said["model"].get("type", "BPE")) != "BPE":
        return f"its model is {untrusted_input.printable_line(kind)}; {SUPPORTED}"
    added = Counter(str(one["content"]) for one in said.get("added_tokens") or ())
    if twice := next((one for one, count in added.items() if count > 1), ""):
        return f"the added token {untrusted_input.printable_line(twice)} is given twice"
    if "" in added:
        return "an added token is empty"
    if odd := _odd_merge(said["model"]):
        return f"not a tokenizer: the merge {untrusted_input.printable_line(odd)} makes no token of the vocabulary"
    # The tokenizers library ignores the ids in the file and numbers added tokens consecutively after the model tokens.
    of_model = ids_of({"model": said["model"]})
    if not of_model:
        return "the vocabulary is empty"
    if max(of_model.values()) >= len(ids):
        return f"the file has {len(ids)} ids, but some ids are larger: a model would have no row for these ids"
    if wrong := _odd_numbers(said, of_model):
        return wrong
    missing = [name for name in ours if name not in ids]
    if not keeps_ids and 0 < len(missing) < len(ours):
        return f"has some of Slipway's chat tokens, but lacks {', '.join(missing)}"
    if keeps_ids and len(ids) < len(ours):
        return f"the {len(ids)} ids are fewer than the chat tokens"
    return ""


def _odd_special(read: Read, config: Mapping[str, Any], ids: Mapping[str, int]) -> str:
    """Compare the BOS, EOS and PAD ids of the model with the ids of the named special tokens."""
    try:
        named = _mapping(read(NAMED))
        generation = {**config, **_mapping(read(GENERATION))}
    except FileNotFoundError:
        return ""
    except ValueError as error:
        return f"{NAMED} or {GENERATION} cannot be read ({error})"
    for role, key in SPECIAL.items():
        token = named.get(role)
        token = token.get("content") if isinstance(token, dict) else token
        meant = generation.get(key)
        meant = meant if isinstance(meant, list) else [meant]
        if isinstance(token, str) and meant != [None] and ids.get(token) not in meant:
            given = untrusted_input.printable_line(generation.get(key))
            return f"its {key} is {given}, and {token!r} is {ids.get(token)} in {TOKENIZER}"
    return ""
