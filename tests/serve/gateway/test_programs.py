"""A program of the user behind the gateway, as behind a reverse proxy: clients and servers of other people."""

import asyncio
import contextlib
import json
import ssl
import subprocess

import aiohttp
import httpx
import pytest
import requests

from serve.gateway import keys
from serve.gateway.http.certificate import Tls
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from serve.gateway.routing import Target
from serve.gateway.server import Gateway
from tests.serve.certificates import Authority
from tests.serve.gateway.programs import asgi, gateway, plain, sockets, starlette

pytestmark = pytest.mark.process
GUARD_S = 60


def run(main):
    return asyncio.run(asyncio.wait_for(main(), GUARD_S))


def client(url, **more):
    return httpx.AsyncClient(base_url=url, timeout=GUARD_S, trust_env=False, **more)


def values(head, name):
    """Return the values of all lines of a header, as the program has received them."""
    return [value for key, value in head if key.lower() == name]


def test_header_fields_pass_both_ways_and_those_of_a_connection_do_not():
    sent = {
        "Cookie": "a=b; c=d", "Authorization": "Basic YTpi", "X-Own": "1", "User-Agent": "me/1", "Range": "bytes=0-1",
        "Accept": "text/html", "Accept-Language": "de", "If-None-Match": '"1"', "TE": "trailers", "Keep-Alive": "9",
        "Connection": "keep-alive, X-Once", "X-Once": "1", "Proxy-Authorization": "Basic eDp5", "Upgrade": "h2c",
    }  # fmt: skip

    async def main():
        with plain() as port:
            async with gateway(port) as url, client(url) as web:
                reply = await web.get("/any/path%2F..?q=%20;", headers=sent)
                head = reply.json()["head"]
                for name in ("Cookie", "Authorization", "X-Own", "User-Agent", "Range", "Accept", "If-None-Match"):
                    assert values(head, name.lower()) == [sent[name]]
                hidden = ("te", "keep-alive", "connection", "x-once", "proxy-authorization", "upgrade")
                assert [values(head, name) for name in hidden] == [[]] * len(hidden)
                assert reply.json()["path"] == "/any/path%2F..?q=%20;"
                assert reply.headers.get_list("set-cookie") == ["a=1; Path=/", "b=2"]
                assert (reply.headers["x-own"], reply.reason_phrase) == ("yes", "Fine indeed")
                assert reply.headers["server"].startswith("BaseHTTP") and len(reply.headers.get_list("date")) == 1
                assert reply.headers["x-slipway-replica"] == "r0" and reply.headers["x-request-id"]

    run(main)


def test_program_learns_the_client_from_the_gateway_alone():
    forged = {"X-Forwarded-For": "9.9.9.9", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "Forwarded": "x",
              "X-Real-IP": "9.9.9.9", "X_Real_IP": "9.9.9.9", "X_Forwarded_For": "9.9.9.9"}  # fmt: skip

    async def main():
        with plain() as port:
            async with gateway(port) as url, client(url) as web:
                head = (await web.get("/", headers={**forged, "Host": "localhost:81"})).json()["head"]
                found = {name: values(head, name.lower()) for name in (*forged, "Host")}
                assert found == {
                    "X-Forwarded-For": ["9.9.9.9, 127.0.0.1"], "X-Forwarded-Proto": ["http"], "Forwarded": [],
                    "X-Forwarded-Host": ["localhost:81"], "X-Real-IP": ["127.0.0.1"], "X_Real_IP": [],
                    "X_Forwarded_For": [], "Host": ["localhost:81"],
                }  # fmt: skip

    run(main)


def test_program_learns_that_the_client_speaks_https(tmp_path):
    tls = Tls(keyfile=str(tmp_path / "key.pem"), certfile=str(tmp_path / "chain.pem"))
    authority = Authority.begin(tmp_path)
    authority.issue(tls)
    trust = ssl.create_default_context(cafile=authority.file)

    async def main():
        with plain() as port:
            async with gateway(port, tls=tls) as url, client(url, verify=trust) as web:
                head = (await web.get("/")).json()["head"]
                assert values(head, "x-forwarded-proto") == ["https"]

    run(main)


