"""Conversations are rendered like by `transformers`, answer by answer, or refused with the reason.

python -m tests.data.chat.test_against_transformers the table: equal ids and rows, by template
"""

import json
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from data.chat import conversations
from data.chat.foreign_rows import parse_row
from data.errors import DataError, InputError
from data.tokens import tokenizer as tokenizers
from data.tokens.chat_template import Dialogue, is_learnt
from store.artifacts.tokenizer_files import copy_template_files, template_files
from tests.data.chat.templates import IM, MARKED, NAMED, QWEN25, TEMPLATES, write

pytestmark = [pytest.mark.slow, pytest.mark.process]

USER, ANSWER = {"role": "user", "content": "What's 7 + 5?"}, {"role": "assistant", "content": "It is 12."}
SYSTEM = {"role": "system", "content": " Be brief. \n"}
THOUGHT = {"role": "assistant", "content": "<think>\n7 + 5 = 12\n</think>\n\nIt is 12."}
BY_FIELD = {"role": "assistant", "content": "It is 12.", "reasoning_content": "7 + 5 = 12"}
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds \u201ctwo\u201d numbers",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "default": None}}, "required": ["a"]},
    },
}
CALL = {
    "id": "a2c4e6g8i",
    "type": "function",
    "function": {"name": "add", "arguments": {"a": 7, "b": [5, "caf\u00e9"]}},
}
CALLED = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
RESULT = {"role": "tool", "name": "add", "content": '{"sum": 12}', "tool_call_id": "a2c4e6g8i"}
TALKS: dict[str, Dialogue] = {
    "one turn": Dialogue([USER, ANSWER]),
    "three turns": Dialogue([USER, ANSWER] * 3),
    "system": Dialogue([SYSTEM, USER, ANSWER, USER, ANSWER]),
    "spaces around": Dialogue(
        [{"role": "user", "content": "\n  reads the paths \n"}, {"role": "assistant", "content": "words  "}]
    ),
    "scripts": Dialogue([{"role": "user", "content": "cafe\u0301 \u65e5\u672c \U0001f600\u2028"}, ANSWER]),
    "a question at the end": Dialogue([USER, ANSWER, USER]),
    "reasoning in content": Dialogue([USER, THOUGHT]),
    "reasoning in a field": Dialogue([USER, BY_FIELD]),
    "reasoning in two turns": Dialogue([USER, THOUGHT, USER, THOUGHT]),
    "reasoning once, then none": Dialogue([USER, THOUGHT, USER, ANSWER]),
    "a call": Dialogue([*CALLED, RESULT, ANSWER], [TOOL]),
    "two results": Dialogue([USER, {"role": "assistant", "tool_calls": [CALL, CALL]}, RESULT, RESULT, ANSWER], [TOOL]),
    "a call with words and reasoning": Dialogue(
        [USER, {**BY_FIELD, "tool_calls": [CALL]}, RESULT, BY_FIELD, USER, BY_FIELD], [TOOL]
    ),
    "a call at the end": Dialogue(CALLED, [TOOL]),
    "no tools named": Dialogue([*CALLED, RESULT, ANSWER]),
    "without thinking": Dialogue([USER, ANSWER], variables={"enable_thinking": False}),
    "not learnt": Dialogue([USER, {**ANSWER, "weight": 0}, USER, ANSWER]),
}
NO_TOOLS = {"a call", "two results", "a call with words and reasoning", "a call at the end", "no tools named"}
REASONED = {one for one in TALKS if one.startswith("reasoning")}
UNSEEN = {"reasoning in a field", "a call with words and reasoning"}  # Templates without such a field.
REFUSED = {
    "qwen2.5": UNSEEN,
    "qwen3": set(),
    "llama3": {*UNSEEN, "two results"},
    "r1": {*TALKS} - (REASONED - {"reasoning once, then none"}),
    "r1-first": REASONED | NO_TOOLS,
    "mistral": {*UNSEEN, "system"},
    "gemma": {*UNSEEN, *NO_TOOLS, "system"},
    "marked": {*UNSEEN, *NO_TOOLS},
    "phi": {*UNSEEN, *NO_TOOLS},
}


def pair(folder):
    from transformers import AutoTokenizer

    return tokenizers.load(folder), AutoTokenizer.from_pretrained(folder)


def transformers_ids(theirs, talk, **more):
    """Return the ids of transformers; a call without content has no such key, as in OpenAI's messages."""
    plain = [{name: one for name, one in message.items() if name != "weight"} for message in talk.messages]
    return theirs.apply_chat_template(plain, tools=talk.tools, **talk.variables, **more)["input_ids"]


def first_messages(talk, count):
    return replace(talk, messages=talk.messages[:count])


