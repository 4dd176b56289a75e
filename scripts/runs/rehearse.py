"""The command `inv rehearse`: a launch in a simulated market, followed by the market's timeline and the cost."""

import contextlib
import io
import json as json_text
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from invoke import Exit

from flows.planning import machine_choice
from infra.agent.process import send
from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger import spend as costs
from infra.ledger.journal import Journal
from infra.market import gpus
from infra.rehearsal import attach
from infra.rehearsal.attach import Running
from infra.rehearsal.pods import find_sshd
from infra.settings import MARKET, VENDORS
from infra.units import in_usd, micro_usd, per_hour
from scripts.cli import context, local_step, rehearsal_world, render
from scripts.cli.command import APART, command
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.runs import launch
from scripts.runs.launch import LaunchFlags
from store import terminal
from trainer.plan import profile_named

AT_START_ONLY = ("prices", "balance_usd", "lium_key_budget_usd")
KEEPER = "keep:"
LIMIT_S = 18.0  # real seconds until a limit is reached: the tiny profile is half done by then


@dataclass(frozen=True)
class Event:
    """An event in the market; `at`: UTC epoch seconds by the market's clock."""

    at: float
    vendor: str
    machine: str
    what: str


SIMULATED = "Simulated market"


@dataclass(frozen=True, kw_only=True)
class RehearseFlags(LaunchFlags):
    preempt: int = flag(0, "preempt the run's pod this many times, each time after a checkpoint", group=SIMULATED)
    bad_host: int = flag(0, "give the first N rented machines an old driver or a slow disk, in turn", group=SIMULATED)
    faults: str = flag(
        "", "YAML file of additional faults (keys: infra/rehearsal/faults.py)", group=SIMULATED, unit="FILE"
    )
    offers: str = flag("", "JSON file of offers instead of the built-in offers", group=SIMULATED, unit="FILE")
    speed: float | None = flag(
        None,
        "simulated seconds per real second (default: 60, or fewer if a limit would end the run before the work begins)",
        group=SIMULATED,
    )
    stop: bool = flag(False, "end the rehearsal and every process in the rehearsal", group=SIMULATED)


@command(
    record=RehearseFlags,
    world=APART,
    env=True,
    flag_file="file",
    example="inv rehearse --phase sft --profile tiny --gpu H100 --use-spot --preempt 1",
)
def rehearse(spec: RehearseFlags) -> None:
    """Launch in a simulated market, free of charge.

    The market's servers and pods are real processes on this machine. At the end the command prints the events and the
    bill of the market.
    """
    if spec.stop:
        end(spec.json)
        return
    for name, number in (("preempt", spec.preempt), ("bad-host", spec.bad_host)):
        if number < 0:
            raise UsageError(f"--{name} is {number}; it cannot be negative")
    if spec.speed is not None and spec.speed <= 0:
        raise UsageError(f"--speed is {spec.speed:g}; it must be more than 0")
    plan = plan_of(spec.faults, spec.preempt, spec.bad_host)
    if not spec.dry_run:
        find_sshd()
        # Build the environment before the clock runs, or the first pod would spend money during the build.
        local_step.python(context.settings())
    if spec.dry_run:
        with dry_world(plan, spec.faults, spec.offers, spec.speed, fitting_speed(spec)) as world:
            rehearse_in(world, spec, plan)
        return
    world = the_world(plan, spec.faults, spec.offers, spec.speed, fitting_speed(spec))
    rehearsal_world.attach_process(world)
    rehearse_in(world, spec, plan)


def rehearse_in(world: Running, spec: RehearseFlags, plan: dict[str, Any]) -> None:
    """Launch in this world, and print the events and the bill. Raises Exit with the code of a failed launch."""
    if not spec.dry_run:  # a fault left over from a dry run would hit a later launch
        truth = world.truth()
        if truth["preemptions_left"] and any(pod["micro_usd_per_hour"] for pod in truth["pods"]):
            left = render.count(truth["preemptions_left"], "preemption")
            render.say(f"this rehearsal resets the faults of the market: {left} of a running rehearsal will not happen")
        world.send_command("/faults", plan)
    settings = context.settings()
    if not spec.provider and settings.provider not in (MARKET, *VENDORS):
        spec = replace(spec, provider=MARKET)
    before, began_at = world.truth(), int(time.time())
    said = io.StringIO()
    outcome: dict[str, Any] | None = None
    code = 0
    try:
        with contextlib.redirect_stdout(said) if spec.json else contextlib.nullcontext():
            launch.launch.work(spec)
    except Exit as leaving:
        code = leaving.code
        if leaving.message:
            render.say(leaving.message)
    except SlipwayError as error:
        code, outcome = error.exit_code, {"error": str(error), "exit_code": error.exit_code}
        render.say(f"inv rehearse: {error}")
    outcome = outcome or (json_text.loads(said.getvalue()) if said.getvalue() else None)
    if spec.json or not spec.dry_run:  # A dry run asks the market for nothing.
        report(world, before, began_at, outcome, spec.json)
    if code:
        raise Exit(code=code)


