"""Chat with a model from the page: a running service, or a stored model served on this machine.

The answer stream follows OpenAI's protocol. At most one stored model is served at a time; the child process ends with
the page or when the user selects a different model.
"""

import asyncio
import json
import os
import secrets
import subprocess
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from flows.models.find_model import model_folder
from infra import train_env
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.transport.streams import LOOPBACK
from packs.page.views.page_context import PageContext
from packs.page.views.sections.ask import View, ViewQuery
from serve import engines
from serve.gateway.http import certificate
from serve.policy import service_state
from serve.processes import controller_client
from serve.replicas.replica_pod import free_port
from trainer.records.phase_registry import PHASES, USUAL, all_phases

BEGIN_S, SILENT_S, POLL_S, LEAVE_S = 180.0, 120.0, 0.2, 5.0
MOST_TOKENS = 4096
SERVICE = "service "


def models(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the models for a chat: services first, then models of the store."""
    with context.journal() as journal:
        services = [f"{SERVICE}{one.name}" for one in service_rows.list_services(journal)]
    kinds = [PHASES[one].folder for one in (USUAL, *all_phases()[::-1])]
    kept = [one.name for one in context.artifacts() if one.name.split("/")[0] in kinds]
    kept.sort(key=lambda name: kinds.index(name.split("/")[0]))
    return {"models": [*services, *kept], "command": "inv chat"}


VIEW = View(models)


@dataclass(frozen=True)
class ModelEndpoint:
    """The endpoint of a model."""

    url: str
    key: str
    name: str
    """Model name at the endpoint; "" selects the first listed model."""
    certfile: str = ""
    """File with the trusted certificate of a service; "" for plain HTTP."""


@dataclass
class ServedHere:
    """The stored model currently served on this machine."""

    name: str
    url: str
    key: str
    child: "subprocess.Popen[bytes]"


@dataclass
class ChatBackend:
    """The chat backend of the page: finds endpoints and runs the local model server."""

    context: PageContext
    _local: ServedHere | None = None
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def find(self, model: str) -> ModelEndpoint:
        """Return the endpoint of a model; start the local server for a stored model.

        Raise SlipwayError if the service has no address or the model cannot be served.
        """
        if model.startswith(SERVICE):
            name = model.removeprefix(SERVICE)
            with self.context.journal() as journal:
                row, certfile = service_rows.find(journal, name), controller_client.certfile(name, journal)
            seen = service_state.parse_observed(row.seen) if row else None
            if seen is None or not seen.endpoint:
                raise UsageError(f"the service {name} has no address yet; check: inv serve.status {name}")
            url = seen.endpoint.rstrip("/").removesuffix("/v1")
            return ModelEndpoint(url, os.environ.get("SLIPWAY_ENDPOINT_KEY", ""), "", certfile)
        with self._turn:
            if self._local is None or self._local.name != model or self._local.child.poll() is not None:
                self.close()
                self._local = self._begin(model)
            return ModelEndpoint(self._local.url, self._local.key, "model")

    def close(self) -> None:
        """Stop the local model server."""
        local, self._local = self._local, None
        if local is None:
            return
        local.child.terminate()
        try:
            local.child.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            local.child.kill()
            local.child.wait()

    def _begin(self, model: str) -> ServedHere:
        settings = self.context.settings
        folder = model_folder(settings, model, "", self.context.add_note)
        python = train_env.interpreter(ROOT, settings.environments, self.context.add_note)
        port, key = free_port(()), secrets.token_urlsafe(24)
        words = [
            str(python),
            "-m",
            "trainer",
            "serve",
            "--model",
            str(folder),
            "--name",
            "model",
            "--port",
            str(port),
            "--shutdown-s",
            "1",
        ]
        environ = {**os.environ, "PYTHONPATH": str(ROOT), engines.KEY: key, train_env.PARENT: str(os.getpid())}
        log = settings.pods.parent / "ui-chat.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as talk:
            child = subprocess.Popen(words, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=talk, stderr=talk)
        return ServedHere(model, f"http://{LOOPBACK}:{port}", key, child)

    async def wait_until_ready(self, url: str) -> None:
        """Wait until the local model server answers. Raise SlipwayError on exit of the server or after `BEGIN_S`."""
        async with httpx.AsyncClient(trust_env=False) as client:
            for _ in range(int(BEGIN_S / POLL_S)):
                local = self._local
                if local is None or local.url != url:
                    return
                if local.child.poll() is not None:
                    log = self.context.settings.pods.parent / "ui-chat.log"
                    last = (log.read_text(errors="replace").strip().splitlines() or ["no output"])[-1]
                    raise SlipwayError(f"{local.name} cannot be served on this machine: {last}")
                try:
                    if (await client.get(f"{url}/health")).status_code == 200:
                        return
                except httpx.HTTPError:
                    pass  # The server does not listen yet.
                await asyncio.sleep(POLL_S)
        raise SlipwayError(f"the model has not answered within {BEGIN_S:.0f} s")

    async def answer(self, asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield the server-sent events of an answer; an error becomes the last event."""
        try:
            partner = await asyncio.to_thread(self.find, str(asked.get("model", "")))
            await self.wait_until_ready(partner.url)
            async for piece in _stream(partner, asked):
                yield piece
        except (SlipwayError, httpx.HTTPError, OSError) as error:
            yield _error(str(error) or type(error).__name__)


async def _stream(partner: ModelEndpoint, asked: Mapping[str, Any]) -> AsyncIterator[bytes]:
    url, name = partner.url, partner.name
    headers = {"Authorization": f"Bearer {partner.key}"} if partner.key else {}
    timeout = httpx.Timeout(SILENT_S, connect=10.0)
    trusted = certificate.client_context(partner.certfile) if partner.certfile else True
    async with httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False, verify=trusted) as client:
        if not name:
            listed = await client.get(f"{url}/v1/models")
            if listed.status_code == 401:
                raise SlipwayError("the service needs a key; set SLIPWAY_ENDPOINT_KEY and start inv ui again")
            name = str(listed.json()["data"][0]["id"])
        body = {"model": name, "messages": _messages(asked), "stream": True, **_options(asked)}
        async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as reply:
            if reply.status_code != 200:
                said = (await reply.aread()).decode("utf-8", "replace")[:400]
                raise SlipwayError(f"status {reply.status_code}: {said}")
            async for piece in reply.aiter_bytes():
                yield piece


def _messages(asked: Mapping[str, Any]) -> list[dict[str, str]]:
    said = asked.get("messages")
    roles = ("system", "user", "assistant")
    is_talk = isinstance(said, list) and all(
        isinstance(one, dict) and one.get("role") in roles and isinstance(one.get("content"), str) for one in said
    )
    if not is_talk or not said:
        raise UsageError("a conversation must be a list of messages, each with role and content")
    return [{"role": one["role"], "content": one["content"]} for one in said]  # type: ignore[union-attr]


def _options(asked: Mapping[str, Any]) -> dict[str, float | int]:
    temperature, tokens = asked.get("temperature", 0.0), asked.get("max_tokens", 256)
    if type(temperature) not in (int, float) or not 0 <= temperature <= 2:
        raise UsageError("temperature must be a number from 0 to 2")
    if type(tokens) is not int or not 0 < tokens <= MOST_TOKENS:
        raise UsageError(f"max_tokens must be a whole number from 1 to {MOST_TOKENS}")
    return {"temperature": temperature, "max_tokens": tokens}


def _error(words: str) -> bytes:
    return b"data: %s\n\n" % json.dumps({"error": {"message": words}}).encode()
