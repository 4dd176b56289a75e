"""`inv chat --endpoint`: a conversation with a service, or any address that answers as OpenAI's does."""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from typing import Any

from infra.errors import AuthError, SlipwayError
from infra.settings import Settings
from scripts.cli import render
from scripts.cli.session import open_journal
from serve import controller_client
from trainer.talk import questions

KEY = "SLIPWAY_ENDPOINT_KEY"
SILENT_S = 120.0
TOO_LONG = re.compile("maximum (context|model) length|context_length_exceeded")  # vLLM's words, and OpenAI's


class TooLong(SlipwayError):
    """The model does not read so many tokens at a time."""


def hold(
    endpoint: str, settings: Settings, model: str, prompt: str | None, temperature: float, max_tokens: int
) -> None:
    """Ask one question, or questions until the input ends. Raises SlipwayError, AuthError."""
    url = endpoint.rstrip("/").removesuffix("/v1")
    if "://" not in endpoint:
        with open_journal(settings) as journal:
            url = controller_client.ensure(
                controller_client.find(endpoint, journal), settings, journal, render.tell
            ).endpoint
    with _client(url) as client:
        asked = {"model": model or _model(client, url), "temperature": temperature, "max_tokens": max_tokens}
        said: list[dict[str, str]] = []
        has_forgotten = False

        def forget() -> None:
            nonlocal has_forgotten
            said.clear()
            has_forgotten = False

        for question in [prompt] if prompt is not None else questions(forget=forget):
            said.append({"role": "user", "content": question})
            while (answer := _spoken(client, url, {**asked, "messages": said, "stream": True})) is None:
                del said[:2]
                if not has_forgotten:
                    render.say("the conversation is longer than this model reads: its oldest turns are forgotten")
                has_forgotten = True
            said.append({"role": "assistant", "content": answer})


def _spoken(client: Any, url: str, asked: dict[str, Any]) -> str | None:
    """Return the answer, printed as it comes; None where the conversation is too long and has turns to forget."""
    answer = ""
    try:
        for piece in _answer(client, url, asked):
            answer += piece
            print(render.clean(piece), end="", flush=True)
    except TooLong:
        if len(asked["messages"]) < 3:
            raise
        return None
    print(flush=True)
    return answer


def _client(url: str) -> Any:
    import httpx

    key = os.environ.get(KEY, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.Client(base_url=url, headers=headers, timeout=httpx.Timeout(SILENT_S, connect=10.0), trust_env=False)


def _model(client: Any, url: str) -> str:
    with _told(url):
        reply = client.get("/v1/models")
        _check(reply, url)
        return str(reply.json()["data"][0]["id"])


def _answer(client: Any, url: str, asked: dict[str, Any]) -> Iterator[str]:
    """Yield the pieces of an answer as they come."""
    with _told(url), client.stream("POST", "/v1/chat/completions", json=asked) as reply:
        if reply.status_code != 200:
            reply.read()
        _check(reply, url)
        for line in reply.iter_lines():
            if not line.startswith("data:") or line == "data: [DONE]":
                continue
            event = json.loads(line[5:])
            if "error" in event:
                raise SlipwayError(f"{url}: the answer broke off: {event['error'].get('message', event['error'])}")
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def _check(reply: Any, url: str) -> None:
    if reply.status_code == 200:
        return
    try:
        error = reply.json()["error"]
        what = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        what = reply.text[:300]
    if reply.status_code == 401:
        raise AuthError(f"{url}: {what}; put its key into {KEY} (a new one: inv serve.key NAME --for YOU)")
    kind = TooLong if reply.status_code == 400 and TOO_LONG.search(reply.text) else SlipwayError
    raise kind(f"{url}: status {reply.status_code}: {what}; see: inv serve.doctor")


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Turn what the client raises into what we say."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise SlipwayError(f"{url}: {error or type(error).__name__}; see: inv serve.status") from error
