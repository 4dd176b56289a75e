"""Model server with OpenAI's protocol, for the project's decoder (`torch_engine`) or llama.cpp (`trainer.engines`).

    python -m trainer serve --model FOLDER --name NAME --port PORT
    python -m trainer.engines serve --model FOLDER --gguf FILE --name NAME --port PORT

The server wraps a `TextEngine` and serves /v1/chat/completions, /v1/completions, /v1/models, /health and /metrics on
loopback, for the gateway. A single thread computes. Running requests take turns, one forward pass each: a long request
does not delay a short request. Text is streamed once final. No torch here.
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
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from trainer.errors import TrainerError
from trainer.serving import completion_request
from trainer.serving.completion_request import BadRequest, CompletionRequest
from trainer.serving.text_engine import TextEngine, TextPiece

KEY = "VLLM_API_KEY"  # environment variable with the API key, set by serve.engines for every engine
VARIANTS = "/slipway/variants"  # route of the controller of a service, as serve.variants.ROUTE
T = TypeVar("T")
MOST_BODY = 64 << 20  # bytes
KEEP_ALIVE_S = 86_400  # the gateway keeps connections open


@dataclass(frozen=True, kw_only=True)
class EngineLimits:
    max_seqs: int = 8
    """Maximum number of requests running at the same time."""
    max_queued: int = 64
    """Maximum number of waiting requests; further requests fail with status 503."""
    max_model_len: int = 0
    """Maximum tokens of a prompt and the answer together; 0 = the model's positions."""
    max_tokens: int = 0
    """Maximum tokens of an answer; 0 = as many as fit."""
    shutdown_s: float = 60.0
    """Seconds after SIGTERM for finishing running answers."""


@dataclass
class QueuedAnswer:
    """A running or waiting request."""

    pieces: Generator[TextPiece, None, None]
    loop: asyncio.AbstractEventLoop
    piece_queue: "asyncio.Queue[TextPiece]" = field(default_factory=asyncio.Queue)
    is_abandoned: bool = False  # True after the client's request has ended

    def send_piece(self, piece: TextPiece) -> None:
        self.loop.call_soon_threadsafe(self.piece_queue.put_nowait, piece)


class AnswerThread:
    """The compute thread with the running and waiting requests."""

    def __init__(self, limits: EngineLimits) -> None:
        self.limits = limits
        self.waiting, self.running = deque[QueuedAnswer](), list[QueuedAnswer]()
        self.tokens = 0
        self._some = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, job: QueuedAnswer) -> bool:
        """Add a request to the wait queue; return False if the queue is full."""
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
                if job.is_abandoned or self._one_pass(job):
                    job.pieces.close()  # otherwise an engine that computes in the background would continue
                    with self._some:
                        self.running.remove(job)

    def _one_pass(self, job: QueuedAnswer) -> bool:
        """Run one pass of a request; return True if the pass was the last."""
        try:
            piece = next(job.pieces)
        except Exception as error:  # fails only this request
            piece = TextPiece("", 0, "error", f"{type(error).__name__}: {error}")
        self.tokens += piece.tokens if piece.finish else 0
        job.send_piece(piece)
        return piece.finish is not None


