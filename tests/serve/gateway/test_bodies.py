"""The limits on the content of bodies, and on the number of bodies that a client may send."""

import asyncio
import contextlib
import json
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.gateway.bodies import shapes
from serve.gateway import keys, request_body
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.json_limits import find_excess
from serve.gateway.keys import Keys
from serve.gateway.request_body import CHAT, COMPLETIONS, RequestRefused
from serve.gateway.sse import StreamWatch
from serve.request_bounds import Bounds
from tests.serve.scripted_engine import chat, gateway, until

TAKEN = ("words", "a byte a chunk", "words as \\u", "code", "backslashes", "quotes", "quotes and brackets", "blanks")
TAKEN += ("200,000 ids of tokens", "16,000 messages")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
JSON = {"Content-Type": "application/json"}
WORD = st.text(alphabet='[]{},:"\\a\n\u4f60', max_size=6)
VALUE: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | WORD,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORD, inner, max_size=4),
    max_leaves=30,
)


def part(**said: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, said]}]


def size_of(value: Any) -> tuple[int, int, int]:
    """Return values (an empty list or object counts as two), lists and objects, levels."""
    if not isinstance(value, (list, dict)):
        return 1, 0, 0
    inner = [size_of(one) for one in (value.values() if isinstance(value, dict) else value)]
    values, containers = (sum(one[kind] for one in inner) for kind in (0, 1))
    return 1 + max(1, values), 1 + containers, 1 + max([0, *(one[2] for one in inner)])


@given(VALUE, st.booleans(), st.sampled_from([None, 1]))
def test_content_of_a_body_is_counted_from_its_bytes(value, ascii, indent):
    body = json.dumps(value, ensure_ascii=ascii, indent=indent).encode()
    values, containers, depth = size_of(value)
    names = {"max_values": values, "max_containers": containers, "max_depth": depth}
    assert find_excess(body, Bounds(**names)) == ""
    for name, most in names.items():
        if most:
            assert find_excess(body, Bounds(**{**names, name: most - 1}))


@pytest.mark.parametrize("name", shapes(1 << 10))
def test_body_is_not_parsed_into_objects_far_larger_than_its_bytes(name):
    path, body = shapes(4 << 20)[name]
    if name in TAKEN:
        assert request_body.read(path.encode(), body, GatewayLimits()).body == body
        return
    with pytest.raises(RequestRefused, match="holds more than") as refused:
        request_body.read(path.encode(), body, GatewayLimits())
    assert refused.value.status == 400


@pytest.mark.process
@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"messages": part(type="image_url", image_url={"url": "http://169.254.169.254/latest/meta-data"})}, "fetched"),
        ({"messages": part(type="image_url", image_url="HTTP://[fe80::1]/a.png")}, "fetched"),
        ({"messages": part(image_url={"url": "https://example.org/a.png"})}, "fetched"),
        ({"messages": part(type="video_url", video_url={"url": "file:///etc/passwd"})}, "fetched"),
        ({"messages": part(type="audio_url", audio_url={"url": " http://10.0.0.1/"})}, "fetched"),
        ({"messages": part(type="tool", content=[{"type": "image_url", "image_url": "//metadata"}])}, "fetched"),
        ({"chat_template": "{{ 1 }}"}, "chat template"),
        ({"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat template"),
        ({"tools": [TOOL] * 129}, "129 entries"),
        ({"tools": [{**TOOL, "x": "y" * (5 << 20)}]}, "tools"),
        ({"tools": "x" * (5 << 20)}, "tools"),
        ({"bad_words": ["x"] * 100_000}, "bad_words"),
        ({"bad_words": ["x" * 5000]}, "bad_words"),
        ({"stop": "x" * (1 << 20)}, "stop"),
        ({"stop": ["x" * 1000] * 5}, "stop"),
        ({"logit_bias": {str(number): 1 for number in range(301)}}, "301 entries"),
        ({"logit_bias": {"1" * 70_000: 1}}, "logit_bias"),
        ({"allowed_token_ids": list(range(301))}, "301 entries"),
        ({"stop_token_ids": list(range(301))}, "301 entries"),
        ({"logprobs": True, "logprob_token_ids": list(range(21))}, "21 entries"),
        ({"response_format": {"type": "json_schema", "json_schema": {"x": "y" * 20_000}}}, "response_format"),
        ({"vllm_xargs": {"x": "y" * 70_000}}, "besides the prompt"),
        ({f"x{number}": "y" * 1000 for number in range(70)}, "besides the prompt"),
        ({"x" * 70_000: 1}, "besides the prompt"),
        ({"tools": json.loads("[" * 70 + "]" * 70)}, "nested deeper than 64"),
    ],
)
def test_request_with_a_forbidden_field_reaches_no_engine(pair, said, why):
    async def main():
        before = pair[0].seen()["requests"]
        async with gateway(pair[0]) as front, front.ask(**said) as reply:
            assert reply.status in (400, 413) and why in (await reply.json())["error"]["message"]
        assert pair[0].seen()["requests"] == before

    asyncio.run(main())


