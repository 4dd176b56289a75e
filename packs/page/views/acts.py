"""Actions of the page, if enabled: end a run, resume a run or scale a service, each after a confirmation.

An action takes two requests. The first request returns a question and a one-time word, and the second request sends the
word back. A single stray request therefore has no effect, and the action matches the confirmed question.
"""

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flows.pods import stop
from flows.runs import resume
from flows.services import serve
from flows.supervisor import supervisor_client
from infra.errors import NoOffer, UsageError
from infra.market.filters import format_offer
from infra.runs.lookup import find_run
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import count, in_usd, per_hour
from packs.page.views.page_context import PageContext
from serve.budget import limit_of
from serve.processes import controller_client

WORD_S = 60.0  # seconds for which a confirmation stays valid
SOON_S = 2.0  # seconds within which a failure is returned as the response
MOST_REPLICAS = 64


@dataclass(frozen=True)
class ActQuestion:
    """A pending confirmation: question, equivalent command, expiry time (monotonic) and the action."""

    words: str
    command: str
    until: float
    do: Callable[[], None]


@dataclass
class Acts:
    """The pending actions of the page."""

    context: PageContext
    asked: dict[str, ActQuestion] = field(default_factory=dict)
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def handle(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Return the question of an action, or start the confirmed action for a word.

        Raise UsageError for an unknown action or an expired word, and SlipwayError if the action is impossible.
        """
        if word := str(said.get("word", "")):
            return self._start_confirmed(word)
        act = str(said.get("act", ""))
        if act not in ("down", "resume", "scale"):
            raise UsageError(f"unknown act {act!r}; known: down, resume, scale")
        question = getattr(self, f"_{act}")(said)
        word = secrets.token_urlsafe(16)
        with self._turn:
            now = time.monotonic()
            self.asked = {key: one for key, one in self.asked.items() if one.until > now}
            self.asked[word] = question
        return {"question": question.words, "command": question.command, "word": word}

    def _start_confirmed(self, word: str) -> dict[str, Any]:
        with self._turn:
            question = self.asked.pop(word, None)
        if question is None or question.until < time.monotonic():
            raise UsageError("the question is too old or was already answered; ask again")
        problems = list[str]()
        act = threading.Thread(target=self._run_action, args=(question, problems), daemon=True)
        act.start()
        act.join(SOON_S)
        if problems:
            raise UsageError(problems[0])
        return {"begun": question.command}

    def _run_action(self, question: ActQuestion, problems: list[str]) -> None:
        self.context.add_note(f"{question.command}: begun")
        try:
            question.do()
            self.context.add_note(f"{question.command}: done")
        except Exception as error:  # The error also appears among the page's notes.
            problems.append(str(error) or type(error).__name__)
            self.context.add_note(f"{question.command}: {problems[0]}")

    def _down(self, said: Mapping[str, Any]) -> ActQuestion:
        with self.context.journal() as journal:
            op = find_run(journal, _name(said))
        view = next((one for one in self.context.runs() if one.run == op.run), None)
        spent = f" It has cost {in_usd(view.spent_micro_usd)}." if view and view.spent_micro_usd else ""

        def do() -> None:
            with self.context.journal() as journal:
                for one in stop.end_pods(
                    stop.rows_of(op.run, journal), journal, self.context.settings, self.context.add_note
                ):
                    if one.problem:
                        raise one.problem

        words = f"End {op.run}? The run saves a checkpoint first, and then the pod ends.{spent}"
        return _question(words, f"inv down {op.run}", do)

    def _resume(self, said: Mapping[str, Any]) -> ActQuestion:
        settings = self.context.settings
        with self.context.journal() as journal:
            op = find_run(journal, _name(said))
            found = resume.resumption(op.run, "", "", journal, settings, self.context.add_note)

        def do() -> None:
            with self.context.journal() as journal:
                resume.resume(found, journal, settings, self.context.add_note)
            supervisor_client.ensure(settings)

        costs = (
            f" This rents {format_offer(found.offers[0])}, or the next offer; {found.money}." if found.offers else ""
        )
        return _question(
            f"Resume {op.run} from the newest complete checkpoint?{costs}", f"inv resume {op.run} --detach", do
        )

    def _scale(self, said: Mapping[str, Any]) -> ActQuestion:
        least, most = (_replicas(said, name) for name in ("least", "most"))
        if least > most:
            raise UsageError("the lower bound of replicas cannot exceed the upper bound")
        settings = self.context.settings
        with self.context.journal() as journal:
            name = controller_client.find(_name(said), journal)
            found, wanted = serve.plan_scale(name, least, most, journal, settings, self.context.add_note)
        costs = ""
        if serve.rents_more(found, settings):
            costs = _scale_costs(found, most, settings, self.context.add_note)
            limit = found.version.service.slipway.spend_limit
            costs += f"the limit for all replicas is {in_usd(limit_of(limit))}." if limit else "no limit is set."

        def do() -> None:
            with self.context.journal() as journal:
                serve.set_desired_state(found, wanted, journal, settings, self.context.add_note)

        command = f"inv serve.scale {name} --min-replicas {least} --max-replicas {most}"
        return _question(f"Let {name} have {least} to {most} replicas?{costs}", command, do)


def _question(words: str, command: str, do: Callable[[], None]) -> ActQuestion:
    return ActQuestion(words, command, time.monotonic() + WORD_S, do)


def _scale_costs(found: serve.Revision, most: int, settings: Settings, tell: Say) -> str:
    try:
        offers = serve.replica_offers(found, settings, tell)
    except NoOffer:  # A higher maximum is for a later load.
        return " No machine fits now, and the controller asks the vendors again; "
    hourly, left = serve.hourly_cost(offers, most)
    missing = f" (machines are available for {most - left} only)" if left else ""
    return f" {count(most, 'replica')}{missing} cost about {per_hour(hourly)}; "


def _name(said: Mapping[str, Any]) -> str:
    """Return the target name of an action. Raise UsageError without a name; actions have no default target."""
    name = said.get("name")
    if not isinstance(name, str) or not name:
        raise UsageError("an act needs the name of a run or service")
    return name


def _replicas(said: Mapping[str, Any], name: str) -> int:
    value = said.get(name)
    if type(value) is not int or not 0 <= value <= MOST_REPLICAS:
        raise UsageError(f"{name} must be a whole number from 0 to {MOST_REPLICAS}")
    return value