def plan_of(faults: str, preempt: int, bad_host: int) -> dict[str, Any]:
    """Merge the faults of the file and the flags into a validated plan. Raises UsageError."""
    from infra import strict_yaml
    from infra.rehearsal.faults import plan_of

    try:
        plan = dict(strict_yaml.read(Path(faults)) or {}) if faults else {}
    except FileNotFoundError as error:
        raise UsageError(f"--faults: {error}") from None
    bad = [{"trait": ("old driver", "slow disk")[nth % 2], "skip": nth, "count": 1} for nth in range(bad_host)]
    plan = {**plan, "machines": [*plan.get("machines", ()), *bad]}
    if preempt:
        plan["preempt_at_work"] = preempt
    plan_of(plan, faults or "faults")
    return plan


def fitting_speed(spec: RehearseFlags) -> float:
    """Return the default speed, or a lower speed if a limit would end the run before the work begins."""
    from infra.rehearsal.offers import BUNDLED, read_offers

    limit_s = context.seconds(spec.ttl) or math.inf
    if spec.spend_limit:
        wished, _ = machine_choice.with_recipe(spec, profile_named(context.settings_of(spec).profile))
        kind, number = wished.gpu, wished.num_gpus
        prices = [
            one.micro_usd_per_hour * (number if one.vendor == "runpod" and number else 1)  # RunPod sells single GPUs
            for one in read_offers(Path(spec.offers) if spec.offers else BUNDLED)
            if spec.provider in ("", MARKET, one.vendor) and (not kind or gpus.is_asked(kind, one.gpu))
            if one.vendor == "runpod" or number in (0, one.num_gpus)
        ]
        cheapest = min(prices, default=0)
        if cheapest:
            limit_s = min(limit_s, micro_usd(spec.spend_limit.lstrip("$")) * 3600 / cheapest)
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))  # a busy machine works more slowly
    return max(1.0, min(attach.SPEED, round(limit_s / (LIMIT_S * busy), 1)))


def the_world(plan: dict[str, Any], faults: str, offers: str, speed: float | None, fitting: float) -> Running:
    """Return the running rehearsal if the requested settings match, else a new rehearsal.

    An idle rehearsal with a different speed is replaced. Raises UsageError for a running rehearsal with other settings.
    """
    known = digest_of(offers)
    try:
        found = attach.find(rehearsal_world.base())
        if (speed or fitting) != found.speed and not found.truth()["billing"]:
            attach.stop(rehearsal_world.base())
            render.say(
                f"the idle rehearsal at {found.speed:g} times real time was ended, because this launch "
                "needs a different speed"
            )
            raise attach.NoWorld("the rehearsal has ended")
    except attach.NoWorld:
        try:
            found = attach.start(rehearsal_world.base(), *files_of(faults, offers), speed=speed or fitting)
        except attach.AlreadyRuns:
            return the_world(plan, faults, offers, speed, fitting)
        render.say(f"a rehearsal was started; {rehearsal_world.end_condition()}")
        return found
    refuse_other(found, plan, known, speed)
    return found


@contextlib.contextmanager
def dry_world(plan: dict[str, Any], faults: str, offers: str, speed: float | None, fitting: float) -> Iterator[Running]:
    """Enter the rehearsal of the launch, or, in place of a new rehearsal, a market that ends with the dry run.

    All rehearsals keep their files, and neither offers nor faults of the dry run reach a later launch. Raises
    UsageError like `the_world`.
    """
    known, before = digest_of(offers), os.environ.get(attach.INSIDE)
    with contextlib.ExitStack() as at_end:
        found = None
        with contextlib.suppress(attach.NoWorld):
            running = attach.find(rehearsal_world.base())
            if (speed or fitting) != running.speed and not running.truth()["billing"]:
                render.say(
                    f"without --dry-run, the idle rehearsal at {running.speed:g} times real time would end and lose "
                    f"its files, because this launch needs {speed or fitting:g} times real time"
                )
            else:
                refuse_other(running, plan, known, speed)
                found = running
        is_temporary = found is None
        found = found or at_end.enter_context(attach.temporary(*files_of(faults, offers), speed=speed or fitting))
        rehearsal_world.attach_process(found, is_temporary)
        try:
            yield found
        finally:
            os.environ.pop(attach.INSIDE, None)
            if before is not None:
                os.environ[attach.INSIDE] = before


def digest_of(offers: str) -> str:
    """Return the digest of a file of offers, or "" without a file. Raises UsageError."""
    from infra.rehearsal.offers import digest, read_offers

    try:
        return digest(read_offers(Path(offers))) if offers else ""
    except FileNotFoundError as error:
        raise UsageError(f"--offers: {error}") from None


def files_of(faults: str, offers: str) -> list[str]:
    """Return the arguments of a new world for these files."""
    files = {"--offers": offers, "--faults": faults}
    return [word for name, path in files.items() if path for word in (name, str(Path(path).absolute()))]


