"""A template must write every part before each trained answer; few trips to the template prove the parts."""

import pytest

from data.chat import conversations
from data.errors import InputError
from data.tokens import tokenizer as tokenizers
from data.tokens.chat_template import Dialogue
from store.untrusted.templates import Template
from tests.data.chat.templates import IM, MARKED, NAMED, QWEN3, TEMPLATES, write

pytestmark = pytest.mark.process

SEARCH = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def plain(number):
    return [{"role": "user", "content": f"Who is {number}?"}, {"role": "assistant", "content": f"Me, not {number}0."}]


def repeated(number):
    return [{"role": "user", "content": f"Say yes {number}."}, {"role": "assistant", "content": "yes"}]


def reasoned(number):
    return [plain(number)[0], {**plain(number)[1], "reasoning_content": f"Think about {number}."}]


def called(number):
    call = {"id": "a2c4e6g8i", "type": "function", "function": {"name": "search", "arguments": {"text": "a"}}}
    result = {"role": "tool", "content": "a", "tool_call_id": "a2c4e6g8i"}
    asks = {"role": "assistant", "content": "", "tool_calls": [call]}
    return [{"role": "user", "content": f"Search a {number}."}, asks, result, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    ("name", "turn", "tools", "most"),
    [
        ("qwen3", plain, None, 1),
        ("qwen3", reasoned, None, 1),
        ("r1", reasoned, None, 1),
        ("qwen3", repeated, None, 2),
        ("qwen3", called, [SEARCH], 4),
        ("qwen2.5", called, [SEARCH], 4),
        ("llama3", called, [SEARCH], 4),
        ("mistral", called, [SEARCH], 4),
    ],
)
def test_number_of_trips_to_the_template_is_independent_of_the_number_of_answers(
    tmp_path, monkeypatch, name, turn, tools, most
):
    tokenizer, trips = tokenizers.load(write(tmp_path, TEMPLATES[name], NAMED[name])), []
    ask = Template.render_beginnings
    monkeypatch.setattr(Template, "render_beginnings", lambda *args: trips.append(1) or ask(*args))

    def count(turns):
        trips.clear()
        messages = [message for number in range(100, 100 + turns) for message in turn(number)]
        assert conversations.rendered(Dialogue(messages, tools, {"instructions": ""}), tokenizer)
        return len(trips)

    assert count(2) == count(12) <= most


QUESTIONS = "messages | selectattr('role', 'equalto', 'user') | list | length"
TOOLS = "{%- if tools and QUESTIONS %}{{ tools | tojson }}{%- endif %}"
VARIABLE = "{%- if QUESTIONS %}{{ instructions }}{%- endif %}"
SYSTEM = "{%- if messages[0].role == 'system' and QUESTIONS %}{{ messages[0].content }}{%- endif %}"


@pytest.mark.parametrize("condition", ["> 1", "< 2"])
@pytest.mark.parametrize(
    ("head", "talk", "lost"),
    [
        (TOOLS, Dialogue([*plain(1), *plain(2)], [SEARCH]), "the tool 'search'"),
        (VARIABLE, Dialogue([*plain(1), *plain(2)], variables={"instructions": "Be brief."}), "the variable"),
        (SYSTEM, Dialogue([{"role": "system", "content": "a"}, *plain(1), *plain(2)]), "the text of message 1"),
    ],
)
def test_part_missing_before_one_of_the_answers_is_refused(tmp_path, condition, head, talk, lost):
    body = MARKED.replace("{%- else %}", "{%- elif message.role != 'system' %}")
    never, always = (
        tokenizers.load(write(tmp_path / name, head.replace("QUESTIONS", f"{QUESTIONS} {one}") + body, IM))
        for name, one in (("never", condition), ("always", "> 0"))
    )
    assert conversations.rendered(talk, always)
    with pytest.raises(InputError, match=f"leaves out {lost}"):
        conversations.rendered(talk, never)


def test_template_that_refuses_the_probes_of_calls_renders_the_calls(tmp_path):
    refusal = "{%- if call.name != 'search' %}{{- raise_exception('unknown tool') }}{%- endif %}"
    source = QWEN3.replace("{{- '<tool_call>", f"{refusal}{{{{- '<tool_call>")
    assert source != QWEN3
    tokenizer = tokenizers.load(write(tmp_path, source, IM))
    assert conversations.rendered(Dialogue([*called(1), *called(2)], [SEARCH]), tokenizer)
