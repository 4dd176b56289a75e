"""SentencePiece tokenizers: the ids of SentencePiece and transformers, pieces as text, bytes of tokens."""

import json
import random
from pathlib import Path

import numpy as np
import pytest

from data.chat import conversations
from data.errors import DataError, InputError
from data.tokens import tokenizer as tokenizers
from data.tokens.loader import heldout
from data.tokens.pieces import decode_stream
from data.tokens.tokenizer import PIECE, SPECIALS
from data.tokens.untrusted import sentencepiece_file
from data.tokens.untrusted.component_check import find_unknown_component
from store.artifacts import sentencepiece, vocabulary
from tests.data.tokens.pieces import text, trained, write
from trainer import import_model

pytestmark = pytest.mark.process

ODD = [
    "", " ", "  ", "   a", " hello", "hello", "hello world", "two  spaces   three  ", "\n", "\n\n x", "a\tb", "\r\n a",
    "emoji \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 x", "\u65e5\u672c\u8a9e x", "\u00e9 e\u0301", "\x00 a",
    "\u2581 x", "a\u2581b", "\u00a0nbsp", "\u200b",
    "<s>", "x<s> y", "</s>a <unk>b", "<0x41> a", "<|bos|>x", "a" * 300, " " * 300, "\U0010fffa", "1234567",
]  # fmt: skip
ALPHABET = "abcdefgh THE the  \n\t.,01234\u00e9\u65e5\U0001f600\u2581<>/s"


def odd_texts() -> list[str]:
    draw = random.Random(1)
    return ODD + ["".join(draw.choice(ALPHABET) for _ in range(draw.randint(0, 60))) for _ in range(300)]


