import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.chat import conversations
from data.errors import DataError
from data.tokens.tokenizer import SPECIALS, load

pytestmark = pytest.mark.process

TURNS = [
    {"role": "user", "content": "What does os.path.join do?"},
    {"role": "assistant", "content": " Join two paths.\n\n"},
    {"role": "user", "content": "\nAnd  12345?"},
    {"role": "assistant", "content": "I do not know. ✓"},
    {"role": "user", "content": "{{ braces }} {% if %}"},
    {"role": "assistant", "content": "<b>&amp;</b>"},
]
PARTS = [
    {"type": "text", "text": "Let me see: "},
    {"type": "python", "text": "1+1"},
    {"type": "python_output", "text": "2"},
    {"type": "text", "text": " is 2."},
]


def test_the_chat_tokens_are_the_last_nine_ids_in_their_order(tokenizer):
    first = tokenizer.vocab_size - 9
    assert (tokenizer.vocab_size, len(SPECIALS)) == (1024, 9)
    assert [tokenizer.special(name) for name in SPECIALS] == list(range(first, 1024))
    assert tokenizer.decode([first, first + 4]) == "<|bos|><|assistant_end|>"


@given(st.text())
def test_any_text_is_restored(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_text_like_a_special_token_stays_text(tokenizer):
    text = "<|bos|>hello<|assistant_end|>"
    ids = tokenizer.encode(text)
    assert max(ids) < tokenizer.special("<|bos|>")
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode_batch([text])[0].tolist() == ids


def test_numbers_are_split_after_two_digits_at_most(tokenizer):
    pieces = [tokenizer.decode([one]) for one in tokenizer.encode("2024123 12345")]
    assert all(sum(character.isdigit() for character in piece) <= 2 for piece in pieces)


def test_token_bytes_are_the_raw_bytes(tokenizer):
    lengths = tokenizer.token_bytes()
    assert (lengths.shape, lengths.dtype) == ((1024,), np.int32)
    assert lengths[-9:].tolist() == [0] * 9 and lengths[:-9].min() == 1
    for text in ("naïve ✓ 漢字 \U0001f600", "plain words", "\n\n\t "):
        assert lengths[tokenizer.encode(text)].sum() == len(text.encode())


@pytest.mark.parametrize("content", [None, "not json", '{"version": "1.0"}'])
def test_folder_without_our_tokenizer_is_refused(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(DataError, match=str(tmp_path)):
        load(tmp_path)


def test_a_tokenizer_without_the_chat_tokens_is_refused(tokenizer_folder, tmp_path):
    raw = json.loads((tokenizer_folder / "tokenizer.json").read_text())
    raw["added_tokens"] = raw["added_tokens"][:-1]
    (tmp_path / "tokenizer.json").write_text(json.dumps(raw))
    with pytest.raises(DataError, match="chat tokens"):
        load(tmp_path)


@pytest.fixture(scope="module")
def transformers_tokenizer(tokenizer_folder):
    import transformers

    return transformers.AutoTokenizer.from_pretrained(tokenizer_folder)


@pytest.mark.parametrize(
    "system", [None, "Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]]
)
@pytest.mark.parametrize("turns", [2, 4, 6])
def test_transformers_renders_a_conversation_with_the_same_ids(transformers_tokenizer, tokenizer, turns, system):
    messages = [{"role": "system", "content": system}] * (system is not None) + TURNS[:turns]
    ids, _ = conversations.render(messages, tokenizer)
    assert transformers_tokenizer.apply_chat_template(messages, return_dict=False) == ids
    asked = transformers_tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
    assert asked == conversations.prompt(messages, tokenizer) == conversations.prompt(messages[:-1], tokenizer)


def test_transformers_renders_the_parts_of_an_answer_with_the_same_ids(transformers_tokenizer, tokenizer):
    messages = [TURNS[0], {"role": "assistant", "content": PARTS}]
    assert (
        transformers_tokenizer.apply_chat_template(messages, return_dict=False)
        == conversations.render(messages, tokenizer)[0]
    )


def test_transformers_refuses_roles_that_do_not_alternate(transformers_tokenizer):
    with pytest.raises(Exception, match="alternate"):
        transformers_tokenizer.apply_chat_template([TURNS[0], TURNS[0]])


def test_transformers_knows_the_ends_and_adds_no_second_bos(transformers_tokenizer, tokenizer):
    assert transformers_tokenizer.bos_token_id == tokenizer.special("<|bos|>")
    assert (
        transformers_tokenizer.eos_token_id
        == transformers_tokenizer.pad_token_id
        == tokenizer.special("<|assistant_end|>")
    )
    assert transformers_tokenizer("hello world").input_ids == tokenizer.encode("hello world")
    assert transformers_tokenizer.decode(tokenizer.encode("a , b . c n't")) == "a , b . c n't"