@pytest.mark.process
def test_request_within_bounds_reaches_the_engine_unchanged(pair):
    said = chat(
        tools=[TOOL] * 100,
        tool_choice="required",
        stop=["\n", "</s>"],
        bad_words=["a"],
        logit_bias={"5": -100},
        response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}},
        messages=part(type="image_url", image_url={"url": "data:image/png;base64,AAAA"})
        + [
            {
                "role": "assistant",
                "content": "https://example.org/ is a page",
                "tool_calls": [
                    {
                        "id": "1",
                        "type": "function",
                        "function": {"name": "get", "arguments": '{"image_url": "http://x/"}'},
                    }
                ],
            }
        ],
        chat_template_kwargs={"enable_thinking": False},
        metadata={"a": "b"},
        seed=None,
    )

    async def main():
        async with gateway(pair[0]) as front, front.ask(**said) as reply:
            assert reply.status == 200, await reply.text()
        assert pair[0].seen()["body"] == said

    asyncio.run(main())


@pytest.mark.process
def test_whole_numbers_may_have_a_point_and_many_tools_are_accepted(pair):
    """Clients in JavaScript and R send 16.0; agents with several tool servers send 120 tools of 2 KB."""
    tool = {"name": "get", "description": "x" * 1900, "parameters": {"type": "object", "properties": {}}}
    said = (
        {"max_tokens": 16.0, "n": 1.0, "top_logprobs": 5.0, "logprobs": True, "min_tokens": 0.0},
        {"tools": [{"type": "function", "function": tool}] * 120},
        {"max_tokens": 0, "max_completion_tokens": 16},
    )

    async def main():
        async with gateway(pair[0]) as front:
            for one in said:
                async with front.ask(**one) as reply:
                    assert reply.status == 200, await reply.text()
            async with front.ask("/v1/completions", messages=None, prompt=[float(one) for one in range(17)]) as reply:
                assert reply.status == 200, await reply.text()
            for wrong in (
                {"max_tokens": 16, "max_completion_tokens": 0},
                {"max_tokens": 16.5},
                {"n": 1.5},
                {"max_tokens": -1.0},
                {"n": 1e300},
                {"max_tokens": True},
            ):
                async with front.ask(**wrong) as reply:
                    assert reply.status == 400, wrong

    asyncio.run(main())


@pytest.mark.process
def test_byte_order_mark_before_a_body_is_skipped(pair):
    async def main():
        url, body = COMPLETIONS.decode(), b"\xef\xbb\xbf" + json.dumps({"prompt": "To be"}).encode()
        async with gateway(pair[0]) as front, front.session.post(front.url + url, data=body, headers=JSON) as reply:
            assert reply.status == 200, await reply.text()
        assert pair[0].seen()["body"] == {"prompt": "To be"}

    asyncio.run(main())