def large_texts() -> list[str]:
    """Return texts that are cut: words, words and odd lines, and two without a place to cut."""
    size = 3_000_000
    lines = (text() * (1 + size // len(text())))[:size]
    return [lines, "".join(f"{one}ab cd" for one in odd_texts()) * 200, "x" * (PIECE + 50), "a1 " * (PIECE // 2)]


def imported_tokenizer(folder: Path, raw: bytes) -> Path:
    """Return the folder of the tokenizer with Slipway's chat tokens."""
    sentencepiece_file.write(write(folder / "theirs", raw))
    import_model.with_chat_tokens(folder / "theirs" / "tokenizer.json", folder / "ours")
    return folder / "ours"


def processor(raw: bytes):
    import sentencepiece as library

    return library.SentencePieceProcessor(model_proto=raw)


@pytest.mark.day_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("leads", [True, False], ids=["led", "bare"])
def test_ids_of_a_tokenizer_model_equal_sentencepiece_and_transformers(leads, tmp_path):
    from transformers import AutoTokenizer

    raw = trained(add_dummy_prefix=leads)
    folder = imported_tokenizer(tmp_path, raw)
    ours, theirs, library = tokenizers.load(folder), processor(raw), AutoTokenizer.from_pretrained(folder)
    assert ours.has_pieces and ours.vocab_size == 900 + len(SPECIALS)
    texts = odd_texts() + large_texts()
    for one, ids in zip(texts, ours.encode_batch(texts), strict=True):
        assert ids.tolist() == theirs.encode(one), one[:60]
        if len(one) < PIECE:
            assert ids.tolist() == library.encode(one, add_special_tokens=False, split_special_tokens=True), one
    assert ours.encode_joined(texts[:50]).tolist() == [number for one in texts[:50] for number in theirs.encode(one)]


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_ids_of_a_tokenizer_json_with_metaspace_equal_the_library(scheme, tmp_path):
    import tokenizers as library

    sentencepiece_file.write(write(tmp_path, trained()))
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    space = {"type": "Metaspace", "replacement": sentencepiece.SPACE, "prepend_scheme": scheme, "split": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps({**said, "normalizer": None, "pre_tokenizer": space}))
    import_model.with_chat_tokens(tmp_path / "tokenizer.json", tmp_path / "ours")
    ours = tokenizers.load(tmp_path / "ours")
    theirs = library.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    theirs.encode_special_tokens = True
    texts = odd_texts()
    wanted = [one.ids for one in theirs.encode_batch(texts, add_special_tokens=False)]
    assert [one.tolist() for one in ours.encode_batch(texts)] == wanted
    # Text after a chat token is tokenized like separate text.
    ours.inner.encode_special_tokens = False
    whole = ours.inner.encode("<|user_start|>hello<|user_end|> there", add_special_tokens=False).ids
    user = [ours.special("<|user_start|>"), *ours.encode("hello"), ours.special("<|user_end|>")]
    assert whole == [*user, *ours.encode(" there")]


@pytest.mark.parametrize("scheme", ["", "first", "always"])
def test_added_text_tokens_give_the_ids_of_the_library(scheme, tmp_path):
    import tokenizers as library

    write(tmp_path, trained())
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<pad>": 900, "<line>": 901, "fo o": 902}))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<pad>", "bos_token": "<s>"}))
    sentencepiece_file.write(tmp_path)
    if scheme:
        said = json.loads((tmp_path / "tokenizer.json").read_text())
        space = {"type": "Metaspace", "replacement": sentencepiece.SPACE, "prepend_scheme": scheme, "split": False}
        (tmp_path / "tokenizer.json").write_text(json.dumps({**said, "normalizer": None, "pre_tokenizer": space}))
    import_model.with_chat_tokens(tmp_path / "tokenizer.json", tmp_path / "ours")
    ours = tokenizers.load(tmp_path / "ours")
    led = sentencepiece.led_always((tmp_path / "tokenizer.json").read_text())
    theirs = library.Tokenizer.from_str(led)
    theirs.encode_special_tokens = True
    texts = [*odd_texts(), "a<line>b <line> c", "<line>", "fo o fo o", " <line>  x<pad>"]
    wanted = [one.ids for one in theirs.encode_batch(texts, add_special_tokens=False)]
    assert [one.tolist() for one in ours.encode_batch(texts)] == wanted
    assert ours.token_bytes()[[900, 901, 902]].tolist() == [0, 6, 4]


@pytest.mark.slow
def test_tokens_of_other_files_are_added_like_in_transformers(tmp_path):
    from transformers import LlamaTokenizer

    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    listed = {
        str(n): {
            "content": one,
            "special": one != "<line>",
            "normalized": False,
            "lstrip": False,
            "rstrip": False,
            "single_word": False,
        }
        for n, one in ((0, "<unk>"), (1, "<s>"), (2, "</s>"), (900, "<pad>"), (901, "<line>"))
    }
    for number, files in enumerate(
        (
            {"tokenizer_config.json": {**config, "pad_token": "<pad>", "add_bos_token": True}},
            {
                "added_tokens.json": {"<pad>": 900, "<line>": 901},
                "special_tokens_map.json": {"pad_token": {"content": "<pad>"}},
                "tokenizer_config.json": config,
            },
            {"tokenizer_config.json": {**config, "pad_token": "<pad>", "added_tokens_decoder": listed}},
        )
    ):
        folder = write(tmp_path / str(number), trained())
        for name, said in files.items():
            (folder / name).write_text(json.dumps(said))
        theirs = LlamaTokenizer.from_pretrained(folder)
        sentencepiece_file.write(folder)
        made = json.loads((folder / "tokenizer.json").read_text())
        assert {one["id"]: one["content"] for one in made["added_tokens"]} == {
            number: str(one) for number, one in theirs.added_tokens_decoder.items()
        }
        assert len(theirs) == 901 + (number > 0)


def test_pieces_decoded_one_by_one_equal_the_whole_text(tmp_path):
    ours = tokenizers.load(imported_tokenizer(tmp_path, trained()))
    for one in (
        "hello  world, two   spaces",
        "\u65e5\u672c \U0001f600 x",
        "a b\n c",
        " led",
        "def f(x):\n    return x",
    ):
        ids = ours.encode(one)
        assert ours.decode(ids) == one
        assert "".join(decode_stream(ids, ours.decode)) == one
        cut = len(ids) // 2
        assert ours.decode(ids[:cut]) + ours.decode(ids[cut:], goes_on=True) == one or "\ufffd" in ours.decode(
            ids[:cut]
        )
    more = ours.encode(" France", goes_on=True)
    assert [*ours.encode("in"), *more] == ours.encode("in France") and ours.decode(more, goes_on=True) == " France"


ZEPHYR = """{% for one in messages %}{{ '<|' + one.role + '|>\n' + one.content + eos_token + '\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"""
BEHIND_A_TOKEN = """{% for one in messages %}{{ bos_token + one.content }}
{%- if one.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ bos_token }}{% endif %}"""


@pytest.mark.parametrize("template", [ZEPHYR, BEHIND_A_TOKEN], ids=["behind text", "behind a token"])
@pytest.mark.parametrize("leads", [True, False], ids=["led", "bare"])
def test_scored_answer_has_the_ids_of_the_learnt_answer(template, leads, tmp_path):
    sentencepiece_file.write(write(tmp_path, trained(add_dummy_prefix=leads)))
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = tokenizers.load(tmp_path)
    asked = [{"role": "user", "content": "Is it?"}]
    prompt = conversations.prompt(asked, ours)
    ids, mask = conversations.render([*asked, {"role": "assistant", "content": "Yes"}], ours)
    assert mask[: len(prompt)] == [0] * len(prompt) and ids[: len(prompt)] == prompt
    learnt = ids[len(prompt) : ids.index(ours.stops[0], len(prompt))]
    assert learnt == ours.encode("Yes", ours.chat.answer_goes_on(prompt))


def test_bytes_of_tokens_equal_the_text(tmp_path):
    from data.tokens.tokenize import TokenWriter

    ours = tokenizers.load(imported_tokenizer(tmp_path, trained()))
    texts = [one for one in odd_texts() if one and not one.startswith("\u2581")]
    writer = TokenWriter(tmp_path / "val.arrow", ours)
    writer.add(ours.encode_batch(texts))
    writer.finish()
    shard = [tmp_path / "val.arrow"]
    batches = list(heldout(shard, tmp_path / "ours", 64))
    # The character for a space reads as one of three bytes less.
    wanted = sum(len(one.replace("\u2581", " ").encode()) for one in texts)
    assert sum(num_bytes for *_, num_bytes in batches) == wanted
    assert sum(int((targets >= 0).sum()) for _, targets, _ in batches) == sum(map(len, ours.encode_batch(texts)))
    widths = ours.token_bytes()
    assert widths[[ours.special(name) for name in SPECIALS]].tolist() == [0] * len(SPECIALS)
    assert widths[:3].tolist() == [0, 0, 0] and set(widths[3:259].tolist()) == {1}
    assert np.array_equal(
        ours.bytes_behind(np.array([5]), np.array(ours.encode("a"))[:1]), widths[ours.encode("a")[:1]]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model_type": "unigram"}, "SentencePiece's Unigram model"),
        ({"model_type": "char", "vocab_size": 400}, "SentencePiece's character model"),
        ({"byte_fallback": False}, "BPE without byte fallback"),
        ({"normalization_rule_name": "nmt_nfkc"}, "rules that rewrite text .*nmt_nfkc"),
        ({"remove_extra_whitespaces": True}, "spaces that are removed"),
        ({"treat_whitespace_as_suffix": True}, "put behind words"),
    ],
)
def test_other_kinds_of_sentencepiece_are_refused_by_name(options, said, tmp_path):
    folder = write(tmp_path, trained(**options))
    with pytest.raises(InputError, match=f"{said}.*supported tokenizers: byte-level"):
        sentencepiece_file.write(folder)


