"""Conversations from files and from a hub: read in their published format; invalid lines are left out and counted."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from data.__main__ import main
from data.chat import conversations
from data.config import ConfigError, TalkSpec, conversation_spec
from data.text import remote
from tests.hub import COMMIT, FolderRepo, serving

ASKED, SAID = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}
SHAREGPT = [{"from": "human", "value": "Who?"}, {"from": "gpt", "value": "Me."}]
TOOL = {"role": "assistant", "content": [{"type": "python", "text": "1+1"}, {"type": "python_output", "text": "2"}]}
GOOD = (
    {"messages": [ASKED, SAID]},
    {"conversations": SHAREGPT, "id": "7"},
    [{"role": "system", "content": "Be brief."}, ASKED, SAID],
    {"messages": [ASKED, TOOL, ASKED]},
)
BAD = (
    {"messages": [SAID, ASKED]},
    {"messages": [ASKED]},
    {"messages": [ASKED, {"role": "tool", "content": "2"}, SAID]},
    {"messages": [ASKED, {"role": "assistant", "content": None}]},
    {"messages": None},
    [],
)


@pytest.fixture
def run_import(tmp_path, capsys):
    """Return a function that runs the step: (exit code, the conversations, the messages)."""

    def made(spec: TalkSpec):
        from dataclasses import asdict

        (tmp_path / "config.json").write_text(json.dumps({"out": str(tmp_path / "out"), "spec": asdict(spec)}))
        code = main(["talk", "--config", str(tmp_path / "config.json")])
        found = tmp_path / "out" / "conversations.jsonl"
        talks = [one for one in conversations.read_conversations(found)] if code == 0 else []
        return code, talks, capsys.readouterr().err

    return made


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.zst"])
def test_file_gives_its_conversations_in_order_without_invalid_lines(tmp_path, run_import, monkeypatch, name):
    told = tmp_path / "records"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(told))
    raw = lines(*GOOD, *BAD, GOOD[0]).encode()
    packed = {".gz": gzip.compress, ".zst": lambda plain: pyarrow.compress(plain, "zstd", asbytes=True)}
    (tmp_path / name).write_bytes(packed.get(name[7:], bytes)(raw))
    code, talks, _ = run_import(TalkSpec(source=str(tmp_path / name)))
    assert code == 0
    assert [[one["role"] for one in talk] for talk in talks] == [
        ["user", "assistant"],
        ["user", "assistant"],
        ["system", "user", "assistant"],
        ["user", "assistant", "user"],
        ["user", "assistant"],
    ]
    assert talks[1] == [ASKED, SAID] and talks[3][1] == TOOL
    result = json.loads(told.read_text().splitlines()[-1])
    assert (result["conversations"], result["skipped"]) == (5, 6)
    assert "6 of 11 rows" in told.read_text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"messages": [}\n', "a.jsonl:1: not JSON"),
        ('{"prompt": "p", "completion": "c"}\n', "available: prompt, completion"),
        (lines(*BAD), "none of its 6 rows is a conversation"),
    ],
)
def test_file_of_a_different_kind_is_refused_by_name(tmp_path, run_import, content, said):
    (tmp_path / "a.jsonl").write_text(content)
    code, _, words = run_import(TalkSpec(source=str(tmp_path / "a.jsonl")))
    assert code == 2 and said in words and words.count("\n") == 1


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_fields_that_nothing_reads_are_reported(tmp_path, run_import, monkeypatch, name):
    rows = [{"messages": [{**ASKED, "name": "Ann"}, SAID], "score": n, "context": "c"} for n in range(3)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.jsonl").write_text(lines(*rows))
    told = tmp_path / "records"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(told))
    assert run_import(TalkSpec(source=str(tmp_path / name)))[0] == 0
    records = [json.loads(line) for line in told.read_text().splitlines()]
    names = ["score", "context", "name of messages"]
    assert records[-1]["not_read"] == names
    assert [one["text"] for one in records if "not read" in one.get("text", "")] == [
        f"{tmp_path / name}: not read: {', '.join(names)}"
    ]


def test_null_and_odd_rows_are_left_out_by_number(tmp_path, run_import):
    rows = [{**GOOD[0], "tools": None, "system": None}, {"messages": None}, GOOD[0]]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(GOOD[0], {"text": "x"}, {"messages": None}).encode())
    nothing = pyarrow.table({"messages": pyarrow.array([None, None])})
    refused = []
    for name in ("a.parquet", "b.jsonl"):
        code, talks, _ = run_import(TalkSpec(source=str(tmp_path / name)))
        assert code == 0 and talks == [GOOD[0]["messages"]] * len(talks)
        refused.append([json.loads(line) for line in (tmp_path / "out/refused.jsonl").read_text().splitlines()])
    assert [[one["row"] for one in some] for some in refused] == [[2], [2, 3]]
    assert refused[1][0]["reason"] == "it has no messages, conversations, conversation; available: text"
    pyarrow.parquet.write_table(nothing, tmp_path / "c.parquet")
    code, _, words = run_import(TalkSpec(source=str(tmp_path / "c.parquet")))
    assert code == 2 and "none of its 2 rows is a conversation to learn from: row 1: its row holds no messages" in words


CUT = "cut \ud83d"


@pytest.mark.parametrize(
    ("row", "learnt"),
    [
        ({"instruction": "i", "input": "", "output": CUT}, {"content": "cut ?"}),
        ({"messages": [ASKED, {**SAID, "content": CUT}]}, {"content": "cut ?"}),
        ({"messages": [ASKED, {**SAID, "reasoning_content": CUT}]}, {**SAID, "reasoning_content": "cut ?"}),
        (
            {"messages": [ASKED, {"role": "assistant", "function_call": {"name": "f", "arguments": {CUT: [CUT]}}}]},
            {"tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"cut ?": ["cut ?"]}}}]},
        ),
        ({"messages": json.dumps([ASKED, {**SAID, "reasoning_content": CUT}])}, {**SAID, "reasoning_content": "cut ?"}),
        ({"messages": [ASKED, SAID], "system": CUT, CUT: CUT}, SAID),
    ],
)
def test_half_a_surrogate_pair_is_replaced_in_every_text_of_a_row(tmp_path, run_import, row, learnt):
    (tmp_path / "a.jsonl").write_text(lines(row, {CUT: 1}))
    code, (talk,), _ = run_import(TalkSpec(source=str(tmp_path / "a.jsonl")))
    assert (code, talk[-1]) == (0, {"role": "assistant", **learnt})


@pytest.mark.process
def test_columns_of_another_name_may_hold_nulls(tmp_path, run_import):
    rows = [
        {"instruction": "Add.", "input": "1 2", "reply": "3"},
        {"instruction": "Who?", "input": None, "reply": "Me."},
        {"instruction": None, "input": "x", "reply": "Me."},
        {"instruction": "Who?", "input": None, "reply": None},
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    code, talks, _ = run_import(TalkSpec(source=f"{tmp_path}/a.parquet?user=instruction&assistant=reply"))
    assert (code, [talk[0]["content"] for talk in talks]) == (0, ["Add.\n\n1 2", "Who?"])
    refused = [json.loads(line)["row"] for line in (tmp_path / "out/refused.jsonl").read_text().splitlines()]
    assert refused == [3, 4]


@pytest.mark.process
def test_data_set_of_a_hub_is_named_as_its_users_do(tmp_path, run_import, monkeypatch):
    folder = tmp_path / "repo" / "main"
    folder.mkdir(parents=True)
    rows = [{"messages": [{**ASKED, "content": f"Who is {n}?"}, SAID], "score": 1.0} for n in range(50)]
    for part, some in (("train-0", rows[:30]), ("train-1", rows[30:]), ("test-0", rows[:3])):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(some), folder / f"{part}.parquet", row_group_size=10)
    splits = [{"split": split, "path": f"main/{split}-*"} for split in ("train", "test")]
    for name, value in {"no_proxy": "*", "HOME": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    for name in ("HF_TOKEN", "HUGGINGFACEHUB_API_TOKEN", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with serving({"us/talk": FolderRepo(tmp_path / "repo", [{"config_name": "main", "data_files": splits}])}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setattr(remote, "_answered", set())
        code, talks, _ = run_import(conversation_spec("hf://us/talk/main"))
        assert code == 0
        assert [talk[0]["content"] for talk in talks] == [f"Who is {n}?" for n in range(50)]
        assert len(run_import(conversation_spec("hf://us/talk/main:train[:35]"))[1]) == 35
        assert len(run_import(conversation_spec(f"hf://us/talk@{COMMIT}/main:test"))[1]) == 3


def test_address_selects_a_part_of_a_data_set():
    found = conversation_spec("hf://openai/gsm8k@v1.0/main:train[:1000]")
    assert found == TalkSpec(source="hf://openai/gsm8k", revision="v1.0", config="main", split="train", take=1000)
    found = conversation_spec("hf://a/b:train[5:]+test[:10%]?messages=talk")
    assert found == TalkSpec(source="hf://a/b?messages=talk", split="train[5:]+test[:10%]")
    assert conversation_spec("talk/mine.jsonl") == TalkSpec(source="talk/mine.jsonl")
    for wrong in ("hf://gsm8k", "hf://a/b:train[5", "hf://a/b:train[:0]", "hf://"):
        with pytest.raises(ConfigError):
            conversation_spec(wrong)
