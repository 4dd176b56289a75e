"""The command `serve.up`: the wanted service is written to the journal, then controller and replicas start."""

import sys
from dataclasses import dataclass

from flows.services import engine_services, variants
from flows.services import serve as use_case
from flows.specs.service import ServeSpec
from infra.agent.job import Limits
from infra.flags import flag
from infra.settings import Settings, is_rented
from infra.units import count, dollars, in_usd, rate
from scripts.cli import context, prompts, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import TALK, Output, Questions
from scripts.cli.plan_text import mount_lines
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table
from scripts.services import engine_service
from scripts.services.one_service import show
from serve import readiness, revision
from serve.budget import limit_of
from serve.policy.service_state import Version
from serve.processes import controller_process
from serve.replicas import placement
from serve.service import Service
from store import terminal

SHOWN = 20


@dataclass(frozen=True, kw_only=True)
class ServeUpFlags(Output, Questions, ServeSpec):
    dry_run: bool = flag(
        False, "show the machines for the replicas, in order of preference, with prices, and stop", group=TALK
    )
    detach: bool = flag(False, "do not wait until the replicas are ready", group=TALK)


@command(
    record=ServeUpFlags,
    world=BEGIN,
    env=True,
    example="inv serve.up --name demo --model sft --replicas 2",
    file_word="config",
    rents=True,
)
def up(spec: ServeUpFlags) -> None:
    """Serve a model behind one address, or update a service.

    An update drops no request.

    min_replicas always run and always cost money; max_replicas is the upper bound for bursts. A lower
    target_qps_per_replica gives faster answers; a longer downscale_delay_seconds removes replicas later. Both raise the
    cost.
    """
    settings = context.settings(provider="" if spec.provider == revision.ANY else spec.provider)
    with open_journal(settings) as journal:
        if engine := engine_services.engine_named(spec.provider, settings):
            wants = {"yes": spec.yes, "is_dry": spec.dry_run, "detach": spec.detach, "as_json": spec.json}
            engine_service.up(spec, engine, settings, journal, **wants)
            return
        with terminal.show_while("reading the model"):
            found = use_case.plan(spec, journal, settings, render.tell)
        name, old = found.name, found.old
        if spec.dry_run:
            show_placement(found, settings, spec.json)
            return
        wanted = use_case.desired_state(found, spec, journal, settings, render.tell)
        if old and wanted == old and controller_process.is_kept(name, journal):
            render.say(f"{name}: nothing to change")
        elif wanted != old and revision.may_rent(found.version, settings):
            show_placement(found, settings, as_json=False, is_asked=False)
            prompts.confirm(spec.yes)
        elif wanted != old:
            render.tell(f"{name}: {_engine_of(found.version)}, replicas on {revision.places(found.version, settings)}")
            tell_mounts(found)
        with terminal.show_while(f"{name}: starting the controller"):
            seen = use_case.set_desired_state(found, wanted, journal, settings, render.tell)
        render.say(f"{name}: {seen.endpoint}")
        if not spec.detach:
            try:
                with terminal.show_while(f"{name}: starting the replicas"):
                    readiness.await_ready(name, wanted, settings, journal, old is None, render.tell)
                    if wanted.variants:
                        variants.await_loaded(name, settings, journal, render.tell)
            except KeyboardInterrupt:
                render.say(
                    f"{name} continues without this command; see: inv serve.status {name}; end the "
                    f"service: inv serve.down {name}"
                )
                raise
        show([name], settings, journal, with_replicas=False, as_json=spec.json)


def show_placement(found: use_case.Revision, settings: Settings, as_json: bool, is_asked: bool = True) -> None:
    """Print the placement order of machines and their cost. Raises NoOffer.

    is_asked: the placement is the whole output of the command and goes to stdout; else print to stderr.
    """
    name, version = found.name, found.version
    service = version.service
    with terminal.show_while("searching for machines"):
        offers = use_case.replica_offers(found, settings, render.tell)
    least, most = service.policy.min_replicas, service.policy.most
    if as_json:
        rows = [
            {
                "provider": one.provider,
                "offer_id": one.offer_id,
                "kind": placement.kind_of(one),
                "gpu": one.gpu or None,
                "num_gpus": one.num_gpus,
                "usd_per_hour": dollars(one.micro_usd_per_hour),
            }
            for one in offers
        ]
        print_json(
            {
                "service": name,
                "model": version.model,
                "model_name": version.model_name,
                "engine": version.engine,
                "min_replicas": least,
                "max_replicas": most,
                "placement": rows,
                "mounts": found.mounts,
            }
        )
        return
    tell_mounts(found)
    table = [("", "kind", "provider", "machine", "GPUs", "USD/h")]
    for number, one in enumerate(offers[:SHOWN], 1):
        what = f"{one.num_gpus} x {one.gpu}" if one.num_gpus else "none"
        table.append(
            (
                str(number),
                placement.kind_of(one),
                one.provider,
                one.place or one.instance_type or one.offer_id,
                what,
                rate(one.micro_usd_per_hour),
            )
        )
    many = count(most, "replica") if least == most else f"{least} to {most} replicas"
    render.say(f"{name}: {_engine_of(version)}, {many}; machines in order of preference:")
    print(render.clean(columns(table)), file=sys.stdout if is_asked else sys.stderr)
    hourly, left = use_case.hourly_cost(offers, least)
    missing = f" (machines are available for {least - left} replicas only)" if left else ""
    limit, cost = service.slipway.spend_limit, limit_text(service)
    until = f"{cost}; nothing was started" if is_asked else cost
    render.say(f"{count(least, 'replica')}{missing}: about {render.cents(hourly)} USD/h; {until}")
    if limit:
        each = Limits(spend_micro_usd=limit_of(limit) // max(1, most))
        rented = [(one, each) for one in offers if is_rented(one.provider)]
        off = "requests fail, because the gateway runs on this machine; replicas are not replaced"
        offers_table.show_laptop_off(off, rented, settings)


def limit_text(service: Service) -> str:
    """Return the spend limit of a service, in words."""
    limit, most = service.slipway.spend_limit, service.policy.most
    if not limit:
        return "no limit"
    each = f", {in_usd(limit_of(limit) // most)} for each of at most {most}" if most > 1 else ""
    return f"limit for all replicas: {in_usd(limit_of(limit))}{each}"


def tell_mounts(found: use_case.Revision) -> None:
    """Print the files and folders that every replica gets, and the files left out."""
    for line in mount_lines(found.mounts, "replica"):
        render.tell(line)


def _engine_of(version: Version) -> str:
    return f"{version.model_name} on engine {version.engine}" if version.model else "`run` of the file"