def test_pieces_without_order_or_characters_are_refused(tmp_path):
    import sentencepiece.sentencepiece_model_pb2 as theirs

    model = theirs.ModelProto.FromString(trained())
    cases = {
        "the same score": lambda one: setattr(one.pieces[300], "score", one.pieces[301].score),
        "user defined symbols": lambda one: setattr(one.pieces[300], "type", 4),
        "occur twice": lambda one: setattr(one.pieces[300], "piece", one.pieces[301].piece),
        "without a piece for each byte": lambda one: setattr(one.pieces[5], "type", 1),
        "contains a character without a piece": lambda one: setattr(one.pieces[300], "piece", "\U0001f984x"),
        "longer than 256": lambda one: setattr(one.pieces[300], "piece", "e" * 257),
    }
    for said, change in cases.items():
        changed = theirs.ModelProto.FromString(model.SerializeToString())
        change(changed)
        raw = changed.SerializeToString()
        assert said in vocabulary.model_problem(raw)  # So a plan reports it, too.
        with pytest.raises(InputError, match=said):
            sentencepiece_file.converted(raw)
    for raw in (b"", b"not a model", b"\x00" * 50, b"\x0a\xff\xff\xff\xff\x7f"):
        with pytest.raises(InputError, match="not a file of SentencePiece"):
            sentencepiece_file.converted(raw)
    with pytest.raises(InputError, match="the file has 1048577 pieces"):
        sentencepiece_file.converted(trained() + b"\x0a\x00" * ((1 << 20) + 1 - len(model.pieces)))
    with pytest.raises(InputError, match="at most 8388608 are read"):
        sentencepiece_file.converted(b"\0" * ((8 << 20) + 1))