def test_key_of_the_gateway_never_reaches_the_program():
    ada, line = keys.make("ada")

    async def main():
        with plain() as port:
            async with gateway(port, keys=Keys(dict([line.split()]))) as url, client(url) as web:
                assert (await web.get("/", headers={"Authorization": "Basic YTpi"})).status_code == 401
                twice = [("Authorization", f"Bearer {ada}"), ("Authorization", "Basic YTpi")]
                own = [("Slipway-Key", ada), ("Authorization", "Basic YTpi")]
                for said, left in (([twice[0]], []), (twice, ["Basic YTpi"]), (own, ["Basic YTpi"])):
                    reply = await web.get("/", headers=said)
                    assert reply.status_code == 200 and ada not in reply.text
                    assert values(reply.json()["head"], "authorization") == left
                foreign = {"Authorization": f"Bearer {ada}", "Host": "app.example", "Origin": "https://app.example"}
                assert (await web.post("/", headers=foreign, content=b"x")).status_code == 200

    run(main)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_body_of_every_type_reaches_a_program_without_a_key(kind):
    async def main():
        with plain() as port:
            async with gateway(port) as url, client(url) as web:
                reply = await web.post("/", content=b"\x00a=b", headers={"Content-Type": kind})
                assert reply.json()["body"] == "\x00a=b" and values(reply.json()["head"], "content-type") == [kind]

    run(main)


PAGE = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("status", "method", "headers"),
    [
        (200, "GET", {}),
        (403, "GET", {"Host": "evil.example"}),
        (403, "POST", {"Origin": "https://evil.example"}),
        (403, "POST", {"Origin": "null"}),
        (403, "DELETE", {"Origin": "https://evil.example"}),
        (200, "POST", {"Origin": "null", "Sec-Fetch-Site": "same-origin"}),
        (200, "POST", {"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-site"}),
        (200, "POST", {"Origin": "https://ok.example", "Sec-Fetch-Site": "cross-site"}),
        (403, "GET", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}),
        (403, "GET", {**PAGE, "Sec-Fetch-Dest": "iframe"}),
        (200, "GET", PAGE),
        (403, "POST", PAGE),
        (200, "GET", {"Sec-Fetch-Site": "none"}),
        (403, "GET", {"Origin": "https://evil.example", "Upgrade": "websocket", "Connection": "Upgrade"}),
    ],
)
def test_program_without_a_key_answers_no_page_of_a_different_site(status, method, headers):
    async def main():
        with plain() as port:
            async with gateway(port, allow_origins=("https://ok.example",)) as url, client(url) as web:
                assert (await web.request(method, "/", headers=headers)).status_code == status

    run(main)


def test_preflight_of_an_allowed_page_is_answered_for_every_method():
    ada, line = keys.make("ada")
    asked = {"Origin": "https://ok.example", "Access-Control-Request-Method": "DELETE"}

    async def main():
        with plain() as port:
            limits = {"keys": Keys(dict([line.split()])), "allow_origins": ("https://ok.example",)}
            async with gateway(port, **limits) as url, client(url) as web:
                reply = await web.options("/", headers=asked)
                assert (reply.status_code, reply.headers["access-control-allow-methods"]) == (204, "DELETE")
                reply = await web.delete("/", headers={**asked, "Authorization": f"Bearer {ada}"})
                assert reply.headers.get_list("access-control-allow-origin") == ["https://ok.example"]

    run(main)


