"""The commands serve.up, serve.scale, serve.down, serve.key and serve.export, which change what is wanted of a service.

A command writes that into the journal, sees to it that a controller lives, and watches until it has come true.
"""

import sys
from pathlib import Path

from flows.services import serve as use_case
from flows.supervisor import supervisor_client
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.ledger import service_rows
from infra.money import dollars, in_usd
from infra.names import check_name
from infra.settings import Settings, is_rented
from infra.units import count
from scripts.cli import context, prompts, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.market import offers_table
from scripts.services import inspect
from scripts.services.flags import KeyFlags, ScaleFlags, ServeDownFlags, ServeExportFlags, ServeUpFlags
from serve import awaiting, revision
from serve import service as service_file
from serve.budget import limit_of
from serve.gateway import keys
from serve.policy import service_state
from serve.processes import controller_client, controller_process
from serve.replicas import placement
from store import moving_line

SHOWN = 20


def up(spec: ServeUpFlags) -> None:
    settings = context.settings(provider="" if spec.provider == revision.ANY else spec.provider)
    with open_journal(settings) as journal:
        with moving_line.waiting("looking at its model"):
            found = use_case.plan(spec, journal, settings, render.tell)
        name, old = found.name, found.old
        if spec.dry_run:
            show_placement(found, settings, spec.json)
            return
        wanted = use_case.wanted_by(found, spec, journal, settings, render.tell)
        if old and wanted == old and controller_process.is_kept(name, journal):
            render.say(f"{name}: nothing to change")
        elif wanted != old and revision.rents(found.version, settings):
            show_placement(found, settings, as_json=False, is_asked=False)
            prompts.confirm(spec.yes)
        with moving_line.waiting(f"{name}: starting its controller"):
            seen = use_case.want(found, wanted, journal, settings, render.tell)
        render.say(f"{name}: {seen.endpoint}")
        if not spec.detach:
            try:
                with moving_line.waiting(f"{name}: starting its replicas"):
                    awaiting.await_ready(name, wanted, settings, journal, old is None, render.tell)
            except KeyboardInterrupt:
                render.say(
                    f"{name} goes on without this command; see: inv serve.status {name}; end it: inv serve.down {name}"
                )
                raise
        inspect.show([name], settings, journal, with_replicas=False, as_json=spec.json)


