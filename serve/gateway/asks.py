"""What may be asked of an engine, and what a request's body says. Pure.

vLLM guards only some of its routes with its key, and others compute or change things; so what is not named here does
not exist. Bodies go on as they came: they are read for what must be bounded and for what decides the replica.
In: method, path, body. Out: an Ask. Raises Refused, which is the answer. Called by: `proxy`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from serve.gateway.limits import Limits

CHAT, COMPLETIONS, MODELS = b"/v1/chat/completions", b"/v1/completions", b"/v1/models"
ROUTES: Mapping[tuple[bytes, bytes], str] = {
    (b"POST", CHAT): "chat",
    (b"POST", COMPLETIONS): "completions",
    (b"GET", MODELS): "models",
}
GRAMMARS = ("guided_json", "guided_regex", "guided_grammar", "guided_choice", "structured_outputs", "response_format")
MOST_NESTED = 64  # levels of JSON; engines read it with code of their own

_decode = msgspec.json.Decoder(dict[str, Any]).decode
_decode_any = msgspec.json.decode
_encode = msgspec.json.encode


class Refused(Exception):
    """The answer is an error of ours, in OpenAI's shape."""

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int = 0) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after_s = status, kind, message, retry_after_s

    def body(self) -> bytes:
        said = {"message": self.message, "type": self.kind, "param": None, "code": self.status}
        return _encode({"error": said})


@dataclass(slots=True)
class Ask:
    """One request as it will be sent."""

    path: bytes
    body: bytes
    streams: bool = False
    affinity: bytes = b""  # equal for prompts that begin alike


def route(method: bytes, path: bytes) -> str:
    """The short name of what is asked. Raises Refused."""
    name = ROUTES.get((method, path))
    if name is not None:
        return name
    if any(path == known for _, known in ROUTES):
        raise Refused(405, "MethodNotAllowedError", f"{path.decode()} is not asked with {method.decode()}")
    there = ", ".join(known.decode() for _, known in ROUTES)
    raise Refused(404, "NotFoundError", f"there is no such route; there is: {there}")


def read(path: bytes, body: bytes, limits: Limits) -> Ask:
    """What a body asks for, within the limits. Raises Refused."""
    try:
        said = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise _bad(f"the body is no JSON object: {str(error)[:200]}") from None
    if body.count(b"[") + body.count(b"{") > MOST_NESTED and _depth(said) > MOST_NESTED:
        raise _bad(f"the body is nested deeper than {MOST_NESTED} levels")
    for name, value in said.items():
        check = _CHECKS.get(name)
        if check is not None and value is not None:
            check(name, value, limits)
    if path == CHAT:
        prompt = said.get("messages")
        if not prompt:
            raise _bad("`messages` must be a list with one message at least")
        if limits.max_tokens is not None and _tokens(said) is None:
            body = _with_tokens(body, limits.max_tokens)
    else:
        prompt = said.get("prompt")
        _check_sequences(said, prompt, limits.max_sequences)
    chars = limits.affinity_chars
    affinity = _encode((said.get("model"), _beginning(prompt, chars))) if chars else b""
    return Ask(path, body, bool(said.get("stream")), affinity)


def without_paths(body: bytes) -> bytes:
    """An engine's list of models, without the folders it has them from. Raises ValueError when it is no such list."""
    said = _decode(body)
    models = said.get("data")
    if not isinstance(models, list) or not all(isinstance(one, dict) for one in models):
        raise ValueError("no list of models")
    for one in models:
        if "root" in one:
            one["root"] = one.get("id")
    return _encode(said)


def _bad(message: str, status: int = 400) -> Refused:
    return Refused(status, "BadRequestError", message)


def _check_sequences(said: Mapping[str, Any], prompt: Any, most: int) -> None:
    """Prompts times answers to each."""
    answers = max(said.get(name) or 1 for name in ("n", "best_of"))
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    if prompts * answers > most:
        raise _bad(f"{prompts} prompts times {answers} answers; {most} in all are allowed")


def _check_flag(name: str, value: Any, _: Limits) -> None:
    if value not in (True, False):  # 1 and 0 are, to an engine
        raise _bad(f"`{name}` must be true or false")


def _whole(name: str, value: Any, least: int, most: int | None) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _bad(f"`{name}` must be a whole number")
    if value < least or (most is not None and value > most):
        raise _bad(f"`{name}` is {str(value)[:24]}; allowed is {least} to {most if most is not None else 'any'}")


def _check_logprobs(name: str, value: Any, limits: Limits) -> None:
    if not isinstance(value, bool):
        _whole(name, value, 0, limits.max_logprobs)


def _check_stop(_: str, value: Any, limits: Limits) -> None:
    if isinstance(value, list) and len(value) > limits.max_stop_words:
        raise _bad(f"{len(value)} stop words; {limits.max_stop_words} are allowed")


def _check_grammar(name: str, value: Any, limits: Limits) -> None:
    """What an engine compiles before it answers: a large one keeps it busy for minutes."""
    if len(_encode(value)) > limits.max_grammar_bytes:
        raise _bad(f"`{name}` is longer than {limits.max_grammar_bytes} bytes", 413)


_CHECKS: Mapping[str, Callable[[str, Any, Limits], None]] = {
    "stream": _check_flag,
    "max_tokens": lambda name, value, limits: _whole(name, value, 1, limits.max_tokens),
    "max_completion_tokens": lambda name, value, limits: _whole(name, value, 1, limits.max_tokens),
    "min_tokens": lambda name, value, limits: _whole(name, value, 0, limits.max_tokens),
    "n": lambda name, value, limits: _whole(name, value, 1, limits.max_sequences),
    "best_of": lambda name, value, limits: _whole(name, value, 1, limits.max_sequences),
    "logprobs": _check_logprobs,
    "top_logprobs": _check_logprobs,
    "prompt_logprobs": _check_logprobs,
    "stop": _check_stop,
    **{name: _check_grammar for name in GRAMMARS},
}


def _tokens(said: Mapping[str, Any]) -> int | None:
    asked = said.get("max_completion_tokens")
    return said.get("max_tokens") if asked is None else asked


def _with_tokens(body: bytes, most: int) -> bytes:
    """With its number of tokens named. As the last key, so that it outweighs a null."""
    return body.rstrip()[:-1] + b',"max_tokens":%d}' % most


def _beginning(prompt: Any, chars: int) -> str:
    """The first characters of what the engine will read, roles included."""
    if isinstance(prompt, str):
        return prompt[:chars]
    return _encode(prompt).decode("utf-8", "replace")[:chars]


def _depth(value: Any) -> int:
    """How deep it is nested; stops counting at what is too deep."""
    level, depth = [value], 0
    while level and depth <= MOST_NESTED:
        depth += 1
        inner: list[Any] = []
        for one in level:
            if isinstance(one, dict):
                inner += [item for item in one.values() if isinstance(item, (dict, list))]
            elif isinstance(one, list):
                inner += [item for item in one if isinstance(item, (dict, list))]
        level = inner
    return depth