def test_parsed_fields_are_those_of_sentencepiece():
    import sentencepiece.sentencepiece_model_pb2 as theirs

    messages = {
        "Piece": theirs.ModelProto.SentencePiece.DESCRIPTOR,
        "Trainer": theirs.TrainerSpec.DESCRIPTOR,
        "Normalizer": theirs.NormalizerSpec.DESCRIPTOR,
    }
    for message, fields in sentencepiece.FIELDS.items():
        for name, (number, _, default) in fields.items():
            field = messages[message].fields_by_name[name]
            assert field.number == number
            assert default in ("", str(field.default_value).lower())


def test_a_tokenizer_json_of_another_kind_is_refused_by_name(tmp_path):
    sentencepiece_file.write(write(tmp_path, trained()))
    said = json.loads((tmp_path / "tokenizer.json").read_text())
    assert not find_unknown_component(said)
    for change, words in (
        ({"model": {**said["model"], "byte_fallback": False}}, "BPE on characters without byte fallback"),
        ({"model": {"type": "Unigram", "vocab": [["a", 0.0]]}}, "its model is 'Unigram'"),
        ({"model": {**said["model"], "vocab": {"a": 0}, "merges": []}}, "without a token for each byte"),
        ({"decoder": {"type": "WordPiece"}}, "decoded by"),
        ({"normalizer": {"type": "NFKC"}}, "with the normalizer .*NFKC"),
        ({"model": {**said["model"], "dropout": 0.5}}, "and dropout 0.5"),
        ({"post_processor": {"type": "BertProcessing"}}, "with the post-processor .*BertProcessing"),
    ):
        raw = json.dumps({**said, **change}).encode()
        assert vocabulary.SUPPORTED in vocabulary.import_problem(raw, SPECIALS, False)
        with pytest.raises(sentencepiece.UnknownKind, match=words):
            sentencepiece.spaces_of(json.loads(raw))
    with pytest.raises(DataError, match=r"no tokenizer.json; --init .* can take over tokenizer.model"):
        tokenizers.load(write(tmp_path / "alone", trained()))
