"""Rows in published formats: every meaningful part is kept, or the row is refused with the reason."""

import json

import pytest

from data.chat.foreign_rows import dialogue_row, parse_row, read_dialogue, unread_fields
from data.chat.unread_fields import RowRefused

ASKED, SAID = {"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}
PLAIN = [("user", "Who?"), ("assistant", "Me.")]
ARGUMENTS = {"city": "Oslo", "days": None}
CALL = {"type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
TOOL = {"name": "weather", "parameters": {"type": "object"}}
SPELT = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
CALLED = {"role": "assistant", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "rain"}


def talk(*messages, **columns):
    return {"messages": list(messages), **columns}


def answer(**more):
    return talk(ASKED, {**SAID, **more})


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        (talk(*({"from": one, "value": "a"} for one in ("human", "gpt"))), [("user", "a"), ("assistant", "a")]),
        (talk(*({"role": one, "text": "a"} for one in ("User", "bot"))), [("user", "a"), ("assistant", "a")]),
        (
            talk(*({"role": one, "parts": [{"text": "a"}, {"text": "b"}]} for one in ("user", "model"))),
            [("user", "ab"), ("assistant", "ab")],
        ),
        ({"messages": [json.dumps(ASKED), json.dumps(SAID)]}, PLAIN),
        (talk({"role": "developer", "content": "s"}, ASKED, SAID), [("system", "s"), *PLAIN]),
        (talk(ASKED, SAID, system="s"), [("system", "s"), *PLAIN]),
        (talk(ASKED, SAID, system_prompt=" "), [("user", "Who?"), ("assistant", "Me.")]),
        (
            talk({"role": "system", "content": "s"}, ASKED, SAID, system="s"),
            [("system", "s"), ("user", "Who?"), ("assistant", "Me.")],
        ),
        ({"instruction": "i", "input": "x", "output": "o"}, [("user", "i\n\nx"), ("assistant", "o")]),
        (
            {"instruction": "i", "input": "", "output": "o", "system": "s", "history": [["q", "a"]]},
            [("system", "s"), ("user", "q"), ("assistant", "a"), ("user", "i"), ("assistant", "o")],
        ),
        (answer(content=[{"type": "text", "text": "a"}, {"type": "output_text", "text": "b"}, "c"]),
         [("user", "Who?"), ("assistant", "abc")]),
    ],
)  # fmt: skip
def test_roles_texts_and_columns_of_other_conventions_become_messages(row, messages):
    assert [(one["role"], one["content"]) for one in parse_row(row).messages] == messages


@pytest.mark.parametrize(
    "called",
    [
        CALLED,
        {"role": "assistant", "content": None, "tool_calls": [{"function": SPELT}]},
        {"role": "assistant", "tool_calls": json.dumps([CALL])},
        {"role": "assistant", "function_call": SPELT},
        {"role": "assistant", "function_call": SPELT, "tool_calls": [{"function": SPELT}]},
        {"from": "function_call", "value": json.dumps(CALL["function"])},
        {"role": "assistant", "function_call": json.dumps(SPELT), "tool_calls": []},
        {"role": "assistant", "tool_calls": [{"name": "weather", "args": ARGUMENTS, "id": "", "type": "tool_call"}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "weather"}, "input": ARGUMENTS}]},
        {"role": "assistant", "tool_calls": [{"name": "weather", "parameters": {}, "kwargs": json.dumps(ARGUMENTS)}]},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "weather", "input": ARGUMENTS}]},
        {"role": "assistant", "content": [{"type": "tool_call", "tool_call": SPELT}]},
        {"role": "assistant", "content": {"type": "tool-call", "name": "weather", "partial_json": SPELT["arguments"]}},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "weather", "input": ARGUMENTS}], **CALLED},
        {"role": "assistant", "content": [{"type": "tool_use", "name": "weather", "input": ARGUMENTS}],
         "tool_calls": [{"id": "", "function": SPELT}], "function_call": SPELT},
    ],
)  # fmt: skip
@pytest.mark.parametrize(
    "result",
    [RESULT, {"role": "function", "content": "rain"}, {"from": "observation", "value": "rain"},
     {"role": "user", "content": [{"type": "tool_result", "content": [{"type": "text", "text": "rain"}]}]}],
)  # fmt: skip
@pytest.mark.parametrize(
    "tools", [[TOOL, TOOL], json.dumps([TOOL]), [{"type": "function", "function": TOOL}], [json.dumps(TOOL)]]
)
def test_calls_results_and_tools_of_every_form_become_openai_messages(called, result, tools):
    found = parse_row(talk(ASKED, called, result, SAID, tools=tools))
    assert list(found.messages) == [ASKED, CALLED, RESULT, SAID]
    assert found.tools == [{"type": "function", "function": TOOL}]
    assert read_dialogue(json.loads(json.dumps(dialogue_row(found)))) == found


