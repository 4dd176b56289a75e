"""Calls of the official OpenAI client: the gateway answers or refuses them like vLLM itself, on this CPU.

One engine serves all calls, asked directly and through a gateway.
"""

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import OpenAI

from data.tokens import tokenizer
from serve.engine.models import ServedModel
from serve.engine.options import Tuning
from serve.engines import command
from serve.request_bounds import Bounds
from tests.programs import source
from tests.serve import real
from tests.serve.scripted_engine import GUARD_S, port_of, program
from tests.trainer import conftest as trained

NO_WHEEL = real.unavailable()
pytestmark = [
    pytest.mark.nightly,  # vLLM needs minutes to start.
    pytest.mark.process,
    pytest.mark.skipif(bool(NO_WHEEL), reason=NO_WHEEL),
    pytest.mark.timeout(1200),
]
one_thread, inputs = trained.one_thread, trained.inputs

# Varies with every answer, or place.
CHANGES = {"id", "created", "created_at", "completed_at", "item_id", "permission", "root"}
TALK = [{"role": "user", "content": "Who are you?"}]
ASK: dict[str, Any] = {"model": "demo", "messages": TALK, "temperature": 0}
INPUT: dict[str, Any] = {"model": "demo", "input": "Who are you?", "temperature": 0}
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": SCHEMA, "strict": True}}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
PICTURE: Any = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}}

Call = Callable[[OpenAI], Any]


def chat(**said: Any) -> Call:
    return lambda client: client.chat.completions.create(**{**ASK, **said})


def completion(**said: Any) -> Call:
    return lambda client: client.completions.create(model="demo", prompt="Who are you?", temperature=0, **said)


def response(**said: Any) -> Call:
    return lambda client: client.responses.create(**{**INPUT, **said})


ANSWERED: dict[str, Call] = {
    "chat": chat(),
    "chat of parts": chat(messages=[{"role": "user", "content": [{"type": "text", "text": "Who are you?"}]}]),
    "chat with what vLLM does not know": chat(user="u", store=True, metadata={"a": "b"}, service_tier="auto"),
    "chat with a null": chat(max_tokens=None, stop=None, n=None, tools=None),
    "stream": chat(stream=True),
    "stream with its usage": chat(stream=True, stream_options={"include_usage": True}),
    "stop words": chat(stop=["am", "nobody"]),
    "bad words": chat(extra_body={"bad_words": [" am"]}, max_tokens=8),
    "bias": chat(logit_bias={"5": -100}),
    "probabilities": chat(logprobs=True, top_logprobs=3),
    "several": chat(n=3, temperature=1, seed=7),
    "a format": chat(response_format=FORMAT, max_tokens=40),
    "any object": chat(response_format={"type": "json_object"}, max_tokens=8),
    "tools": chat(tools=[TOOL]),
    "no tool": chat(tools=[TOOL], tool_choice="none"),
    "some tool": chat(tools=[TOOL], tool_choice="required", max_tokens=60),
    "one tool": chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "add"}}, max_tokens=40),
    "tools in a stream": chat(tools=[TOOL], tool_choice="required", max_tokens=60, stream=True),
    "completion": completion(),
    "completion in a stream": completion(stream=True),
    "completion of all that fits": completion(max_tokens=200, extra_body={"ignore_eos": True}),
    "echo": completion(extra_body={"echo": True}, max_tokens=3),
    "echo of no tokens": completion(extra_body={"echo": True}, max_tokens=0),
    "echo of no tokens with probabilities": completion(extra_body={"echo": True, "logprobs": 2}, max_tokens=0),
    "echo of no tokens in a stream": completion(extra_body={"echo": True}, max_tokens=0, stream=True),
    "echo of ids": completion(extra_body={"echo": True, "prompt": [65, 66, 67], "max_tokens": 0.0}),
    "whole numbers with a point": chat(
        extra_body={"max_tokens": 16.0, "n": 1.0, "top_logprobs": 2.0, "logprobs": True}
    ),
    "whole numbers with a point, older": completion(extra_body={"max_tokens": 4.0, "seed": 7.0, "logprobs": 1.0}),
    "models": lambda client: client.models.list(),
    "response": response(),
    "response in a stream": response(stream=True),
    "response of a talk": response(input=TALK, instructions="Be brief.", max_output_tokens=20),
    "response in a format": response(
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}, max_output_tokens=40
    ),
    "response with tools": response(tools=[{"type": "function", "name": "add", "parameters": SCHEMA, "strict": True}]),
}
REFUSED: dict[str, Call] = {
    "more than fits": chat(max_tokens=4096),
    "more than fits, newer": chat(max_completion_tokens=4096),
    "no tokens": chat(max_tokens=0),
    "no tokens, older": completion(max_tokens=0),
    "half a token": chat(extra_body={"max_tokens": 16.5}),
    "half an answer": completion(extra_body={"n": 1.5}),
    "echo of a talk without tokens": chat(extra_body={"echo": True, "max_tokens": 0}),
    "a long prompt": chat(messages=[{"role": "user", "content": "who " * 1000}]),
    "another model": chat(model="other"),
    "nothing": chat(messages=[]),
    "no tools": chat(tools=[]),
    "a schema that is none": chat(response_format={"type": "json_schema"}),
    "a picture": chat(messages=[{"role": "user", "content": [PICTURE]}]),
    "a template": chat(extra_body={"chat_template": "{{ 1 }}"}),
    "embeddings": lambda client: client.embeddings.create(model="demo", input="Who?"),
    "a model": lambda client: client.models.retrieve("demo"),
    "in the background": response(background=True),
    "an old response": lambda client: client.responses.retrieve("resp_1"),
    "a file": lambda client: client.files.list(),
}


