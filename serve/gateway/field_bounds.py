"""Bounds on the fields of a request. Pure.

Only the size of the body bounds the prompt; every other known field has a bound of its own. All unknown fields share a
bound, so a new field of an engine is bounded from the first day. `check` takes the fields of a body and raises
OutOfBounds. Source: vLLM 0.32.0, entrypoints/openai/*/protocol.py.
"""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serve.request_bounds import Bounds

ELSEWHERE = (
    "answers are not stored, and the next request may go to a different replica; send the whole conversation as `input`"
)

TOKENS = ("max_tokens", "max_completion_tokens", "max_output_tokens")
NUMBER = (int, float)  # Token ids may have a point: 5.0.

_encode = msgspec.json.encode


class OutOfBounds(Exception):
    """A field is out of bounds; carries the reason and the HTTP status of the refusal."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


def check(said: Mapping[str, Any], size: int, bounds: Bounds) -> None:
    """Check all fields of a body of `size` bytes. Raises OutOfBounds."""
    is_long, others = size > bounds.max_other_bytes, 0
    for name, value in said.items():
        known = _CHECKS.get(name)
        if known is None:
            others += len(name) + len(_encode(value)) if is_long else 0
        elif value is not None:
            known(name, value, bounds)
    if others > bounds.max_other_bytes:
        raise OutOfBounds(f"fields besides the prompt hold {others} bytes; {bounds.max_other_bytes} are allowed", 413)
    if "prompt" in said:
        _check_sequences(said, bounds.max_sequences)
    newer = said.get("max_completion_tokens")  # decides over `max_tokens`
    tokens = (said.get("max_tokens") if newer is None else newer, said.get("max_output_tokens"))
    if not said.get("echo") and 0 in tokens:
        raise OutOfBounds("0 tokens are allowed only with `echo`, for the log-probabilities of the prompt")


def _check_sequences(said: Mapping[str, Any], most: int) -> None:
    """Check the number of prompts times answers per prompt. Raises OutOfBounds."""
    prompt, answers = said["prompt"], max(said.get(name) or 1 for name in ("n", "best_of"))
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], NUMBER) else 1
    if prompts * answers > most:
        raise OutOfBounds(f"{prompts} prompts times {answers} answers; {most} in all are allowed")


def _check_flag(name: str, value: Any, _: Bounds) -> None:
    if value not in (True, False):  # engines accept 1 and 0 as well
        raise OutOfBounds(f"`{name}` must be true or false")


def _whole(name: str, value: Any, least: int, most: int | None) -> None:
    # Clients in JavaScript, R and Lua send 16.0 for 16, which engines accept.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value % 1:
        raise OutOfBounds(f"`{name}` must be a whole number")
    if value < least or (most is not None and value > most):
        raise OutOfBounds(f"`{name}` is {str(value)[:24]}; allowed is {least} to {most if most is not None else 'any'}")


def _check_logprobs(name: str, value: Any, bounds: Bounds) -> None:
    if not isinstance(value, bool):
        _whole(name, value, 0, bounds.max_logprobs)


def _short(name: str, value: Any, most: int) -> None:
    if len(_encode(value)) > most:
        raise OutOfBounds(f"`{name}` is longer than {most} bytes", 413)


def _few(name: str, value: Any, most: int, most_bytes: int) -> None:
    """Check the number of entries of a list or object, and the encoded size of any value. Raises OutOfBounds."""
    if isinstance(value, (list, dict)) and len(value) > most:
        raise OutOfBounds(f"`{name}` has {len(value)} entries; {most} are allowed")
    _short(name, value, most_bytes)


def _check_words(name: str, value: Any, bounds: Bounds) -> None:
    _few(name, value, bounds.max_stop_words, bounds.max_stop_bytes)


def _check_ids(name: str, value: Any, bounds: Bounds) -> None:
    _few(name, value, bounds.max_logit_bias, bounds.max_other_bytes)


def _check_tools(name: str, value: Any, bounds: Bounds) -> None:
    _few(name, value, bounds.max_tools, bounds.max_tools_bytes)


def _check_grammar(name: str, value: Any, bounds: Bounds) -> None:
    """Check the size of a grammar: engines compile the grammar first, which takes minutes for a large grammar."""
    _short(name, value, bounds.max_grammar_bytes)


def _check_template(name: str, value: Any, bounds: Bounds) -> None:
    is_one = name == "chat_template" or (isinstance(value, dict) and value.get("chat_template") is not None)
    if is_one and not bounds.allow_chat_template:
        raise OutOfBounds(f"`{name}`: a chat template in a request is not accepted")
    _short(name, value, bounds.max_other_bytes)


def _check_links(name: str, value: Any, bounds: Bounds) -> None:
    """Check the URLs of images, audio and video, which an engine would fetch.

    Raises OutOfBounds for a forbidden host.
    """
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, list):
            left += one
        elif isinstance(one, dict):
            for key, inner in one.items():
                if not isinstance(inner, str):
                    left.append(inner)
                if key[-4:] == "_url":
                    link = inner.get("url") if isinstance(inner, dict) else inner
                    if isinstance(link, str) and not _is_taken(link, bounds):
                        raise OutOfBounds(
                            f"`{name}`: {key} {link[:80]!r} is not fetched; send the data as data:...;base64,..."
                        )


def _is_taken(link: str, bounds: Bounds) -> bool:
    if link[:5].lower() == "data:":
        return True
    try:
        parts = urlsplit(link)
        return parts.scheme in ("http", "https") and parts.hostname in bounds.media_domains
    except ValueError:
        return False


def _check_kept(name: str, value: Any, _: Bounds) -> None:
    if value:
        raise OutOfBounds(f"`{name}` is not taken: {ELSEWHERE}")


def _check_tokens(name: str, value: Any, bounds: Bounds) -> None:
    _whole(name, value, 0, bounds.max_tokens)


def _check_input(name: str, value: Any, bounds: Bounds) -> None:
    """Check texts to embed or a conversation. Raises OutOfBounds."""
    if isinstance(value, list) and len(value) > bounds.max_inputs and not isinstance(value[0], NUMBER):
        raise OutOfBounds(f"`{name}` has {len(value)} entries; {bounds.max_inputs} are allowed")
    _check_links(name, value, bounds)


def _free(name: str, value: Any, bounds: Bounds) -> None:
    """Accept a field that only the model reads."""


_CHECKS: Mapping[str, Callable[[str, Any, Bounds], None]] = {
    **dict.fromkeys(("prompt", "instructions", "suffix", "documents"), _free),
    **dict.fromkeys(("messages", "previous_input_messages"), _check_links),
    "input": _check_input,
    "stream": _check_flag,
    **dict.fromkeys(TOKENS, _check_tokens),
    "min_tokens": lambda name, value, bounds: _whole(name, value, 0, bounds.max_tokens),
    **dict.fromkeys(("n", "best_of"), lambda name, value, bounds: _whole(name, value, 1, bounds.max_sequences)),
    **dict.fromkeys(("logprobs", "top_logprobs", "prompt_logprobs"), _check_logprobs),
    "logprob_token_ids": lambda name, value, bounds: _few(name, value, bounds.max_logprobs, bounds.max_other_bytes),
    **dict.fromkeys(("stop", "bad_words"), _check_words),
    **dict.fromkeys(("logit_bias", "allowed_token_ids", "stop_token_ids"), _check_ids),
    "tools": _check_tools,
    **dict.fromkeys(("guided_json", "guided_regex", "guided_grammar", "guided_choice"), _check_grammar),
    **dict.fromkeys(("structured_outputs", "response_format", "text"), _check_grammar),
    **dict.fromkeys(("chat_template", "chat_template_kwargs"), _check_template),
    **dict.fromkeys(("previous_response_id", "background"), _check_kept),
}
