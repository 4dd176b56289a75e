"""Web pages of other origins: refused by default, served for the origins of the service file."""

import asyncio

import pytest

from serve.gateway import keys
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.keys import Keys
from tests.serve.scripted_engine import CHAT, chat, gateway

PAGE, OTHER = "https://chat.example.org", "https://evil.example"
ASKED = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type,x-stainless-os",
}


def a_key() -> tuple[dict[str, str], Keys]:
    """Return the header of a new key, and the keys of a gateway that knows the key."""
    key, line = keys.make("web")
    return {"Authorization": f"Bearer {key}"}, Keys(dict([line.split()]))


async def fetch(front, method: str, headers: dict[str, str], **said) -> tuple[int, dict[str, str], str]:
    """Return status, headers and body of an answer of the chat route."""
    body = chat(**said) if method == "POST" else None
    async with front.session.request(method, f"{front.url}{CHAT}", json=body, headers=headers) as reply:
        return reply.status, dict(reply.headers), await reply.text()


@pytest.mark.process
def test_page_of_another_origin_gets_no_permission_by_default(pair):
    head, known = a_key()

    async def main():
        async with gateway(pair[0], keys=known) as front:
            status, headers, _ = await fetch(front, "OPTIONS", {"Origin": PAGE, **ASKED})
            assert status in (401, 405) and not any("Access-Control" in one for one in headers)
            status, headers, _ = await fetch(front, "POST", {"Origin": PAGE, **head})
            assert status == 200 and not any("Access-Control" in one for one in headers)

    asyncio.run(main())


@pytest.mark.process
@pytest.mark.parametrize("origins", [(PAGE, "http://localhost:3000"), ("*",)])
def test_allowed_page_is_answered_with_key_streams_and_errors(pair, origins):
    head, known = a_key()

    async def main():
        async with gateway(pair[0], keys=known, allow_origins=origins) as front:
            for origin in (PAGE, PAGE.upper()):
                status, headers, body = await fetch(front, "OPTIONS", {"Origin": origin, **ASKED})
                assert (status, body) == (204, "")
                assert headers["Access-Control-Allow-Origin"] == PAGE and headers["Vary"] == "Origin"
                assert headers["Access-Control-Allow-Headers"] == ASKED["Access-Control-Request-Headers"]
                assert "POST" in headers["Access-Control-Allow-Methods"]
            for said, expected in (({}, 200), ({"stream": True}, 200), ({"n": 0}, 400)):
                status, headers, _ = await fetch(front, "POST", {"Origin": PAGE, **head}, **said)
                assert (status, headers["Access-Control-Allow-Origin"]) == (expected, PAGE)
            status, headers, _ = await fetch(front, "POST", {"Origin": PAGE})
            assert (status, headers["Access-Control-Allow-Origin"]) == (401, PAGE)
            status, headers, _ = await fetch(front, "POST", {"Origin": OTHER, **head})
            assert status == 200 and headers.get("Access-Control-Allow-Origin") == (OTHER if "*" in origins else None)
            status, headers, _ = await fetch(front, "POST", head)
            assert status == 200 and "Vary" not in headers
            bad = {"Origin": PAGE, **ASKED, "Access-Control-Request-Headers": "x" * 2000}
            assert "Access-Control-Allow-Headers" not in (await fetch(front, "OPTIONS", bad))[1]

    asyncio.run(main())


@pytest.mark.process
def test_keyless_gateway_serves_the_named_page_only(pair):
    async def main():
        for origins, expected in (((PAGE,), 200), (("*",), 403), ((OTHER,), 403)):
            async with gateway(pair[0], allow_origins=origins) as front:
                assert (await fetch(front, "POST", {"Origin": PAGE}))[0] == expected

    asyncio.run(main())


@pytest.mark.parametrize(
    "origin", ["chat.example.org", "https://chat.example.org/", "https://*.example.org", "null", ""]
)
def test_invalid_origin_is_refused(origin):
    with pytest.raises(ValueError, match="allow_origins must be origins"):
        GatewayLimits(allow_origins=(origin,))
