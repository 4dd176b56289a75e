"""Scripted engine with vLLM's routes, replies and failures but no model, for tests, rehearsals and benchmarks.

    python -m serve.fake --port 8101 --script '{"first_token_s": 0.1, "fail": "die", "after_tokens": 3}'

A FakeScript controls the engine: given at startup, or changed later by POST /fake/script with only the changed keys.
Replies have the shape of vLLM 0.32; GET /fake/seen returns counters of past requests. The process prints `listening on
PORT` once the port is open, which for vLLM means a loaded model. The text repeats `words`, so a test can see which
release answered. The engine runs as a real process like vLLM, with a real SIGTERM, worker processes and crashes, and
listens on loopback only.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

from serve import variants
from serve.loops import run

FAILURES = ("", "hang", "die", "error", "cut", "500", "503", "busy", "garbage")


@dataclass(frozen=True, kw_only=True)
class FakeScript:
    """Behavior of the engine; durations in seconds."""

    model: str = "fake"
    words: tuple[str, ...] = ("I", " am", " fake")
    root: str = "/models/fake"  # folder in the reply of /v1/models
    max_model_len: int = 4096
    max_new_tokens: int = 0
    """Limit of tokens per answer, like --override-generation-config; 0 = no limit."""
    api_key: str = ""  # guards /v1 only; "" = the value of VLLM_API_KEY; both as in vLLM

    start_s: float = 0.0
    """Seconds until the port opens."""
    crash: int | None = None
    """Exit code of a crash in place of opening the port."""
    worker: bool = False
    """Start a worker in a separate session that ignores SIGTERM, like an orphaned engine core."""

    first_token_s: float = 0.0
    token_s: float = 0.0
    max_seqs: int = 256
    """Requests computed at once; further requests wait."""
    max_queued: int = 1 << 30
    """Maximum number of waiting requests; the engine refuses further requests as busy."""
    shutdown_s: float = 0.0
    """--shutdown-timeout: seconds after SIGTERM for streams to finish. 0 = streams end with an error event."""

    fail: str = ""
    """hang: send no more tokens, /health stays 200. die: exit the process. error: send an error event and [DONE],
    /health 503. cut: close the connection. 500, 503: answer with this status. busy: send the 503 of a full engine.
    garbage: send bytes that are no HTTP."""
    after_tokens: int = 0
    """Tokens before the failure; a non-streamed answer fails at once."""
    times: int = -1
    """Number of requests that fail; -1 = all."""
    only: str = ""
    """Text in the body of failing requests; "" = any request."""
    held: bool = False
    """The failure waits until this is false."""

    def __post_init__(self) -> None:
        if self.fail not in FAILURES:
            raise ValueError(f"fail is {self.fail!r}; available: {', '.join(map(repr, FAILURES))}")


class EngineDead(Exception):
    """Engine core failure: the front process still answers."""


class FakeEngine:
    """A fake vLLM server; `seen` holds the counters."""

    def __init__(self, script: FakeScript) -> None:
        self.script = script
        self.is_dead = False
        self.is_draining = False
        self.seen = {"requests": 0, "running": 0, "waiting": 0, "finished": 0, "aborted": 0, "tokens": 0, "failed": 0}
        self.last_headers: dict[str, str] = {}
        self.last_body: Any = None
        self.variants: dict[str, str] = {}  # identity by name
        self._room = asyncio.Condition()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.path
        if path in ("/health", "/ping"):
            return web.Response(status=503 if self.is_dead else 200)
        if path == "/fake/script":
            said = msgspec.json.decode(await request.content.read())
            self.script = msgspec.convert({**asdict(self.script), **said}, FakeScript)
            return web.json_response(asdict(self.script))
        if path == "/fake/seen":
            return web.json_response({**self.seen, "headers": self.last_headers, "body": self.last_body})
        if path == "/metrics":
            return web.Response(text=self._metrics())
        if path == "/version":
            return web.json_response({"version": "0.32.0"})
        key = self.script.api_key
        if (
            path.startswith(("/v1/", variants.ROUTE))
            and key
            and request.headers.get("Authorization") != f"Bearer {key}"
        ):
            return web.json_response({"error": "Unauthorized"}, status=401)
        if path == variants.ROUTE:
            return await self._change_variants(request)
        if path == "/v1/models" and request.method == "GET":
            return web.json_response(self._models())
        if path in ("/v1/chat/completions", "/v1/completions") and request.method == "POST":
            return await self._generate(request, is_chat="chat" in path)
        if path in ("/invocations", "/collective_rpc", "/tokenize", "/pause"):
            return web.json_response({"reached": path})  # internal paths that clients must not reach from outside
        return web.json_response({"detail": "Not Found"}, status=404)

    async def _generate(self, request: web.BaseRequest, is_chat: bool) -> web.StreamResponse:
        script = self.script
        self.seen["requests"] += 1
        body = await request.content.read()  # no size limit
        try:
            ask = msgspec.json.decode(body)
            model, tokens = ask.get("model", script.model), ask.get("max_completion_tokens") or ask.get("max_tokens")
        except (msgspec.DecodeError, AttributeError) as error:
            return _error(400, "Bad Request", f"[{{'type': 'json_invalid', 'msg': {str(error)!r}}}]")
        self.last_headers, self.last_body = {name.lower(): value for name, value in request.headers.items()}, ask
        if model not in (script.model, *self.variants):
            return _error(404, "NotFoundError", f"The model `{model}` does not exist.", "model")
        tokens = 16 if tokens is None else int(tokens)  # 16.0 is 16, as in vLLM
        if tokens > script.max_model_len:
            what = f"max_tokens={tokens} cannot be greater than max_model_len={script.max_model_len}."
            return _error(400, "BadRequestError", what, "max_tokens")
        tokens = min(tokens, script.max_new_tokens or tokens)
        options = ask.get("stream_options")
        if not isinstance(options, dict | None):
            what = "[{'type': 'model_attributes_type', 'loc': ('body', 'stream_options')}]"
            return _error(400, "Bad Request", what)
        if options and not ask.get("stream"):
            return _error(400, "BadRequestError", "Stream options can only be defined when `stream=True`.")
        if self.is_draining:
            return _error(500, "InternalServerError", "cannot schedule new futures after shutdown")
        if self.is_dead:
            return _error(500, "InternalServerError", "EngineCore encountered an issue. See stack trace (above).")
        fail = self._failure(body)
        if fail in ("500", "503"):
            self.seen["failed"] += 1
            return _error(int(fail), "InternalServerError", "EngineCore encountered an issue.")
        if fail == "garbage" and request.transport is not None:
            self.seen["failed"] += 1
            request.transport.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            request.transport.close()
            return web.Response()
        inside = self.seen["running"] + self.seen["waiting"]
        if fail == "busy" or inside >= script.max_seqs + script.max_queued:
            what = "The engine is currently busy and cannot accept new requests. Please try again later or on a"
            return _error(503, "Service Unavailable", f"{what} different instance.")
        if model in self.variants:
            script = replace(script, model=model, words=(f" {model}",))
        reply = FakeReply(script, is_chat, bool(ask.get("stream")), tokens, ask)
        async with self._room:
            self.seen["waiting"] += 1
            try:
                await self._room.wait_for(lambda: self.seen["running"] < script.max_seqs)
            finally:
                self.seen["waiting"] -= 1
            self.seen["running"] += 1
        try:
            response = await self._answer(request, reply, fail)
            self.seen["finished"] += 1
            return response
        except asyncio.CancelledError:
            self.seen["aborted"] += 1
            raise
        finally:
            self.seen["running"] -= 1
            async with self._room:
                self._room.notify()

    async def _change_variants(self, request: web.BaseRequest) -> web.Response:
        """Load or unload a variant; a folder without files is refused."""
        said = msgspec.json.decode(await request.content.read() or b"{}")
        if request.method == "POST":
            if not any(Path(said["source"]).glob("*")):
                return _error(400, "BadRequestError", f"{said['source']} has no files")
            self.variants[said["name"]] = said["identity"]
        elif request.method == "DELETE":
            self.variants.pop(said["name"], None)
        return web.json_response({"variants": self.variants})

    async def _answer(self, request: web.BaseRequest, reply: "FakeReply", fail: str) -> web.StreamResponse:
        if not reply.streams:
            if fail:
                await self._fail(request, fail)
            seconds = self.script.first_token_s + self.script.token_s * (reply.tokens - 1)
            if seconds > 0:
                await asyncio.sleep(seconds)
            self.seen["tokens"] += reply.tokens
            return web.Response(body=reply.whole(), content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        try:
            await self._stream(request, response, reply, fail)
        except EngineDead:
            what = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            said = {"error": {"message": what, "type": "InternalServerError", "param": None, "code": 500}}
            if not response.prepared:
                await response.prepare(request)
            await response.write(b"data: " + msgspec.json.encode(said) + b"\n\ndata: [DONE]\n\n")
        return response

    async def _stream(
        self, request: web.BaseRequest, response: web.StreamResponse, reply: "FakeReply", fail: str
    ) -> None:
        for number in range(reply.tokens):
            if fail and number == self.script.after_tokens:
                await self._fail(request, fail)
            pause_s = self.script.token_s if number else self.script.first_token_s
            if pause_s > 0:
                await asyncio.sleep(pause_s)
            if self.is_dead:
                raise EngineDead
            if not response.prepared:
                await response.prepare(request)
                if reply.is_chat:
                    await response.write(reply.opening())
            self.seen["tokens"] += 1
            await response.write(reply.chunk(number))
        await response.write(reply.closing())

    def _failure(self, body: bytes) -> str:
        """Return the scripted failure for a request with this body, and decrement `times`; "" without a failure."""
        script = self.script
        if not script.fail or not script.times or script.only.encode() not in body:
            return ""
        if script.times > 0:
            self.script = replace(script, times=script.times - 1)
        return script.fail

    async def _fail(self, request: web.BaseRequest, fail: str) -> None:
        while self.script.held:
            await asyncio.sleep(0.01)
        self.seen["failed"] += 1
        if fail == "hang":
            await asyncio.Event().wait()
        elif fail == "die":
            os._exit(1)
        elif fail == "error":
            self.is_dead = True
            raise EngineDead
        elif fail == "cut" and request.transport is not None:
            request.transport.abort()
            raise ConnectionResetError("cut by the script")

    def _models(self) -> dict[str, Any]:
        one = {"id": self.script.model, "object": "model", "created": int(time.time()), "owned_by": "vllm"}
        more = {"root": self.script.root, "parent": None, "max_model_len": self.script.max_model_len}
        return {"object": "list", "data": [{**one, **more, "permission": []}]}

    def _metrics(self) -> str:
        labels = f'{{engine="0",model_name="{self.script.model}"}}'
        values = {
            "vllm:num_requests_running": self.seen["running"],
            "vllm:num_requests_waiting": self.seen["waiting"],
            "vllm:kv_cache_usage_perc": min(1.0, self.seen["running"] / self.script.max_seqs),
            "vllm:generation_tokens_total": self.seen["tokens"],
        }
        return "".join(f"{name}{labels} {float(value)}\n" for name, value in values.items())


class FakeReply:
    """Answer to a request, in vLLM's shapes."""

    def __init__(self, script: FakeScript, is_chat: bool, streams: bool, tokens: int, ask: dict[str, Any]) -> None:
        self.is_chat, self.streams, self.tokens = is_chat, streams, tokens
        self.words = script.words
        prefix, kind = ("chatcmpl", "chat.completion") if is_chat else ("cmpl", "text_completion")
        self.kind = kind + (".chunk" if streams and is_chat else "")
        self.head = {"id": f"{prefix}-{os.urandom(8).hex()}", "object": self.kind, "created": int(time.time())}
        self.head["model"] = script.model
        self.usage = {"prompt_tokens": 8, "total_tokens": 8 + tokens, "completion_tokens": tokens}
        self.tells_usage = bool((ask.get("stream_options") or {}).get("include_usage"))

    def word(self, number: int) -> str:
        return self.words[number % len(self.words)]

    def whole(self) -> bytes:
        text = "".join(self.word(number) for number in range(self.tokens))
        part: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        return msgspec.json.encode({**self.head, "choices": [self._choice(part, "length")], "usage": self.usage})

    def opening(self) -> bytes:
        return self._event([self._choice({"delta": {"role": "assistant", "content": ""}}, None)])

    def chunk(self, number: int) -> bytes:
        word, last = self.word(number), number + 1 == self.tokens
        part: dict[str, Any] = {"delta": {"content": word}} if self.is_chat else {"text": word}
        return self._event([self._choice(part, "length" if last else None)])

    def closing(self) -> bytes:
        usage = self._event([], usage=self.usage) if self.tells_usage else b""
        return usage + b"data: [DONE]\n\n"

    def _choice(self, part: dict[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": 0, **part, "logprobs": None, "finish_reason": finish, "stop_reason": None}

    def _event(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + msgspec.json.encode({**self.head, "choices": choices, **more}) + b"\n\n"


def _error(status: int, kind: str, message: str, param: str | None = None) -> web.Response:
    said = {"error": {"message": message, "type": kind, "param": param, "code": status}}
    return web.json_response(said, status=status)


WORKER = """
import os, signal, sys, time
if os.fork(): sys.exit()
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").write(str(os.getpid()))
while True: time.sleep(3600)
"""


async def serve(script: FakeScript, port: int, worker_file: Path | None) -> None:
    if script.worker:
        assert worker_file is not None
        command = (sys.executable, "-c", WORKER, str(worker_file))
        await (await asyncio.create_subprocess_exec(*command)).wait()
    print("Loading weights took 0.00 seconds", file=sys.stderr, flush=True)  # vLLM's progress line
    await asyncio.sleep(script.start_s)
    if script.crash is not None:
        print("RuntimeError: EngineCore failed to start.\n[shutdown] complete", file=sys.stderr, flush=True)
        sys.exit(script.crash)
    engine = FakeEngine(script)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    runner = web.ServerRunner(web.Server(engine.handle, handler_cancellation=True, access_log=None))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, backlog=1024).start()
    print(f"Starting vLLM server on http://127.0.0.1:{runner.addresses[0][1]}", file=sys.stderr, flush=True)
    print(f"listening on {runner.addresses[0][1]}", flush=True)
    await ended.wait()
    engine.is_draining = True
    until = time.monotonic() + engine.script.shutdown_s
    while engine.seen["running"] and time.monotonic() < until:
        await asyncio.sleep(0.02)
    engine.is_dead = True  # running requests end with an error at the next token
    while engine.seen["running"] and time.monotonic() < until + 1:
        await asyncio.sleep(0.02)
    os._exit(0)  # like vLLM's front process, which does not wait for open connections


def read_script(text: str) -> FakeScript:
    """Return the script in a JSON text. Raises ValueError for unknown keys."""
    said = json.loads(text)
    unknown = set(said) - {one.name for one in fields(FakeScript)}
    if unknown:
        raise ValueError(f"a script has no {', '.join(sorted(unknown))}")
    return msgspec.convert(said, FakeScript)


def main() -> None:
    parser = argparse.ArgumentParser(prog="serve.fake")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--script", type=read_script, default=FakeScript())
    parser.add_argument("--worker-file", type=Path, help="where a worker writes its pid")
    words = parser.parse_args()
    script = replace(words.script, api_key=words.script.api_key or os.environ.get("VLLM_API_KEY", ""))
    run(serve(script, words.port, words.worker_file))


if __name__ == "__main__":
    main()
