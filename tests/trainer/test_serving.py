"""The built-in engine: answers equal decoding; whole, streamed, concurrent, and refused in OpenAI's format."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Generator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from data.chat.conversations import prompt
from data.tokens import tokenizer as tokenizers
from data.tokens.tokenizer import BOS, END
from tests.trainer.conftest import TINY
from tests.trainer.model.test_model import random_model
from tests.world import ROOT
from trainer.model import export, generate
from trainer.records.model_config import BlocksConfig
from trainer.serving import server
from trainer.serving.completion_request import CompletionRequest
from trainer.serving.server import EngineLimits, EngineServer, serve_in_background
from trainer.serving.text_engine import TextEngine
from trainer.serving.torch_engine import TorchEngine

pytestmark = pytest.mark.process

BLOCKS = BlocksConfig(block_size=8, sub_block_size=4, threshold=0.02)
CHAT = "/v1/chat/completions"


@pytest.fixture(params=[pytest.param("in blocks", marks=pytest.mark.pack("blocks")), "from left to right"])
def model(request, inputs, tmp_path) -> TorchEngine:
    words = tokenizers.load(inputs[0] / "tokenizer")
    shape = replace(TINY, vocab_size=words.vocab_size + 8, max_position_embeddings=64)
    if request.param == "in blocks":
        shape = replace(shape, blocks=replace(BLOCKS, mask_id=words.vocab_size))
    decoder = random_model(shape)
    export.write(tmp_path / "hf", shape, decoder.state_dict(), inputs[0] / "tokenizer")
    return TorchEngine(tmp_path, "float32", 0)


def ask(model: TorchEngine, body: dict[str, Any], limits: EngineLimits, *others: Any) -> list[httpx.Response]:
    """Return the answers to simultaneous requests: (path, body, headers)."""

    async def run() -> list[httpx.Response]:
        wanted = [(CHAT, body, {"Authorization": "Bearer secret"}), *others]
        async with (
            serve_in_background(EngineServer(model, "demo", limits, "secret"), 0) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            return await asyncio.gather(*(client.post(path, json=one, headers=head) for path, one, head in wanted))

    return asyncio.run(run())


def parse_stream(response: httpx.Response) -> tuple[str, str, dict[str, Any]]:
    """Return text, finish reason, and usage of a stream."""
    assert response.text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    choices = [choice for one in events for choice in one["choices"]]
    text = "".join(one["delta"]["content"] for one in choices)
    return text, choices[-1]["finish_reason"], events[-1]["usage"]


def test_answers_equal_decoding_whole_streamed_and_concurrent(model):
    words, question = model.tokenizer, "What does join do?"
    messages = [{"role": "user", "content": question}]
    ids = prompt(messages, words, model.align)
    stop = {words.special(END), words.special(BOS)}
    said = list(generate.stream(model.decoder, ids, stop, 20))
    text = words.decode(said).rstrip("\ufffd")
    body = {"model": "demo", "messages": messages, "max_tokens": 20, "temperature": 0}
    head = {"Authorization": "Bearer secret"}
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    middle = text[len(text) // 2]
    cut = {**body, "stop": [middle]}
    whole, pieces, short, *wrong = ask(
        model,
        body,
        EngineLimits(),
        (CHAT, streamed, head),
        (CHAT, cut, head),
        (CHAT, body, {}),
        (CHAT, {**body, "model": "other"}, head),
        (CHAT, {**body, "messages": []}, head),
        (CHAT, {**body, "temperature": -1}, head),
        ("/v1/completions", {"prompt": "a " * 99}, head),
        ("/v2", {}, head),
    )
    found = whole.json()
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(said), "total_tokens": len(ids) + len(said)}
    assert found["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert found["usage"] == usage and found["model"] == "demo"
    assert parse_stream(pieces) == (text, found["choices"][0]["finish_reason"], usage)
    assert short.json()["choices"][0]["message"]["content"] == text[: text.find(middle)]
    assert short.json()["choices"][0]["finish_reason"] == "stop"
    assert [one.status_code for one in wrong] == [401, 404, 400, 400, 400, 404]
    assert wrong[1].json()["error"]["type"] == "NotFoundError"


def test_request_beyond_the_capacity_is_refused_as_busy(model):
    body = {"model": "demo", "prompt": "a", "max_tokens": 30, "temperature": 0}
    head = {"Authorization": "Bearer secret"}
    _, *others = ask(
        model, {"model": "demo"}, EngineLimits(max_seqs=1, max_queued=1), *[("/v1/completions", body, head)] * 6
    )
    assert {one.status_code for one in others} == {200, 503}
    texts = {one.json()["choices"][0]["text"] for one in others if one.status_code == 200}
    assert len(texts) == 1
    assert all("busy" in one.text for one in others if one.status_code == 503)


def test_text_parts_are_accepted_and_unsupported_options_are_refused(model):
    question, head = "What does join do?", {"Authorization": "Bearer secret"}
    parts = [{"type": "text", "text": "What does "}, {"type": "text", "text": "join do?"}]
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
    none = {
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "logit_bias": {},
        "top_p": 1,
        "n": 1,
        "response_format": {"type": "text"},
        "model": None,
        "stop": None,
    }
    image = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    odd = (
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.2},
        {"min_p": 0.1},
        {"logit_bias": {"5": 1}},
        {"n": 2},
        {"response_format": {"type": "json_object"}},
        {"top_p": 0},
        {"top_p": 1.5},
        {"messages": [{"role": "user", "content": image}]},
        {"messages": ["hi"]},
        {"stop": 5},
        {"stop": True},
        {"stop": {"a": 1}},
        {"stop": ["a", 5]},
        {"stop": ["a", ""]},
        {"stream_options": 5},
        {"seed": "a"},
        {"top_k": []},
        {"max_tokens": {}},
    )
    whole, same, plain, *wrong = ask(
        model,
        body,
        EngineLimits(),
        (CHAT, {**body, "messages": [{"role": "user", "content": parts}]}, head),
        (CHAT, {**body, **none}, head),
        *((CHAT, {**body, **one}, head) for one in odd),
    )
    said = whole.json()["choices"][0]["message"]
    assert same.json()["choices"][0]["message"] == said == plain.json()["choices"][0]["message"]
    assert [one.status_code for one in wrong] == [400] * len(odd)
    parse_stream = [one.json()["error"]["message"] for one in wrong]
    assert (
        parse_stream[0] == "frequency_penalty: this engine does not support these options"
        and "at most 1" in parse_stream[7]
    )


def test_echo_and_whole_numbers_with_a_point_are_accepted(model):
    """The log-probabilities of a prompt alone, as lm-evaluation-harness asks for, are refused in words."""
    head, path = {"Authorization": "Bearer secret"}, "/v1/completions"
    body = {"model": "demo", "prompt": "a b", "max_tokens": 4.0, "temperature": 0, "seed": 7.0}
    plain, echoed, alone, empty, ids, streamed, *wrong = ask(
        model,
        {"model": "demo"},
        EngineLimits(),
        (path, body, head),
        (path, {**body, "echo": True}, head),
        (path, {**body, "echo": True, "max_tokens": 0}, head),
        (path, {**body, "echo": True, "max_tokens": 0, "prompt": ""}, head),
        (path, {**body, "echo": True, "max_tokens": 0, "prompt": model.tokenizer.encode("a b")}, head),
        (path, {**body, "echo": True, "max_tokens": 0, "stream": True}, head),
        (path, {**body, "max_tokens": 0}, head),
        (path, {**body, "max_tokens": 1.5}, head),
        (path, {**body, "seed": 0.5}, head),
        (path, {**body, "seed": 1 << 70}, head),
        (path, {**body, "echo": True, "max_tokens": 0, "logprobs": 1}, head),
        (CHAT, {"messages": [{"role": "user", "content": "a"}], "echo": True}, head),
    )[1:]
    text = plain.json()["choices"][0]["text"]
    assert echoed.json()["choices"][0]["text"] == f"a b{text}"
    assert echoed.json()["usage"] == plain.json()["usage"]
    assert [one.json()["choices"][0]["text"] for one in (alone, ids)] == ["a b", "a b"]
    assert alone.json()["choices"][0]["finish_reason"] == "length" and alone.json()["usage"]["completion_tokens"] == 0
    assert empty.json()["choices"][0]["text"] == ""
    assert '"text": "a b"' in streamed.text and streamed.text.endswith("data: [DONE]\n\n")
    assert [one.status_code for one in wrong] == [400] * 6


class CountingEngine(TextEngine):
    """An engine that answers one word, and counts passes."""

    room = 1 << 20

    def __init__(self, words: tokenizers.Tokenizer) -> None:
        self.tokenizer = words
        self.count = 0

    def generate_ids(self, ask: CompletionRequest, stop: Collection[int]) -> Generator[list[int], None, None]:
        for _ in range(ask.max_tokens):
            self.count += 1
            time.sleep(0.002)  # A different engine would compute for the client.
            yield self.tokenizer.encode("a")


@pytest.mark.parametrize("streams", [True, False])
def test_no_pass_is_computed_for_a_disconnected_client(inputs, streams):
    engine = CountingEngine(tokenizers.load(inputs[0] / "tokenizer"))
    served = EngineServer(engine, "demo", EngineLimits(), "")
    body = json.dumps({"model": "demo", "prompt": "a", "max_tokens": 1 << 19, "stream": streams}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()

    async def until(truth: Callable[[], bool]) -> None:
        while not truth():
            await asyncio.sleep(0.01)

    async def run() -> None:
        async with serve_in_background(served, 0) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(head + body)
            await until(lambda: engine.count > 10)
            assert served.work.running
            writer.close()
            await until(lambda: not served.work.running)

    asyncio.run(run())


def test_body_size_is_bounded(inputs, monkeypatch):
    monkeypatch.setattr(server, "MOST_BODY", 1000)
    served = EngineServer(CountingEngine(tokenizers.load(inputs[0] / "tokenizer")), "demo", EngineLimits(), "")

    async def run() -> list[httpx.Response]:
        async with (
            serve_in_background(served, 0) as port,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            return [await client.post("/v1/completions", content=b" " * size) for size in (1000, 1001)]

    assert [one.status_code for one in asyncio.run(run())] == [400, 413]


SERVE = """
import asyncio, sys
from pathlib import Path
from data.tokens import tokenizer
from tests.trainer.test_serving import CountingEngine
from trainer.serving import server

engine = CountingEngine(tokenizer.load(Path(sys.argv[1])))
asyncio.run(server.serve(engine, "demo", 0, server.EngineLimits()))
"""


def test_started_answer_is_finished_after_sigterm(inputs):
    words = [sys.executable, "-c", SERVE, str(inputs[0] / "tokenizer")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            url = f"http://127.0.0.1:{process.stdout.readline().split()[-1]}/v1/completions"
            body = {"model": "demo", "prompt": "a", "max_tokens": 500, "stream": True}
            with httpx.stream("POST", url, json=body, timeout=60) as reply:
                lines = reply.iter_lines()
                assert next(lines).startswith("data: {")
                process.send_signal(signal.SIGTERM)
                assert [line for line in lines if line][-1] == "data: [DONE]"
            assert process.wait(60) == 0
        finally:
            process.kill()
