"""Convert an untrusted `tokenizer.model` to a tokenizer.json, in a child process with limits."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from data.errors import InputError
from store import untrusted_input
from store.artifacts import sentencepiece, vocabulary
from store.artifacts.tokenizer_files import SPECIAL_MAP, TOKENIZER_CONFIG, load_if_present, named_tokens
from store.untrusted.child import ChildFailed, ChildLimits, LimitedChild

# A piece of three bytes becomes an object, a key, and a pair of merges for each of its parts.
ROOM_BYTES, ROOM_PER_BYTE = 512 << 20, 64
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def write(folder: Path) -> None:
    """Write the tokenizer.json of a folder with a `tokenizer.model`. Raises InputError, UnusableDocument."""
    raw = untrusted_input.content(folder / sentencepiece.FILE, sentencepiece.MOST_BYTES)
    said = completed(json.loads(converted(raw)), folder)
    (folder / vocabulary.TOKENIZER).write_text(json.dumps(said, ensure_ascii=False), encoding="utf-8")


def converted(raw: bytes) -> bytes:
    """Return a tokenizer.json with only the ids of the `tokenizer.model`. Raises InputError."""
    if wrong := vocabulary.model_problem(raw):
        raise InputError(wrong)
    limits = ChildLimits(
        room_bytes=ROOM_BYTES + ROOM_PER_BYTE * len(raw), cpu_s=30.0, answer_s=120.0, answer_bytes=64 << 20
    )
    child = LimitedChild("data.tokens.untrusted.sentencepiece_child", (), raw, limits)
    try:
        return child.ask(b"json")
    except ChildFailed as failed:
        raise InputError(str(failed)) from None


def completed(said: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a tokenizer.json completed with the added tokens of `folder`, as in `transformers`. Raises InputError."""
    ids = vocabulary.ids_of(said)
    added = {one["content"]: one for one in said["added_tokens"]}
    for number, content, flags in _beside(folder):
        expected = ids.get(content, len(ids))
        if number is not None and number != expected:
            raise InputError(
                f"the added token {untrusted_input.printable_line(content)} has the id {number}, but would get "
                f"{expected}"
            )
        ids[content] = expected
        added[content] = sentencepiece.added_token(expected, content, **flags)
    said = {**said, "added_tokens": sorted(added.values(), key=lambda one: one["id"])}
    config, named = load_if_present(folder, TOKENIZER_CONFIG), named_tokens(folder)
    leads = [named["bos_token"]] if "bos_token" in named and config.get("add_bos_token", True) else []
    ends = [named["eos_token"]] if "eos_token" in named and config.get("add_eos_token") else []
    if not leads and not ends:
        return said

    def around(name: str, number: int) -> list[dict[str, Any]]:
        parts = [{"SpecialToken": {"id": one, "type_id": number}} for one in (*leads, None, *ends) if one]
        parts.insert(len(leads), {"Sequence": {"id": name, "type_id": number}})
        return parts

    special = {one: {"id": one, "ids": [ids[one]], "tokens": [one]} for one in (*leads, *ends)}
    pair = [*around("A", 0), *around("B", 1)]
    template = {"type": "TemplateProcessing", "single": around("A", 0), "pair": pair, "special_tokens": special}
    return {**said, "post_processor": template}


def _beside(folder: Path) -> Iterator[tuple[int | None, str, dict[str, bool]]]:
    """Yield the added tokens of `folder`: id or None, text, flags. Raises InputError, UnusableDocument."""
    config, special = load_if_present(folder, TOKENIZER_CONFIG), load_if_present(folder, SPECIAL_MAP)
    named = named_tokens(folder)
    extra = [*_texts(config), *_texts(special)]
    names = {*named.values(), *extra}
    listed = config.get("added_tokens_decoder")
    if isinstance(listed, dict):
        found = [(number, one.get("content"), one) for number, one in listed.items() if isinstance(one, dict)]
    else:
        found = [(number, content, {}) for content, number in load_if_present(folder, vocabulary.ADDED).items()]
    try:
        rows = sorted((int(number), content, one) for number, content, one in found)
    except (TypeError, ValueError):
        raise InputError("the ids of the added tokens are not numbers") from None
    for number, content, one in rows:
        if not isinstance(content, str) or not content:
            raise InputError(f"the added token {number} is {untrusted_input.printable_line(content)}")
        is_special = bool(one.get("special", content in names))
        flags = {name: bool(one.get(name, name == "normalized" and not is_special)) for name in FLAGS}
        yield number, content, {**flags, "special": is_special}
    have = {content for _, content, _ in rows}
    for content in dict.fromkeys([*(named[role] for role in ROLES if role in named), *extra]):
        if content not in have:
            yield None, content, {"special": True}


def _texts(said: Mapping[str, Any]) -> list[str]:
    """Return the texts of special tokens without a role."""
    more = said.get("additional_special_tokens")
    texts = [one.get("content") if isinstance(one, dict) else one for one in (more if isinstance(more, list) else [])]
    return [one for one in texts if isinstance(one, str) and one]
