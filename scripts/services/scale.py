"""The command `serve.scale`: the replica bounds of a service."""

from dataclasses import dataclass

from flows.services import serve as use_case
from infra.flags import flag
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.session import open_journal
from scripts.services.one_service import OneServiceFlags, show
from serve import readiness
from serve.processes import controller_client
from store import terminal


@dataclass(frozen=True, kw_only=True)
class ScaleFlags(OneServiceFlags, Output):
    min_replicas: int | None = flag(None, "lower bound")
    max_replicas: int | None = flag(
        None, "maximum number of replicas (default: unchanged, or --min-replicas if larger)"
    )
    detach: bool = flag(False, "do not wait until the replicas are ready")


@command(record=ScaleFlags, example="inv serve.scale demo --min-replicas 1 --max-replicas 3", rents=True)
def scale(spec: ScaleFlags) -> None:
    """Change the number of replicas of a service.

    The command sets the minimum and the maximum; no replica is restarted.
    """
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        wanted, is_changed = use_case.scale(name, spec.min_replicas, spec.max_replicas, journal, settings)
        if not is_changed:
            render.say(f"{name}: nothing to change")
        with terminal.show_while(f"{name}: asking the controller"):
            seen = controller_client.ensure(name, settings, journal, render.tell)
        if is_changed:
            live = sum(one.version == wanted.newest.number and one.state.is_alive for one in seen.members)
            render.say(use_case.scale_forecast(name, wanted, live))
        if not spec.detach:
            with terminal.show_while(f"{name}: changing the number of replicas"):
                readiness.await_ready(name, wanted, settings, journal, False, render.tell)
        show([name], settings, journal, with_replicas=False, as_json=spec.json)
