"""Helpers of commands about a service; each look at a service restarts a dead controller."""

from collections.abc import Sequence
from dataclasses import dataclass

from flows.services.service_view import look
from infra.errors import SlipwayError
from infra.flags import flag
from infra.ledger.journal import Journal
from infra.settings import Settings
from scripts.cli import render
from scripts.cli.render import print_json
from scripts.services import services_text
from serve.processes import controller_client

REPLICA = "number of the replica in serve.status"


@dataclass(frozen=True, kw_only=True)
class OneServiceFlags:
    """Flags of a command about a single service."""

    name: str = flag("", "name of the service (default: the only service)", word=True, also=("n",))


def restart_controller(name: str, settings: Settings, journal: Journal) -> None:
    """Restart a dead controller of a service; on failure print the error, and show the last known state."""
    try:
        controller_client.ensure(name, settings, journal, render.tell)
    except SlipwayError as error:
        render.say(f"{name}: {error}")


def show(
    names: Sequence[str],
    settings: Settings,
    journal: Journal,
    *,
    with_replicas: bool,
    with_metrics: bool = False,
    as_json: bool = False,
) -> None:
    found = look(names, settings, journal, with_metrics)
    if as_json:
        print_json(found[0] if len(names) == 1 and found else found)
    elif not found:
        render.say(services_text.NONE)
    for one in found if not as_json else ():
        print("\n".join(services_text.lines_about(one, with_replicas)))