def show_placement(found: use_case.Revision, settings: Settings, as_json: bool, is_asked: bool = True) -> None:
    """Show the order in which machines are tried, and what they cost. Raises NoOffer.

    is_asked: it is all that is wanted; else it is told beside what is, before that.
    """
    name, version = found.name, found.version
    service = version.service
    with moving_line.waiting("looking for machines"):
        offers = use_case.places(found, settings, render.tell)
    least, most = service.policy.min_replicas, service.policy.most
    if as_json:
        rows = [
            {"provider": one.provider, "offer_id": one.offer_id, "kind": placement.kind_of(one), "gpu": one.gpu or None,
             "num_gpus": one.num_gpus, "usd_per_hour": dollars(one.micro_usd_per_hour)} for one in offers]  # fmt: skip
        print_json({"service": name, "model": version.model, "engine": version.engine, "min_replicas": least,
                    "max_replicas": most, "placement": rows})  # fmt: skip
        return
    table = [("", "kind", "provider", "machine", "GPUs", "USD/h")]
    for number, one in enumerate(offers[:SHOWN], 1):
        what = f"{one.num_gpus} x {one.gpu}" if one.num_gpus else "none"
        table.append((str(number), placement.kind_of(one), one.provider, one.place or one.instance_type or one.offer_id,
                      what, dollars(one.micro_usd_per_hour)))  # fmt: skip
    many = count(most, "replica") if least == most else f"{least} to {most} replicas"
    render.say(f"{name}: {version.model} by {version.engine}, {many}; machines in the order "
               "in which they are tried:")  # fmt: skip
    print(render.clean(columns(table)), file=sys.stdout if is_asked else sys.stderr)
    rate, left = 0, least
    for one in offers:  # an own machine holds one replica; a vendor has many of a kind
        taken = min(left, 1 if one.place else left)
        rate, left = rate + taken * one.micro_usd_per_hour, left - taken
    missing = f" ({least - left} of them: there is no machine for more)" if left else ""
    limit = service.ours.spend_limit
    cost = f"all together, at most {in_usd(limit_of(limit))}" if limit else "no limit"
    until = f"{cost}; nothing was started" if is_asked else cost
    render.say(f"{count(least, 'replica')}{missing}: about {dollars(rate)} USD/h; {until}")
    if limit:
        each = Limits(spend_micro_usd=limit_of(limit) // most)
        rented = [(one, each) for one in offers if is_rented(one.provider)]
        off = "nobody answers, as its gateway runs here, and no replica is replaced"
        offers_table.show_laptop_off(off, rented, settings)


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
        inspect.show([name], settings, journal, with_replicas=False, as_json=spec.json)


def down(spec: ServeDownFlags) -> None:
    if spec.name and spec.all:
        raise UsageError(f"--all and {spec.name}: give one of them")
    settings = context.settings()
    with open_journal(settings) as journal:
        names = (
            [one.name for one in service_rows.every(journal)]
            if spec.all
            else [controller_client.find(spec.name, journal)]
        )
        for one in names:
            with moving_line.waiting(f"{one} ends"):
                controller_client.finish(one, settings, journal, render.tell)
            render.say(f"{one}: ended, nothing of it runs")
        supervisor_client.leave_if_done(settings)
        if spec.json:
            print_json({"ended": names})
        elif not names:
            render.say("no service is running")


def key(spec: KeyFlags) -> None:
    name = spec.name
    settings = context.settings()
    with open_journal(settings) as journal:
        known = [one.name for one in service_rows.every(journal)]
        name = check_name(name) if name else controller_client.find("", journal)
    if spec.drop and not spec.for_:
        raise UsageError("--drop requires --for NAME")
    path = controller_process.Places.of(settings, name).keys
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    names = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    if not spec.for_:
        if spec.json:
            print_json({"service": name, "keys": names})
        else:
            render.say(f"{name}: {', '.join(names) or 'it has no keys; clients need none'}")
        return
    if spec.drop and spec.for_ not in names:
        raise UsageError(f"{name} has no key for {spec.for_}; available: {', '.join(names) or 'none'}")
    if spec.drop and len(names) == 1 and name in known:
        raise UsageError(f"{name} has only this API key; removing it would make the endpoint public. Create "
                         f"another key first: inv serve.key {name} --for NAME")  # fmt: skip
    if not spec.drop and spec.for_ in names:
        raise UsageError(f"{name} has a key for {spec.for_} already, and only its hash is kept; void it first: "
                         f"inv serve.key {name} --for {spec.for_} --drop")  # fmt: skip
    lines = [line for line in lines if line.split()[:1] != [spec.for_]]
    made = ""
    if not spec.drop:
        made, line = keys.make(spec.for_)
        lines.append(line)
    from infra.agent.job import write_durably

    write_durably(path, "".join(f"{line}\n" for line in lines), 0o600)
    locks_after_s = keys.COUNTS_AFTER_S if name in known else None
    if spec.json:
        print_json({"service": name, "for": spec.for_, "key": made or None, "locks_after_s": locks_after_s})
    elif spec.drop:
        after = "" if locks_after_s is None else f" within {render.duration(locks_after_s)}"
        render.say(f"{name}: the key of {spec.for_} is void{after}")
    else:
        render.say(f"{name}: the key of {spec.for_}, which is not shown again:")
        print(made)
        if not names:
            render.say(lock_out(name, locks_after_s))


def lock_out(name: str, after_s: float | None) -> str:
    """Return from when clients without a key are refused; `after_s`: None while the service does not run."""
    if after_s is None:
        return f"{name} does not run; once it does, clients without a key are refused (401)"
    return (f"{name} reads its keys within {render.duration(after_s)}: until then clients need no key, "
            "from then on those without one are refused (401)")  # fmt: skip


def export(spec: ServeExportFlags) -> None:
    import yaml

    if spec.engine != "skyserve":
        raise UsageError(f"--engine {spec.engine}: known: skyserve")
    settings = context.settings()
    with open_journal(settings) as journal:
        row = service_rows.find(journal, spec.config) if spec.config else None
    service = (
        service_state.wanted_of(row.wanted).newest.service if row else service_file.load(revision.path_of(spec.config))
    )
    document = service_file.to_skyserve(service, spec.model)
    text = yaml.safe_dump(document, sort_keys=False, width=120)
    if spec.out:
        try:
            Path(spec.out).write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"--out {spec.out}: {error.strerror}") from None
        render.say(f"sky serve up {spec.out} --service-name {service.file.name or 'slipway'}")
    else:
        sys.stdout.write(text)
