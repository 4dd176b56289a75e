"""The command `serve.doctor`: detected problems of a service, each with advice."""

import time
from dataclasses import dataclass
from typing import Any

from flows.services.service_view import figures
from infra.ledger import service_rows
from scripts.cli import command_hints, context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.services.one_service import OneServiceFlags, restart_controller
from serve.engines import OWN_RUN
from serve.policy import service_state
from serve.policy.replica_states import State
from serve.policy.service_state import ServiceRecord, WantedService
from serve.processes import controller_client, controller_process
from serve.readiness import phases
from serve.replicas import placement
from store import terminal


@dataclass(frozen=True, kw_only=True)
class ServeDoctorFlags(OneServiceFlags, Output):
    """The flags of `serve.doctor`."""


@command(record=ServeDoctorFlags, example="inv serve.doctor demo")
def doctor(spec: ServeDoctorFlags) -> None:
    """Show problems of a service, and how to fix them."""
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        was_kept = controller_process.is_kept(name, journal)
        with terminal.show_while(f"{name}: asked"):
            restart_controller(name, settings, journal)
        row = service_rows.find(journal, name)
        assert row is not None
        wanted, seen = service_state.parse_desired(row.wanted), service_state.parse_observed(row.seen)
    findings = advice(name, wanted, seen, figures(name, settings), was_kept)
    if spec.json:
        print_json({"service": name, "findings": [{"seen": what, "do": do} for what, do in findings]})
    elif not findings:
        print(f"{name}: no problem found; {len(seen.serving)} replicas serve at {seen.endpoint}")
    for what, do in [] if spec.json else findings:
        print(render.clean(command_hints.insert_carried_flags(f"{what}\n    {do}")))


def advice(
    name: str, wanted: WantedService, seen: ServiceRecord, metrics: dict[str, Any], was_kept: bool
) -> list[tuple[str, str]]:
    """Return the findings as (problem, advice) pairs, without I/O."""
    newest, found = wanted.newest, list[tuple[str, str]]()
    found += [
        (f"{key} in the service file has no effect", instead)
        for key, instead in placement.ignored_settings(newest.service, newest.engine == OWN_RUN)
    ]
    policy, probe = newest.service.policy, newest.service.probe
    if not was_kept and not seen.problem:
        found.append(
            (
                "the controller was not running",
                f"this command restarted the controller; cause of the exit: inv serve.logs {name} --controller",
            )
        )
    if seen.problem:
        found.append((seen.problem, f"inv serve.logs {name} --controller"))
    if seen.held:
        found.append(
            (f"the controller starts no new replicas: {seen.held}", f"fix the cause, then: inv serve.up {name}")
        )
    failed = [one for one in seen.members if one.state.is_failed]
    if failed and not seen.serving:
        last = failed[-1]
        where = f" --provider {last.vendor or newest.provider}" if last.vendor or newest.provider else ""
        ask = f"inv serve.logs {name} --replica-id {last.number}; inv doctor{where}"
        coming = ", ".join(f"{one.run} {one.state.value}" for one in seen.members if one.state.is_alive)
        now = f"; in its place: {coming}" if coming else ""
        found.append((f"no replica serves requests; {last.run} is {last.state.value}: {last.why}{now}", f"see {ask}"))
    for one in seen.members:
        if one.state is State.NOT_READY or (one.state is State.STARTING and one.began_at < time.time() - 60):
            found.append(
                (
                    f"{one.run} is {one.state.value}{f': {at}' if (at := phases(one)) else ''}",
                    f"see inv serve.logs {name} --replica-id {one.number}; inv serve.ssh {name} "
                    f"--replica-id {one.number}. A large model may need an initial_delay_seconds above "
                    f"{probe.initial_delay_seconds:g}, counted from the start of the engine",
                )
            )
    late = any(one.state.value == "FAILED_INITIAL_DELAY" for one in seen.members)
    if late:
        found.append(
            (
                f"at least one replica was not ready within {render.duration(probe.initial_delay_seconds)}",
                "raise initial_delay_seconds in the service file, or read the log of a replica: inv serve.logs",
            )
        )
    waits = metrics["queue_s"]["p95"]
    if waits is not None and waits > 1.0:
        found.append(
            (
                f"requests wait {waits:g} s for a free replica (95th percentile)",
                f"add a replica: inv serve.scale {name} --min-replicas {policy.min_replicas + 1}, or "
                "lower target_qps_per_replica",
            )
        )
    if metrics["requests"] and metrics["failed"]:
        share = metrics["failed"] / metrics["requests"]
        found.append(
            (f"{share:.1%} of the requests in the last five minutes failed", f"inv serve.logs {name} --tail 20")
        )
    return found
