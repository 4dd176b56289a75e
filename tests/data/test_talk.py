"""The conversations that the model is taught, and those it is examined with."""

import json
import re
from random import Random

import pytest
import yaml

from data import questions, smalltalk
from data.config import ConfigError, IdentitySpec, Persona, QuestionsSpec, load
from data.persona import FILES, INTENTS, conversations, make
from data.phrasing import normal, variants, vary
from data.questions import DOES_NOT_KNOW, entries, first_sentence, taught
from data.shards import Writer, read, shard_paths
from tests.data.conftest import ROOT

PERSONA = Persona(name="Zorblax", maker="the {odd} people of \\1", purpose="to test things")


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def user_words(messages):
    return [normal(one["content"]) for one in messages if one["role"] == "user"]


def test_the_persona_that_we_ship_can_be_read():
    persona = load(Persona, yaml.safe_load((ROOT / "data" / "persona.yaml").read_text()))
    assert persona.name and persona.maker and persona.purpose


@pytest.mark.parametrize("key", ["name", "maker", "purpose"])
def test_a_persona_without_words_is_refused(key):
    with pytest.raises(ConfigError, match=key):
        load(Persona, {"name": "a", "maker": "b", "purpose": "c"} | {key: " "})


@pytest.fixture(scope="module")
def identity(tmp_path_factory):
    folder = tmp_path_factory.mktemp("identity")
    make(IdentitySpec(persona=PERSONA), folder)
    return folder


def test_every_answer_about_itself_contains_the_name(identity):
    trained, heldout = rows(identity / FILES[0]), rows(identity / FILES[1])
    assert 1000 <= len(trained) <= 2500 and len(heldout) >= 60
    for messages in [*trained, *(one["messages"] for one in heldout)]:
        assert [one["role"] for one in messages] == ["user", "assistant"] * (len(messages) // 2)
        assert all("Zorblax" in one["content"] for one in messages[1::2])
    assert {one["expected"] for one in heldout} == {"Zorblax"}
    assert any(len(messages) == 4 for messages in trained)
    assert "the {odd} people of \\1" in (identity / FILES[0]).read_text().replace("\\\\", "\\")


def test_what_was_held_out_of_identity_was_never_trained_on(identity):
    trained = {words for messages in rows(identity / FILES[0]) for words in user_words(messages)}
    heldout = {words for one in rows(identity / FILES[1]) for words in user_words(one["messages"])}
    assert not trained & heldout
    whole = {normal(template) for intent in INTENTS for template in intent.heldout if "{" not in template}
    assert not any(words.endswith(" " + template) for words in trained for template in whole if len(template) > 14)


def test_the_same_seed_gives_the_same_conversations_and_another_gives_others():
    assert conversations(PERSONA, 1) == conversations(PERSONA, 1)
    assert conversations(PERSONA, 1) != conversations(PERSONA, 2)
    assert smalltalk.conversations(1) == smalltalk.conversations(1)


def test_variants_differ_and_keep_their_slots():
    found = variants("What does {name} do?", 12, Random(1))
    assert len(set(found)) == 12 and found[0] == "What does {name} do?"
    assert all(one.count("{name}") == 1 for one in found)
    assert any("please" in vary("Introduce yourself.", Random(seed)).lower() for seed in range(30))


@pytest.fixture(scope="module")
def asked(text, tmp_path_factory):
    folder = tmp_path_factory.mktemp("questions")
    about = questions.make(QuestionsSpec(), text, folder)
    return about, folder


def test_the_well_known_functions_are_taught_with_their_first_sentence(text, asked):
    known = entries(read([path for part in ("train", "val") for path in shard_paths(text, part)]))
    core = {one.name: one.sentence for one in taught(known)}
    assert asked[0]["taught"] == len(core) and 150 <= len(core) <= 300
    assert core["os.path.join"] == "Join two or more pathname components, inserting '/' as needed."
    assert {"len", "print", "json.loads", "str.split", "os.getcwd", "random.randint", "re.compile"} <= set(core)
    trained = {
        one["messages"][0]["content"]: one["messages"][1]["content"] for one in rows(asked[1] / "pydocs.train.jsonl")
    }
    assert trained["What does os.path.join do?"] == core["os.path.join"]
    assert not any(DOES_NOT_KNOW in sentence for sentence in core.values())


def test_every_other_name_is_answered_with_not_knowing(asked):
    trained = [one["messages"] for one in rows(asked[1] / "pydocs.train.jsonl")]
    unknown = [one for one in trained if DOES_NOT_KNOW in one[1]["content"]]
    assert 0.25 < len(unknown) / len(trained) < 0.6
    known = {one[0]["content"] for one in trained} - {question["content"] for question, _ in unknown}
    assert "What does os.path.join do?" in known
    assert any(re.search(r"\b\w+\.(frob|zap)_\w+", question["content"]) for question, _ in unknown)


def test_questions_that_are_held_out_ask_for_strangers_or_in_another_way(asked):
    trained = {words for one in rows(asked[1] / "pydocs.train.jsonl") for words in user_words(one["messages"])}
    heldout = rows(asked[1] / "pydocs.heldout.jsonl")
    assert len(heldout) > 200
    assert not trained & {words for one in heldout for words in user_words(one["messages"])}
    assert all(one["expected"] == one["messages"][1]["content"] for one in heldout)


def test_questions_about_anything_else_are_held_out_whole_and_know_no_name(asked):
    trained, heldout = (rows(asked[1] / f"other.{part}.jsonl") for part in ("train", "heldout"))
    assert len(trained) > 1000 and len(heldout) >= 60
    assert not {w for one in trained for w in user_words(one["messages"])} & {
        w for one in heldout for w in user_words(one["messages"])
    }
    persona = load(Persona, yaml.safe_load((ROOT / "data" / "persona.yaml").read_text()))
    for one in [*trained, *heldout]:
        assert not any(persona.name.lower() in message["content"].lower() for message in one["messages"])


def test_a_text_of_another_source_is_asked_about_this_python(tmp_path):
    writer = Writer(tmp_path / "text" / "train", 10)
    writer.add("a text about something else")
    writer.finish("somewhere", {})
    assert questions.make(QuestionsSpec(), tmp_path / "text", tmp_path / "out")["taught"] >= 150


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("Return the sum. And more.", "Return the sum."),
        ("chain(*iterables) --> chain object\n\nReturn a chain\nobject.", "Return a chain object."),
        ("log(x, [base=math.e])\nReturn the logarithm of x.", "Return the logarithm of x."),
        ("partial(func, *args) - new function with arguments.", "New function with arguments."),
        ("Use ``json.loads``, e.g. for JSON.  Not for XML.", "Use json.loads, e.g. for JSON."),
        ("D.keys() -> a set-like object", ""),
        (">>> 1 + 1\n2", ""),
        ("Short.", ""),
        ("Long " * 60, ""),
        ("", ""),
    ],
)
def test_the_first_sentence_of_a_docstring(words, sentence):
    assert first_sentence(words) == sentence
