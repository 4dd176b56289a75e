"""Programs of other people behind a gateway: http.server, Starlette under uvicorn, and aiohttp."""

import asyncio
import contextlib
import http.server
import json
import threading
from collections.abc import AsyncIterator, Iterator

import uvicorn
from aiohttp import WSMsgType, web
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from serve.gateway.http.certificate import Certificate, Tls
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from serve.gateway.routing import Target
from serve.gateway.server import Gateway


@contextlib.asynccontextmanager
async def gateway(*ports: int, keys: Keys | None = None, tls: Tls | None = None, **limits) -> AsyncIterator[str]:
    """Yield the address of a gateway in front of programs at these ports; in the end no request may be counted."""
    front = Gateway(GatewayLimits(any_route=True, slow_start_s=0.001, **limits), keys or Keys({}))
    if tls is not None:
        front.set_tls(Certificate(tls).context)
    port = await front.start("127.0.0.1", 0)
    front.replace(Target(replica_id=f"r{n}", url=f"http://127.0.0.1:{one}") for n, one in enumerate(ports))
    try:
        yield f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        for _ in range(3000):
            if front._proxy.in_flight == 0:
                break
            await asyncio.sleep(0.01)
        assert front._proxy.in_flight == 0
        assert [slot.in_flight for slot in front.turns.fleet.slots.values()] == [0] * len(ports)
    finally:
        await front.stop(0)


class Plain(http.server.BaseHTTPRequestHandler):
    """A program on the standard library, which reads no chunks and answers HTTP/1.0."""

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        said = {"method": self.command, "path": self.path, "body": body.decode("latin-1"), "head": self.headers.items()}
        text = json.dumps(said).encode()
        self.send_response(200, "Fine indeed")
        for name, value in (("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2"), ("X-Own", "yes")):
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = answer

    def log_message(self, *words):
        pass


@contextlib.contextmanager
def plain(handler=Plain) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def echo(request: Request) -> Response:
    size, first = 0, b""
    async for part in request.stream():
        size, first = size + len(part), first or part[:20]
    return JSONResponse({
        "size": size, "first": first.decode("latin-1"), "url": str(request.url), "client": request.client.host,
        "head": [[one.decode("latin-1") for one in pair] for pair in request.headers.raw],
    })  # fmt: skip


async def events(request: Request) -> Response:
    async def lines():
        for number in range(3):
            yield f"id: {number}\ndata: {number}\n\n"
            await asyncio.sleep(0.05)

    return StreamingResponse(lines(), media_type="text/event-stream")


async def endless(request: Request) -> Response:
    async def lines():
        while True:
            yield b"x" * 1000
            await asyncio.sleep(0.01)

    return StreamingResponse(lines(), media_type="text/plain")


async def moved(request: Request) -> Response:
    return RedirectResponse(request.url_for("echo"), 307)


async def empty(request: Request) -> Response:
    return Response(None, int(request.query_params["code"]), {"ETag": '"1"'})


def starlette(folder) -> Starlette:
    async def file(request: Request) -> Response:
        return FileResponse(folder / "page.bin", filename="page é.bin")

    anything = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
    return Starlette(routes=[
        Route("/echo", echo, methods=anything), Route("/events", events), Route("/endless", endless),
        Route("/moved", moved, methods=anything), Route("/empty", empty), Route("/file", file),
        Route("/health", echo), Route("/metrics", echo), Mount("/static", StaticFiles(directory=folder)),
    ])  # fmt: skip


@contextlib.asynccontextmanager
async def asgi(app) -> AsyncIterator[int]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="off", ws="none"))
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = server.force_exit = True
        await task


@contextlib.asynccontextmanager
async def sockets() -> AsyncIterator[int]:
    """Serve a WebSocket at /ws that repeats each message, and refuses the handshake at /no."""

    async def talk(request):
        line = web.WebSocketResponse(protocols=("chat",))
        await line.prepare(request)
        await line.send_str(f"hello {request.headers.get('Cookie', '')}")
        async for said in line:
            if said.type == WSMsgType.TEXT and said.data == "bye":
                await line.close(code=4000)
            elif said.type == WSMsgType.BINARY:
                await line.send_bytes(said.data)
        return line

    async def refuse(request):
        return web.Response(status=403, text="not you")

    app = web.Application()
    app.add_routes([web.get("/ws", talk), web.get("/no", refuse)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
