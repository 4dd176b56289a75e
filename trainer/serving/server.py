"""A model behind OpenAI's protocol: our own decoder (`torch_engine`), or llama.cpp (`trainer.engines`). No torch here.

    python -m trainer serve --model FOLDER --name NAME --port PORT
    python -m trainer.engines serve --model FOLDER --gguf FILE --name NAME --port PORT

In: a `TextEngine`. Out: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics on
loopback, for the gateway. One thread computes. Requests at work take turns, one forward pass each, so that a short one
is not held up by a long one; text is streamed as it becomes final.
"""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trainer.serving import asks
from trainer.serving.asks import Ask, Wrong
from trainer.serving.text_engine import Piece, TextEngine

KEY = "VLLM_API_KEY"  # the variable that serve.engines gives to every engine
T = TypeVar("T")
MOST_BODY = 64 << 20  # bytes
KEEP_ALIVE_S = 86_400  # the gateway keeps its connections


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    max_seqs: int = 8
    """Requests that are answered at the same time."""
    max_queued: int = 64
    """Requests that may wait; one more is told that the engine is busy."""
    max_model_len: int = 0
    """Tokens of a prompt and its answer at most; 0 = the model's positions."""
    max_tokens: int = 0
    """Tokens of an answer at most; 0 = as many as fit."""
    shutdown_s: float = 60.0
    """Seconds after SIGTERM during which answers are finished."""


@dataclass
class QueuedAnswer:
    """A request at work, or waiting."""

    pieces: Generator[Piece, None, None]
    loop: asyncio.AbstractEventLoop
    said: "asyncio.Queue[Piece]" = field(default_factory=asyncio.Queue)
    is_left: bool = False  # the output is closed

    def tell(self, piece: Piece) -> None:
        self.loop.call_soon_threadsafe(self.said.put_nowait, piece)


class AnswerThread:
    """The thread that computes, and what it has to do."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.waiting, self.running = deque[QueuedAnswer](), list[QueuedAnswer]()
        self.tokens = 0
        self._some = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, job: QueuedAnswer) -> bool:
        """Add a request to the line; tell whether there was room for it."""
        with self._some:
            if len(self.waiting) + len(self.running) >= self.limits.max_seqs + self.limits.max_queued:
                return False
            self.waiting.append(job)
            self._some.notify()
            return True

    def _run(self) -> None:
        while True:
            with self._some:
                self._some.wait_for(lambda: self.waiting or self.running)
                while self.waiting and len(self.running) < self.limits.max_seqs:
                    self.running.append(self.waiting.popleft())
                some = list(self.running)
            for job in some:
                if job.is_left or self._one_pass(job):
                    job.pieces.close()  # otherwise an engine that computes by itself would go on
                    with self._some:
                        self.running.remove(job)

    def _one_pass(self, job: QueuedAnswer) -> bool:
        """Do one pass; tell whether it was its last."""
        try:
            piece = next(job.pieces)
        except Exception as error:  # an error of this request; the others go on
            piece = Piece("", 0, "error", f"{type(error).__name__}: {error}")
        self.tokens += piece.tokens if piece.finish else 0
        job.tell(piece)
        return piece.finish is not None


class EngineServer:
    """An ASGI application: requests in, replies out."""

    def __init__(self, model: TextEngine, name: str, limits: EngineLimits, key: str) -> None:
        self.model, self.name, self.limits, self.key = model, name, limits, key
        self.work = AnswerThread(limits)
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.ExitStack() as leaving:  # however the request ends, nothing more is computed for it
            try:
                reply = await self._reply(request, leaving)
            except Wrong as wrong:
                reply = as_json(wrong.plain(), wrong.status)
            except ClientDisconnect:
                return
            await reply(scope, receive, send)

    async def _reply(self, request: Request, leaving: contextlib.ExitStack) -> Response:
        """Answer one request by OpenAI's protocol. Raises Wrong, ClientDisconnect."""
        path, is_asked = str(request.scope["path"]), request.method == "POST"
        if path in ("/health", "/ping"):
            return Response()
        if path == "/metrics":
            return Response(self._metrics(), media_type="text/plain; version=0.0.4")
        if path.startswith("/v1/") and self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return as_json({"error": "Unauthorized"}, 401)
        if path == "/v1/models" and not is_asked:
            one = {"id": self.name, "object": "model", "created": int(time.time()), "owned_by": "slipway"}
            return as_json({"object": "list", "data": [{**one, "max_model_len": self.model.room}]})
        if path in ("/v1/chat/completions", "/v1/completions") and is_asked:
            return await self._generate(request, leaving, path == "/v1/chat/completions")
        return as_json({"detail": "Not Found"}, 404)

    async def _generate(self, request: Request, leaving: contextlib.ExitStack, is_chat: bool) -> Response:
        try:
            said = json.loads(await _body(request))
        except (ValueError, RecursionError) as error:
            raise Wrong(f"the body is no JSON: {error}") from None
        model, most = self.model, self.limits.max_tokens
        ask = asks.read(said, is_chat, self.name, model.tokenizer, model.room, most, model.align)
        job = QueuedAnswer(model.answer(ask), asyncio.get_running_loop())
        if self.is_draining or not self.work.add(job):
            why = "The engine is currently busy and cannot accept new requests. Please try again later."
            raise Wrong(why, 503, "Service Unavailable")
        leaving.callback(setattr, job, "is_left", True)
        # The first piece of a stream is awaited, so that a request that is wrong has a status of its own.
        text, piece = await _while_connected(request, _text(job, 1 if ask.streams else 0))
        if piece.error:
            raise Wrong(piece.error, 500, "InternalServerError")
        if ask.streams:
            return StreamingResponse(self._events(ask, job, piece), media_type="text/event-stream")
        assert piece.finish is not None
        return as_json(ask.whole(text, piece.finish, piece.tokens))

    async def _events(self, ask: Ask, job: QueuedAnswer, piece: Piece) -> AsyncIterator[bytes]:
        if ask.is_chat:
            yield event(ask.part("", None, first=True))
        while True:
            if piece.error:
                yield event(Wrong(piece.error, 500, "InternalServerError").plain())
                break
            if piece.text or piece.finish:
                yield event(ask.part(piece.text, piece.finish))
            if piece.finish:
                break
            piece = await job.said.get()
        if ask.tells_usage and not piece.error:
            yield event({**ask.head, "choices": [], "usage": ask.usage(piece.tokens)})
        yield b"data: [DONE]\n\n"

    def _metrics(self) -> bytes:
        """Return the metrics by vLLM's names, which the probe reads."""
        labels = f'{{engine="0",model_name="{self.name}"}}'
        values = {
            "vllm:num_requests_running": len(self.work.running),
            "vllm:num_requests_waiting": len(self.work.waiting),
            "vllm:generation_tokens_total": self.work.tokens,
        }
        return "".join(f"{name}{labels} {float(value)}\n" for name, value in values.items()).encode()


