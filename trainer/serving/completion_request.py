"""Parser for client requests in OpenAI's protocol, and the JSON structure of the replies.

The parser turns the JSON of a request into an `CompletionRequest`, using a tokenizer, or raises BadRequest with the
reason.
"""

import os
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from data.chat import conversations
from data.errors import InputError
from data.tokens.tokenizer import Tokenizer

USUAL_TOKENS = 16  # OpenAI's default for a completion
NOTHING = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_p": 0,
    "response_format": {"type": "text"},
}
"""Options that no engine here supports, with the values that have no effect."""


class BadRequest(Exception):
    """A request without an answer: HTTP status, error type and message."""

    def __init__(self, why: str, status: int = 400, kind: str = "BadRequestError") -> None:
        super().__init__(why)
        self.status, self.kind = status, kind

    def to_dict(self) -> dict[str, Any]:
        return {"error": {"message": str(self), "type": self.kind, "param": None, "code": self.status}}


@dataclass(frozen=True, kw_only=True)
class CompletionRequest:
    ids: list[int]
    is_chat: bool
    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    """Used only by engines with nucleus sampling; 1 = no limit."""
    seed: int | None
    stop: tuple[str, ...]
    streams: bool
    tells_usage: bool
    echo: str = ""
    """Text of the prompt, sent at the start of the answer."""
    variant: str = ""
    """Variant of the model that answers; "" = the whole model."""
    head: dict[str, Any] = field(default_factory=dict)
    """Fields at the start of every part of the reply."""

    def usage(self, tokens: int) -> dict[str, int]:
        return {"prompt_tokens": len(self.ids), "completion_tokens": tokens, "total_tokens": len(self.ids) + tokens}

    def chunk(self, text: str, finish: str | None, first: bool = False) -> dict[str, Any]:
        """Return a chunk of a stream."""
        said: dict[str, Any] = {"text": text}
        if self.is_chat:
            said = {"delta": {"role": "assistant", "content": text} if first else {"content": text}}
        return {**self.head, "choices": [{"index": 0, **said, "logprobs": None, "finish_reason": finish}]}

    def completion(self, text: str, finish: str, tokens: int) -> dict[str, Any]:
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish}
        return {**self.head, "choices": [choice], "usage": self.usage(tokens)}