def test_bodies_heads_and_statuses_pass_between_starlette_and_httpx(tmp_path):
    (tmp_path / "page.bin").write_bytes(bytes(range(256)) * 400)

    async def chunks():
        for _ in range(10):
            yield b"c" * 1000

    async def main():
        async with asgi(starlette(tmp_path)) as port, gateway(port) as url, client(url) as web:
            assert (await web.post("/echo", content=chunks())).json()["size"] == 10_000
            for size in (0, 1, 300_000, 5_000_000):
                said = (await web.put("/echo", content=b"u" * size)).json()
                assert said["size"] == size and values(said["head"], "content-length") == [str(size)]
            assert values((await web.get("/echo")).json()["head"], "content-length") == []
            reply = await web.post("/echo", content=b"x" * 9_000_000)
            assert reply.status_code == 413 and "max_body_bytes" in reply.text
            for code in (204, 304):
                reply = await web.get(f"/empty?code={code}")
                assert (reply.status_code, reply.content, reply.headers["etag"]) == (code, b"", '"1"')
            assert (await web.get("/empty?code=404")).status_code == 404
            reply = await web.get("/moved")
            assert (reply.status_code, reply.headers["location"]) == (307, f"{url}/echo")
            whole = await web.get("/static/page.bin")
            assert whole.content == bytes(range(256)) * 400 and "content-length" in whole.headers
            head = await web.head("/static/page.bin")
            assert head.headers["content-length"] == "102400" and head.content == b""
            part = await web.get("/file", headers={"Range": "bytes=1-4"})
            assert (part.status_code, part.content) == (206, bytes([1, 2, 3, 4]))
            assert part.headers["content-range"] == "bytes 1-4/102400"
            assert part.headers["content-disposition"] == "attachment; filename*=utf-8''page%20%C3%A9.bin"
            seen = {"If-None-Match": whole.headers["etag"], "If-Modified-Since": whole.headers["last-modified"]}
            assert (await web.get("/static/page.bin", headers=seen)).status_code == 304
            for path in ("/health", "/metrics"):
                assert (await web.get(path)).json()["url"] == url + path  # the paths belong to the program

    run(main)


def test_events_arrive_one_by_one_and_a_client_that_leaves_ends_the_stream(tmp_path):
    async def main():
        async with asgi(starlette(tmp_path)) as port, gateway(port) as url, client(url) as web:
            async with web.stream("GET", "/events") as reply:
                parts = [part async for part in reply.aiter_raw()]
            assert len(parts) == 3 and parts[0] == b"id: 0\ndata: 0\n\n"
            async with web.stream("GET", "/endless") as reply:
                async for part in reply.aiter_raw():
                    assert part.startswith(b"x")
                    break

    run(main)


def test_websocket_passes_and_a_refused_handshake_is_the_program_s_answer():
    async def main():
        async with sockets() as port, gateway(port) as url, aiohttp.ClientSession() as web:
            async with web.ws_connect(f"{url}/ws", protocols=["chat"], headers={"Cookie": "k=v"}) as line:
                assert (await line.receive_str(), line.protocol) == ("hello k=v", "chat")
                for size in (1, 200_000):
                    await line.send_bytes(b"w" * size)
                    assert await line.receive_bytes() == b"w" * size
                await line.send_str("bye")
                assert (await line.receive()).data == 4000
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await web.ws_connect(f"{url}/no")
            assert refused.value.status == 403
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await web.ws_connect(f"{url}/ws", origin="https://evil.example")
            assert refused.value.status == 403

    run(main)


async def aside(call, *words, **more):
    return await asyncio.get_running_loop().run_in_executor(None, lambda: call(*words, **more))


