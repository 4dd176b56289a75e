"""Pairs in published formats: the messages before the answers, both answers, and refused rows with reasons."""

import json

import pytest

from data.__main__ import main
from data.chat.unread_fields import RowRefused
from data.config import ConfigError, conversation_spec
from packs.preferences.data.pair_rows import PairReader
from store import packs

ASKED = {"role": "user", "content": "What is 2 + 2?"}
RIGHT, WRONG = ({"role": "assistant", "content": one} for one in ("4", "5"))
WANTED = {"messages": [ASKED], "chosen": [RIGHT], "rejected": [WRONG]}
MEASURED = {"score_chosen": 8.5, "score_rejected": 3.0, "source": "x"}


def read(**row):
    return PairReader().read(row)


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "What is 2 + 2?", "chosen": "4", "rejected": "5"},
        {"question": "What is 2 + 2?", "chosen": "4", "rejected": "5", "system": ""},
        {"prompt": [ASKED], "chosen": [RIGHT], "rejected": [WRONG]},
        {"prompt": [ASKED], "chosen": RIGHT, "rejected": WRONG},
        {"chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG]},
        {"prompt": " What is 2 + 2?\n", "chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG], **MEASURED},
        {
            "conversations": None,
            "prompt": [{"from": "human", "value": "What is 2 + 2?"}],
            "chosen": "4",
            "rejected": "5",
        },
    ],
    ids=["text", "question", "messages", "message", "implicit", "ultrafeedback", "sharegpt"],
)
def test_pairs_of_published_formats_are_the_same_pair(row):
    assert read(**row) == WANTED


def test_system_prompts_tools_and_earlier_answers_belong_to_the_messages_before_the_answers():
    system = {"role": "system", "content": "Be short."}
    assert read(system="Be short.", question="What is 2 + 2?", chosen="4", rejected="5") == {
        **WANTED,
        "messages": [system, ASKED],
    }
    long = [system, ASKED, RIGHT, {"role": "user", "content": "And 3 + 3?"}]
    found = read(
        chosen=[*long, {"role": "assistant", "content": "6"}], rejected=[*long, RIGHT], tools=[{"name": "add"}]
    )
    assert found["messages"] == long and found["rejected"] == [RIGHT]
    assert found["tools"] == [{"type": "function", "function": {"name": "add"}}]


def test_answers_of_several_turns_begin_at_the_first_difference():
    again = {"role": "user", "content": "Sure?"}
    found = read(prompt="What is 2 + 2?", chosen=[RIGHT, again, RIGHT], rejected=[WRONG, again, RIGHT])
    assert found == {"messages": [ASKED], "chosen": [RIGHT, again, RIGHT], "rejected": [WRONG, again, RIGHT]}


def test_a_single_answer_has_a_label():
    wanted = {"messages": [ASKED], "completion": [WRONG], "label": False}
    assert read(prompt="What is 2 + 2?", completion="5", label=False) == wanted
    assert read(prompt=[ASKED], completion=[WRONG], label=False) == wanted


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"chosen": "4", "rejected": "5"}, "it has no prompt: chosen and rejected have only answers"),
        ({"prompt": "x", "chosen": "4"}, "it has no rejected"),
        ({"prompt": "x", "chosen": "4", "rejected": ""}, "it has no rejected"),
        ({"prompt": "x", "chosen": "4", "rejected": "4"}, "chosen and rejected are equal"),
        ({"prompt": "x", "chosen": 4, "rejected": "5"}, "its chosen is 4, expected text or messages"),
        ({"prompt": 7, "chosen": "4", "rejected": "5"}, "its prompt is 7, expected text or messages"),
        ({"prompt": "x", "chosen": [ASKED, RIGHT], "rejected": [WRONG]}, "only one of chosen and rejected begins"),
        ({"prompt": "x", "chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG]}, "its prompt is none of the messages"),
        ({"chosen": [ASKED, RIGHT], "rejected": [{**ASKED, "content": "?"}, RIGHT]}, "differ in a question"),
        ({"prompt": "x", "chosen": [RIGHT, ASKED], "rejected": "5"}, "chosen: the last message is by user"),
        ({"prompt": "x", "chosen": "4", "rejected": "5", "images": ["a"]}, "it has images; only text"),
        ({"prompt": "x", "completion": "5"}, "its label is None; known: true"),
        ({"completion": "5", "label": True}, "it has no prompt"),
    ],
)
def test_unusable_rows_are_refused_with_a_reason(row, why):
    with pytest.raises(RowRefused, match=why):
        read(**row)


def test_the_import_writes_pairs_and_lists_refused_rows_by_number(tmp_path, capfd):
    rows = [WANTED | {"prompt": "What is 2 + 2?", "score_chosen": 8}, {"chosen": "a", "rejected": "b"}, {"x": 1}]
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in rows))
    spec = {"source": str(tmp_path / "mine.jsonl"), "reader": "pairs"}
    (tmp_path / "step.json").write_text(json.dumps({"out": str(tmp_path / "out"), "spec": spec}))
    assert main(["talk", "--config", str(tmp_path / "step.json")]) == 0
    made = [json.loads(line) for line in (tmp_path / "out" / "conversations.jsonl").read_text().splitlines()]
    assert made == [{**WANTED, "row": 1}]
    refused = [json.loads(line) for line in (tmp_path / "out" / "refused.jsonl").read_text().splitlines()]
    assert [one["row"] for one in refused] == [2, 3] and "no prompt" in refused[0]["reason"]
    (tmp_path / "mine.jsonl").write_text('{"messages": []}\n')
    assert main(["talk", "--config", str(tmp_path / "step.json")]) != 0
    assert "it has no chosen, rejected, completion; available: messages" in capfd.readouterr().err


def test_parquet_files_of_pairs_are_read(tmp_path):
    import pyarrow
    import pyarrow.parquet

    row = {"prompt": "What is 2 + 2?", "chosen": [ASKED, RIGHT], "rejected": [ASKED, WRONG], **MEASURED}
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / "mine.parquet")
    spec = {"source": str(tmp_path / "mine.parquet"), "reader": "pairs"}
    (tmp_path / "step.json").write_text(json.dumps({"out": str(tmp_path / "out"), "spec": spec}))
    assert main(["talk", "--config", str(tmp_path / "step.json")]) == 0
    assert json.loads((tmp_path / "out" / "conversations.jsonl").read_text()) == {**WANTED, "row": 1}


def test_the_word_in_front_of_a_source_selects_the_reader(tmp_path, monkeypatch):
    found = conversation_spec("pairs:hf://a/b:train_prefs[:10]")
    assert (found.source, found.split, found.take, found.reader) == ("hf://a/b", "train_prefs", 10, "pairs")
    assert conversation_spec("mine.jsonl").reader == ""
    monkeypatch.setattr(packs, "installed", dict)
    monkeypatch.setattr(packs, "FOLDER", tmp_path)
    with pytest.raises(ConfigError, match="pairs belongs to the pack preferences, and packs/preferences is missing"):
        conversation_spec("pairs:mine.jsonl")
