"""The spelling of a data set on the command line."""

import pytest

from data.errors import ConfigError
from data.references import SetReference, parse, parse_mixture


@pytest.mark.parametrize(
    ("words", "means"),
    [
        ("hf://a/b", {"place": "a/b"}),
        (
            "hf://a/b.c@v1.0/main:train[:10%]",
            {"place": "a/b.c", "revision": "v1.0", "config": "main", "split": "train[:10%]"},
        ),
        ("hf://a/b:train[5:20](closest)+test[-3:]", {"place": "a/b", "split": "train[5:20](closest)+test[-3:]"}),
        ("hf://a/b?text=body&id=uuid", {"place": "a/b", "columns": (("text", "body"), ("id", "uuid"))}),
    ],
)
def test_reference_names_a_data_set_of_the_hub(words, means):
    found = parse(words)
    assert found == SetReference(is_hub=True, **means)
    assert words.startswith(found.words)


@pytest.mark.parametrize(
    ("words", "place", "split", "columns"),
    [
        ("talk/*.csv:train[:50%]", "talk/*.csv", "train[:50%]", ()),
        ("a?.jsonl", "a?.jsonl", "", ()),
        ("rows.tsv?text=said", "rows.tsv", "", (("text", "said"),)),
        ("https://x.org/a.parquet?text=1&key=2", "https://x.org/a.parquet?text=1&key=2", "", ()),
        ("s3://b/a:train", "s3://b/a:train", "", ()),
    ],
)
def test_reference_may_name_files(words, place, split, columns):
    assert parse(words) == SetReference(place=place, split=split, columns=columns)


def test_existing_file_is_not_split_into_parts(tmp_path):
    (tmp_path / "a:train").touch()
    assert parse(str(tmp_path / "a:train")).place == str(tmp_path / "a:train")


@pytest.mark.parametrize("words", ["hf://b", "hf://a/b:", "hf://a/b:train[", "hf://a/b:train[1:2:3]", "hf://a/b/c/d"])
def test_invalid_reference_is_refused_with_a_valid_example(words):
    with pytest.raises(ConfigError, match="expected hf://user/name"):
        parse(words)


def test_a_mixture_has_a_weight_for_each():
    assert parse_mixture("hf://a/b:train[:5%]?text=c=.5,x.jsonl=2") == [
        ("hf://a/b:train[:5%]?text=c", 0.5),
        ("x.jsonl", 2.0),
    ]
    assert parse_mixture("data/date=2024") == parse_mixture("a,b.txt") == []
    for wrong in ("a=1,b", "a=1,b=0"):
        with pytest.raises(ConfigError, match="weight"):
            parse_mixture(wrong)
