"""A gateway without a key: programs of this machine are served, pages of other sites in the browser are refused."""

import asyncio

import pytest

from serve.gateway import keys
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from serve.gateway.server import Gateway
from tests.serve.scripted_engine import CHAT, chat, gateway

pytestmark = pytest.mark.process


def run(main):
    return asyncio.run(main())


async def statuses(front, headers) -> list[int]:
    """Return the statuses of all routes."""
    found = []
    for method, path in (("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics"), ("GET", "/health")):
        said = chat() if method == "POST" else None
        async with front.session.request(method, front.url + path, json=said, headers=headers) as reply:
            found.append(reply.status)
    return found


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_keyless_gateway_answers_this_machine_by_its_names(pair, host):
    async def main():
        async with gateway(*pair) as front:
            assert await statuses(front, {"Host": host}) == [200] * 4
            for origin in ("http://localhost:3000", "https://127.0.0.1", "http://[::1]:8000"):
                assert await statuses(front, {"Host": host, "Origin": origin}) == [200] * 4

    run(main)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example:8000", "0.0.0.0", "[::]", "", "notlocalhost"],
)
def test_keyless_gateway_refuses_a_foreign_name_bound_to_this_machine(pair, host):
    async def main():
        async with gateway(*pair) as front:
            assert await statuses(front, {"Host": host}) == [403] * 4

    run(main)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://localhost.evil.example", "http://evil@localhost", "file://", ""]
)
def test_keyless_gateway_refuses_pages_of_other_sites(pair, origin):
    async def main():
        async with gateway(*pair) as front:
            assert await statuses(front, {"Origin": origin}) == [403] * 4

    run(main)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "application/jsonp", ""]
)
def test_keyless_gateway_refuses_forms(pair, kind):
    async def main():
        async with gateway(*pair) as front:
            url = front.url + CHAT
            before = pair[0].seen()["requests"] + pair[1].seen()["requests"]
            async with front.session.post(url, data=b'{"messages":[]}', headers={"Content-Type": kind}) as reply:
                assert reply.status == 415
            assert pair[0].seen()["requests"] + pair[1].seen()["requests"] == before
            for good in ("application/json; charset=utf-8", "Application/JSON"):
                async with front.session.post(url, json=chat(), headers={"Content-Type": good}) as reply:
                    assert reply.status == 200

    run(main)


def test_address_in_the_request_line_overrides_the_host_header(pair):
    async def main():
        async with gateway(*pair) as front:
            host, _, port = front.url.removeprefix("http://").rpartition(":")
            for target, status in ((b"http://evil.example/v1/models", b"403"), (b"http://[::1]/v1/models", b"200")):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % target)
                assert (await reader.read()).split()[1] == status
                writer.close()

    run(main)


def test_second_loopback_address_is_accepted_as_its_own_host(pair):
    async def main():
        front = Gateway(GatewayLimits(), Keys({}))
        port = await front.start("127.0.0.3", 0)
        reader, writer = await asyncio.open_connection("127.0.0.3", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.3:%d\r\nConnection: close\r\n\r\n" % port)
        assert (await reader.read()).split()[1] == b"200"
        writer.close()
        await front.stop(0)

    run(main)


def test_client_with_a_key_may_use_any_name_from_any_page(pair):
    ada, line = keys.make("ada")
    said = {"Host": "llm.example", "Origin": "https://app.example", "Content-Type": "text/plain"}

    async def main():
        async with (
            gateway(*pair, keys=Keys(dict([line.split()])), key=ada) as front,
            front.session.post(front.url + CHAT, json=chat(), headers=said) as reply,
        ):
            assert reply.status == 200

    run(main)
