"""The conversion of SentencePiece tokenizers: BPE on characters with byte fallback, as in Llama 2 and 1bitLLM's BitNet.

The input is a `tokenizer.model` (a protocol buffer) or a tokenizer.json of this kind. The functions return the reason
why a tokenizer is unsupported, the rule for spaces, and the tokenizer.json with the same ids as a `tokenizer.model`.
Such tokenizers write a space as `SPACE`, and most add a space in front of a text. Source: sentencepiece_model.proto of
google/sentencepiece.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from store.untrusted_input import printable_line

FILE = "tokenizer.model"
MOST_BYTES, MOST_PIECES = 8 << 20, 1 << 20
SPACE = "\u2581"
BYTES = {f"<0x{byte:02X}>": byte for byte in range(256)}
BPE = 2
MODELS = {1: "Unigram", BPE: "BPE", 3: "word", 4: "character"}
NORMAL, UNKNOWN, CONTROL, BYTE = 1, 2, 3, 6
OTHERS = {4: "user defined symbols", 5: "unused pieces"}
LONGEST = 256  # maximum characters of a piece, since every split of a piece is looked up
NOTHING, FIRST, ALWAYS = "never", "first", "always"
WRITES = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
LEADS = {"type": "Prepend", "prepend": SPACE}
READS = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
DECODERS = [READS, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIPS = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
# Field number, type and default of the protobuf fields in use.
FIELDS: Mapping[str, Mapping[str, tuple[int, str, str]]] = {
    "Piece": {"piece": (1, "TYPE_BYTES", ""), "score": (2, "TYPE_FLOAT", ""), "type": (3, "TYPE_INT32", "1")},
    "Trainer": {
        "model_type": (3, "TYPE_INT32", "1"),
        "treat_whitespace_as_suffix": (24, "TYPE_BOOL", "false"),
        "byte_fallback": (35, "TYPE_BOOL", "false"),
    },
    "Normalizer": {
        "name": (1, "TYPE_BYTES", ""),
        "precompiled_charsmap": (2, "TYPE_BYTES", ""),
        "add_dummy_prefix": (3, "TYPE_BOOL", "true"),
        "remove_extra_whitespaces": (4, "TYPE_BOOL", "true"),
        "escape_whitespaces": (5, "TYPE_BOOL", "true"),
    },
}


class UnknownKind(ValueError):
    """An unsupported tokenizer; the message gives the reason."""


@dataclass(frozen=True)
class SpaceRule:
    """The rule by which a tokenizer adds spaces to a text."""

    lead: str
    """Texts that get a leading space: NOTHING, FIRST (only the start) or ALWAYS (also text after an added token)."""
    doubles: bool
    """True if a text with a leading space gets a second space, as in SentencePiece."""


def file_problem(raw: bytes) -> str:
    """Return the reason why a `tokenizer.model` is unsupported, or "".

    Time and memory grow linearly with the size of the file.
    """
    try:
        _checked(raw)
    except UnknownKind as error:
        return str(error)
    return ""


def as_json(raw: bytes) -> dict[str, Any]:
    """Return the tokenizer.json with the same ids as a `tokenizer.model`. Raise UnknownKind."""
    pieces, leads = _checked(raw)
    vocab = {piece: number for number, (piece, _, _) in enumerate(pieces)}
    normal = {piece: score for piece, score, kind in pieces if kind == NORMAL}
    unknown = next(piece for piece, _, kind in pieces if kind == UNKNOWN)
    special = [(number, piece) for number, (piece, _, kind) in enumerate(pieces) if kind in (UNKNOWN, CONTROL)]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [added_token(number, piece, special=True) for number, piece in special],
        "normalizer": {"type": "Sequence", "normalizers": [*([LEADS] if leads else []), WRITES]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [*DECODERS, *([STRIPS] if leads else [])]},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": unknown,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": True,
            "byte_fallback": True,
            "ignore_merges": False,
            "vocab": vocab,
            "merges": _merges(normal),
        },
    }


def added_token(number: int, content: str, special: bool, **more: bool) -> dict[str, Any]:
    """Return an added token in the format of tokenizer.json."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, **more}
    return {"id": number, "content": content, **flags, "special": special}