@pytest.mark.process
def test_echoed_prompt_needs_no_tokens(pair):
    said = {"prompt": "To be", "max_tokens": 0, "echo": True, "logprobs": 1}

    async def main():
        url = COMPLETIONS.decode()
        async with gateway(pair[0]) as front, front.session.post(front.url + url, json=said) as reply:
            assert reply.status == 200, await reply.text()
        assert pair[0].seen()["body"] == said

    asyncio.run(main())


@pytest.mark.process
def test_embeddings_of_a_model_that_generates_text_are_refused_in_words(pair):
    async def main():
        said = {"input": "x", "model": "demo"}
        async with gateway(pair[0]) as front, front.session.post(f"{front.url}/v1/embeddings", json=said) as reply:
            error = (await reply.json())["error"]
            assert (reply.status, error["type"]) == (404, "NotFoundError")
            assert "makes no embeddings" in error["message"]

    asyncio.run(main())


@pytest.mark.process
def test_omitted_fields_stay_omitted(pair):
    async def main():
        for limits in ({}, {"max_tokens": 7}):
            for said in ({"messages": chat()["messages"]}, {"messages": chat()["messages"], "max_tokens": None}):
                async with gateway(pair[0], **limits) as front:
                    async with front.session.post(f"{front.url}{CHAT.decode()}", json=said) as reply:
                        assert reply.status == 200
                    assert pair[0].seen()["body"] == said

    asyncio.run(main())


@pytest.mark.process
def test_disabled_feature_can_be_allowed(pair):
    said = (
        {"messages": part(type="image_url", image_url={"url": "https://Example.org/a.png"})},
        {"chat_template": "{{ messages }}"},
        {"logit_bias": {str(number): 1 for number in range(1000)}},
        {"tools": [TOOL] * 129},
    )
    allowed = {"media_domains": ("example.org",), "allow_chat_template": True, "max_logit_bias": 1000, "max_tools": 200}

    async def main():
        async with gateway(pair[0], **allowed) as front:
            for one in said:
                async with front.ask(**one) as reply:
                    assert reply.status == 200, await reply.text()
            for link in ("https://example.org.evil.net/", "ftp://example.org/", "http://[", "https://evil@10.0.0.1/"):
                async with front.ask(messages=part(type="image_url", image_url={"url": link})) as reply:
                    assert reply.status == 400

    asyncio.run(main())


@pytest.mark.process
@pytest.mark.parametrize("said", [{"previous_response_id": "resp_1"}, {"background": True}])
def test_feature_bound_to_one_replica_is_refused(pair, said):
    async def main():
        async with gateway(pair[0]) as front:
            async with front.session.post(f"{front.url}/v1/responses", json={"input": "x", **said}) as reply:
                assert reply.status == 400 and "may go to a different replica" in await reply.text()
            async with front.session.get(f"{front.url}/v1/responses/resp_1") as reply:
                assert reply.status == 404
            async with front.session.post(f"{front.url}/v1/responses", json={"input": "x"}) as reply:
                assert "send the conversation to /v1/chat/completions" in (await reply.json())["error"]["message"]

    asyncio.run(main())


@pytest.mark.process
@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/v1/responses", {"input": "x", "max_output_tokens": 8}),
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]},
        ),
        ("/v1/responses", {"input": "x", "text": {"format": {"x": "y" * 20_000}}}),
        ("/v1/embeddings", {"input": ["x"] * 2049}),
        (COMPLETIONS.decode(), {"prompt": ["x"] * 17}),
    ],
)
def test_every_route_has_its_bounds(pair, path, said):
    async def main():
        async with gateway(pair[0], max_tokens=7) as front, front.session.post(front.url + path, json=said) as reply:
            assert reply.status in (400, 413) and "error" in await reply.json()

    asyncio.run(main())