@pytest.mark.parametrize(
    "called",
    [
        {"tool_calls": [CALL, CALL]},
        {"content": [{"type": "tool_use", "name": "weather", "input": ARGUMENTS}] * 2},
        {"content": [{"type": "tool_use", "name": "weather", "input": ARGUMENTS}] * 2, "tool_calls": [CALL, CALL]},
    ],
)
def test_equal_parallel_calls_of_one_field_are_all_kept(called):
    found = parse_row(talk(ASKED, {"role": "assistant", **called}, RESULT, RESULT, SAID)).messages
    assert found[1] == {"role": "assistant", "tool_calls": [CALL, CALL]}


def test_reasoning_is_kept_under_its_original_name_or_as_content():
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert parse_row(answer(**{name: "hm"})).messages[1][name] == "hm"
    for part in ({"type": "thinking", "thinking": "hm"}, {"text": "hm", "thought": True}):
        parts = [part, {"type": "text", "text": "Me."}]
        assert parse_row(answer(content=parts)).messages[1] == {**SAID, "reasoning_content": "hm"}
    assert parse_row(answer(content="<think>hm</think>Me.")).messages[1]["content"] == "<think>hm</think>Me."


@pytest.mark.parametrize(
    "row",
    [
        talk(ASKED, {**SAID, "weight": 0}, ASKED, SAID),
        talk(ASKED, {**SAID, "train": False}, ASKED, {**SAID, "train": True}),
        talk(ASKED, {**SAID, "loss": False}, ASKED, SAID),
        talk({**ASKED, "train_on_turn": False}, {**SAID, "train_on_turn": False}, ASKED, SAID),
        talk(ASKED, SAID, ASKED, SAID, assistant_masks=[0, 0, 0, 1]),
        talk(ASKED, SAID, ASKED, SAID, weights=[0, 1]),
        talk(ASKED, {**SAID, "content": "", "weight": 0}, ASKED, SAID),
        talk(ASKED, {**SAID, "weight": 0.0}, ASKED, {**SAID, "weight": 1.0}, mask="User"),
    ],
)
def test_marked_answers_are_excluded_from_training(row):
    assert [one.get("weight", 1) for one in parse_row(row).messages] == [1, 0, 1, 1]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (answer(content=["a", {"type": "image_url", "image_url": {"url": "x"}}]), "message 2 .*'image_url'"),
        (talk({**ASKED, "content": [{"type": "input_audio", "input_audio": {}}]}, SAID), "message 1 .*'input_audio'"),
        (answer(weight=0.5), "weight is 0.5"),
        (answer(train_detail=[{"begin_offset": 0}]), "train_detail"),
        (talk({**ASKED, "train": True}, SAID), "only answers are learnt"),
        (talk(ASKED, SAID, assistant_masks=[0, 0, 1, 1, 1]), "assistant_masks"),
        (talk(ASKED, SAID, mask="Assistant"), "mask"),
        (talk(ASKED, SAID, weight=0.3), "weight is 0.3"),
        (talk({"role": "system", "content": "s"}, ASKED, SAID, system="t"), "different things"),
        (talk(ASKED, SAID, system="s", system_prompt="t"), "different system prompts"),
        (talk({"role": "narrator", "content": "s"}, SAID), "by 'narrator'"),
        (talk(SAID, ASKED), "message 1 by assistant is the first; roles out of turn"),
        (talk(ASKED, SAID, SAID), "message 3 by assistant follows"),
        (talk(ASKED, ASKED), "roles out of turn"),
        (talk(ASKED, SAID, {"role": "system", "content": "x"}), "roles out of turn"),
        (talk(ASKED), "no answer"),
        (talk(), "no messages"),
        ({"messages": None}, "no messages"),
        (answer(content=None), "no content"),
        (answer(masked=True), "message 2 has masked: True; write weight: 0"),
        (answer(loss_weight=0.5), "message 2 has loss_weight: 0.5; write weight: 0"),
        (answer(doTrain=False), "message 2 has doTrain: False; write weight: 0"),
        (answer(thought="hm"), "message 2 has thought: 'hm'; write the reasoning of an answer into reasoning_content"),
        (answer(chain_of_thought=["a"]), "message 2 has chain_of_thought"),
        (talk({**ASKED, "reasoning": "hm"}, SAID), "message 1 has reasoning: 'hm'"),
        (talk({**ASKED, "images": ["a.png"]}, SAID), "message 1 has images: .*only text can be learnt"),
        (answer(audio={"id": "x"}), "message 2 has audio"),
        (talk(ASKED, SAID, images=["a.png"]), "it has images; only text can be learnt"),
        ({"instruction": "i", "input": "", "output": "o", "video": "a.mp4"}, "it has video; only text can be learnt"),
        (talk(ASKED, SAID, conversations=[ASKED, {**SAID, "content": "You."}]), "messages and conversations say diff"),
        (talk({**ASKED, "value": "What?"}, SAID), "message 1 has different texts"),
        (answer(parts=[{"type": "tool_use", "name": "f", "input": {}}]), "message 2 has different texts"),
        (talk({**ASKED, "from": "gpt"}, SAID), "message 1 is by user and from 'gpt'"),
        (answer(refusal="No."), "message 2 has the refusal 'No.' beside its content"),
        (answer(reasoning="a", thinking="b"), "two kinds of reasoning"),
        (talk(ASKED, {"role": "assistant", "function_call": {"name": "f", "arguments": "not json"}}), "no object"),
        (talk(ASKED, SAID, tools=[{"x": 1}]), "names no function"),
        (answer(content=[{"type": "tool_use", "name": "f", "input": {}}], tool_calls=[CALL]), "different tool calls"),
        (answer(content=[{"type": "tool_call", "tool_call": SPELT}], tool_calls=[CALL, CALL]), "different tool calls"),
        (talk(ASKED, SAID, message_weights=[0, 1]), "its message_weights is .*rename the column to loss_mask"),
        (talk(ASKED, SAID, labelsMask=[[0, 1]]), "its labelsMask is"),
        (talk(ASKED, SAID, image_path="a.png"), "it has image_path; only text"),
        (talk(ASKED, SAID, available_tools=[TOOL]), "its available_tools is .*rename the column to tools"),
        (talk({"role": "system", "content": "s", "tools": [TOOL]}, ASKED, SAID), "message 1 has tools"),
        (answer(rationale="hm"), "message 2 has rationale"),
        (answer(channel="analysis"), "message 2 has channel: 'analysis'"),
        (answer(reasoning_content="a", content=[{"type": "thinking", "thinking": "b"}, {"text": "Me."}]), "two kinds"),
        ({"instruction": "i", "input": "x", "output": 3}, "other than text"),
        ({"instruction": "i", "input": float("nan"), "output": "o"}, "its input is nan, expected text"),
        ({"instruction": "i", "input": ["a", "b"], "output": "o"}, "its input is \\['a', 'b'\\], expected text"),
        ({"instruction": {"a": 1}, "input": "", "output": "o"}, "its instruction is {'a': 1}, expected text"),
        ({"instruction": "i", "input": "", "output": "o", "history": float("nan")}, "its history is nan"),
        ({"instruction": "i", "input": "", "output": "o", "history": ["qa"]}, "other than text"),
        ({"instruction": "i", "input": "", "output": " "}, "message 2 is an empty answer; write weight: 0"),
        (answer(content=[]), "message 2 is an empty answer"),
        (talk(ASKED, SAID, ASKED, {**SAID, "content": "\n"}), "message 4 is an empty answer"),
        (talk(ASKED, {"from": "function_call", "value": "[]"}, RESULT, SAID), "message 2 is an empty answer"),
        (answer(tool_calls=[{"name": "", "arguments": {"a": 1}}]), "names no function"),
        (answer(content=["a", {"type": "tool_call", "tool_call": {}}]), "names no function"),
        (answer(tool_calls=[{"name": "f", "args": {"a": 1}, "arguments": {"a": 2}}]), "different arguments of f"),
        (answer(content={"text": "Me.", "images": ["a"]}), "message 2 has a part with images; only text"),
        (talk({**ASKED, "content": [{"text": "a", "image_url": "u"}]}, SAID), "message 1 has a part with image_url"),
        (answer(content="<think>a</think>Me.", reasoning="b"), "reasoning in its content and in a field of its own"),
        (answer(recipient="functions.f"), "message 2 has recipient: 'functions.f'; write the call into tool_calls"),
        (talk({**ASKED, "tool_calls": [CALL]}, SAID), "message 1 has tool_calls: .*; only answers have tool calls"),
        (talk(ASKED, SAID, train=False), "its train is False, which leaves the row out"),
        (talk(ASKED, SAID, isTrainable=False), "its isTrainable is False"),
        ({"instruction": "i", "input": "", "output": "o", "ignore": 1}, "its ignore is 1, which leaves the row out"),
    ],
)  # fmt: skip
def test_row_that_cannot_be_trained_on_faithfully_is_refused_with_the_reason(row, why):
    with pytest.raises(RowRefused, match=why):
        parse_row(row)


