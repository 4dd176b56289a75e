"""The commands `ssh`, `forward`, `pull` and `pod.sync`: a shell, a port, the artifacts, the code of a run's machine."""

import http.client
import logging
import re
import signal
import socket
import time
from dataclasses import asdict
from typing import Any

from invoke import Exit

from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger.op import Op
from infra.runs import pods
from infra.runs.lookup import find_run, way
from infra.runs.run_home import RunHome
from infra.runs.settle import bring_home
from infra.runs.sync import mirror
from infra.runs.sync.send_code import send_code
from infra.selection import registry
from infra.transport import large_files
from infra.transport import push as code_sync
from infra.transport.meter import Meter
from infra.transport.protocol import Transport
from infra.transport.shipment import SyncPlan, preview
from infra.transport.streams.port_forward import LOOPBACK
from scripts.cli import context, render, session
from scripts.cli.invoke_patch import line_after_dashes, print_json
from scripts.cli.session import open_journal
from scripts.pods import ssh_config
from scripts.pods.flags import ForwardFlags, PullFlags, SshFlags, SyncFlags
from store import packs

PAGE_S = 240.0  # time until it answers: a busy machine imports slowly
ANSWER_S = 5.0
POLL_S = 0.25
SLOWEST_RATE = 10_000.0  # bytes in a second: with less, each side would take the other one for dead


def ssh(spec: SshFlags) -> None:
    if spec.config:
        if spec.run or line_after_dashes():
            raise UsageError("--config covers every pod; to open a shell, leave it out")
        return ssh_config.config(spec)
    if spec.remove or spec.yes:
        raise UsageError(f"--{'remove' if spec.remove else 'yes'} goes with --config")
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
        code = way(settings, op).shell(line_after_dashes() or None, cwd=pods.folder_of(op).root)
    if code:
        raise Exit(code=code)


def is_port(text: str) -> bool:
    return re.fullmatch("[0-9]{1,5}", text) is not None and int(text) < 65536


def forward(spec: ForwardFlags) -> None:
    *run, ports = spec.what or [""]
    pages = {name: one for name, one in packs.named_trackers().items() if one.page}
    local, _, remote = f"{pages[ports].port}:{ports}".partition(":") if ports in pages else ports.partition(":")
    remote = remote or local
    if why := packs.lacking("trackers", remote):
        raise UsageError(why)
    if len(run) > 1 or not is_port(local) or not (is_port(remote) or remote in pages):
        named = ", or ".join(("inv forward brave-otter-3 8000:8000", *pages))
        raise UsageError(f"expected a run and ports, such as: {named}")
    settings = context.settings()
    with open_journal(settings) as journal:
        op = find_run(journal, *run)
        transport = way(settings, op)
        if remote in pages:
            show_page(pages[remote], op, transport, int(local))
            return
        with transport.forward(int(local), int(remote)) as port:
            render.say(f"port {remote} of {op.run} answers on 127.0.0.1:{port}; Ctrl-C ends that")
            shown = next((name for name, one in pages.items() if one.port == int(remote)), "")
            if shown and not answers(port):
                render.say(f"nothing is listening there yet; for {pages[shown].title}: inv forward {op.run} {shown}")
            signal.pause()


def show_page(tracker: packs.NamedTracker, op: Op, transport: Transport, local: int) -> None:
    """Show the run's figures on a tracker's page, from the run's machine, until Ctrl-C. Raises SlipwayError."""
    with socket.create_server((LOOPBACK, 0)) as free:
        there = free.getsockname()[1]  # on another machine it may be taken: the page says so
    # nothing answers yet, which is expected
    logging.getLogger("infra.transport.streams.port_forward").setLevel(logging.ERROR)
    pod, environments = pods.folder_of(op), op.read_job().environments
    around = [f"SLIPWAY_WORK={pod.work}", f"SLIPWAY_RUN_ID={op.run}", f"PYTHONPATH={pod.code}"]
    around += [f"SLIPWAY_ENVIRONMENTS={environments}"] if environments else []
    line = [transport.python, "-m", "infra.agent.own_environment", tracker.environment, tracker.page]
    line = ["env", *around, *line, "--host", LOOPBACK, "--port", str(there)]
    render.say(f"{op.run}: {tracker.title} begins there; the first time its environment is made")
    with transport.alongside(line, pod.code) as look, transport.forward(local, there) as port:
        deadline = time.monotonic() + PAGE_S
        while not answers(port):
            ending = look()
            if ending or time.monotonic() > deadline:
                why = f"no answer after {render.duration(PAGE_S)}"
                if ending:
                    why = f"exit code {ending.exited}: {' / '.join(ending.stderr.splitlines()[-2:])}"
                raise SlipwayError(render.clean(f"{op.run}: {tracker.title} does not run: {why}"))
            time.sleep(POLL_S)
        render.say(f"{tracker.title} of {op.run}: http://{LOOPBACK}:{port}; Ctrl-C ends it")
        while look() is None:
            time.sleep(POLL_S)
    raise SlipwayError(f"{op.run}: {tracker.title} exited")


