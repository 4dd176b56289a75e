"""The ids of the fast encoder equal Hugging Face's `tokenizers`, used by `transformers` and vLLM."""

import random
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.shards.shards import read, shard_paths
from data.text.document_batch import replace_invalid_utf8
from data.tokens import tokenizer as tokenizers
from data.tokens.tokenizer import SPECIALS
from tests import seeds
from tests.faults.trial import rounds

pytestmark = pytest.mark.process

SPACES = [" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u2028", "\u3000", "\x85", "\x0b", "\x00"]
BITS = ["'s", "'LL", "n't", "1", "20", "333", "٣٤", "½", "²", "Ⅷ", "é", "e\u0301", "ß", "ǆ", "ſ", "İ", "漢字", "\u200d",
        "\U0001f469\u200d\U0001f4bb", "\U0001d7d9", "_", "...", "->", "\ufeff", "\ufffd", "\U0010ffff"]  # fmt: skip


@pytest.fixture(scope="module")
def library_tokenizer(tokenizer):
    """Return the same file, read by Hugging Face's library, without special tokens in text."""
    tokenizer.inner.encode_special_tokens = True
    return lambda texts: [one.ids for one in tokenizer.inner.encode_batch_fast(texts, add_special_tokens=False)]


def our_ids(tokenizer, texts):
    return [one.tolist() for one in tokenizer.encode_batch(texts)]


def any_character(chance):
    """Return a character of any plane, each plane equally likely; never half a surrogate pair."""
    while True:
        number = (chance.randrange(17) << 16) + chance.randrange(1 << 16)
        if not 0xD800 <= number < 0xE000:
            return chr(number)


def any_text(chance, words):
    pieces = (
        lambda: chance.choice(words),
        lambda: " " + chance.choice(words),
        lambda: chance.choice(SPACES) * chance.choice((1, 1, 2, 7)),
        lambda: chance.choice(BITS),
        lambda: chance.choice(SPECIALS),
        lambda: str(chance.randrange(10 ** chance.randrange(1, 12))),
        lambda: chr(chance.randrange(0x250)),
        lambda: any_character(chance),
    )
    return "".join(chance.choice(pieces)() for _ in range(chance.randrange(24)))


@rounds(2_000, 100_000)
def test_random_strings_have_the_same_ids(tokenizer, library_tokenizer, text, rounds):
    words = " ".join(read(shard_paths(text, "val"))).split()
    for seed in range(0, rounds, 2_000):
        chance = random.Random(seed)
        texts = [any_text(chance, words) for _ in range(2_000)]
        assert len(set(texts)) > 1_800
        assert our_ids(tokenizer, texts) == library_tokenizer(texts)


@settings(max_examples=seeds.examples(60, 200))
@given(st.lists(st.text() | st.sampled_from([*SPACES, *BITS, *SPECIALS]), max_size=8).map("".join))
@example("<|bos|>" * 3)
@example("a\n \n  b \t\r\n")
def test_any_unicode_has_the_same_ids(tokenizer, library_tokenizer, text):
    assert our_ids(tokenizer, [text]) == library_tokenizer([text])


@rounds(1, 32)
def test_every_character_has_the_same_category(tokenizer, library_tokenizer, rounds):
    """Letter, number, space or none: two libraries may use two versions of Unicode. All characters at night."""
    every = [chr(number) for number in range(sys.maxunicode + 1) if not 0xD800 <= number < 0xE000]
    for part in range(rounds):
        texts = [f"a{one}b 1{one}2 .{one}. \n{one}\n {one}x" for one in every[part::32]]
        assert our_ids(tokenizer, texts) == library_tokenizer(texts)


@given(st.lists(st.binary(max_size=24), min_size=1, max_size=8))
@settings(max_examples=seeds.examples(60, 100))
def test_invalid_utf_8_is_repaired_like_in_text_shards(tokenizer, library_tokenizer, raw):
    mended = list(raw)
    replace_invalid_utf8(mended)
    assert our_ids(tokenizer, raw) == library_tokenizer([one.decode() for one in mended])


def test_batch_gives_each_text_a_separate_row(tokenizer):
    rows = tokenizer.encode_batch(["one", "", b"two words", "\n"])
    assert [row.dtype for row in rows] == [np.uint32] * 4
    assert [tokenizer.decode(row) for row in rows] == ["one", "", "two words", "\n"]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode_joined(["one", "", "two"]).tolist() == [*tokenizer.encode("one"), *tokenizer.encode("two")]


def test_half_a_surrogate_pair_is_refused(tokenizer):
    with pytest.raises(UnicodeEncodeError):
        tokenizer.encode_batch(["fine", "\ud800"])


@given(st.lists(st.sampled_from(["it's", "a", "B c", " d", "12", "é", "\n", "'s", " x y", "..", "  "]), max_size=40))
@settings(max_examples=seeds.examples(60, 200))
def test_long_text_in_pieces_has_the_ids_of_the_whole(tokenizer, library_tokenizer, parts):
    text = "".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizers, "PIECE", 3)
        assert our_ids(tokenizer, [text, text]) == library_tokenizer([text, text])


@pytest.mark.parametrize("piece", [" ", "a", "7", ".", "\n", "\t ", "ab ", "漢", "\x00", "'"])
def test_endless_run_of_a_character_is_only_a_long_text(tokenizer, library_tokenizer, piece):
    text = piece * (20_000 // len(piece)) + "x"
    assert our_ids(tokenizer, [text]) == library_tokenizer([text])