@dataclass
class Endpoints:
    """The same engine, asked directly and through a gateway."""

    direct: OpenAI
    through: OpenAI
    no_blanks: dict[str, int]
    """A bias against blanks: JSON allows blanks between values, and a small model repeats blanks endlessly."""


@pytest.fixture(scope="module")
def python() -> Path:
    return real.python()


@pytest.fixture(scope="module")
def sides(python, inputs, tmp_path_factory) -> Iterator[Endpoints]:
    folder, words = tmp_path_factory.mktemp("openai"), Path(inputs[0]) / "tokenizer"
    known = tokenizer.load(words)
    made = real.taught_model("llama", TALK[0]["content"], "I am Bosun.", known)
    model = real.write_model(folder / "model", made, words)
    # In 32 bits: no two words are so close that the order of a sum decides.
    tuning = Tuning(dtype="float32", max_seqs=4, tool_parser="hermes")
    with real.engines(python, folder, (model, tuning)) as (engine,):
        (folder / "gateway.json").write_text(json.dumps({"replicas": [{"replica_id": "r0", "url": engine.url}]}))
        gateway = program("serve.gateway", str(folder / "gateway.json"))
        try:
            urls = (f"{url}/v1" for url in (engine.url, f"http://127.0.0.1:{port_of(gateway)}"))
            clients = [OpenAI(base_url=url, api_key="none", max_retries=0, timeout=GUARD_S) for url in urls]
            yield Endpoints(*clients, {str(one): -100 for one in range(256) if known.decode([one]).isspace()})
        finally:
            gateway.kill()
            gateway.communicate()


def comparable(call: Call, client: OpenAI) -> Any:
    """Return the answer without varying fields; a stream as its text and every other field once."""
    answer = call(client)
    if not isinstance(answer, openai.Stream):
        return without_varying(answer.model_dump())
    text, seen = "", []
    for event in answer:
        said = event.model_dump()
        part = said.get("delta") if "type" in said else None
        for choice in said.get("choices") or ():
            part = choice["text"] if "text" in choice else choice["delta"].get("content")
            calls = choice.get("delta", {}).get("tool_calls") or ()
            text += "".join(one["function"]["arguments"] or "" for one in calls)
        text += part if isinstance(part, str) else ""
        seen.append((said.get("type"), without_varying(said.get("response")), said.get("usage")))
    return text, [one for number, one in enumerate(seen) if one not in seen[:number]]


def without_varying(said: Any) -> Any:
    if isinstance(said, dict):
        return {name: without_varying(value) for name, value in said.items() if name not in CHANGES}
    return [without_varying(one) for one in said] if isinstance(said, list) else said


@pytest.mark.parametrize("name", ANSWERED)
def test_answers_of_vllm_are_equal_through_the_gateway(sides, name):
    assert comparable(ANSWERED[name], sides.through) == comparable(ANSWERED[name], sides.direct)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_of_vllm_are_equal_through_the_gateway(sides, name):
    refusals = []
    for client in (sides.direct, sides.through):
        with pytest.raises(openai.APIStatusError) as refused:
            REFUSED[name](client)
        refusals.append((type(refused.value), refused.value.status_code))
    assert refusals[0] == refusals[1]


def test_minimal_chat_is_answered(sides):
    answer = sides.through.chat.completions.create(model="demo", messages=TALK)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("I am Bosun.", "stop")


def test_tool_is_called_and_a_format_is_followed(sides):
    ask = {**ASK, "logit_bias": sides.no_blanks, "max_tokens": 150}
    answer = sides.through.chat.completions.create(**ask, tools=[TOOL], tool_choice="required").choices[0]
    called = [(one.function.name, json.loads(one.function.arguments)) for one in answer.message.tool_calls or ()]
    assert called in ([("add", {"a": 1})], [("add", {"a": 2})]), answer
    formed = sides.through.chat.completions.create(**ask, response_format=FORMAT).choices[0]
    assert json.loads(formed.message.content)["a"] in (1, 2)


def test_response_that_continues_an_earlier_response_is_refused_as_bound_to_one_replica(sides):
    first = sides.through.responses.create(**INPUT)
    with pytest.raises(openai.BadRequestError, match="the next request may go to a different replica"):
        sides.through.responses.create(**INPUT, previous_response_id=first.id)


TOLD = source("what_vllm_takes")


def test_vllm_accepts_the_bounds_of_the_gateway(python, tmp_path):
    bounds, tuning = Bounds(max_tokens=7, max_logprobs=5, allow_chat_template=True), Tuning(tool_parser="hermes")
    built = command(ServedModel(folder=tmp_path, name="demo"), "vllm-cpu", port=1, bounds=bounds, tuning=tuning)
    words = [str(python), "-c", TOLD, *built.words[2:]]
    done = subprocess.run(words, capture_output=True, text=True, timeout=GUARD_S * 4, env=dict(built.environ))
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[True] * 6, 7, 7, True, "hermes", 5]