def as_json(value: object, status: int = 200) -> Response:
    """Return a reply in ASCII: a text of a client may hold halves of characters, which UTF-8 has not."""
    return Response(json.dumps(value).encode(), status, media_type="application/json")


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises Wrong for one that is too large, ClientDisconnect."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY:
            raise Wrong(f"a body has at most {MOST_BODY} bytes", 413, "RequestEntityTooLarge")
    return bytes(body)


async def _text(job: QueuedAnswer, pieces: int) -> tuple[str, Piece]:
    """Return the text of so many pieces of an answer, of all for 0, and the last of these pieces."""
    text, count = "", 0
    while True:
        piece = await job.said.get()
        text, count = text + piece.text, count + 1
        if piece.finish is not None or count == pieces:
            return text, piece


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raises ClientDisconnect where the client leaves before."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(leave())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()


class _Listener(uvicorn.Server):
    """A server whose process handles its signals itself: answers at work go on after SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def listening(engine: EngineServer, port: int) -> AsyncIterator[int]:
    """Serve on loopback, and yield the port; 0 = any that is free."""
    # h11 bounds the head of a request, httptools does not.
    config = uvicorn.Config(
        engine, http="h11", loop="asyncio", ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S, server_header=False, date_header=False,
    )  # fmt: skip
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        server = _Listener(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def serve(model: TextEngine, name: str, port: int, limits: EngineLimits) -> None:
    """Serve until SIGTERM; what is at work then goes on for `shutdown_s`."""
    engine, ended = EngineServer(model, name, limits, os.environ.get(KEY, "")), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with listening(engine, port) as port:
        print(f"Starting server on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        print(f"listening on {port}", flush=True)
        await ended.wait()
        engine.is_draining = True
        until = time.monotonic() + limits.shutdown_s
        while (engine.work.running or engine.work.waiting) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)  # the last answers are being sent
        os._exit(0)  # without waiting for connections that stay open, nor for the thread
