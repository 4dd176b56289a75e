"""Services that an engine such as SkyServe runs, for the commands `serve.up`, `.status`, `.down` and `.logs`."""

import time
from collections.abc import Sequence
from typing import Any

from flows.services import engine_services as use_case
from flows.specs.service import ServeSpec
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.market.filters import format_offer
from infra.runs.engine import RunEngine
from infra.settings import Settings
from infra.units import count, dollars, in_usd
from scripts.cli import prompts, render
from scripts.cli.render import print_json
from scripts.services import services_text
from store import terminal

POLL_S = 5.0


def up(spec: ServeSpec, engine: RunEngine, settings: Settings, journal: Journal, *, yes: bool, is_dry: bool,
       detach: bool, as_json: bool) -> None:  # fmt: skip
    """Show the plan of a service, ask, hand the file over, and wait for the first ready replica."""
    with terminal.show_while(f"asking {engine.title}"):
        planned = use_case.plan(spec, engine, journal, settings, render.tell)
    service = planned.service
    if as_json and is_dry:
        told = {"service": planned.name, "engine": engine.name, "min_replicas": service.least}
        told |= {"max_replicas": service.most, "offer_id": service.offer.offer_id, "notes": service.notes}
        print_json({**told, "usd_per_hour": dollars(planned.rate)})
        return
    many = (
        count(service.most, "replica")
        if service.least == service.most
        else f"{service.least} to {service.most} replicas"
    )
    render.say(
        f"{planned.name}: {spec.config} through {engine.title}, {many}; a replica: {format_offer(service.offer)}"
    )
    for one in service.notes:
        render.say(f"  {one}")
    cost = f"limit: {in_usd(planned.limits.spend_micro_usd)}" if planned.limits.spend_micro_usd else "your own machines"
    render.say(f"{many}: at most {render.cents(planned.rate)} USD/h; {cost}{'; nothing was started' if is_dry else ''}")
    if is_dry:
        return
    if planned.rate:
        prompts.confirm(yes)
    with terminal.show_while(f"{planned.name}: {engine.title} starts the service"):
        op = use_case.begin(planned, engine, journal, settings)
    if not detach:
        await_ready(op, journal, settings, needs_replica=service.least > 0)
    show([op], settings, with_replicas=False, as_json=as_json)


def await_ready(op: Op, journal: Journal, settings: Settings, needs_replica: bool) -> None:
    """Wait until a replica answers, and report each new state. Ctrl-C leaves the service at work.

    needs_replica: False for a service that may begin without a replica.
    """
    told = ""
    try:
        while True:
            seen = use_case.about(op, settings, time.time())
            words = ", ".join([seen["state"], *(f"{one['run']} {one['state']}" for one in seen["replicas"])])
            if words != told:
                render.tell(f"{op.run}: {words}")
                told = words
            if seen["ready"] or seen["state"] == "NO_REPLICA" and not needs_replica:
                return
            if not journal.op(op.token).is_live:
                raise SlipwayError(f"{op.run} was ended by a different command")
            if "FAILED" in seen["state"]:
                raise SlipwayError(
                    f"{op.run}: SkyServe says {seen['state']}; the replicas may still cost money. Log: inv serve.logs "
                    f"{op.run} --controller; end the service: inv serve.down {op.run}"
                )
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        render.say(f"{op.run} continues; see: inv serve.status {op.run}; end the service: inv serve.down {op.run}")
        raise


def show(
    found: Sequence[Op],
    settings: Settings,
    *,
    with_replicas: bool,
    as_json: bool,
    others: Sequence[dict[str, Any]] = (),
) -> None:
    """Print the services of engines. `others`: documents of further services for the JSON."""
    about = [use_case.about(one, settings, time.time()) for one in found]
    if as_json:
        every = [*others, *about]
        print_json(every[0] if len(every) == 1 else every)
    for one in about if not as_json else ():
        print("\n".join([*services_text.lines_about(one, with_replicas), one["unproven"]]))


def down(op: Op, journal: Journal, settings: Settings) -> None:
    """End a service, and say what the proof of the end leaves open."""
    engine = use_case.engine_named(op.vendor, settings)
    assert engine is not None
    with terminal.show_while(f"{op.run} ends"):
        use_case.end(op, journal, settings)
    render.say(f"{op.run}: ended; {engine.title} has neither the service nor a cluster of its replicas")
    render.say(f"  {use_case.of_engine(engine).unproven}")


def logs(op: Op, settings: Settings, replica: int | None, tail: int | None, is_followed: bool) -> None:
    """Print the log of a replica, or of the controller of the engine."""
    if is_followed:
        raise UsageError("--follow is for services of Slipway; repeat the command without the flag")
    engine = use_case.engine_named(op.vendor, settings)
    assert engine is not None
    print(render.clean(use_case.of_engine(engine).log(op, replica, tail)), end="")
