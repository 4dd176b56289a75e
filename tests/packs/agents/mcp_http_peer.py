"""A client of the official MCP SDK over streamable HTTP, run in the environment `mcp`. Prints one line of JSON.

python mcp_http_peer.py URL TOKEN
"""

import asyncio
import json
import sys
import time

import httpx2 as httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

START_S = 60.0


def await_server(url: str) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + START_S
    while True:
        try:
            httpx.get(url)
            return
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


async def main(url: str, token: str) -> None:
    await_server(url)
    headers = ({}, {"Authorization": "Bearer allow-wrong"})
    statuses = [httpx.post(url, json={}, headers=one).status_code for one in headers]
    async with (
        httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=120) as client,
        streamable_http_client(url, http_client=client) as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        await session.initialize()
        tools = [one.name for one in (await session.list_tools()).tools]
        status = (await session.call_tool("status", {})).structured_content
        refused = await session.call_tool("logs", {"run": "mine"})
    found = {"statuses": statuses, "tools": tools, "status": status, "is_error": refused.is_error}
    print(json.dumps({**found, "refused": refused.structured_content["refused"]}))


asyncio.run(main(*sys.argv[1:]))
