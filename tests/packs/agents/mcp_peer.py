"""A client of the official MCP SDK, run in the environment `mcp`: train, serve, ask. Prints one line of JSON.

python mcp_peer.py PYTHON ROOT ALLOWANCE      with the token in SLIPWAY_ALLOWANCE_TOKEN
"""

import asyncio
import json
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


async def main(python: str, root: str, name: str) -> None:
    words = ["-m", "invoke", "--search-root", root, "mcp", "--rehearse", "--allowance", name]
    server = StdioServerParameters(command=python, args=words, cwd=root, env=dict(os.environ))
    calls = 0
    async with stdio_client(server) as (reading, writing), ClientSession(reading, writing) as session:
        await session.initialize()
        tools = {one.name for one in (await session.list_tools()).tools}
        assert {"plan", "launch", "serve_up", "serve_ask", "down"} <= tools

        async def ask(tool: str, **arguments):
            nonlocal calls
            calls += 1
            said = await session.call_tool(tool, arguments)
            return said.structured_content

        async def wait(kind: str, run: str, wanted: str, pause_s: float):
            for _ in range(4):
                await asyncio.sleep(pause_s)
                said = await ask("status", run=run)
                if [one["state"] for one in said.get(kind, ())] == [wanted]:
                    return
            raise AssertionError(said)

        refused = (await ask("plan", spend_usd=999.0))["refused"]
        plan = await ask("plan", spend_usd=2.5, phase="sft", profile="tiny")
        run = (await ask("launch", plan_id=plan["plan_id"]))["run"]
        await wait("runs", run, "succeeded", 45)
        plan = await ask("plan", kind="serve", spend_usd=1.5, model="chatsft_checkpoints/allow-demo", gpu="RTX4090")
        service = (await ask("serve_up", plan_id=plan["plan_id"]))["run"]
        await wait("services", service, "READY", 75)
        answer = await ask("serve_ask", run=service, prompt="Who are you?", max_tokens=8)
        await ask("down", run=service)
        print(json.dumps({"calls": calls, "answer": answer.get("untrusted_text", ""), "refused": refused}))


asyncio.run(main(*sys.argv[1:]))