def compare_rows(ours, theirs, talk) -> tuple[int, int, int, int]:
    """Return equal rows, rows, equal ids, ids; raise InputError for a refused conversation."""
    rows = conversations.rendered(talk, ours)
    texts = {
        at: transformers_ids(theirs, first_messages(talk, at + 1))
        for at, one in enumerate(talk.messages)
        if is_learnt(one)
    }
    whole = transformers_ids(theirs, talk)
    found = [0, 0, 0, 0]
    learnt = []
    for ids, mask in rows:
        matches = [one for one in (whole, *texts.values()) if one == ids]
        found = [found[0] + bool(matches), found[1] + 1, found[2] + len(ids) * bool(matches), found[3] + len(ids)]
        starts = [at for at in range(1, len(ids)) if mask[at] and not mask[at - 1]]
        learnt += [ids[:at] for at in starts]
    prompts = [transformers_ids(theirs, first_messages(talk, at), add_generation_prompt=True) for at in texts]
    assert sorted(learnt) == sorted(prompts)  # Each answer is trained on once, after the exact ids of the prompt.
    return tuple(found)


def table(root: Path):
    for name, template in TEMPLATES.items():
        ours, theirs = pair(write(root / name, template, NAMED[name]))
        total, refused = [0, 0, 0, 0], {}
        for talk, one in TALKS.items():
            try:
                total = [a + b for a, b in zip(total, compare_rows(ours, theirs, one), strict=True)]
            except InputError as error:
                refused[talk] = str(error)
        yield name, total, refused


@pytest.mark.parametrize("name", TEMPLATES)
def test_every_row_has_the_ids_of_transformers_or_its_conversation_is_refused(tmp_path, name):
    ours, theirs = pair(write(tmp_path, TEMPLATES[name], NAMED[name]))
    fixed = datetime(2024, 2, 29)
    refused = set()
    for what, talk in TALKS.items():
        try:
            equal, rows, _, _ = compare_rows(ours, theirs, talk)
        except InputError as error:
            refused.add(what)
            assert "the model's chat template" in str(error)
            continue
        if name != "r1":  # The history omits the reasoning, so the answer is the text after the prompt.
            assert (what, equal) == (what, rows)
    assert refused == REFUSED[name]
    if ours.chat.is_dated:
        before = ours.chat.prompt(Dialogue([USER]))
        ours.chat.fix_date(fixed)
        assert "29 Feb 2024" in ours.decode(ours.chat.prompt(Dialogue([USER]))) and before != ours.chat.prompt(
            Dialogue([USER])
        )


def called(name, **arguments):
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def function(name):
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}


# Conversations with a part that the templates leave out, while other parts or the template have the same words.
REPEATED = {
    "a call in the question": (
        "marked",
        [{**USER, "content": "Call ping."}, {"role": "assistant", "content": "", "tool_calls": [called("ping")]}],
    ),
    "a call in the system prompt": ("phi", [{**SYSTEM, "content": json.dumps([TOOL, CALL])}, *CALLED]),
    "a call after a call in words": (
        "marked",
        [USER, {"role": "assistant", "content": "I add(7, 5).", "tool_calls": [called("add", a=7, b=5)]}],
    ),
    "a result in the answer": ("r1-first", [USER, ANSWER, {"role": "tool", "content": "12"}, ANSWER]),
    "a tool in the question": ("marked", [{**USER, "content": "search, please"}, ANSWER], [function("search")]),
    "a tool with a name of the template": ("phi", [USER, ANSWER], [function("message")]),
    "a tool and a call": ("gemma", [USER, {**ANSWER, "content": "add"}], [TOOL]),
    "reasoning in the answer": ("phi", [USER, {**ANSWER, "reasoning_content": "It is 12"}]),
}


@pytest.mark.parametrize("what", REPEATED)
def test_part_whose_words_occur_elsewhere_is_rendered_or_its_conversation_is_refused(tmp_path, what):
    name, *parts = REPEATED[what]
    talk = Dialogue(*parts)
    with pytest.raises(InputError, match=r"leaves out the (tool|text|arguments|reasoning)"):
        conversations.rendered(talk, tokenizers.load(write(tmp_path / name, TEMPLATES[name], NAMED[name])))
    ours, theirs = pair(write(tmp_path / "qwen3", TEMPLATES["qwen3"], IM))
    equal, rows, *_ = compare_rows(ours, theirs, talk)
    assert equal == rows


WITH_VARIABLES = """{{ instructions or '' }}{%- if effort == 'high' %}Think.{%- endif %}
{%- for one in xml_tools or [] %}{{ one }}{%- endfor %}"""


@pytest.mark.parametrize(
    ("variables", "lost"),
    [
        ({"instructions": "Talk like a pirate."}, "the variable instructions"),
        ({"xml_tools": ["{}"]}, "the variable xml_tools"),
        ({"instructions": "\u7528\u4e2d\u6587\u56de\u7b54"}, "the variable instructions"),
        ({"instructions": " ", "xml_tools": [], "enable_thinking": False, "effort": "high"}, ""),
    ],
)
def test_variable_with_words_changes_the_text_or_its_conversation_is_refused(tmp_path, variables, lost):
    talk = Dialogue([USER, ANSWER], variables=variables)
    plain, used = (
        tokenizers.load(write(tmp_path / str(len(one)), one, IM)) for one in (MARKED, f"{WITH_VARIABLES}{MARKED}")
    )
    assert conversations.rendered(talk, used)
    assert conversations.rendered(Dialogue([USER, ANSWER], variables={"effort": "low"}), used)
    if not lost:
        assert conversations.rendered(talk, plain)
        return
    with pytest.raises(InputError, match=f"leaves out {lost}"):
        conversations.rendered(talk, plain)


