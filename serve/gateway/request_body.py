"""Routes open to clients, and the parsed body of a request. Pure.

vLLM's key guards only some of vLLM's routes, and the others compute or change state, so only the routes named here
exist. Bodies are forwarded unchanged: parsing finds the fields that must be bounded or that select the replica. `route`
takes method and path; `read` takes path and body and returns an EngineRequest. Both raise RequestRefused, which is the
answer.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from serve.gateway.field_bounds import OutOfBounds, check
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.json_limits import find_excess

CHAT, COMPLETIONS, MODELS = b"/v1/chat/completions", b"/v1/completions", b"/v1/models"
EMBEDDINGS, RESPONSES = b"/v1/embeddings", b"/v1/responses"
ROUTES: Mapping[tuple[bytes, bytes], str] = {
    (b"POST", CHAT): "chat",
    (b"POST", COMPLETIONS): "completions",
    (b"POST", EMBEDDINGS): "embeddings",
    (b"POST", RESPONSES): "responses",
    (b"GET", MODELS): "models",
}
PROMPTS = {CHAT: ("messages",), COMPLETIONS: ("prompt",), EMBEDDINGS: ("input",), RESPONSES: ("instructions", "input")}

NOT_SERVED = {
    EMBEDDINGS: "the model of this service generates text and makes no embeddings; serve an embedding model in a "
    "service of its own",
    RESPONSES: "the engine of this service has no /v1/responses; send the conversation to /v1/chat/completions",
}

BOM = b"\xef\xbb\xbf"  # PowerShell and Excel write it; engines skip it
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_encode = msgspec.json.encode


class RequestRefused(Exception):
    """A request is refused; the answer is an error of ours, in OpenAI's shape."""

    def __init__(self, status: int, kind: str, message: str, retry_after_s: int = 0, allow: bytes = b"") -> None:
        """allow: the methods that the path accepts, for a refused method."""
        super().__init__(message)
        self.status, self.kind, self.message, self.retry_after_s = status, kind, message, retry_after_s
        self.allow = allow

    def body(self) -> bytes:
        said = {"message": self.message, "type": self.kind, "param": None, "code": self.status}
        return _encode({"error": said})


@dataclass(slots=True)
class EngineRequest:
    """Request as sent to an engine."""

    path: bytes
    body: bytes
    streams: bool = False
    affinity: bytes = b""  # equal for prompts with the same beginning
    model: Any = None  # as requested


def route(method: bytes, path: bytes) -> str:
    """Return the short name of the route. Raises RequestRefused for an unknown path or a wrong method."""
    name = ROUTES.get((b"GET" if method == b"HEAD" else method, path))
    if name is not None:
        return name
    accepted = [known for known, one in ROUTES if one == path]
    if accepted:
        allow = b", ".join([*accepted, *([b"HEAD"] if b"GET" in accepted else [])])
        said = f"{path.decode()} does not accept {method.decode()}; accepted: {allow.decode()}"
        raise RequestRefused(405, "MethodNotAllowedError", said, allow=allow)
    there = ", ".join(known.decode() for _, known in ROUTES)
    raise RequestRefused(404, "NotFoundError", f"no such route; available: {there}")


OWN = "own"  # route of a service whose replicas run a program of the user


def read(path: bytes, body: bytes, limits: GatewayLimits) -> EngineRequest:
    """Return the request in a body. Raises RequestRefused for an invalid body or a body beyond the limits."""
    body = body.removeprefix(BOM)
    what = find_excess(body, limits)
    if what:
        raise RequestRefused(400, "BadRequestError", what)
    try:
        said = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise RequestRefused(400, "BadRequestError", f"the body is not a JSON object: {str(error)[:200]}") from None
    if path == CHAT and not said.get("messages"):
        raise RequestRefused(400, "BadRequestError", "`messages` must be a list with at least one message")
    try:
        check(said, len(body), limits)
    except OutOfBounds as bad:
        raise RequestRefused(bad.status, "BadRequestError", str(bad)) from None
    chars, affinity = limits.affinity_chars, b""
    if chars:
        affinity = _encode((said.get("model"), [_beginning(said.get(name), chars) for name in PROMPTS[path]]))
    return EngineRequest(path, body, bool(said.get("stream")), affinity, said.get("model"))


def refusal_of(path: bytes, status: int, body: bytes) -> RequestRefused | None:
    """Return the refusal in words for an engine's answer that the route does not exist, or None for other answers."""
    if status != 404 or path not in NOT_SERVED or b'"error"' in body:
        return None
    return RequestRefused(404, "NotFoundError", NOT_SERVED[path])


def without_paths(body: bytes, allowed: Collection[str] | None = None) -> bytes:
    """Return an engine's list of models without local folders.

    allowed: the models in the result; None = all. Raises ValueError for any other document.
    """
    said = _decode(body)
    models = said.get("data")
    if not isinstance(models, list) or not all(isinstance(one, dict) for one in models):
        raise ValueError("no list of models")
    for one in models:
        if "root" in one:
            one["root"] = one.get("id")
    if allowed is not None:
        said["data"] = [one for one in models if str(one.get("id")) in allowed]
    return _encode(said)


def _beginning(prompt: Any, chars: int) -> str:
    """Return the first characters of the text that the engine will read, roles included."""
    if isinstance(prompt, str):
        return prompt[:chars]
    if not isinstance(prompt, list):
        return ""
    text = ""
    for one in prompt:
        text += _encode(one).decode("utf-8", "replace")
        if len(text) >= chars:
            break
    return text[:chars]
