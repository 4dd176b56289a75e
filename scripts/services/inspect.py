"""The commands serve.status, serve.logs, serve.ssh, serve.doctor and serve.bench, which look and change nothing.

A controller that has died is replaced on the way, by whoever looks.
"""

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from invoke import Exit

from flows.services.service_view import figures, look
from infra import train_env
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import pods
from infra.runs.lookup import way
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import line_after_dashes, print_json
from scripts.cli.session import open_journal
from scripts.services import services_text
from scripts.services.flags import BenchFlags, ServeDoctorFlags, ServeLogsFlags, ServeSshFlags, ServeStatusFlags
from serve.awaiting import phases
from serve.policy import service_state
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import ServiceRecord, WantedService
from serve.processes import controller_client, controller_process
from serve.replicas import placement
from store import moving_line

FOLLOW_S = 0.5
WATCH_S = 5.0  # what is shown lies on this machine
MOST_REQUESTS = 1_000_000  # requests in one round of a load: their outcomes are kept until its end


def status(spec: ServeStatusFlags) -> None:
    settings = context.settings()
    every_s = context.watch_seconds(spec.watch, WATCH_S)
    out = render.console(stderr=False)
    redraw = render.screen(out) if every_s is not None and not spec.json else contextlib.nullcontext()
    with open_journal(settings) as journal, redraw as redrawn:
        while True:
            names = (
                [controller_client.find(spec.name, journal)]
                if spec.name
                else [one.name for one in service_rows.every(journal)]
            )
            asked = moving_line.waiting(f"{', '.join(names)}: asked") if redrawn is None else contextlib.nullcontext()
            with asked:
                for one in names:
                    take_over(one, settings, journal)
            if redrawn is None or every_s is None:
                show(names, settings, journal, with_replicas=spec.all, with_metrics=spec.metrics, as_json=spec.json)
            else:
                found = look(names, settings, journal, spec.metrics)
                redrawn(services_text.watch_screen(found, every_s))
            if every_s is None:
                return
            time.sleep(every_s)


def take_over(name: str, settings: Settings, journal: Journal) -> None:
    """Bring back the controller of a service; where that cannot be done, say why: the service is shown as it was."""
    try:
        controller_client.ensure(name, settings, journal, render.tell)
    except SlipwayError as error:
        render.say(f"{name}: {error}")


def show(
    names: Sequence[str], settings: Settings, journal: Journal, *, with_replicas: bool, with_metrics: bool = False,
    as_json: bool = False,
) -> None:  # fmt: skip
    found = look(names, settings, journal, with_metrics)
    if as_json:
        print_json(found[0] if len(names) == 1 and found else found)
    elif not found:
        render.say(services_text.NONE)
    for one in found if not as_json else ():
        print("\n".join(services_text.lines_about(one, with_replicas)))


def logs(spec: ServeLogsFlags) -> None:
    if spec.tail is not None and spec.tail < 0:
        raise UsageError(f"--tail is {spec.tail}; it cannot be negative")
    if spec.controller and spec.replica_id is not None:
        raise UsageError("--controller and --replica-id exclude each other")
    settings = context.settings()
    with open_journal(settings) as journal:
        path = lambda: log_path(spec.name, spec.replica_id, spec.controller, settings, journal)  # noqa: E731
        plain = spec.json or spec.controller or spec.replica_id is not None  # only requests are kept as JSON
        line = str if plain else services_text.request_line
        offset = write(path(), 0, spec.tail, line)
        while spec.follow:
            time.sleep(FOLLOW_S)
            offset = write(path(), offset, None, line)


def log_path(name: str, number: int | None, controller: bool, settings: Settings, journal: Journal) -> Path:
    """Return a file of this machine that has the log; of a replica elsewhere, brought up to date."""
    known = [one.name for one in service_rows.every(journal)]
    if name not in known and controller_process.Places.of(settings, name or "-").folder.is_dir() and number is None:
        pass  # it has ended; what was written of it is here
    else:
        name = controller_client.find(name, journal)
    places = controller_process.Places.of(settings, name)
    if controller:
        return places.log
    if number is None:
        return places.access
    rows = journal.ops(run=f"{name}-{number}")
    if not rows:
        raise UsageError(f"{name} has had no replica {number}; see: inv serve.status {name} --all")
    home = RunHome.of(rows[-1].run, settings.homes)
    if rows[-1].is_live and rows[-1].address:
        mirror.bring_logs(rows[-1], way(settings, rows[-1]), home)
    log = home.pod.log("engine")
    return log if log.exists() else home.pod.log("environment")  # the folder of the log is made before