def parse(
    said: Any,
    is_chat: bool,
    name: str,
    tokenizer: Tokenizer,
    room: int,
    most: int,
    align: int,
    variants: Collection[str] = (),
) -> CompletionRequest:
    """Return the parsed request. Raises BadRequest.

    name: of the whole model; variants: names of the variants of the model.

    room: positions of the model, for prompt and answer; most: maximum tokens of any answer, 0 = as many as fit; align:
    see `conversations.prompt`.
    """
    if not isinstance(said, Mapping):
        raise BadRequest("the body is not a JSON object")
    model = said.get("model") or name
    if model != name and not (isinstance(model, str) and model in variants):
        raise BadRequest(f"The model `{model}` does not exist.", 404, "NotFoundError")
    none = ("logprobs", "top_logprobs", "logit_bias", "tools", "suffix", *(("echo",) if is_chat else ()))
    unknown = [one for one in none if said.get(one)]
    unknown += [one for one, nothing in NOTHING.items() if said.get(one) not in (None, nothing)]
    if unknown:
        raise BadRequest(f"{', '.join(unknown)}: this engine does not support these options")
    if _whole(said, "n", 1, 1) != 1 or _whole(said, "best_of", 1, 1) != 1:
        raise BadRequest("n: this engine supports only one answer per request")
    ids = _chat(said, tokenizer, align) if is_chat else _prompt(said, tokenizer)
    if len(ids) >= room:
        raise BadRequest(
            f"the prompt has {len(ids)} tokens; the context of this model has {room}, including the answer"
        )
    has_echo = bool(said.get("echo"))
    limit = "max_tokens" if said.get("max_completion_tokens") is None else "max_completion_tokens"
    tokens = _whole(said, limit, room if is_chat else USUAL_TOKENS, 0 if has_echo else 1)
    options = said.get("stream_options") or {}
    if not isinstance(options, Mapping) or options and not said.get("stream"):
        raise BadRequest("Stream options can only be defined when `stream=True`.")
    stop = said.get("stop") or []
    stop = tuple(stop) if isinstance(stop, list) else (stop,)
    if not all(isinstance(one, str) and one for one in stop):
        raise BadRequest("stop: expected a text or a list of texts")
    streams, kind = bool(said.get("stream")), "chat.completion" if is_chat else "text_completion"
    kind += ".chunk" if streams and is_chat else ""
    head = {
        "id": f"{'chatcmpl' if is_chat else 'cmpl'}-{os.urandom(8).hex()}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }
    return CompletionRequest(
        variant="" if model == name else model,
        ids=ids,
        is_chat=is_chat,
        max_tokens=min(tokens, most or tokens, room - len(ids)),
        temperature=_number(said, "temperature", 1.0, 0),
        top_k=_whole(said, "top_k", 0, -1),
        top_p=_share(said, "top_p"),
        seed=None if said.get("seed") is None else _whole(said, "seed", 0, -(1 << 63), 1 << 64),
        stop=stop,
        streams=streams,
        tells_usage=bool(options.get("include_usage")),
        echo=_echo(said["prompt"], tokenizer) if has_echo else "",
        head=head,
    )


def _chat(said: Mapping[str, Any], tokenizer: Tokenizer, align: int) -> list[int]:
    given = said.get("messages")
    given = given if isinstance(given, list) else []
    messages = [{**one, "content": _text(one.get("content"))} for one in given if isinstance(one, Mapping)]
    if (
        not given
        or len(messages) < len(given)
        or not all(isinstance(one["content"], str) and isinstance(one.get("role"), str) for one in messages)
    ):
        raise BadRequest("messages: expected a list of objects with the texts role and content")
    if messages[-1]["role"] != "user":
        raise BadRequest("messages: the last message must have the role user")
    try:
        return conversations.prompt(messages, tokenizer, align)
    except InputError as error:
        raise BadRequest(f"messages: {error}") from None


def _prompt(said: Mapping[str, Any], tokenizer: Tokenizer) -> list[int]:
    prompt = said.get("prompt")
    if isinstance(prompt, str):
        ids = [*tokenizer.begin, *tokenizer.encode(prompt.encode("utf-8", "replace").decode())]
        return ids or [tokenizer.separator]
    if (
        isinstance(prompt, list)
        and prompt
        and all(type(one) is int and 0 <= one < tokenizer.vocab_size for one in prompt)
    ):
        return list(prompt)
    raise BadRequest("prompt: expected a text or a list of token ids")


def _echo(prompt: str | list[int], tokenizer: Tokenizer) -> str:
    return prompt if isinstance(prompt, str) else tokenizer.decode(prompt)


def _text(content: Any) -> str | None:
    """Return the content of a message, joined if given as a list of text parts, or None for other content."""
    if not isinstance(content, list):
        return content if isinstance(content, str) else None
    found = [one["text"] for one in content if isinstance(one, Mapping) and isinstance(one.get("text"), str)]
    return "".join(found) if len(found) == len(content) else None


def _share(said: Mapping[str, Any], name: str) -> float:
    share = _number(said, name, 1.0, 0)
    if not 0 < share <= 1:
        raise BadRequest(f"{name} is {said[name]!r}; it must be above 0 and at most 1")
    return share


def _number(said: Mapping[str, Any], name: str, usual: float, least: float) -> float:
    value = said.get(name)
    value = usual if value is None else value
    if type(value) not in (int, float) or not least <= value < 1 << 31:
        raise BadRequest(f"{name} is {value!r}; it must be a number of at least {least}")
    return float(value)


def _whole(said: Mapping[str, Any], name: str, usual: int, least: int, end: int = 1 << 31) -> int:
    """Return a whole number in [least, end); some clients send 16.0 for 16. Raises BadRequest."""
    value = said.get(name)
    value = usual if value is None else value
    if type(value) not in (int, float) or value % 1 or not least <= value < end:
        raise BadRequest(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return int(value)
