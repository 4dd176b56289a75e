"""The sentences of a persona, grammatical for any name."""

import json
import re
from dataclasses import replace
from itertools import product

import pytest

from data.chat import persona, smalltalk
from data.chat.persona import INTENTS, conversations
from data.config import ConfigError, IdentitySpec, Persona
from data.errors import InputError

NAMES = ("Bosun", "Ursula K.", "Yahoo!", "Мария", "小明", "محمد", "علی\u200cرضا", "नमस्ते", "O'Brien", 'Al "Ace." Jones',
         "{maker}", r"a\1b", "Dots...", "🚢", "Max", 'The "Bot."', "D’Artagnan", "R2-D2", "谁？",
         "x" * 100)  # fmt: skip
WHO = Persona(name="Bosun", maker="the yard", purpose="to answer questions")
MAKERS = ("the crew of Slipway", "Acme Inc.", "ООО «Ромашка»", "株式会社。", "nobody")
PURPOSES = {
    "to help": "my purpose is to help.",
    "To help people.": "my purpose is to help people.",
    "to ask: why?": "my purpose is to ask: why?",
    "answering questions": "my purpose is this: answering questions.",
    "Answer questions!": "my purpose is this: Answer questions!",
    "to the point": "my purpose is this: to the point.",
    "I help people. Always.": "my purpose is this: I help people. Always.",
    "fun": "my purpose is this: fun.",
    "помогать людям": "my purpose is this: помогать людям.",
    "回答问题。": "my purpose is this: 回答问题。",
    "tomorrow": "my purpose is this: tomorrow.",
}


def sentences(persona):
    trained, heldout = conversations(persona, seed=1)
    return {one[-1]["content"] for one in (*trained, *heldout)}


@pytest.mark.parametrize("name", NAMES)
def test_every_answer_names_the_persona_and_ends_in_one_stop(name):
    for answer in sentences(Persona(name=name, maker="Acme Inc.", purpose="to help")):
        assert name in answer
        assert re.search("[.!?…。！？؟۔।][\"'’”»」]?$", answer), answer
        rest = answer.replace(name, "Bosun" + (name[-1] if name[-1] in ".!?" else ""))
        assert not re.search(r"[.!?…。！？][\"'’”]?\.( |$)|  | ,|by by", rest), answer


@pytest.mark.parametrize(("purpose", "sentence"), PURPOSES.items())
def test_purpose_is_phrased_to_fit_the_sentence(purpose, sentence):
    found = {answer.lower() for answer in sentences(Persona(name="Ursula K.", maker="us", purpose=purpose))}
    assert f"i am ursula k., and {sentence.lower()}" in found
    assert f"i am ursula k. {sentence.lower()}" in found
    assert not any("k.." in answer for answer in found)


@pytest.mark.parametrize(("name", "maker"), product(("Ursula K.", "小明"), MAKERS))
def test_maker_ends_a_sentence_once(name, maker):
    stop = "" if maker[-1] in ".。" else "."
    assert f"I am {name}, and I was made by {maker}{stop}" in sentences(
        Persona(name=name, maker=maker, purpose="to help")
    )


@pytest.mark.parametrize(
    ("key", "value", "seen"),
    [
        ("name", "I am Bosun", "begins with 'i am'"),
        ("maker", "by the crew", "begins with 'by'"),
        ("maker", "Made by us", "begins with 'made by'"),
        ("purpose", "My purpose is to help", "begins with 'my purpose is'"),
        ("name", "Bosun,", "ends in ','"),
        ("purpose", "to help:", "ends in ':'"),
        ("name", "Ur  sula", "one space at a time"),
        ("name", "\u200d", "is empty"),
        ("name", "a\u202eb", "plain characters"),
        ("name", "小" * 34, "102 bytes long; the limit is 100"),
    ],
)
def test_text_that_fits_no_sentence_is_refused_with_a_reason(key, value, seen):
    whole = {"name": "Bosun", "maker": "us", "purpose": "to help"}
    with pytest.raises(ConfigError, match=f"persona's {key}.*{seen}"):
        Persona(**(whole | {key: value}))


def test_blanks_around_a_word_are_ignored():
    assert Persona(name=" Bosun\n", maker="us ", purpose=" to help\n") == Persona(
        name="Bosun", maker="us", purpose="to help"
    )


def test_smalltalk_questions_are_either_held_out_or_trained_on():
    trained, heldout = smalltalk.conversations(1)
    assert {one[0]["content"] for one in trained}.isdisjoint(one[0]["content"] for one in heldout)
    assert all(len(one) == 2 for one in (*trained, *heldout))
    assert len(INTENTS) == 6


def test_handwritten_conversations_become_identity_with_some_questions_held_out(tmp_path):
    path = tmp_path / "identity_conversations.jsonl"
    turns = [
        [{"role": "user", "content": f"Who are you, {n}?"}, {"role": "assistant", "content": f"I am Bosun, {n}."}]
        for n in range(20)
    ]
    other = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello."}]
    path.write_text("".join(json.dumps(one) + "\n" for one in [*turns, turns[0], other]))  # In nanochat's format.
    spec = IdentitySpec(persona=WHO, source=str(path))
    about = persona.make(spec, tmp_path / "out")
    trained, heldout = (
        [json.loads(line) for line in (tmp_path / "out" / name).read_text().splitlines()] for name in persona.FILES
    )
    assert (about["persona"], about["held_out"], about["conversations"]) == (WHO.name, len(heldout), len(trained))
    assert len(trained) + len(heldout) == 22 and 2 <= len(heldout) <= 3 and other in trained
    asked = {one[0]["content"] for one in trained}
    assert all(one["expected"] == WHO.name and one["messages"][0]["content"] not in asked for one in heldout)
    with pytest.raises(InputError, match="none of the 22 answers says Ada; give the right name by --persona"):
        persona.make(replace(spec, persona=replace(WHO, name="Ada")), tmp_path / "other")
    marked = {"messages": [{**turns[0][0], "content": "who\u2028are\x85you", "name": None}, turns[0][1]], "tools": None}
    raw = b"\xef\xbb\xbf" + (json.dumps(marked, ensure_ascii=False) + "\r\n").encode() * 2
    path.write_bytes(raw)
    assert persona.of_file(spec)[0] == [[{"role": "user", "content": "who\u2028are\x85you"}, turns[0][1]]] * 2
    path.write_bytes(raw + b'{"messages": null}\n')
    with pytest.raises(InputError, match=r"jsonl:3: not a conversation .*holds no messages"):
        persona.of_file(spec)
    path.write_text(json.dumps(turns[0][:1]) + "\n")
    with pytest.raises(InputError, match=r"jsonl:1: not a conversation"):
        persona.make(spec, tmp_path / "third")
