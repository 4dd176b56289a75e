"""Find tokenizer components of unknown cost. Pure.

From a tokenizer.json, `find_unknown_component` returns the first component of unknown cost, or "". An untrusted regular
expression may take hours on a single word, and a replacement may expand a word to gigabytes; the expressions in
`patterns` take time proportional to the text. A file with an unknown component is not rejected: it runs in a child
process (`limited_tokenizer`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from data.tokens.untrusted.patterns import KNOWN_PATTERNS
from store import untrusted_input
from store.artifacts.sentencepiece import LEADS, READS, SPACE, STRIPS, WRITES

# Components without their own expression, replacement or table.
SIMPLE = {
    "normalizer": {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "ByteLevel"},
    "pre_tokenizer": {"ByteLevel", "Digits", "Punctuation", "Whitespace", "WhitespaceSplit"},
    "decoder": {"ByteLevel", "ByteFallback", "Fuse"},
    "post_processor": {"ByteLevel"},
}
# Each part maps a character to a character, or adds one character.
SPACES = {"normalizer": (LEADS, WRITES), "decoder": (READS, STRIPS)}
INNER = {"normalizers", "pretokenizers", "decoders", "processors"}
MOST_PARTS, MOST_CHARS, MOST_IDS = 64, 64, 16


def find_unknown_component(said: Mapping[str, Any]) -> str:
    """Return a description of the first component of unknown cost, or ""."""
    model = said.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        return "its model"
    if said.get("padding") or said.get("truncation"):
        return "its padding or truncation"
    for kind in SIMPLE:
        for number, part in enumerate(_parts(said.get(kind))):
            if number >= MOST_PARTS or not _is_plain(kind, part):
                return f"its {kind} {untrusted_input.printable_line(part)}"
    return ""


def _parts(said: Any) -> Iterator[Any]:
    """Yield the components of a kind, with sequences flattened."""
    waiting = [] if said is None else [said]
    while waiting:
        part = waiting.pop()
        inner = [part[key] for key in INNER if isinstance(part, dict) and isinstance(part.get(key), list)]
        if inner and part.get("type") == "Sequence":
            waiting += [one for each in inner for one in each]
        else:
            yield part


def _is_plain(kind: str, part: Any) -> bool:
    name = part.get("type") if isinstance(part, dict) else None
    if not isinstance(name, str):
        return False
    if kind == "pre_tokenizer" and name == "Split":
        return _is_known(part.get("pattern"))
    if part in SPACES.get(kind, ()) or kind == "pre_tokenizer" and name == "Metaspace" and _is_space(part):
        return True
    if kind == "post_processor" and name == "TemplateProcessing":
        return _is_short(part)
    return name in SIMPLE[kind]


def _is_space(part: Mapping[str, Any]) -> bool:
    return part.get("replacement") == SPACE and part.get("str_rep", SPACE) == SPACE


def _is_known(pattern: Any) -> bool:
    if not isinstance(pattern, dict) or len(pattern) != 1:
        return False
    text = pattern.get("String")
    is_text = isinstance(text, str) and 0 < len(text) <= MOST_CHARS
    return is_text or pattern.get("Regex") in KNOWN_PATTERNS


def _is_short(part: Mapping[str, Any]) -> bool:
    """Return True if a post-processing template adds at most a few special tokens."""
    tokens = part.get("special_tokens")
    ids = [one.get("ids") for one in tokens.values() if isinstance(one, dict)] if isinstance(tokens, dict) else [None]
    written = [part.get("single"), part.get("pair"), *ids]
    return all(isinstance(one, list) and len(one) <= MOST_IDS for one in written)