@pytest.mark.process
def test_bytes_count_for_their_key_and_their_address(pair):
    (ada, line), (bob, other) = keys.make("ada"), keys.make("bob")
    known = Keys(dict(one.split() for one in (line, other)))
    body = chat(messages=[{"role": "user", "content": "x" * 600_000}])

    async def main():
        pair[0].script(fail="hang", times=1)
        limits = {"max_bytes_per_client": 1_000_000, "charged_s": 0.05}
        async with gateway(pair[0], keys=known, **limits) as front:
            near, far = (aiohttp.TCPConnector(local_addr=(host, 0)) for host in ("127.0.0.1", "127.0.0.2"))
            async with aiohttp.ClientSession(connector=near) as here, aiohttp.ClientSession(connector=far) as there:

                async def status(session: aiohttp.ClientSession, key: str, said: Any = body) -> int:
                    header = {"Authorization": f"Bearer {key}"}
                    async with session.post(front.url + CHAT.decode(), json=said, headers=header) as reply:
                        return reply.status

                first = asyncio.ensure_future(status(here, ada))
                await until(lambda: pair[0].seen()["running"], "the first runs")
                assert await status(there, ada) == 429  # The key of the client.
                assert await status(here, bob) == 429  # The address of the client.
                assert await status(there, bob) == 200
                assert await status(here, ada, chat()) == 200  # Short bodies are free.
                first.cancel()
                charges = front.gateway._proxy._charges
                await until(lambda: not charges.held, "all is given back")
                assert await status(here, ada) == 200

    asyncio.run(main())


@pytest.mark.process
def test_bytes_of_a_refused_body_count_for_a_while_and_chunked_bytes_on_arrival(pair):
    async def parts():
        yield b'{"messages":["'
        for _ in range(6):
            yield b"x" * 100_000
        yield b'"]}'

    async def main():
        async with gateway(pair[0], max_bytes_per_client=1_000_000, charged_s=600.0) as front:
            url = front.url + CHAT.decode()
            async with front.session.post(url, data=b"{" * 600_000, headers=JSON) as reply:
                assert reply.status == 400
            async with front.session.post(url, data=parts(), headers=JSON) as reply:
                assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
        async with (
            gateway(pair[0]) as front,
            front.session.post(front.url + CHAT.decode(), data=parts(), headers=JSON) as reply,
        ):
            assert reply.status == 200

    asyncio.run(main())


@pytest.mark.process
def test_body_in_single_byte_chunks_is_not_received_to_its_end(pair):
    text = json.dumps(chat(messages=[{"role": "user", "content": "x" * 400_000}])).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b"".join(b"1\r\n%c\r\n" % one for one in text) + b"0\r\n\r\n"

    async def main():
        async with gateway(pair[0]) as front:
            before = pair[0].seen()["requests"]
            reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
            writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
            writer.transport.abort()
            async with front.ask() as reply:
                assert reply.status == 200
            assert pair[0].seen()["requests"] == before + 1

    asyncio.run(main())


@pytest.mark.process
@pytest.mark.parametrize(("chunk", "most"), [(1 << 20, 64 << 20), (1, 24 << 20)])
def test_unwanted_body_is_received_only_up_to_a_limit(pair, chunk, most):
    piece = b"%x\r\n%b\r\n" % (chunk, b"x" * chunk) * (1 if chunk > 1 else 10_000)

    async def main():
        async with gateway(pair[0]) as front:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(front.url.rpartition(":")[2]))
            writer.write(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            sent = 0
            with contextlib.suppress(ConnectionError):
                while sent <= most:
                    writer.write(piece)
                    sent += len(piece)
                    await writer.drain()
            assert sent <= most
            writer.transport.abort()

    asyncio.run(main())


def test_stream_of_named_events_is_complete_after_its_last_event():
    begun = b'event: response.created\ndata: {"type":"response.created"}\n\n'
    text = b'event: response.output_text.delta\ndata: {"delta":"event: response.completed\\n"}\n\n'
    last = b'event: response.completed\ndata: {"type":"response.completed"}\n\n'
    for cut in range(len(begun + text + last)):
        watch = StreamWatch()
        for piece in ((begun + text + last)[:cut], (begun + text + last)[cut:]):
            watch.feed(piece)
        assert watch.is_complete and watch.error_code is None
    broken = StreamWatch()
    broken.feed(begun + text)
    assert not broken.is_complete
