"""The command `serve.bench`: load on a service at a given request rate, with measurements."""

import math
from dataclasses import dataclass
from typing import Any

from infra import train_env
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger import service_rows
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.services.one_service import OneServiceFlags
from serve.policy import service_state
from serve.processes import controller_client
from store import terminal

MOST_REQUESTS = 1_000_000  # request limit per round, because all outcomes stay in memory until the end of the round


@dataclass(frozen=True, kw_only=True)
class BenchFlags(OneServiceFlags, Output):
    rate: float = flag(2.0, "requests sent per second, independent of the answers (2)", unit="PER_S")
    duration: str = flag("20s", "duration of the test: 30s, 5m", unit="DURATION")
    max_tokens: int = flag(32, "maximum tokens of each answer")
    prompt: str = flag("Who are you?", "prompt of each request")
    target_ttft: float | None = flag(
        None,
        "target for the time to first token in seconds (95th percentile): raise the rate until the "
        "service misses the target, and print the target_qps_per_replica that keeps the target",
        unit="SECONDS",
    )


@command(record=BenchFlags, example="inv serve.bench demo --rate 4 --duration 1m")
def bench(spec: BenchFlags) -> None:
    """Send requests to a service at a fixed rate, and measure.

    The output shows requests and tokens per second, the time to first token and the latencies as percentiles.
    """
    name = spec.name
    settings = context.settings()
    settings.lend_environment(secrets=True)
    duration_s = context.seconds(spec.duration)
    if not 0 < spec.rate < math.inf or duration_s is None or spec.max_tokens < 1:
        raise UsageError("--rate, --duration and --max-tokens must be more than 0")
    if spec.target_ttft is not None and not 0 < spec.target_ttft < math.inf:
        raise UsageError(f"--target-ttft is {spec.target_ttft:g}; expected a number of seconds above 0")
    if spec.rate * duration_s > MOST_REQUESTS:
        number = f"{spec.rate * duration_s:.0f} requests"
        raise UsageError(
            f"--rate {spec.rate:g} for --duration {spec.duration} is {number}; the maximum is "
            f"{MOST_REQUESTS}. Lower the rate or the duration"
        )
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        with terminal.show_while(f"{name}: asked"):
            seen = controller_client.ensure(name, settings, journal, render.tell)
        row = service_rows.find(journal, name)
        assert row is not None
        newest = service_state.parse_desired(row.wanted).newest
        certfile = controller_client.certfile(name, journal)
        ready = len(service_state.parse_observed(row.seen).serving)
    if not ready:
        raise UsageError(f"{name} has no ready replica; see: inv serve.doctor {name}")
    config = {
        "url": seen.endpoint,
        "certfile": certfile,
        "rate": spec.rate,
        "duration_s": duration_s,
        "model": service_state.served_name(name, newest.service),
        "max_tokens": spec.max_tokens,
        "prompt": spec.prompt,
        "replicas": ready,
        "target_ttft_s": spec.target_ttft or 0.0,
    }
    result: dict[str, Any] = {}
    python = controller_client.python(settings, render.say)
    with terminal.show_while(f"{name}: sending {spec.rate:g} requests per second"):
        for record in train_env.run(("-m", "serve.load"), config, root=ROOT, python=python):
            if record["kind"] == "round" and not spec.json:
                terminal.clear()
                print(round_words(record), flush=True)
            result = record if record["kind"] == "result" else result
    if spec.json:
        print_json({key: value for key, value in result.items() if key not in ("kind", "at")})
    first = result["rounds"][0]
    if not first["answered_per_s"]:
        hint = f"; set SLIPWAY_ENDPOINT_KEY to an API key (create a key: inv serve.key {name} --for YOU)"
        why = ", ".join(first["failures"])
        raise SlipwayError(
            f"{name} answered no request: {why}{hint if 'status 401' in first['failures'] else ''}; "
            f"see: inv serve.logs {name} --tail 5"
        )
    if result.get("advice") and not spec.json:
        print(result["advice"])


def round_words(one: dict[str, Any]) -> str:
    said = [
        f"sent {one['asked_per_s']:.2f} requests/s: {one['answered_per_s']:.2f} answered/s, "
        f"{one['failed']} failed, {one['tokens_per_s']:.1f} tokens/s"
    ]
    for what in ("ttft_s", "tpot_s", "latency_s"):
        values = "/".join("-" if value is None else f"{value:.3f}" for value in one[what].values())
        said.append(f"{what.removesuffix('_s')} p50/p95/p99 {values} s")
    if one["failed"]:
        said.append(f"failed: {', '.join(one['failures'])}")
    return "; ".join(said)
