"""The replay of a drill: today's client is given the answers of a recording, and today's clauses judge the result.

Nothing is rented, and no vendor is asked. In: a recording. Out: `Replayed`: what the client reads otherwise than it
did, and what was found then and now.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.agent.job import Limits
from infra.drill import clauses
from infra.drill.clauses import ClauseResult
from infra.drill.evidence import Trial, VerbCall
from infra.drill.recording import Recorded, Recording
from infra.drill.watch import AnswerLost, Watch
from infra.errors import SlipwayError, UsageError
from infra.providers import Market, listed, look_up
from infra.providers.json_api import Exchange
from infra.providers.offers import open_market
from infra.records import Pod, Request
from infra.rehearsal.replay import Replay, serving
from infra.settings import VENDORS, Settings

ANOTHER_CLOCK = 1.0 + 1e-9  # a recording's time is another one on purpose, which the client of a real vendor refuses


@dataclass(frozen=True, kw_only=True)
class Replayed:
    """The result of a replay. `otherwise`: requests or readings that differ from the recording."""

    vendor: str
    at: int
    verbs: int
    otherwise: tuple[str, ...]
    then: tuple[ClauseResult, ...]
    now: tuple[ClauseResult, ...]


def replay(recording: Recording, settings: Settings) -> Replayed:
    """Return the results of today's client on a recording."""
    seen, name = recording.evidence, recording.vendor
    if name not in VENDORS:
        raise UsageError(f"{name} comes from an extension, whose requests are its own: they are not in the recording")
    first = next((one.at for one in recording.exchanges if one.at), float(recording.at))
    server, otherwise, asked = Replay(first), list[str](), list[VerbCall]()
    of: dict[int, list[Recorded]] = {}
    for one in recording.exchanges:
        of.setdefault(one.verb, []).append(one)
    with tempfile.TemporaryDirectory() as folder, serving(server) as url:
        scale = seen.vendor.clock_scale if seen.vendor.clock_scale != 1.0 else ANOTHER_CLOCK
        there: dict[str, Any] = {f"{name}_url": url, VENDORS[name]: "replayed", "clock_scale": scale,
                 "state_file": Path(folder) / "journal.sqlite"}  # fmt: skip
        market = open_market(name, replace(settings, **there))
        watch = Watch(market)
        with watch.listening(_lose(server)):
            for number, then in enumerate(seen.asked):
                if then.verb == "reach":
                    asked.append(then)
                    continue
                server.expect(of.get(number, ()))
                now = _ask(then, market, seen.trials)
                if _told(now) != _told(then):
                    otherwise.append(f"{then.verb} {then.word}: read {_told(now)}, then {_told(then)}")
                asked.append(now)
    server.expect(())
    judged = clauses.judge(replace(seen, asked=tuple(asked)))
    return Replayed(vendor=name, at=recording.at, verbs=len(seen.asked), then=tuple(clauses.judge(seen)),
                    now=tuple(judged), otherwise=(*server.otherwise, *otherwise))  # fmt: skip


def _ask(then: VerbCall, market: Market, trials: tuple[Trial, ...]) -> VerbCall:
    """Return the same verb, asked again."""
    trial = next((one for one in trials if then.word == one.token), None) or trials[0]
    request = Request(run=trial.run, provider=market.name, num_gpus=1)
    now = replace(then, error="", micro_usd=None, disk_micro_usd=then.disk_micro_usd)
    pods: list[Pod] = []
    try:
        if then.verb == "catalog":
            found = [one for one in market.catalog(request) if one.offer_id == then.word]
            return replace(now, micro_usd=found[0].micro_usd_per_hour if found else None)
        if then.verb == "billed":
            return replace(now, micro_usd=market.billed(then.word))
        if then.verb == "create":
            limits = Limits(time_s=then.time_s, spend_micro_usd=then.spend_micro_usd, micro_usd_per_hour=trial.rate)
            pods = [market.create(request, trial.offer, then.word, limits)]
        elif then.verb == "find":
            pods = [one for one in [look_up(market, then.word, spot=False)] if one]
        elif then.verb == "list":
            pods = listed(market, spot=False)
        elif then.verb == "arm":
            market.arm(then.word, then.time_s or 0.0)
        else:
            market.delete(then.word)
    except SlipwayError as error:
        return replace(now, error=type(error).__name__, pods=())
    return replace(now, pods=tuple(replace(one, address="") for one in pods))


def _told(one: VerbCall) -> tuple[object, ...]:
    """Return the part of a verb's result that must be the same, as our promises rest on it."""
    pods = [(pod.pod_id, pod.token, pod.state, pod.micro_usd_per_hour, pod.ends_at, pod.spend_limit_micro_usd,
             pod.spent_micro_usd) for pod in one.pods]  # fmt: skip
    return one.micro_usd, one.error, sorted(map(repr, pods))


def _lose(server: Replay) -> Callable[[Exchange], None]:
    """Return a listener that loses the answers that were lost."""

    def hear(_: Exchange) -> None:
        if server.is_lost:
            server.is_lost = False
            raise AnswerLost("it was lost when it was recorded")

    return hear