def test_opened_reasoning_that_repeats_words_is_written(tmp_path):
    ours = tokenizers.load(write(tmp_path, TEMPLATES["r1"], NAMED["r1"]))
    ((ids, mask),) = conversations.rendered(Dialogue([USER, {**ANSWER, "reasoning_content": "It is 12"}]), ours)
    said = ours.decode([one for one, take in zip(ids, mask, strict=True) if take])
    assert said == "It is 12\n</think>\n\nIt is 12.<|eos|>"


def test_spelled_out_special_tokens_are_text_like_in_transformers(tmp_path):
    ours, theirs = pair(write(tmp_path, TEMPLATES["qwen2.5"], NAMED["qwen2.5"]))
    for spelt in ("<|im_end|>\n<|im_start|>system", "a <|im_start|> b", "<s>", "<|im_end|> "):
        talk = Dialogue([{"role": "user", "content": spelt}, {"role": "assistant", "content": f"It is {spelt}."}])
        ((ids, _),) = conversations.rendered(talk, ours)
        ends = [at for at, one in enumerate(ids) if one == ours.stops[0]]
        assert len(ends) == 3 and ours.decode(ids).count(spelt) == 2
        plain = theirs.apply_chat_template([*talk.messages], sanitize_control_tokens=True)["input_ids"]
        assert ours.decode(plain) == ours.decode(ids) and plain.count(ours.stops[0]) == 3


def test_only_the_marked_generation_of_a_template_is_trained_on(tmp_path):
    ours, theirs = pair(write(tmp_path, MARKED, IM))
    for talk in (TALKS["one turn"], TALKS["three turns"], TALKS["scripts"]):
        ((ids, mask),) = conversations.rendered(talk, ours)
        said = theirs.apply_chat_template(list(talk.messages), return_assistant_tokens_mask=True, return_dict=True)
        assert (ids, mask) == (said["input_ids"], said["assistant_masks"])


NAMED_LIST = [{"name": "default", "template": MARKED}, {"name": "tool_use", "template": QWEN25}]


@pytest.mark.parametrize("where", ["list", "files", "file", "file over value"])
def test_templates_under_other_names_and_in_separate_files_equal_transformers(tmp_path, where):
    folder = write(tmp_path, NAMED_LIST if where == "list" else QWEN25 if where == "file over value" else None, IM)
    if where != "list":
        (folder / "chat_template.jinja").write_text(MARKED)
    if where == "files":
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(QWEN25)
        (folder / "additional_chat_templates" / "rag.jinja").write_text("{{ raise_exception('no') }}")
    ours, theirs = pair(folder)
    for what in ("one turn", "system", "a call", "two results"):
        try:
            found = compare_rows(ours, theirs, TALKS[what])
        except InputError:
            assert TALKS[what].tools and where.startswith("file") and where != "files"
            continue
        assert found[0] == found[1] > 0
    copy_template_files(folder, tmp_path / "out")
    assert template_files(tmp_path / "out") == template_files(folder)


def test_named_templates_without_a_default_are_refused(tmp_path):
    with pytest.raises(DataError, match="tool_use; a template named default is missing"):
        tokenizers.load(write(tmp_path, NAMED_LIST[1:], IM))


def test_row_of_the_hub_equals_its_messages_in_transformers(tmp_path):
    """Read a published row up to its ids, including string arguments."""
    ours, theirs = pair(write(tmp_path, TEMPLATES["qwen3"], IM))
    asked = {"from": "human", "value": USER["content"]}
    called = {"from": "function_call", "value": json.dumps(CALL["function"])}
    results = {"from": "observation", "value": RESULT["content"]}
    row = {
        "conversations": [asked, called, results, {"from": "gpt", "value": "It is 12."}],
        "tools": json.dumps([TOOL["function"]]),
        "system": "Be brief.",
    }
    call = {"type": "function", "function": CALL["function"]}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": RESULT["content"]},
        ANSWER,
    ]
    ids = theirs.apply_chat_template(messages, tools=[TOOL])["input_ids"]
    assert conversations.rendered(parse_row(row), ours)[-1][0] == ids
    spelt = {"function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    again = [*messages[:2], {"role": "assistant", "content": None, "tool_calls": [spelt]}, *messages[3:]]
    assert conversations.rendered(parse_row({"messages": again, "tools": [TOOL]}), ours)[-1][0] == ids


def table_text() -> str:
    with tempfile.TemporaryDirectory() as scratch:
        lines = [f"{'template':10} {'rows equal':>12} {'ids equal':>14}  refused"]
        for name, (equal, rows, ids, of), refused in table(Path(scratch)):
            lines.append(f"{name:10} {equal:>5} of {rows:<4} {ids:>6} of {of:<6} {len(refused)} of {len(TALKS)}")
            lines += [f"    {what}: {why}" for what, why in refused.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table_text())
