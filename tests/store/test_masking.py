"""A copy of a growing log in separately masked parts equals the masked log."""

import base64
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from store.masking import Mask
from tests import seeds

SECRETS = ["hunter2-" + "x9Qk", "aba", "ab/ab+c=" + "d", "ünïcode-password", "line\nbreak-secret"]


def spelled(secret: str) -> list[bytes]:
    raw = secret.encode()
    return [raw, base64.b64encode(raw), quote(secret, safe="").encode(), raw.hex().encode()]


PIECES = st.one_of(
    st.binary(max_size=6),
    st.sampled_from([form for one in SECRETS for form in spelled(one)]),
    st.sampled_from([one.encode()[:4] for one in SECRETS]),
    st.sampled_from([b"\n", b"ab", b"abab", b" "]),
)
LOGS = st.lists(PIECES, max_size=12).map(b"".join)


def whole(mask: Mask, text: bytes) -> bytes:
    return b"".join(mask([text]))


def copied_at(mask: Mask, text: bytes, sizes: list[int], piece: int) -> bytes:
    """Return the copy of a log after looks at these sizes."""
    copy = b""
    for size in [*sorted(min(one, len(text)) for one in sizes), len(text)]:
        begin = max(0, len(copy) - mask.longest)
        there = [text[at : min(at + piece, size)] for at in range(begin, size, piece)]
        copy += b"".join(mask.mask_part(there, len(copy) - begin))
    return copy


@pytest.mark.slow
@settings(max_examples=seeds.examples(60, 400))
@given(LOGS, st.lists(st.integers(0, 200), max_size=5), st.integers(1, 40))
@example(b"say hunter2-x9Qk now", [8], 3)
@example(b"hunter2-x9Qk", [1, 2, 3, 11], 1)
@example(b"abababa end", [2, 3, 4, 5], 2)
def test_a_log_copied_during_growth_is_masked_as_a_whole(text, sizes, piece):
    mask = Mask(SECRETS)
    copy = copied_at(mask, text, sizes, piece)
    left = mask.partial_secret_len(whole(mask, text))
    assert copy == whole(mask, text)[: len(text) - left]
    assert all(form not in copy for one in SECRETS for form in spelled(one) if len(one) >= 8)


@settings(max_examples=seeds.examples(60, 200))
@given(LOGS, st.lists(st.integers(0, 200), max_size=4), st.integers(1, 40))
def test_text_without_secrets_is_copied_unchanged_at_once(text, sizes, piece):
    assert copied_at(Mask([]), text, sizes, piece) == text


def test_a_possible_beginning_of_a_secret_at_the_end_is_held_back():
    mask = Mask(["hunter2-x9Qk"])
    assert b"".join(mask.mask_part([b"pass hunt"], 0)) == b"pass "
    assert b"".join(mask.mask_part([b"pass hunt", b"ing"], 0)) == b"pass hunting"
    assert b"".join(mask.mask_part([b"pass hunt", b"er2-x9Qk\n"], 0)) == b"pass " + b"*" * 12 + b"\n"