class EngineServer:
    """ASGI application around a `TextEngine`."""

    def __init__(self, model: TextEngine, name: str, limits: EngineLimits, key: str) -> None:
        self.model, self.name, self.limits, self.key = model, name, limits, key
        self.variants: dict[str, str] = {}
        """Identity of each loaded variant by name, as the service calls the content."""
        self.work = AnswerThread(limits)
        self.is_draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        with contextlib.ExitStack() as leaving:  # cancels the computation when the request ends
            try:
                reply = await self._reply(request, leaving)
            except BadRequest as wrong:
                reply = as_json(wrong.to_dict(), wrong.status)
            except ClientDisconnect:
                return
            await reply(scope, receive, send)

    async def _reply(self, request: Request, leaving: contextlib.ExitStack) -> Response:
        """Return the response to a request in OpenAI's protocol. Raises BadRequest, ClientDisconnect."""
        path, is_asked = str(request.scope["path"]), request.method == "POST"
        if path in ("/health", "/ping"):
            return Response()
        if path == "/metrics":
            return Response(self._metrics(), media_type="text/plain; version=0.0.4")
        if (
            path.startswith(("/v1/", VARIANTS))
            and self.key
            and request.headers.get("authorization") != f"Bearer {self.key}"
        ):
            return as_json({"error": "Unauthorized"}, 401)
        if path == VARIANTS:
            return await self._change_variants(request)
        if path == "/v1/models" and not is_asked:
            one = {"object": "model", "created": int(time.time()), "owned_by": "slipway"}
            more = {**one, "max_model_len": self.model.room}
            return as_json({"object": "list", "data": [{"id": name, **more} for name in (self.name, *self.variants)]})
        if path in ("/v1/chat/completions", "/v1/completions") and is_asked:
            return await self._generate(request, leaving, path == "/v1/chat/completions")
        return as_json({"detail": "Not Found"}, 404)

    async def _generate(self, request: Request, leaving: contextlib.ExitStack, is_chat: bool) -> Response:
        try:
            said = json.loads(await _body(request))
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from None
        model, most = self.model, self.limits.max_tokens
        how = (self.name, model.tokenizer, model.room, most, model.align, self.variants)
        ask = completion_request.parse(said, is_chat, *how)
        job = QueuedAnswer(model.answer(ask), asyncio.get_running_loop())
        if self.is_draining or not self.work.add(job):
            why = "The engine is currently busy and cannot accept new requests. Please try again later."
            raise BadRequest(why, 503, "Service Unavailable")
        leaving.callback(setattr, job, "is_abandoned", True)
        # Wait for the first piece of a stream before responding, so that a failed request gets an error status of its
        # own.
        text, piece = await _while_connected(request, _text(job, 1 if ask.streams else 0))
        if piece.error:
            raise BadRequest(piece.error, 500, "InternalServerError")
        if ask.streams:
            return StreamingResponse(self._events(ask, job, piece), media_type="text/event-stream")
        assert piece.finish is not None
        return as_json(ask.completion(text, piece.finish, piece.tokens))

    async def _change_variants(self, request: Request) -> Response:
        """Load or unload a variant of the model, and return all variants. Raises BadRequest."""
        try:
            said = json.loads(await _body(request) or b"{}")
            if request.method == "POST":
                name, folder, identity = (str(said[one]) for one in ("name", "source", "identity"))
                if "://" in folder:
                    raise BadRequest(f"{folder}: this engine loads variants from folders of its machine only")
                await asyncio.to_thread(self.model.load_variant, name, Path(folder))
                self.variants[name] = identity
            elif request.method == "DELETE" and self.variants.pop(str(said["name"]), ""):
                self.model.unload_variant(str(said["name"]))
        except (ValueError, KeyError, TypeError) as error:
            raise BadRequest(f"the body is malformed: {error}") from None
        except TrainerError as error:
            raise BadRequest(str(error)) from None
        return as_json({"variants": self.variants})

    async def _events(self, ask: CompletionRequest, job: QueuedAnswer, piece: TextPiece) -> AsyncIterator[bytes]:
        if ask.is_chat:
            yield event(ask.chunk("", None, first=True))
        while True:
            if piece.error:
                yield event(BadRequest(piece.error, 500, "InternalServerError").to_dict())
                break
            if piece.text or piece.finish:
                yield event(ask.chunk(piece.text, piece.finish))
            if piece.finish:
                break
            piece = await job.piece_queue.get()
        if ask.tells_usage and not piece.error:
            yield event({**ask.head, "choices": [], "usage": ask.usage(piece.tokens)})
        yield b"data: [DONE]\n\n"

    def _metrics(self) -> bytes:
        """Return the metrics under vLLM's names, as read by the probe."""
        labels = f'{{engine="0",model_name="{self.name}"}}'
        values = {
            "vllm:num_requests_running": len(self.work.running),
            "vllm:num_requests_waiting": len(self.work.waiting),
            "vllm:generation_tokens_total": self.work.tokens,
        }
        return "".join(f"{name}{labels} {float(value)}\n" for name, value in values.items()).encode()


def as_json(value: object, status: int = 200) -> Response:
    """Return a JSON response in ASCII: client text may contain lone surrogates, which UTF-8 cannot encode."""
    return Response(json.dumps(value).encode(), status, media_type="application/json")


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def _body(request: Request) -> bytes:
    """Return the body of a request. Raises BadRequest for more than MOST_BODY bytes, ClientDisconnect."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MOST_BODY:
            raise BadRequest(f"the body is larger than {MOST_BODY} bytes", 413, "RequestEntityTooLarge")
    return bytes(body)


async def _text(job: QueuedAnswer, pieces: int) -> tuple[str, TextPiece]:
    """Return the text of the next `pieces` pieces of an answer (0 = all pieces), and the last of these pieces."""
    text, count = "", 0
    while True:
        piece = await job.piece_queue.get()
        text, count = text + piece.text, count + 1
        if piece.finish is not None or count == pieces:
            return text, piece


async def _while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`. Raises ClientDisconnect if the client disconnects first."""

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
    """Uvicorn server without signal handlers: the process handles signals, so that answers continue after SIGTERM."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serve_in_background(engine: EngineServer, port: int) -> AsyncIterator[int]:
    """Serve on loopback, and yield the port; port 0 selects a free port."""
    # h11 limits the size of the request head; httptools does not.
    config = uvicorn.Config(
        engine,
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        date_header=False,
    )
    with socket.create_server(("127.0.0.1", port), backlog=1024) as listener:
        server = _Listener(config)
        running = asyncio.create_task(server.serve([listener]))
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            await running


async def serve(model: TextEngine, name: str, port: int, limits: EngineLimits) -> None:
    """Serve until SIGTERM or SIGINT, then finish running requests for at most `shutdown_s` seconds."""
    engine, ended = EngineServer(model, name, limits, os.environ.get(KEY, "")), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serve_in_background(engine, port) as port:
        print(f"Starting server on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
        print(f"listening on {port}", flush=True)
        await ended.wait()
        engine.is_draining = True
        until = time.monotonic() + limits.shutdown_s
        while (engine.work.running or engine.work.waiting) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.1)  # time for sending the last answers
        os._exit(0)  # do not wait for open connections or the compute thread
