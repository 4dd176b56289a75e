import re

import pytest

from infra import names
from infra.errors import UsageError


def test_a_run_name_is_readable_and_continues_the_numbers_in_use():
    assert re.fullmatch(r"[a-z]+-[a-z]+-1", names.run_name())
    assert names.run_name(["brave-otter-3", "calm-owl-12", "mine", "x-²"]).endswith("-13")


def test_the_words_of_run_names_are_plain_and_distinct():
    for words in (names.ADJECTIVES, names.ANIMALS):
        assert len(words) == len(set(words)) > 80
        assert all(re.fullmatch("[a-z]+", word) for word in words)


@pytest.mark.parametrize("name", ["a", "brave-otter-3", "A.b_c-9", "x" * 128])
def test_plain_names_are_accepted(name):
    assert names.check_name(name) == name


@pytest.mark.parametrize("name", ["", "-x", ".x", "a/b", "a b", "é", "x" * 129, "a\n"])
def test_names_unsafe_as_file_names_are_refused(name):
    with pytest.raises(UsageError, match="is not a valid name"):
        names.check_name(name)


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("mymodle", ["chatsft_checkpoints/mymodel", "base_checkpoints/mymodel"]),
        ("chatsft_checkpoints/mymodle", ["chatsft_checkpoints/mymodel"]),
        ("tokeniser", ["tokenizer"]),
        ("zzz", []),
    ],
)
def test_similar_names_are_compared_as_a_whole_and_by_the_last_part(word, found):
    known = ["chatsft_checkpoints/mymodel", "base_checkpoints/mymodel", "tokenizer", "text/pydocs"]
    assert names.similar(word, known, 1 if "/" in word else 3)[: len(found) or None] == found


def test_a_prefix_finds_the_only_matching_name():
    runs = ["brave-otter-3", "brave-otter-31", "calm-owl-4"]
    assert names.match("calm", runs) == "calm-owl-4"
    assert names.match("brave-otter-3", runs) == "brave-otter-3"
    with pytest.raises(UsageError, match="several names: brave-otter-3, brave-otter-31"):
        names.match("brave", runs)
    with pytest.raises(UsageError, match="'calm-owl-5' not found; available: calm-owl-4"):
        names.match("calm-owl-5", runs)
    with pytest.raises(UsageError, match="none exists yet"):
        names.match("x", [])


def test_a_token_names_its_installation_and_is_unique():
    tokens = {names.new_token("ab12cd34") for _ in range(100)}
    assert len(tokens) == 100
    assert all(re.fullmatch(r"sw1-ab12cd34-[a-z0-9]{16}", token) and len(token) <= 30 for token in tokens)
