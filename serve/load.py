"""Load test of a service: sends requests at a fixed rate, however slow the answers are, and records the outcomes.

    python -m serve.load --config FILE

FILE contains a LoadTest. A record per round and a final result are appended to $SLIPWAY_RECORDS. With a target for the
time to first token, the rate rises until a round misses the target, and the last good rate gives the advised setting.
The API key comes from $SLIPWAY_ENDPOINT_KEY. Runs in the serve environment.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from serve.gateway.http import certificate
from serve.loops import run

KEY = "SLIPWAY_ENDPOINT_KEY"
STEP_UP = 1.5
MOST_ROUNDS = 12
REQUEST_S = 300.0


@dataclass(frozen=True, kw_only=True)
class LoadTest:
    url: str
    model: str
    certfile: str = ""
    """Certificate of the service; "" = the authorities trusted by this machine."""
    rate: float
    """Requests per second."""
    duration_s: float
    max_tokens: int = 32
    prompt: str = "Who are you?"
    replicas: int = 1
    """Number of ready replicas, for the rate per replica."""
    target_ttft_s: float = 0.0
    """Limit of the 95th percentile of the time to first token; 0 = a single round without a target."""


@dataclass
class RequestTiming:
    """Outcome of a request; seconds since sending."""

    first_s: float | None = None
    total_s: float | None = None
    tokens: int = 0
    failure: str = ""


@dataclass
class LoadRound:
    rate: float
    heard: list[RequestTiming] = field(default_factory=list)
    wall_s: float = 0.0

    def record(self) -> dict[str, Any]:
        good = [one for one in self.heard if not one.failure]
        firsts = [one.first_s for one in good if one.first_s is not None]
        each = [
            (one.total_s - one.first_s) / (one.tokens - 1)
            for one in good
            if one.total_s is not None and one.first_s is not None and one.tokens > 1
        ]
        return {
            "asked_per_s": self.rate,
            "answered_per_s": len(good) / self.wall_s,
            "failed": len(self.heard) - len(good),
            "failures": sorted({one.failure for one in self.heard if one.failure})[:5],
            "tokens_per_s": sum(one.tokens for one in good) / self.wall_s,
            "ttft_s": percentiles(firsts),
            "tpot_s": percentiles(each),
            "latency_s": percentiles([one.total_s for one in good if one.total_s is not None]),
        }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    shares = {"p50": 0.50, "p95": 0.95, "p99": 0.99}
    return {
        name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
        for name, share in shares.items()
    }


async def ask(session: aiohttp.ClientSession, load: LoadTest) -> RequestTiming:
    heard, began = RequestTiming(), time.monotonic()
    said = {
        "model": load.model,
        "messages": [{"role": "user", "content": load.prompt}],
        "max_tokens": load.max_tokens,
        "stream": True,
    }
    try:
        async with session.post(f"{load.url}/v1/chat/completions", json=said) as reply:
            if reply.status != 200:
                heard.failure = f"status {reply.status}"
                return heard
            is_done = False
            async for line in reply.content:
                if not line.startswith(b"data:"):
                    continue
                if line.strip() == b"data: [DONE]":
                    is_done = True
                    continue
                event = msgspec.json.decode(line[5:])
                if "error" in event:
                    heard.failure = "an error inside the stream"
                elif any(one.get("delta", {}).get("content") for one in event.get("choices", ())):
                    heard.tokens += 1
                    heard.first_s = heard.first_s or time.monotonic() - began
            if not is_done and not heard.failure:
                heard.failure = "the stream has no end"
            heard.total_s = time.monotonic() - began
    except (aiohttp.ClientError, asyncio.TimeoutError, OSError, msgspec.DecodeError) as error:
        heard.failure = type(error).__name__
    return heard


async def one_round(session: aiohttp.ClientSession, load: LoadTest, rate: float) -> LoadRound:
    found, began, tasks = LoadRound(rate), time.monotonic(), list[asyncio.Task[RequestTiming]]()
    for number in range(max(1, round(rate * load.duration_s))):
        await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
        tasks.append(asyncio.create_task(ask(session, load)))
    found.heard = await asyncio.gather(*tasks)
    found.wall_s = time.monotonic() - began
    return found


async def measure(load: LoadTest) -> None:
    key = os.environ.get(KEY, "")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    limit = aiohttp.ClientTimeout(REQUEST_S)
    trusted = certificate.client_context(load.certfile) if load.certfile else True
    connector = aiohttp.TCPConnector(limit=0, ssl=trusted)
    rounds: list[dict[str, Any]] = []
    async with aiohttp.ClientSession(headers=headers, timeout=limit, connector=connector) as session:
        rate = load.rate
        while len(rounds) < (MOST_ROUNDS if load.target_ttft_s else 1):
            record = (await one_round(session, load, rate)).record()
            rounds.append(record)
            tell("round", **record)
            if not meets(record, load):
                break
            rate *= STEP_UP
    tell("result", rounds=rounds, advice=advice(rounds, load))


def meets(record: dict[str, Any], load: LoadTest) -> bool:
    first_s = record["ttft_s"]["p95"]
    return not record["failed"] and first_s is not None and first_s <= load.target_ttft_s


def advice(rounds: Sequence[dict[str, Any]], load: LoadTest) -> str:
    """Return the setting that meets the target, as text; "" without a target."""
    if not load.target_ttft_s:
        return ""
    good = [one for one in rounds if meets(one, load)]
    if not good:
        return (
            f"{load.replicas} replicas miss {load.target_ttft_s:g} s at {rounds[0]['asked_per_s']:g} requests/s; use "
            "more replicas, or begin with a lower --rate"
        )
    best = good[-1]["asked_per_s"]
    missed = "" if len(good) < len(rounds) else " at least (no tried rate misses the target)"
    return (
        f"target_qps_per_replica: {best / load.replicas:.2f}{missed}    # {load.replicas} replicas keep the first "
        f"token within {load.target_ttft_s:g} s (p95) up to {best:.2f} requests/s"
    )


def tell(kind: str, **said: Any) -> None:
    with open(os.environ["SLIPWAY_RECORDS"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"kind": kind, "at": time.time(), **said}) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="serve.load")
    parser.add_argument("--config", type=Path, required=True, help="a LoadTest, as JSON")
    try:
        load = msgspec.json.decode(parser.parse_args().config.read_bytes(), type=LoadTest)
    except (OSError, msgspec.DecodeError) as error:
        print(f"serve.load: {error}", file=sys.stderr)
        sys.exit(2)
    run(measure(load))


if __name__ == "__main__":
    main()
