"""The command `serve.scale`: the number of replicas of a service."""

from flows.services import serve as use_case
from scripts.cli import context, render
from scripts.cli.session import open_journal
from scripts.services.flags import ScaleFlags
from scripts.services.one_service import show
from serve import awaiting
from serve.processes import controller_client
from store import moving_line


def scale(spec: ScaleFlags) -> None:
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        wanted, is_changed = use_case.scale(name, spec.min_replicas, spec.max_replicas, journal)
        if not is_changed:
            render.say(f"{name}: nothing to change")
        with moving_line.waiting(f"{name}: asking its controller"):
            controller_client.ensure(name, settings, journal, render.tell)
        if not spec.detach:
            with moving_line.waiting(f"{name}: changing the number of its replicas"):
                awaiting.await_ready(name, wanted, settings, journal, False, render.tell)
        show([name], settings, journal, with_replicas=False, as_json=spec.json)