def test_requests_and_curl_work_against_the_standard_library(tmp_path):
    (tmp_path / "up.bin").write_bytes(b"z" * 3_000_000)

    def curl(*words):
        done = subprocess.run(["curl", "-sS", "--noproxy", "*", "-m", "50", *words], capture_output=True, check=True)
        return done.stdout

    async def main():
        with plain() as port:
            async with gateway(port) as url:
                with requests.Session() as web:
                    web.trust_env = False
                    reply = await aside(web.post, url + "/form", data={"a": "b"}, files={"f": ("n", b"1")})
                    assert 'name="f"; filename="n"' in reply.json()["body"] and web.cookies.get_dict() == {
                        "a": "1",
                        "b": "2",
                    }
                    assert values((await aside(web.get, url)).json()["head"], "cookie") == ["a=1; b=2"]
                up = f"@{tmp_path / 'up.bin'}"
                for words in (("-H", "Expect: 100-continue"), ("-H", "Transfer-Encoding: chunked"), ("--http1.0",)):
                    said = json.loads(await aside(curl, *words, "--data-binary", up, url))
                    assert len(said["body"]) == 3_000_000 and values(said["head"], "expect") == []
                    assert values(said["head"], "content-length") == ["3000000"]
                assert b"200 Fine indeed" in await aside(curl, "-I", url)
                assert json.loads(await aside(curl, "--http2", url))["method"] == "GET"
                said = json.loads(await aside(curl, "-X", "PATCH", "--request-target", f"{url}/p?q=1", url))
                assert (said["method"], said["path"]) == ("PATCH", "/p?q=1")

    run(main)


@contextlib.asynccontextmanager
async def scripted(serve):
    """Yield the port and the number of connections of a server that handles each connection by `serve`."""
    seen: list[None] = []

    async def each(reader, writer):
        seen.append(None)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(each, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1], seen
    finally:
        server.close()


async def cut(reader, writer):
    await reader.readuntil(b"\r\n\r\n")


async def half(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")


async def early(reader, writer):
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 413 Too Much\r\nContent-Length: 4\r\nConnection: close\r\n\r\nmuch")
    await reader.read(1000)
    await asyncio.sleep(0.05)


def test_request_that_a_program_may_have_seen_is_repeated_only_if_the_method_allows():
    async def main():
        async with (
            scripted(cut) as (bad, seen),
            scripted(cut) as (worse, more),
            gateway(bad, worse) as url,
            client(url) as web,
        ):
            for method, tries in (("POST", 1), ("PATCH", 1), ("GET", 2), ("PUT", 2)):
                before = len(seen) + len(more)
                assert (await web.request(method, "/", content=b"x")).status_code == 502
                assert len(seen) + len(more) - before == tries

    run(main)


def test_replica_without_a_port_is_replaced_by_the_next_for_every_method():
    async def main():
        with plain() as port:
            async with gateway(1, port) as url, client(url) as web:
                for _ in range(4):
                    assert (await web.post("/", content=b"x")).json()["body"] == "x"

    run(main)


def test_answer_that_breaks_off_never_looks_complete():
    async def main():
        async with scripted(half) as (port, _), gateway(port) as url, client(url) as web:
            with pytest.raises(httpx.RemoteProtocolError):
                await web.get("/")

    run(main)


def test_answer_before_the_end_of_a_long_upload_reaches_the_client():
    async def main():
        async with scripted(early) as (port, _), gateway(port) as url, client(url) as web:
            reply = await web.post("/", content=b"x" * 4_000_000)
            assert (reply.status_code, reply.reason_phrase, reply.text) == (413, "Too Much", "much")

    run(main)


def test_upload_of_a_client_that_stops_is_refused():
    async def main():
        async with scripted(early) as (port, _), gateway(port, client_idle_s=0.1) as url:
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nx")
            assert (await reader.read()).split()[1] == b"408"
            writer.close()

    run(main)


def test_open_connection_survives_the_change_from_a_model_to_a_program():
    async def main():
        with plain() as port:
            front = Gateway(GatewayLimits(), Keys({}))
            url = f"http://127.0.0.1:{await front.start('127.0.0.1', 0)}"
            front.replace([Target(replica_id="r0", url=f"http://127.0.0.1:{port}")])
            async with client(url) as web:
                assert (await web.get("/x")).status_code == 404
                front.set_limits(GatewayLimits(any_route=True))
                reply = await web.post("/x", content=b"b", headers={"X-Own": "1"})
                assert (reply.json()["body"], values(reply.json()["head"], "x-own")) == ("b", ["1"])
            await front.stop(0)

    run(main)
