"""The ASGI application of the page: static files, views as JSON or as event streams, and the token exchange.

GET  /                     the page without user data
POST /api/session          {"token": ...} -> the session cookie
GET  /api/VIEW?...         the parts of a view
GET  /api/VIEW?...&live=1  the same as server-sent events: first all parts, then changed parts
"""

import asyncio
import contextlib
import hashlib
import json
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from infra.errors import SlipwayError
from packs.page.views.access import HEADERS, Gate
from packs.page.views.acts import Acts
from packs.page.views.chat import VIEW as CHAT
from packs.page.views.chat import ChatBackend
from packs.page.views.page_context import PageContext
from packs.page.views.sections import VIEWS
from packs.page.views.sections.ask import View, ViewQuery
from store import untrusted_input
from store.manifest import StoreError

STATIC = Path(__file__).parent / "static"
BEAT_S = 15.0  # keep-alive interval of a silent stream in seconds, to detect closed browsers
MOST_BODY_BYTES = 1 << 20
LOOK_ENDS = b'data: {"part":"","value":null}\n\n'  # end marker: the browser draws all parts of a look together

Expired = Callable[[], None]


class Guarded:
    """Middleware that runs the access check before any route and adds security headers to responses."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app, self.gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope)
        refusal = self.gate.refuse(scope["method"], scope["path"], dict(request.headers), request.cookies)
        if refusal:
            await _plain(JSONResponse({"error": refusal.why}, refusal.status))(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                known = {name.lower() for name, _ in message["headers"]}
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *(one for one in more if one[0] not in known)]}
            await send(message)

        await self.app(scope, receive, with_headers)


def make(context: PageContext, gate: Gate, expired: Expired = lambda: None) -> ASGIApp:
    """Return the application. `expired` is called for each session request with a wrong or used token."""

    async def front(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    async def session(request: Request) -> Response:
        body = await _json(request)
        value = gate.exchange(str(body.get("token", "")))
        if value is None:
            expired()
            return JSONResponse({"error": "this link was already used; the terminal of inv ui shows a new link"}, 403)
        reply = JSONResponse({"ok": True})
        reply.set_cookie(gate.cookie, value, httponly=True, samesite="strict", path="/")
        return reply

    def route(name: str, view: View) -> Route:
        async def answer(request: Request) -> Response:
            asked = ViewQuery(dict(request.query_params))
            if asked.word("live"):
                return StreamingResponse(_changes(view, context, asked, request), media_type="text/event-stream")
            status, parts = await run_in_threadpool(_look, view, context, asked)
            return JSONResponse(parts, status)

        return Route(f"/api/{name}", answer)

    talks, acts = ChatBackend(context), Acts(context)

    async def chat(request: Request) -> Response:
        return StreamingResponse(talks.answer(await _json(request)), media_type="text/event-stream")

    async def act(request: Request) -> Response:
        body = await _json(request)
        try:
            return JSONResponse(await run_in_threadpool(acts.handle, body))
        except (SlipwayError, StoreError) as error:
            return JSONResponse({"error": str(error)}, 400)

    @contextlib.asynccontextmanager
    async def life(_: Starlette) -> AsyncIterator[None]:
        yield
        await run_in_threadpool(talks.close)

    views = {**VIEWS, "models": CHAT}
    routes = [
        Route("/", front),
        Route("/api/session", session, methods=["POST"]),
        *(route(name, view) for name, view in views.items()),
        Route("/api/chat", chat, methods=["POST"]),
        Route("/api/acts", act, methods=["POST"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Guarded(Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: _refused}), gate)


async def _json(request: Request) -> Mapping[str, Any]:
    """Return the JSON object in the body of a request. Raise HTTPException 400 for an oversized or invalid body."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY_BYTES:
            raise HTTPException(400, f"the request has more than {MOST_BODY_BYTES} bytes")
    try:
        return untrusted_input.mapping(body, MOST_BODY_BYTES)
    except untrusted_input.UnusableDocument as error:
        raise HTTPException(400, f"the request cannot be read: {error}") from None


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code)


def _look(view: View, context: PageContext, asked: ViewQuery) -> tuple[int, dict[str, Any]]:
    """Return HTTP status and parts of a view; an error becomes the part `error`."""
    try:
        return 200, view.render(context, asked)
    except (SlipwayError, StoreError, OSError) as error:
        return 400, {"error": str(error)}
    except Exception as error:  # Show the error on the page rather than an empty page.
        traceback.print_exc()
        return 500, {"error": f"{type(error).__name__}: {error}"}


async def _changes(view: View, context: PageContext, asked: ViewQuery, request: Request) -> AsyncIterator[bytes]:
    """Yield changed parts of a view as server-sent events, and a keep-alive comment after `BEAT_S` without changes."""
    known: dict[str, bytes] = {}
    silent_s = 0.0
    while not await request.is_disconnected():
        found = await run_in_threadpool(_pieces, view, context, asked, known)
        for piece in found:
            yield piece
        silent_s = 0.0 if found else silent_s + view.every_s
        if silent_s > BEAT_S:
            silent_s = 0.0
            yield b":\n\n"
        await asyncio.sleep(view.every_s)


def _pieces(view: View, context: PageContext, asked: ViewQuery, known: dict[str, bytes]) -> list[bytes]:
    """Return the events for parts that differ from the hashes in `known`, and update `known`."""
    _, parts = _look(view, context, asked)
    if "error" not in parts:
        parts = {"error": "", **parts}
        for gone in [name for name in known if name not in parts]:
            parts[gone] = None
    found = []
    for name, value in parts.items():
        text = json.dumps(value, allow_nan=False, separators=(",", ":")).encode()
        mark = hashlib.blake2b(text, digest_size=16).digest()
        if known.get(name) != mark:
            known[name] = mark
            found.append(b'data: {"part":%s,"value":%s}\n\n' % (json.dumps(name).encode(), text))
    return [*found, LOOK_ENDS] if found else []


def _plain(reply: Response) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    for name, value in HEADERS.items():
        reply.headers[name] = value
    return reply