def is_pieces(tokenizer: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer.json declares BPE with byte fallback; other fields are not checked."""
    model = tokenizer.get("model")
    return isinstance(model, dict) and model.get("type") == "BPE" and model.get("byte_fallback") is True


def spaces_of(tokenizer: Mapping[str, Any]) -> SpaceRule:
    """Return the rule for spaces of a BPE tokenizer.json with byte fallback. Raise UnknownKind for other tokenizers."""
    model, kind = tokenizer.get("model"), kind_of(tokenizer)
    if not isinstance(model, dict) or not is_pieces(tokenizer):
        raise UnknownKind(kind)
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not BYTES.keys() <= vocab.keys():
        raise UnknownKind(f"{kind}, but without a token for each byte")
    if odd := [name for name in ("dropout", "continuing_subword_prefix", "end_of_word_suffix") if model.get(name)]:
        raise UnknownKind(f"{kind} and {odd[0]} {printable_line(model[odd[0]])}")
    behind = tokenizer.get("post_processor")
    if behind is not None and (not isinstance(behind, dict) or behind.get("type") != "TemplateProcessing"):
        raise UnknownKind(f"{kind}, with the post-processor {printable_line(behind)}")
    normal = list(_parts(tokenizer.get("normalizer"), "normalizers"))
    before = list(_parts(tokenizer.get("pre_tokenizer"), "pretokenizers"))
    if list(_parts(tokenizer.get("decoder"), "decoders")) not in (DECODERS, [*DECODERS, STRIPS]):
        raise UnknownKind(f"{kind}, decoded by {printable_line(tokenizer.get('decoder'))}")
    if not before and normal in ([WRITES], [LEADS, WRITES]):
        return SpaceRule(ALWAYS if LEADS in normal else NOTHING, doubles=True)
    if not normal and len(before) == 1 and (lead := _metaspace(before[0])):
        return SpaceRule(lead, doubles=False)
    raise UnknownKind(
        f"{kind}, with the normalizer {printable_line(normal)} and the pre-tokenizer {printable_line(before)}"
    )


def kind_of(tokenizer: Mapping[str, Any]) -> str:
    """Return a description of the kind of a tokenizer.json, for messages."""
    model = tokenizer.get("model")
    kind = model.get("type") if isinstance(model, dict) else None
    if kind != "BPE":
        return f"its model is {printable_line(kind)}"
    return "BPE on characters " + ("with byte fallback" if is_pieces(tokenizer) else "without byte fallback")


def led_always(tokenizer: str) -> str:
    """Return a tokenizer.json with `prepend_scheme` ALWAYS in place of FIRST; other tokenizers stay unchanged."""
    said = json.loads(tokenizer)
    if not is_pieces(said) or spaces_of(said).lead != FIRST:
        return tokenizer
    part = next(_parts(said["pre_tokenizer"], "pretokenizers"))
    return json.dumps({**said, "pre_tokenizer": {**part, "prepend_scheme": ALWAYS}}, ensure_ascii=False)


def crosses(vocab: Mapping[str, int]) -> bool:
    """Return whether a token continues past a letter and a space, so that such a space is no token boundary."""
    return any(re.search(f"[A-Za-z]{SPACE}", one) for one in vocab)


def _metaspace(part: Mapping[str, Any]) -> str:
    """Return the leading-space rule of a Metaspace pre-tokenizer, or "" for an unknown pre-tokenizer."""
    said = part.get("prepend_scheme", ALWAYS if part.get("add_prefix_space", True) else NOTHING)
    is_known = part.get("type") == "Metaspace" and part.get("replacement") == SPACE and part.get("split") is False
    return said if is_known and said in (NOTHING, FIRST, ALWAYS) else ""


def _parts(said: Any, inner: str) -> Iterator[Mapping[str, Any]]:
    if isinstance(said, dict):
        some = said.get(inner) if said.get("type") == "Sequence" else [said]
        yield from (one if isinstance(one, dict) else {} for one in (some if isinstance(some, list) else [{}]))
    elif said is not None:
        yield {}


def _checked(raw: bytes) -> tuple[list[tuple[str, float, int]], bool]:
    """Return the pieces of a `tokenizer.model` (text, score, type) and whether a text gets a leading space.

    Raise UnknownKind for a file whose ids BPE with byte fallback would not reproduce.
    """
    from google.protobuf.message import DecodeError

    if len(raw) > MOST_BYTES:
        raise UnknownKind(f"the file has {len(raw)} bytes; at most {MOST_BYTES} are read")
    try:
        model = _message().FromString(raw)
    except DecodeError as error:
        raise UnknownKind(f"not a file of SentencePiece: {error}") from None
    if not model.HasField("trainer_spec"):
        raise UnknownKind("not a file of SentencePiece: the kind of training is missing")
    trainer, rules = model.trainer_spec, model.normalizer_spec
    if trainer.model_type != BPE:
        raise UnknownKind(f"SentencePiece's {MODELS.get(trainer.model_type, f'number {trainer.model_type}')} model")
    if not trainer.byte_fallback:
        raise UnknownKind("SentencePiece's BPE without byte fallback: text without a matching piece would be lost")
    if rules.precompiled_charsmap:
        name = printable_line(rules.name.decode("utf-8", "replace"))
        raise UnknownKind(f"SentencePiece's BPE with rules that rewrite text ({name})")
    if rules.remove_extra_whitespaces or not rules.escape_whitespaces or trainer.treat_whitespace_as_suffix:
        raise UnknownKind("SentencePiece's BPE with spaces that are removed, not escaped, or put behind words")
    if len(model.pieces) > MOST_PIECES:
        raise UnknownKind(f"the file has {len(model.pieces)} pieces; at most {MOST_PIECES} are read")
    pieces = [(_text(one.piece), one.score, one.type) for one in model.pieces]
    _check_pieces(pieces)
    return pieces, rules.add_dummy_prefix


def _check_pieces(pieces: Sequence[tuple[str, float, int]]) -> None:
    """Raise UnknownKind unless the pieces form a valid BPE vocabulary with byte fallback."""
    if odd := {kind for _, _, kind in pieces} - {NORMAL, UNKNOWN, CONTROL, BYTE}:
        raise UnknownKind(f"SentencePiece's BPE with {OTHERS.get(min(odd), 'pieces of an unknown kind')}")
    if len({piece for piece, _, _ in pieces}) < len(pieces):
        raise UnknownKind("some pieces occur twice")
    of_bytes = {piece for piece, _, kind in pieces if kind == BYTE}
    if of_bytes != BYTES.keys() or sum(kind == UNKNOWN for _, _, kind in pieces) != 1:
        raise UnknownKind("SentencePiece's BPE without a piece for each byte, or without exactly one unknown piece")
    scores = {piece: score for piece, score, kind in pieces if kind == NORMAL}
    long = [piece for piece in scores if len(piece) > 1]
    if wrong := [piece for piece in long if len(piece) > LONGEST or not all(one in scores for one in piece)]:
        raise UnknownKind(
            f"the piece {printable_line(wrong[0])} is longer than {LONGEST}, or contains a character without a piece"
        )
    if len({scores[piece] for piece in long}) < len(long):
        raise UnknownKind("some pieces have the same score, so the order of the pieces is unknown")


def _merges(scores: Mapping[str, float]) -> list[list[str]]:
    """Return the merge pairs in priority order: SentencePiece merges the pair whose result has the highest score.

    Pairs that form the same piece are ordered as in transformers.
    """
    merges = []
    for piece in sorted((one for one in scores if len(one) > 1), key=scores.__getitem__, reverse=True):
        halves = [(piece[:at], piece[at:]) for at in range(1, len(piece))]
        known = [pair for pair in halves if pair[0] in scores and pair[1] in scores]
        merges += [list(pair) for pair in sorted(known, key=lambda pair: (len(pair[0]), len(pair[1])))]
    return merges


def _text(piece: bytes) -> str:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        raise UnknownKind(f"the piece {printable_line(piece.decode('utf-8', 'replace'))} is not UTF-8") from None


@cache
def _message() -> Any:
    """Return the protobuf message class of a `tokenizer.model`, built from FIELDS."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="slipway/sentencepiece.proto", package="slipway", syntax="proto2")
    field = descriptor_pb2.FieldDescriptorProto
    for message, fields in FIELDS.items():
        made = file.message_type.add(name=message)
        for name, (number, kind, default) in fields.items():
            made.field.add(
                name=name, number=number, label=field.LABEL_OPTIONAL, type=getattr(field, kind), default_value=default
            )
    made = file.message_type.add(name="Model")
    for name, number, inner in (
        ("pieces", 1, "Piece"),
        ("trainer_spec", 2, "Trainer"),
        ("normalizer_spec", 3, "Normalizer"),
    ):
        label = field.LABEL_REPEATED if name == "pieces" else field.LABEL_OPTIONAL
        made.field.add(name=name, number=number, label=label, type=field.TYPE_MESSAGE, type_name=f".slipway.{inner}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("slipway.Model"))
