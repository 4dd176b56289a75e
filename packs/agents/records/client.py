"""Calls of a broker by its socket. Standard library only: the MCP server of an agent imports this module."""

import json
import socket
from pathlib import Path
from typing import Any

LEASE = "allow:"
MOST_CALL_BYTES = 64 << 10
ANSWER_S = 960.0  # longer than the longest command of the broker


def place_file(folder: Path, name: str) -> Path:
    """Return the file with the path of the broker's socket: a path of a socket has at most 107 bytes."""
    return folder / f"{name}.socket"


def call(folder: Path, name: str, token: str, tool: str, arguments: Any) -> dict[str, Any]:
    """Return the answer of the broker of an allowance: {"result"} or {"refused"}."""
    try:
        path = place_file(folder, name).read_text(encoding="utf-8").strip()
        with socket.socket(socket.AF_UNIX) as made:
            made.settimeout(ANSWER_S)
            made.connect(path)
            made.sendall(json.dumps({"token": token, "tool": tool, "arguments": arguments}).encode() + b"\n")
            with made.makefile("rb") as file:
                line = file.readline()
    except TimeoutError:
        return {"refused": "no answer yet; the call may have had effect: call status"}
    except OSError as error:
        return {"refused": f"the broker cannot be reached ({error}); the owner sees: inv allow --list"}
    if not line:
        return {"refused": "the broker ended during the call; the call may have had effect: call status"}
    found: dict[str, Any] = json.loads(line)
    return found
