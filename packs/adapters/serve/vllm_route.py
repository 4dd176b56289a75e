"""The route `serve.variants.ROUTE` in vLLM's API server: adapters are brought to the machine, checked and loaded.

vLLM loads an adapter by `/v1/load_lora_adapter` from a folder of its machine, and checks little: a torn file ends the
engine or the request that computes with the adapter. This middleware of vLLM (`--middleware`) takes a folder or an
address, downloads, reads every number, and then asks vLLM's own route.

Source: vLLM 0.32.0, vllm/entrypoints/serve/lora/api_router.py.
"""

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from infra.errors import SlipwayError, UsageError
from packs.adapters.records.peft_format import CONFIG, WEIGHTS, check_files
from serve.engine import models
from serve.engines import KEY
from serve.variants import ROUTE, LoadRequest
from store.manifest import NoStore, StoreError
from store.untrusted_input import UnusableDocument

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
MOST_BYTES = 1 << 20
# No later request succeeds: a missing bucket or key, a missing folder, a damaged adapter.
WRONG = (UsageError, UnusableDocument, NoStore, FileNotFoundError)
FAILED = (SlipwayError, StoreError, OSError)  # a later request may succeed


class VariantRoute:
    """ASGI middleware with the adapters of one engine."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.loaded: dict[str, str] = {}
        self.turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != ROUTE:
            await self.app(scope, receive, send)
            return
        status, said = await self._answer(scope, await _body(receive))
        body = json.dumps(said if status == 200 else {"error": {"message": said, "code": status}}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, body: bytes) -> tuple[int, Any]:
        key = os.environ.get(KEY, "")
        if key and dict(scope["headers"]).get(b"authorization") != f"Bearer {key}".encode():
            return 401, "no valid key"
        try:
            if scope["method"] == "POST":
                ask = msgspec.json.decode(body, type=LoadRequest)
                async with self.turn:
                    return await self._load(scope, ask)
            if scope["method"] == "DELETE":
                async with self.turn:
                    return await self._unload(scope, str(msgspec.json.decode(body)["name"]))
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            return 400, f"the body is malformed: {error}"
        return 200, {"variants": self.loaded}

    async def _load(self, scope: Scope, ask: LoadRequest) -> tuple[int, Any]:
        try:
            folder = await asyncio.to_thread(checked_folder, ask.source)
        except WRONG as error:
            return 422, str(error)
        except FAILED as error:
            return 503, str(error)
        status, said = await self._ask_vllm(scope, LOAD, {"lora_name": ask.name, "lora_path": str(folder)})
        if status >= 500:  # vLLM answers 500 to an adapter that it does not support, too
            return 500, f"vLLM fails to load the adapter: {said}"
        if status != 200:
            return 422, f"vLLM refuses the adapter: {said}"
        self.loaded[ask.name] = ask.identity
        return 200, {"variants": self.loaded}

    async def _unload(self, scope: Scope, name: str) -> tuple[int, Any]:
        status, said = await self._ask_vllm(scope, UNLOAD, {"lora_name": name})
        if status not in (200, 404):
            return status, said
        self.loaded.pop(name, None)
        return 200, {"variants": self.loaded}

    async def _ask_vllm(self, scope: Scope, path: str, body: Mapping[str, str]) -> tuple[int, str]:
        """Return the status and the text of an answer of vLLM's own application."""
        raw, start, text = json.dumps(body).encode(), dict[str, Any](), bytearray()
        kept = [(name, value) for name, value in scope["headers"] if name in (b"authorization", b"host")]
        headers = [*kept, (b"content-type", b"application/json"), (b"content-length", b"%d" % len(raw))]
        inner = {**scope, "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}

        async def receive() -> Message:
            return {"type": "http.request", "body": raw, "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                text.extend(message.get("body", b""))

        await self.app(inner, receive, send)
        return int(start.get("status", 500)), text.decode(errors="replace")[:500]


def checked_folder(source: str) -> Path:
    """Return the folder of the adapter in `source`, downloaded if needed, after reading every number.

    Raises UsageError, StoreError, UnusableDocument.
    """
    if "://" in source:
        found = models.bring_files(source, models.default_cache(), _say, problem)
        folder = found / models.OURS if (found / models.OURS / CONFIG).is_file() else found
    else:
        folder = Path(source)
    check_files(folder)
    return folder


def problem(names: set[str]) -> str:
    """Return the reason why files with these names are no adapter, as text; "" = an adapter by name."""
    missing = [one for one in (CONFIG, WEIGHTS) if one not in names]
    return f"the adapter has no {missing[0]}" if missing else ""


def _say(text: str) -> None:
    print(f"adapters: {text}", flush=True)


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while len(body) <= MOST_BYTES:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    return bytes(body)