@pytest.mark.parametrize(
    "row",
    [
        answer(reasoning="hm", reasoning_details=[{"text": "hm"}]),
        talk({**ASKED, "value": "Who?", "from": "human"}, SAID, conversations=[ASKED, SAID], conversation="as text"),
        talk(ASKED, {"role": "assistant", "content": None, "refusal": "Me."}),
        talk(ASKED, {**SAID, "refusal": None, "audio": None, "mask": None}, images=[], audio=None),
        talk({**ASKED, "parts": [{"type": "text", "text": "Who?"}]}, {**SAID, "text": "Me."}),
        answer(finish_reason="stop", constraints="none", model="m", channel="final"),
        answer(function_call={"name": None, "arguments": ""}, tool_calls=[{"id": "", "function": {"name": ""}}]),
        answer(recipient="all")
        | {"masked_entities": True, "train": True, "is_masked": False, "train_id": 0, "loss": 0.0},
        talk(ASKED, SAID, train_loss=0.5, num_images=0, weights_kg=None, split="train", functions_used="f"),
    ],
)
def test_row_with_the_same_content_twice_or_with_other_facts_is_read(row):
    assert [(one["role"], one["content"]) for one in parse_row(row).messages] == PLAIN


@pytest.mark.parametrize(
    ("row", "names"),
    [
        (talk({**ASKED, "name": "Ann"}, {**SAID, "tool_calls": []}, id=7, score=None), ["id", "name of messages"]),
        ([{**ASKED, "tool_call_id": "x"}, SAID, {"role": "tool", "content": "r", "name": "f"}],
         ["tool_call_id of messages"]),
        ({"instruction": "i", "input": "", "output": "o", "context": "c"}, ["context"]),
        (talk(ASKED, SAID, instruction="Be brief", input="x"), ["instruction", "input"]),
        (talk(ASKED, SAID, tools=[TOOL], system="s", weights=[1], chat_template_kwargs={"a": 1}), []),
    ],
)  # fmt: skip
def test_fields_that_nothing_reads_are_named(row, names):
    assert list(unread_fields(row)) == names
