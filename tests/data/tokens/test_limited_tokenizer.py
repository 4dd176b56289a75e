"""Tokenizers with foreign components: components of known cost run here, all others in a child with limits."""

import json
import os
import signal
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers

from data.errors import DataError, InputError
from data.tokens import tokenizer as ours
from data.tokens.untrusted import limited_tokenizer, patterns
from data.tokens.untrusted.component_check import find_unknown_component
from tests import seeds
from tests.trainer.model.test_own_chat import CHATML

pytestmark = pytest.mark.process

LLAMA = next(one for one in sorted(patterns.KNOWN_PATTERNS) if "{1,3}" in one and one.startswith("(?i:"))


def split(pattern: str) -> dict:
    parts = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
    ]
    return {"type": "Sequence", "pretokenizers": parts}


def replaced(pattern: dict, content: str) -> dict:
    return {"type": "Replace", "pattern": pattern, "content": content}


def content(**parts) -> dict:
    """Return a tokenizer.json of single bytes and chat tokens, with these components replaced."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(vocab={one: number for number, one in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return {**json.loads(made.to_str()), **parts}


def folder(tmp_path: Path, **parts) -> Path:
    (tmp_path / "tokenizer.json").write_text(json.dumps(content(**parts)))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    return tmp_path


BOMB = replaced({"String": "a"}, "a" * 100)
ANY = "MiB|memory|SIGABRT|of CPU time|not done"
HOSTILE = {
    "regex": ({"pre_tokenizer": split("(a+)+$")}, "match limit|of CPU time|not done in"),
    "normalizer": ({"normalizer": replaced({"Regex": "(a+)+$"}, "b")}, ""),
    "lookahead": ({"pre_tokenizer": split("(?=(a+)+$)b")}, ""),
    "counted": ({"pre_tokenizer": split("(((a{100}){100}){100}){100}")}, "cannot be read"),
    "replacement": ({"normalizer": {"type": "Sequence", "normalizers": [BOMB] * 6}}, ANY),
    "prepend": ({"normalizer": {"type": "Prepend", "prepend": "b" * 20_000_000}}, ANY),
    "padding": (
        {"padding": {"strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None,
                     "pad_id": 0, "pad_type_id": 0, "pad_token": "a"}},
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_components_are_refused_with_a_reason_or_do_no_harm(tmp_path, kind):
    parts, why = HOSTILE[kind]
    try:
        made = ours.load(folder(tmp_path, **parts))
        ids = made.encode("a" * 3000 + "!")
    except InputError as error:
        assert why and "the model's tokenizer" in str(error) and error.exit_code == 2
        assert any(word in str(error) for word in why.split("|")), error
    else:
        assert not why and made.decode(ids) == "a" * 3000 + "!"


@pytest.mark.parametrize(
    ("parts", "is_plain"),
    [
        ({}, True),
        ({"pre_tokenizer": split(patterns.PATTERN)}, True),
        ({"pre_tokenizer": split(LLAMA)}, True),
        ({"pre_tokenizer": split(LLAMA + "|x")}, False),
        ({"normalizer": {"type": "NFC"}}, True),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 60}}, True),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}] * 70}}, False),
        ({"normalizer": BOMB}, False),
        ({"normalizer": [3]}, False),
        ({"decoder": replaced({"Regex": "(a+)+$"}, "")}, False),
        ({"model": {"type": "WordPiece"}}, False),
        ({"model": 3}, False),
        ({"truncation": {"max_length": 3}}, False),
        ({"post_processor": {"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}}, True),
        (
            {
                "post_processor": {
                    "type": "TemplateProcessing",
                    "single": [],
                    "pair": [],
                    "special_tokens": {"a": {"ids": [0] * 99}},
                }
            },
            False,
        ),
    ],
)
def test_components_of_known_cost_run_in_this_process(parts, is_plain):
    assert (find_unknown_component(content(**parts)) == "") is is_plain


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return one tokenizer in this process, and the same tokenizer in a child."""
    here = ours.load(folder(tmp_path_factory.mktemp("here"), pre_tokenizer=split(LLAMA)))
    odd = {"pre_tokenizer": split(f"{LLAMA}|\U0010fffd")}
    there = ours.load(folder(tmp_path_factory.mktemp("there"), **odd))
    assert here._limited is None and there._limited is not None
    return here, there


@given(st.lists(st.text(), max_size=5))
@settings(max_examples=seeds.examples(60, 100))
def test_child_makes_the_same_ids_and_text(pair, texts):
    here, there = pair
    ids = [one.tolist() for one in there.encode_batch(texts)]
    assert ids == [one.tolist() for one in here.encode_batch(texts)]
    assert [there.decode(one) for one in ids] == [here.decode(one) for one in ids]
    assert (there.begin, there.stops) == (here.begin, here.stops)


def test_many_texts_are_sent_in_parts(pair, monkeypatch):
    here, there = pair
    texts = [f"text {number} " * (number % 7) for number in range(200)]
    wanted = [one.tolist() for one in here.encode_batch(texts)]
    monkeypatch.setattr(limited_tokenizer, "CHARS", 100)
    assert [one.tolist() for one in there.encode_batch(texts)] == wanted
    with pytest.raises(UnicodeEncodeError):
        there.encode("\ud800")


def test_killed_child_is_reported_and_replaced(pair):
    there = pair[1]
    process = there._limited._child._process
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(InputError, match="SIGKILL"):
        there.encode("a")
    assert there.encode("a")


@pytest.mark.parametrize("raw", ["3", "[" * 100_000, '{"model": {"type": "BPE"}}'])
def test_invalid_tokenizer_is_refused_with_a_reason(tmp_path, raw):
    (tmp_path / "tokenizer.json").write_text(raw)
    with pytest.raises(DataError, match="not a tokenizer|cannot be read"):
        ours.load(tmp_path)
