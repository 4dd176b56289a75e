"""The command `serve.scale`: the replica bounds of a service."""

from dataclasses import dataclass

from flows.services import serve as use_case
from infra.errors import NoOffer
from infra.flags import flag
from scripts.cli import context, prompts, render
from scripts.cli.command import command
from scripts.cli.flags import TALK, Output, Questions
from scripts.cli.session import open_journal
from scripts.services.one_service import OneServiceFlags, show
from scripts.services.up import limit_text, show_placement
from serve import readiness
from serve.processes import controller_client
from store import terminal


@dataclass(frozen=True, kw_only=True)
class ScaleFlags(OneServiceFlags, Output, Questions):
    min_replicas: int | None = flag(None, "lower bound")
    max_replicas: int | None = flag(
        None, "maximum number of replicas (default: unchanged, or --min-replicas if larger)"
    )
    dry_run: bool = flag(False, "show the machines for the replicas with prices, and stop", group=TALK)
    detach: bool = flag(False, "do not wait until the replicas are ready")


@command(record=ScaleFlags, example="inv serve.scale demo --min-replicas 1 --max-replicas 3", rents=True)
def scale(spec: ScaleFlags) -> None:
    """Change the number of replicas of a service.

    The command sets the minimum and the maximum; no replica is restarted. Before more replicas on rented machines, the
    command shows machines, price and limit, and asks.
    """
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        found, wanted = use_case.plan_scale(name, spec.min_replicas, spec.max_replicas, journal, settings, render.tell)
        if spec.dry_run:
            show_placement(found, settings, spec.json)
            return
        if wanted == found.old:
            render.say(f"{name}: nothing to change")
        elif use_case.rents_more(found, settings):
            try:
                show_placement(found, settings, as_json=False, is_asked=False)
            except NoOffer as error:  # A higher maximum is for a later load, and the controller asks the vendors again.
                cost = limit_text(found.version.service)
                render.tell(f"{error}\n{name}: the controller asks again until a machine fits; {cost}")
            prompts.confirm(spec.yes)
        with terminal.show_while(f"{name}: asking the controller"):
            seen = use_case.set_desired_state(found, wanted, journal, settings, render.tell)
        if wanted != found.old:
            live = sum(one.version == wanted.newest.number and one.state.is_alive for one in seen.members)
            render.say(use_case.scale_forecast(name, wanted, live))
        if not spec.detach:
            with terminal.show_while(f"{name}: changing the number of replicas"):
                readiness.await_ready(name, wanted, settings, journal, False, render.tell)
        show([name], settings, journal, with_replicas=False, as_json=spec.json)
