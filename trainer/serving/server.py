"""A model behind OpenAI's protocol: our own decoder (`torch_engine`), or llama.cpp (`trainer.engines`). No torch here.

    python -m trainer serve --model FOLDER --name NAME --port PORT
    python -m trainer.engines serve --model FOLDER --gguf FILE --name NAME --port PORT

In: a `TextEngine`. Out: /v1/chat/completions, /v1/completions, /v1/models, /health, /metrics on
loopback, for the gateway. One thread computes. Requests at work take turns, one forward pass each, so that a short one
is not held up by a long one; text is streamed as it becomes final.
"""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field

from trainer.serving import asks
from trainer.serving.asks import Ask, Wrong
from trainer.serving.http import HttpReply, HttpRequest, as_json, listen
from trainer.serving.text_engine import Piece, TextEngine

KEY = "VLLM_API_KEY"  # the variable that serve.engines gives to every engine


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
    """Requests in, replies out."""

    def __init__(self, model: TextEngine, name: str, limits: EngineLimits, key: str) -> None:
        self.model, self.name, self.limits, self.key = model, name, limits, key
        self.work = AnswerThread(limits)
        self.is_draining = False

    async def handle(self, request: HttpRequest) -> HttpReply:
        """Answer one request by OpenAI's protocol; what is wrong with it becomes a status, and words."""
        path, is_asked = request.path, request.method == "POST"
        if path in ("/health", "/ping"):
            return HttpReply()
        if path == "/metrics":
            return HttpReply(body=self._metrics(), kind="text/plain; version=0.0.4")
        if path.startswith("/v1/") and self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            return as_json({"error": "Unauthorized"}, 401)
        if path == "/v1/models" and not is_asked:
            one = {"id": self.name, "object": "model", "created": int(time.time()), "owned_by": "slipway"}
            return as_json({"object": "list", "data": [{**one, "max_model_len": self.model.room}]})
        if path in ("/v1/chat/completions", "/v1/completions") and is_asked:
            try:
                return await self._generate(request, path == "/v1/chat/completions")
            except Wrong as wrong:
                return as_json(wrong.plain(), wrong.status)
        return as_json({"detail": "Not Found"}, 404)

    async def _generate(self, request: HttpRequest, is_chat: bool) -> HttpReply:
        try:
            said = json.loads(request.body)
        except (ValueError, RecursionError) as error:
            raise Wrong(f"the body is no JSON: {error}") from None
        model, most = self.model, self.limits.max_tokens
        ask = asks.read(said, is_chat, self.name, model.tokenizer, model.room, most, model.align)
        job = QueuedAnswer(model.answer(ask), asyncio.get_running_loop())
        if self.is_draining or not self.work.add(job):
            why = "The engine is currently busy and cannot accept new requests. Please try again later."
            raise Wrong(why, 503, "Service Unavailable")
        request.gone.add_done_callback(lambda _: setattr(job, "is_left", True))
        if ask.streams:
            first = await job.said.get()  # a request that is wrong from the start has a status of its own
            if first.error:
                raise Wrong(first.error, 500, "InternalServerError")
            return HttpReply(kind="text/event-stream; charset=utf-8", events=self._events(ask, job, first))
        text, piece = "", Piece("", 0)
        while piece.finish is None:
            wanted = asyncio.ensure_future(job.said.get())
            await asyncio.wait({wanted, request.gone}, return_when=asyncio.FIRST_COMPLETED)
            if not wanted.done():
                wanted.cancel()
                raise ConnectionResetError("the client has gone")
            piece = wanted.result()
            text += piece.text
        if piece.error:
            raise Wrong(piece.error, 500, "InternalServerError")
        return as_json(ask.whole(text, piece.finish, piece.tokens))

    async def _events(self, ask: Ask, job: QueuedAnswer, piece: Piece) -> AsyncIterator[bytes]:
        if ask.is_chat:
            yield event(ask.part("", None, first=True))
        try:
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
        finally:
            job.is_left = True

    def _metrics(self) -> bytes:
        """Return the metrics by vLLM's names, which the probe reads."""
        labels = f'{{engine="0",model_name="{self.name}"}}'
        values = {
            "vllm:num_requests_running": len(self.work.running),
            "vllm:num_requests_waiting": len(self.work.waiting),
            "vllm:generation_tokens_total": self.work.tokens,
        }
        return "".join(f"{name}{labels} {float(value)}\n" for name, value in values.items()).encode()


def event(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def serve(model: TextEngine, name: str, port: int, limits: EngineLimits) -> None:
    """Serve until SIGTERM; what is at work then goes on for `shutdown_s`."""
    engine, ended = EngineServer(model, name, limits, os.environ.get(KEY, "")), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    server = await listen(engine.handle, port)
    port = server.sockets[0].getsockname()[1]
    print(f"Starting server on http://127.0.0.1:{port}", file=sys.stderr, flush=True)
    print(f"listening on {port}", flush=True)
    await ended.wait()
    engine.is_draining = True
    until = time.monotonic() + limits.shutdown_s
    while (engine.work.running or engine.work.waiting) and time.monotonic() < until:
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.1)  # the last answers are being sent
    os._exit(0)  # without waiting for connections that stay open, nor for the thread
