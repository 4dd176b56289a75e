"""The command `mcp`: replaces its process with the MCP server of an allowance, in the environment `mcp`."""

import os
from dataclasses import dataclass
from pathlib import Path

from infra import train_env
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flag
from packs.agents.control import place
from packs.agents.control.settings import AgentsSettings
from scripts.cli import context, local_step
from scripts.cli.command import FIND, command


@dataclass(frozen=True, kw_only=True)
class McpFlags:
    allowance: str = flag("", "name of the allowance (default: the only one of this user)", unit="NAME")
    folder: str = flag("", "folder with the socket of the broker, for the user of an allowance", unit="DIR")
    port: int = flag(0, "serve HTTP on this port of 127.0.0.1 instead of stdio; clients send the token", least=0)


@command(record=McpFlags, world=FIND, listens="port", example="inv mcp --allowance demo")
def mcp(spec: McpFlags) -> None:
    """Serve the tools of an allowance to an agent, by MCP.

    Add the command to the client of the agent as a server of the Model Context Protocol, over stdio.
    SLIPWAY_ALLOWANCE_TOKEN holds the token.
    """
    settings = context.settings()
    token = settings.for_pack(AgentsSettings).allowance_token
    if not token:
        raise UsageError("SLIPWAY_ALLOWANCE_TOKEN is not set: the token that inv allow has shown")
    folder = Path(spec.folder).absolute() if spec.folder else place.folder(settings)
    known = sorted(path.stem for path in folder.glob("*.socket"))
    name = spec.allowance or (known[0] if len(known) == 1 else "")
    if not name:
        raise UsageError(f"--allowance is missing; with a broker: {', '.join(known) or 'none'} in {folder}")
    words = [
        "-m",
        "packs.agents.views.mcp_server",
        str(folder),
        name,
        *(["--port", str(spec.port)] if spec.port else []),
    ]
    os.environ["SLIPWAY_ALLOWANCE_TOKEN"] = token
    train_env.exec_interactive(words, root=ROOT, python=local_step.python(settings, "mcp"))