def answers(port: int) -> bool:
    """Return whether somebody there speaks HTTP."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=ANSWER_S)
    try:
        connection.request("HEAD", "/")
        connection.getresponse()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def sync(spec: SyncFlags) -> None:
    run = spec.run
    settings = context.settings()
    with open_journal(settings) as journal:
        run = run or session.current()
        op = find_run(journal, run) if run or not spec.plan else None
        if spec.plan:
            known = code_sync.pushed(way(settings, op), pods.folder_of(op).code) if op else {}
            seen = preview(ROOT, known, op.send_anyway if op else ())
            print_json(seen) if spec.json else show_sync(seen, op.run if op else "")
            return
        assert op is not None
        if not op.is_live:
            raise UsageError(f"{op.run} has ended; a new launch sends the current code")
        if op.stays:
            session.use(op)
        meter = Meter(rate(spec.bwlimit))
        done = send_code(op, registry.provider(settings, op.vendor), ROOT, render.say, meter)
    if spec.json:
        print_json({**asdict(done), **about(meter)})
    else:
        render.say(f"{op.run}: {done.sent} files sent, {done.unchanged} unchanged, {done.removed} removed")
        if meter.ways:
            render.say(moved(meter))


def pull(spec: PullFlags) -> None:
    settings = context.settings()
    meter = Meter(rate(spec.bwlimit))
    with open_journal(settings) as journal:
        op = find_run(journal, spec.run)
        vendor = registry.provider(settings, op.vendor)
        names = large_files.persist(
            lambda: bring_home(op, vendor, settings, meter), meter, mirror.PATIENCE_S, render.tell
        )
    if spec.json:
        print_json({"run": op.run, "brought": names, "store": op.store, **about(meter)})
        return
    render.say(f"{op.run}: {', '.join(names) or 'nothing new'}; logs in {RunHome.of(op.run, settings.homes).pod.logs}")
    if names:
        render.say(moved(meter))


def rate(text: str) -> float | None:
    """Return the bytes per second of `10MB`, `1.5GB`, `800kB`; None for an empty text. Raises UsageError."""
    if not text:
        return None
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,6})?) ?(kB|MB|GB)(/s)?", text)
    bytes_per_s = float(found[1]) * {"kB": 1e3, "MB": 1e6, "GB": 1e9}[found[2]] if found else 0.0
    if bytes_per_s < SLOWEST_RATE:
        raise UsageError(f"{text[:40]!r} is not a rate of 10kB or more; write it for each second: 800kB, 10MB, 1.5GB")
    return bytes_per_s


def about(meter: Meter) -> dict[str, Any]:
    return {"bytes_moved": meter.num_bytes, "cuts": meter.cuts, "by": sorted(meter.ways)}


def moved(meter: Meter) -> str:
    """Return in words what went over the connection."""
    ways = {"rsync": "large files by rsync", "pieces": "large files in pieces"}
    more = [ways[one] for one in sorted(meter.ways)]
    more += [f"the connection was cut {render.count(meter.cuts, 'time')}"] if meter.cuts else []
    return ", ".join([f"{render.size(meter.num_bytes)} went over the connection", *more])


def show_sync(plan: SyncPlan, run: str) -> None:
    """Show what a push would do: totals, the largest files, what is new, what stays here and why."""
    out = render.console(stderr=False)
    since = f" since the last push to {run}" if run else ""
    out.print(
        f"{plan.files:,} files, {render.size(plan.bytes)}; {len(plan.new):,} new{since}, {len(plan.gone):,} to remove"
    )
    table = render.new_table("largest", "size")
    for path, num_bytes in plan.largest:
        table.add_row(render.clean(path), render.size(num_bytes))
    out.print(table, markup=False)
    for refusal in plan.refused:
        out.print(f"refused, stays here: {render.clean(str(refusal))}", markup=False)
    out.print(f"ignored by git: {plan.ignored_files:,} files, {render.size(plan.ignored_bytes)}")