def write(path: Path, offset: int, tail: int | None, form: Callable[[str], str] = str) -> int:
    """Print from there on, each line in its form; return where it ends."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        if path.stat().st_size < offset:
            offset = 0  # another file has taken its place
        file.seek(offset)
        text = file.read()
    lines = text.decode(errors="replace").splitlines(keepends=True)
    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        print(render.clean(form(line.rstrip("\n"))), flush=True)
    return offset + len(text)


def ssh(spec: ServeSshFlags) -> None:
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        op = live_replica(name, spec.replica_id, journal)
        code = way(settings, op).shell(line_after_dashes() or None, cwd=pods.folder_of(op).root)
    if code:
        raise Exit(code=code)


def live_replica(name: str, number: int | None, journal: Journal) -> Op:
    """Return the row of a replica that lives. Raises UsageError that lists those there are."""
    row = service_rows.find(journal, name)
    assert row is not None
    there = [one for one in service_state.seen_of(row.seen).members if one.state in LIVE]
    listed = ", ".join(str(one.number) for one in there) or "none"
    if number is None and len(there) != 1:
        raise UsageError(f"{name} has several replicas; choose one with --replica-id: {listed}")
    run = there[0].run if number is None else f"{name}-{number}"
    if run not in [one.run for one in there]:
        raise UsageError(f"{name} has no replica {number}; available: {listed}")
    return journal.ops(run=run)[-1]


def doctor(spec: ServeDoctorFlags) -> None:
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        was_kept = controller_process.is_kept(name, journal)
        with moving_line.waiting(f"{name}: asked"):
            take_over(name, settings, journal)
        row = service_rows.find(journal, name)
        assert row is not None
        wanted, seen = service_state.wanted_of(row.wanted), service_state.seen_of(row.seen)
    findings = advice(name, wanted, seen, figures(name, settings), was_kept)
    if spec.json:
        print_json({"service": name, "findings": [{"seen": what, "do": do} for what, do in findings]})
    elif not findings:
        print(f"{name}: nothing is wrong that can be seen: {len(seen.serving)} replicas serve at {seen.endpoint}")
    for what, do in [] if spec.json else findings:
        print(render.clean(f"{what}\n    {do}"))


def advice(
    name: str, wanted: WantedService, seen: ServiceRecord, metrics: dict[str, Any], was_kept: bool
) -> list[tuple[str, str]]:
    """Return the findings, each with advice. Pure."""
    newest, found = wanted.newest, list[tuple[str, str]]()
    found += [(f"{key} of its service file changes nothing", instead)
              for key, instead in placement.unread(newest.service)]  # fmt: skip
    policy, probe = newest.service.policy, newest.service.probe
    if not was_kept and not seen.problem:
        found.append(("its controller was not running", f"it has been started again; why it ended: "
                      f"inv serve.logs {name} --controller"))  # fmt: skip
    if seen.problem:
        found.append((seen.problem, f"inv serve.logs {name} --controller"))
    if seen.held:
        found.append((f"no more replicas are started: {seen.held}", f"mend it, then: inv serve.up {name}"))
    failed = [one for one in seen.members if one.state.is_failed]
    if failed and not seen.serving:
        last = failed[-1]
        ask = f"inv serve.logs {name} --replica-id {last.number}; inv doctor --provider {newest.provider or 'ssh'}"
        coming = ", ".join(f"{one.run} {one.state.value}" for one in seen.members if one.state.is_alive)
        now = f"; in its place: {coming}" if coming else ""
        found.append((f"no replica serves; {last.run} {last.state.value}: {last.why}{now}", f"see {ask}"))
    for one in seen.members:
        if one.state is State.NOT_READY or (one.state is State.STARTING and one.began_at < time.time() - 60):
            found.append((
                f"{one.run} is {one.state.value}{f': {at}' if (at := phases(one)) else ''}",
                f"inv serve.logs {name} --replica-id {one.number}; inv serve.ssh {name} --replica-id {one.number}; "
                f"a large model needs a longer initial_delay_seconds than {probe.initial_delay_seconds:g}, "
                "which counts from its engine's start",
            ))  # fmt: skip
    late = any(one.state.value == "FAILED_INITIAL_DELAY" for one in seen.members)
    if late:
        found.append((f"replicas were not ready within {render.duration(probe.initial_delay_seconds)}",
                      "raise initial_delay_seconds in the service file, or see the log of one"))  # fmt: skip
    waits = metrics["queue_s"]["p95"]
    if waits is not None and waits > 1.0:
        found.append((f"requests wait {waits:g} s for a replica (p95)", f"scale up: inv serve.scale {name} "
                      f"--min-replicas {policy.min_replicas + 1}, or lower target_qps_per_replica"))  # fmt: skip
    if metrics["requests"] and metrics["failed"]:
        share = metrics["failed"] / metrics["requests"]
        found.append((f"{share:.1%} of the requests of five minutes failed", f"inv serve.logs {name} --tail 20"))
    return found


def bench(spec: BenchFlags) -> None:
    name = spec.name
    settings = context.settings()
    duration_s = context.seconds(spec.duration)
    if not 0 < spec.rate < math.inf or duration_s is None or spec.max_tokens < 1:
        raise UsageError("--rate, --duration and --max-tokens must be more than 0")
    if spec.target_ttft is not None and not 0 < spec.target_ttft < math.inf:
        raise UsageError(f"--target-ttft is {spec.target_ttft:g}; it must be seconds, more than 0")
    if spec.rate * duration_s > MOST_REQUESTS:
        number = f"{spec.rate * duration_s:.0f} requests"
        raise UsageError(f"--rate {spec.rate:g} for --duration {spec.duration} is {number}; "
                         f"{MOST_REQUESTS} are the most that can be counted")  # fmt: skip
    with open_journal(settings) as journal:
        name = controller_client.find(name, journal)
        with moving_line.waiting(f"{name}: asked"):
            seen = controller_client.ensure(name, settings, journal, render.tell)
        row = service_rows.find(journal, name)
        assert row is not None
        newest = service_state.wanted_of(row.wanted).newest
        certfile = controller_client.certfile(name, journal)
        ready = len(service_state.seen_of(row.seen).serving)
    if not ready:
        raise UsageError(f"{name} has no replica that is ready; see: inv serve.doctor {name}")
    config = {"url": seen.endpoint, "certfile": certfile, "rate": spec.rate, "duration_s": duration_s,
              "model": service_state.served_name(name, newest.service), "max_tokens": spec.max_tokens,
              "prompt": spec.prompt, "replicas": ready, "target_ttft_s": spec.target_ttft or 0.0}  # fmt: skip
    result: dict[str, Any] = {}
    python = controller_client.python(settings, render.say)
    with moving_line.waiting(f"{name}: {spec.rate:g} requests per second are sent"):
        for record in train_env.run(("-m", "serve.load"), config, root=ROOT, python=python):
            if record["kind"] == "round" and not spec.json:
                moving_line.clear()
                print(round_words(record), flush=True)
            result = record if record["kind"] == "result" else result
    if spec.json:
        print_json({key: value for key, value in result.items() if key not in ("kind", "at")})
    first = result["rounds"][0]
    if not first["answered_per_s"]:
        hint = f"; put its key into SLIPWAY_ENDPOINT_KEY (a new one: inv serve.key {name} --for YOU)"
        why = ", ".join(first["failures"])
        raise SlipwayError(f"{name} answered nothing: {why}{hint if 'status 401' in first['failures'] else ''}; "
                           f"see: inv serve.logs {name} --tail 5")  # fmt: skip
    if result.get("advice") and not spec.json:
        print(result["advice"])


def round_words(one: dict[str, Any]) -> str:
    said = [
        f"asked {one['asked_per_s']:.2f} requests/s: {one['answered_per_s']:.2f} answered/s, {one['failed']} failed, "
        f"{one['tokens_per_s']:.1f} tokens/s"
    ]
    for what in ("ttft_s", "tpot_s", "latency_s"):
        values = "/".join("-" if value is None else f"{value:.3f}" for value in one[what].values())
        said.append(f"{what.removesuffix('_s')} p50/p95/p99 {values} s")
    if one["failed"]:
        said.append(f"failed: {', '.join(one['failures'])}")
    return "; ".join(said)
