"""Our own engine: what it answers is what decoding says; whole, in pieces, to several at once, and refused in shape."""

import asyncio
import json
from dataclasses import replace
from typing import Any

import httpx
import pytest

from data.chat.conversations import prompt
from data.tokens import tokenizer as tokenizers
from data.tokens.tokenizer import BOS, END
from tests.trainer.conftest import TINY
from tests.trainer.model.test_model import random_model
from trainer.model import export, generate
from trainer.records.blocks_config import BlocksConfig
from trainer.serving.http import listen
from trainer.serving.server import EngineLimits, EngineServer
from trainer.serving.torch_engine import TorchEngine

pytestmark = pytest.mark.process

BLOCKS = BlocksConfig(block_size=8, sub_block_size=4, threshold=0.02)
CHAT = "/v1/chat/completions"


@pytest.fixture(params=["in blocks", "from left to right"])
def model(request, inputs, tmp_path) -> TorchEngine:
    words = tokenizers.load(inputs[0] / "tokenizer")
    shape = replace(TINY, vocab_size=words.vocab_size + 8, max_position_embeddings=64)
    if request.param == "in blocks":
        shape = replace(shape, blocks=replace(BLOCKS, mask_id=words.vocab_size))
    decoder = random_model(shape)
    export.write(tmp_path / "hf", shape, decoder.state_dict(), inputs[0] / "tokenizer")
    return TorchEngine(tmp_path, "float32", 0)


def ask(model: TorchEngine, body: dict[str, Any], limits: EngineLimits, *others: Any) -> list[httpx.Response]:
    """The answers to requests that are sent at once: (path, body, headers)."""

    async def run() -> list[httpx.Response]:
        server = await listen(EngineServer(model, "demo", limits, "secret").handle, 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wanted = [(CHAT, body, {"Authorization": "Bearer secret"}), *others]
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            found = await asyncio.gather(*(client.post(path, json=one, headers=head) for path, one, head in wanted))
        server.close()
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left)  # of connections that the client has closed
        return found

    return asyncio.run(run())


def told(response: httpx.Response) -> tuple[str, str, dict[str, Any]]:
    """Text, why it ended, and usage of a stream."""
    assert response.text.endswith("data: [DONE]\n\n")
    events = [json.loads(line[6:]) for line in response.text.split("\n\n") if line.startswith("data: {")]
    choices = [choice for one in events for choice in one["choices"]]
    text = "".join(one["delta"]["content"] for one in choices)
    return text, choices[-1]["finish_reason"], events[-1]["usage"]


def test_answers_are_what_decoding_says_whole_in_pieces_and_side_by_side(model):
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
        model, body, EngineLimits(), (CHAT, streamed, head), (CHAT, cut, head), (CHAT, body, {}),
        (CHAT, {**body, "model": "other"}, head), (CHAT, {**body, "messages": []}, head),
        (CHAT, {**body, "temperature": -1}, head), ("/v1/completions", {"prompt": "a " * 99}, head), ("/v2", {}, head),
    )  # fmt: skip
    found = whole.json()
    usage = {"prompt_tokens": len(ids), "completion_tokens": len(said), "total_tokens": len(ids) + len(said)}
    assert found["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert found["usage"] == usage and found["model"] == "demo"
    assert told(pieces) == (text, found["choices"][0]["finish_reason"], usage)
    assert short.json()["choices"][0]["message"]["content"] == text[: text.find(middle)]
    assert short.json()["choices"][0]["finish_reason"] == "stop"
    assert [one.status_code for one in wrong] == [401, 404, 400, 400, 400, 404]
    assert wrong[1].json()["error"]["type"] == "NotFoundError"


def test_what_there_is_no_room_for_is_told_that_the_engine_is_busy(model):
    body = {"model": "demo", "prompt": "a", "max_tokens": 30, "temperature": 0}
    head = {"Authorization": "Bearer secret"}
    _, *others = ask(
        model, {"model": "demo"}, EngineLimits(max_seqs=1, max_queued=1), *[("/v1/completions", body, head)] * 6
    )  # fmt: skip
    assert {one.status_code for one in others} == {200, 503}
    texts = {one.json()["choices"][0]["text"] for one in others if one.status_code == 200}
    assert len(texts) == 1
    assert all("busy" in one.text for one in others if one.status_code == 503)


def test_text_may_come_in_parts_and_what_would_change_the_answer_unseen_is_refused(model):
    question, head = "What does join do?", {"Authorization": "Bearer secret"}
    parts = [{"type": "text", "text": "What does "}, {"type": "text", "text": "join do?"}]
    body = {"model": "demo", "messages": [{"role": "user", "content": question}], "max_tokens": 8, "temperature": 0}
    none = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "top_p": 1, "n": 1,
            "response_format": {"type": "text"}}  # fmt: skip
    image = [*parts, {"type": "image_url", "image_url": {"url": "x"}}]
    odd = ({"frequency_penalty": 0.5}, {"repetition_penalty": 1.2}, {"min_p": 0.1}, {"logit_bias": {"5": 1}}, {"n": 2},
           {"response_format": {"type": "json_object"}}, {"top_p": 0}, {"top_p": 1.5},
           {"messages": [{"role": "user", "content": image}]}, {"messages": ["hi"]})  # fmt: skip
    whole, same, plain, *wrong = ask(
        model, body, EngineLimits(), (CHAT, {**body, "messages": [{"role": "user", "content": parts}]}, head),
        (CHAT, {**body, **none}, head), *((CHAT, {**body, **one}, head) for one in odd),
    )  # fmt: skip
    said = whole.json()["choices"][0]["message"]
    assert same.json()["choices"][0]["message"] == said == plain.json()["choices"][0]["message"]
    assert [one.status_code for one in wrong] == [400] * len(odd)
    told = [one.json()["error"]["message"] for one in wrong]
    assert told[0] == "frequency_penalty: this engine has none" and "at most 1" in told[7]