def refuse_other(found: Running, plan: dict[str, Any], known: str, speed: float | None) -> None:
    """Raise UsageError if the running rehearsal cannot take these settings. `known`: digest of the typed offers."""
    at_start = [name for name in AT_START_ONLY if plan.get(name)]
    other = (
        "with different offers"
        if known not in ("", found.about["offers"])
        else f"at {found.speed:g} times real time"
        if speed not in (None, found.speed)
        else f"and {at_start[0]} can be set only at the start"
        if at_start
        else ""
    )
    if other:
        raise UsageError(f"a rehearsal runs already, {other}. End the rehearsal first: inv rehearse --stop")


def end(as_json: bool) -> None:
    """End the rehearsal and the processes that keep runs in the rehearsal."""
    found = attach.find(rehearsal_world.base())
    journal_file = found.folder / attach.JOURNAL
    if journal_file.exists():
        with Journal.open(journal_file) as journal:
            for name in journal.leases.held_names():
                keeper = journal.leases.holder(name) if name.startswith(KEEPER) else None
                if keeper:
                    send(keeper, signal.SIGTERM)
    truth = found.truth()
    attach.stop(rehearsal_world.base())
    render.say(
        f"the rehearsal has ended, with {render.count(truth['running'], 'running machine')}; "
        f"all files remain in {found.folder} until the next rehearsal starts"
    )
    if as_json:
        print_json({"ended": found.folder, "running": truth["running"]})


def report(world: Running, before: dict[str, Any], began_at: int, outcome: Any, as_json: bool) -> None:
    """Print the timeline, the market's bill and our own ledger's cost."""
    truth, start = world.truth(), moment(before["now"])
    known = {pod["id"] for pod in before["pods"]}
    pods = [pod for pod in truth["pods"] if pod["id"] not in known]
    timeline = sorted(events(pods, world, start), key=lambda event: event.at)
    with open_journal(context.settings()) as journal:
        rows = [op for op in journal.ops() if op.intent_at >= began_at]
        lines = costs.ledger(rows, {}, int(time.time()), clock_scale=world.speed)
    billed, ours = sum(pod["billed_micro_usd"] for pod in pods), sum(line.quoted_micro_usd for line in lines)
    running = [pod for pod in pods if pod["micro_usd_per_hour"]]
    problems = truth["problems"][len(before["problems"]) :]
    if as_json:
        print_json(
            {
                "launch": outcome,
                "timeline": [
                    {
                        "at": render.iso(one.at),
                        "after_s": round(one.at - start),
                        "provider": one.vendor,
                        "id": one.machine or None,
                        "what": one.what,
                    }
                    for one in timeline
                ],
                "billed_usd": render.usd(billed),
                "ledger_usd": render.usd(ours),
                "still_running": [pod["id"] for pod in running],
                "preemptions_left": truth["preemptions_left"],
                "problems": problems,
            }
        )
        return
    print(f"=== Events in the market (clock at {world.speed:g} times real time) ===")
    for one in timeline:
        line = f"+{clock(one.at - start)}  {one.vendor}  {one.machine or '-'}  {one.what}"
        print(terminal.wrap_text(render.clean(line), sys.stdout))
    if not timeline:
        print("no machine was requested")
    bill = f"the market billed {in_usd(billed)}; the journal, which counts more time, shows {in_usd(ours)}"
    print(terminal.wrap_text(bill, sys.stdout))
    for pod in running:
        rate = per_hour(pod["micro_usd_per_hour"])
        render.say(f"{pod['vendor']} {pod['id']} still runs, at {rate}; end the machine: inv down --rehearse")
    if truth["preemptions_left"]:
        left, one = render.count(truth["preemptions_left"], "preemption"), truth["preemptions_left"] == 1
        later = (
            f"{'is' if one else 'are'} pending: the market takes a machine when the store has a checkpoint of the run"
        )
        none = "did not happen: no other machine had a checkpoint in the store; own jobs save with slipway.checkpoint"
        render.say(f"{left} {later if running else none}")
    for problem in problems:
        render.say(render.clean(f"error in the simulated market: {problem}"))


def events(pods: list[dict[str, Any]], world: Running, since: float) -> Iterator[Event]:
    """Yield the events of these machines, and failed or refused requests since `since`."""
    for pod in pods:
        about = f"rented {pod['offer']}{' as spot' if pod['spot'] else ''}"
        yield Event(moment(pod["created_at"]), pod["vendor"], pod["id"], about)
        for at, what in pod["history"]:
            state, _, by = what.partition(": ")
            yield Event(moment(at), pod["vendor"], pod["id"], f"{state} ({by})" if by else state)
    for call in world.calls():
        is_odd = call["fault"] or (call["call"] == "create" and call["status"] >= 400)
        if call["at"] >= since and is_odd:
            how = f"{call['fault']}, " if call["fault"] else ""
            yield Event(call["at"], call["vendor"], "", f"{call['call']}: {how}answered {call['status'] or 'nothing'}")


def moment(told: str) -> float:
    from infra.rehearsal.clock import parse_iso

    return parse_iso(told)


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
