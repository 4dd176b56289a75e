"""`inv chat --endpoint`: a conversation with a service, or with any OpenAI-compatible address."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from infra.errors import AuthError, SlipwayError
from infra.settings import Settings
from scripts.cli import render
from scripts.cli.session import open_journal
from serve.gateway.http import certificate
from serve.processes import controller_client
from trainer import terminal_chat

KEY = "SLIPWAY_ENDPOINT_KEY"
SILENT_S = 120.0
TOO_LONG = re.compile("maximum (context|model) length|context_length_exceeded")  # messages of vLLM and of OpenAI


class TooLong(SlipwayError):
    """Raised when a conversation exceeds the context length of the model."""


class ServicePartner:
    """A conversation partner: a model of a service, which receives the whole conversation with each request."""

    def __init__(self, client: Any, url: str, name: str, asked: dict[str, Any], goes_on: bool) -> None:
        self.client, self.url, self.name, self.asked = client, url, name, asked
        self.recoverable_errors: tuple[type[Exception], ...] = (SlipwayError,) if goes_on else ()
        self.system = ""
        self.tokens: int | None = None
        self.messages: list[terminal_chat.Said] = []
        self.has_dropped_turns = False

    def clear_history(self) -> None:
        """Clear the conversation."""
        self.messages.clear()
        self.has_dropped_turns = False

    def describe(self) -> str:
        """Return the name and address of the partner as text."""
        return render.clean(f"{self.name} at {self.url}")

    def switch_model(self, name: str) -> str:
        """Switch to a different model of the service and return a message. Raises SlipwayError."""
        known = models(self.client, self.url)
        if name not in known:
            return render.clean(f"{self.url} has no model {name!r}; available: {', '.join(known)}")
        self.name = name
        return self.describe()

    def stream_answer(self, words: str) -> Iterator[str]:
        """Yield the answer; drop the oldest turns if the conversation is too long, with a single notice.

        Raises SlipwayError; the failed question is then removed from the conversation.
        """
        self.tokens, pieces = None, list[str]()
        self.messages.append({"role": "user", "content": words})
        try:
            while True:
                try:
                    for piece in self._answer():
                        pieces.append(render.clean(piece))
                        yield pieces[-1]
                    break
                except TooLong:
                    if len(self.messages) < 3:
                        raise
                    del self.messages[:2]
                    if not self.has_dropped_turns:
                        terminal_chat.print_status(
                            "the conversation is longer than the model's context; the oldest turns are dropped"
                        )
                    self.has_dropped_turns = True
        except SlipwayError:
            del self.messages[-1]
            raise
        except BaseException:  # interrupted by Ctrl-C, here or in the consumer of the pieces
            self.messages.append({"role": "assistant", "content": "".join(pieces) or "..."})
            raise
        self.messages.append({"role": "assistant", "content": "".join(pieces)})

    def _answer(self) -> Iterator[str]:
        """Yield the pieces of an answer as they arrive."""
        head = [{"role": "system", "content": self.system}] if self.system else []
        asked = {
            **self.asked,
            "model": self.name,
            "messages": [*head, *self.messages],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        with _told(self.url), self.client.stream("POST", "/v1/chat/completions", json=asked) as reply:
            if reply.status_code != 200:
                reply.read()
            _check(reply, self.url)
            for line in reply.iter_lines():
                if not line.startswith("data:") or line.removeprefix("data:").strip() == "[DONE]":
                    continue
                event = json.loads(line[5:])
                if "error" in event:
                    error = event["error"]
                    what = error.get("message", error) if isinstance(error, dict) else error
                    raise SlipwayError(f"{self.url}: the answer was cut off: {what}")
                self.tokens = (event.get("usage") or {}).get("completion_tokens", self.tokens)
                for choice in event.get("choices", ()):
                    yield choice["delta"].get("content") or ""


def run_chat(
    endpoint: str,
    settings: Settings,
    model: str,
    prompt: str | None,
    temperature: float,
    max_tokens: int,
    system: str = "",
    place: terminal_chat.ConversationFiles = terminal_chat.NOWHERE,
) -> None:
    """Ask a single question, or questions until the input ends. Raises SlipwayError, AuthError."""
    settings.lend_environment(secrets=True)
    url, certfile = endpoint.rstrip("/").removesuffix("/v1"), ""
    if "://" not in endpoint:
        with open_journal(settings) as journal:
            name = controller_client.find(endpoint, journal)
            url = controller_client.ensure(name, settings, journal, render.tell).endpoint
            certfile = controller_client.certfile(name, journal)
    with _client(url, certfile) as client:
        asked = {"temperature": temperature, "max_tokens": max_tokens}
        one = ServicePartner(client, url, model or models(client, url)[0], asked, goes_on=sys.stdin.isatty())
        one.system = system
        terminal_chat.run_chat(one, prompt, place)


def _client(url: str, certfile: str) -> Any:
    """Return an HTTP client for an address.

    `certfile`: certificate of a service of this machine; "" = this machine's trusted authorities.
    """
    import httpx

    key = os.environ.get(KEY, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    trusted = certificate.client_context(certfile) if certfile else httpx.create_ssl_context()
    timeout = httpx.Timeout(SILENT_S, connect=10.0)
    return httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=trusted)


def models(client: Any, url: str) -> list[str]:
    """Return the models of the service. Raises SlipwayError if the service names none."""
    with _told(url):
        reply = client.get("/v1/models")
        _check(reply, url)
        try:
            found = [str(one["id"]) for one in reply.json()["data"]]
        except (ValueError, KeyError, TypeError):
            found = []
    if not found:
        raise SlipwayError(f"{url}: the service lists no model. Name the model: --model NAME")
    return found


def _check(reply: Any, url: str) -> None:
    if reply.status_code == 200:
        return
    try:
        error = reply.json()["error"]
        what = error.get("message", error) if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError):
        what = reply.text[:300]
    if reply.status_code == 401:
        raise AuthError(f"{url}: {what}. Set {KEY} to an API key (create a key: inv serve.key NAME --for YOU)")
    kind = TooLong if reply.status_code == 400 and TOO_LONG.search(reply.text) else SlipwayError
    raise kind(f"{url}: status {reply.status_code}: {what}; see: inv serve.doctor")


@contextlib.contextmanager
def _told(url: str) -> Iterator[None]:
    """Convert errors of the HTTP client to SlipwayError."""
    import httpx

    try:
        yield
    except httpx.HTTPError as error:
        raise SlipwayError(f"{url}: {error or type(error).__name__}; see: inv serve.status") from error
