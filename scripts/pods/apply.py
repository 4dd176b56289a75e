"""What `inv apply` does: a file of pods -> the plan with its prices -> pods."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infra import strict_yaml
from infra.agent.job import Limits
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Held, Journal, Lease, Op
from infra.providers import Provider, registry
from infra.records import Offer, Request
from infra.runs import pod_set
from infra.runs.pod_set import PodSpec, Step
from infra.runs.settle import settle
from infra.selection import choose, preflight
from infra.settings import Settings
from scripts.cli import context, prompts, render, session
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.market.offers import request_for
from scripts.pods import stages
from scripts.runs import launch

OWN = ("local", "ssh")
MARKS = {"create": "+", "keep": "=", "end": "-"}


@dataclass(frozen=True)
class Line:
    """A step with what it is about, for people."""

    step: Step
    provider: str
    micro_usd_per_hour: int  # of an offer, for a pod that is to be made
    about: str


def apply(*, file, provider, dry_run, yes, json):
    if not file:
        raise UsageError("which file? inv apply pods.yaml, with `pods:` and below it `- name: a`")
    settings = context.settings(provider=provider)
    set_name, specs = load(Path(file), settings)
    with open_journal(settings) as journal:
        lease = None if dry_run else only_one(set_name, journal)
        try:
            settle(journal, settings, render.tell)
            steps = pod_set.decide(set_name, {name: spec.digest for name, spec in specs.items()}, journal.ops())
            lines = [line_of(step, specs, journal, settings) for step in steps]
            if not json:
                show(set_name, lines)
            changes = [step for step in steps if step.action != "keep"]
            if changes and not dry_run:
                prompts.confirm(yes)
                for step in changes:
                    carry_out(step, set_name, specs, journal, settings, f"inv apply {file}")
        finally:
            if lease:
                journal.release(lease)
    if json:
        print_json({"set": set_name, "steps": [line_json(line) for line in lines], "dry_run": dry_run,
                    "usd_per_hour": render.usd(sum_of(lines))})  # fmt: skip
    else:
        said = "nothing was changed" if dry_run else f"done: {render.count(len(changes), 'change')}"
        render.say(said if changes else "nothing to change")


def only_one(set_name: str, journal: Journal) -> Lease:
    """The right to change this set. Raises UsageError while another process has it."""
    try:
        return journal.take(f"apply:{set_name}")
    except Held as error:
        raise UsageError(f"another inv apply is at the set {set_name} ({error}); wait for it") from None


def load(path: Path, settings: Settings) -> tuple[str, dict[str, PodSpec]]:
    """The name of the set, and its pods by name. Raises UsageError, with the place."""
    try:
        document = strict_yaml.read(path)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}") from None
    set_name, specs = pod_set.read_set(str(path), path.stem, document, settings.provider, OWN)
    for spec in specs:
        try:
            wanted(spec)
        except SlipwayError as error:
            raise UsageError(f"{path}: {spec.name}: {error}") from None
    return set_name, {spec.name: spec for spec in specs}


def wanted(spec: PodSpec) -> tuple[list[Provider], Request, Limits]:
    """Who may have it, what is asked for, and what ends it. Raises UsageError."""
    settings = context.settings(provider=spec.provider or "")
    candidates = registry.candidates(settings)
    text = ("country", "cpus", "memory", "disk_size", "city", "cloud", "region", "instance_type", "max_price",
            "network")  # fmt: skip
    request = request_for(
        gpu=spec.gpu_type or "", num_gpus=spec.gpu_count, all_configs=False, use_spot=spec.use_spot,
        volume=spec.volume_id or "",
        min_upload_mbps=spec.min_upload_mbps or 0, min_download_mbps=spec.min_download_mbps or 0,
        **{name: getattr(spec, name) or "" for name in text},
    )  # fmt: skip
    name = candidates[0].name if len(candidates) == 1 else "market"
    request = replace(request, run=spec.name, provider=name, pool=spec.pool or "", host=spec.host or "")
    is_rented = candidates[0].is_rented
    ttl = "" if spec.ttl_hours is None else f"{spec.ttl_hours * 3600:f}s"
    spend_limit = spec.spend_limit or (preflight.SPEND_LIMIT if is_rented and not ttl else "")
    idle_stop = "" if spec.idle_stop_minutes is None else f"{spec.idle_stop_minutes:f}m"
    return candidates, request, preflight.limits_for(settings, is_rented, ttl, spend_limit, render.say, idle_stop)


def find(spec: PodSpec) -> tuple[list[Provider], Request, Limits, Sequence[Offer]]:
    """The same, with what is on offer, cheapest first. Raises SlipwayError that names the pod."""
    candidates, request, limits = wanted(spec)
    try:
        settings = context.settings(provider=spec.provider or "")
        offers = choose.find(candidates, request, settings, render.tell)
        offers = choose.payable(offers, 1, settings, render.tell)
    except SlipwayError as error:
        error.args = (f"{spec.name}: {error}",)
        raise
    return candidates, request, limits, offers


def line_of(step: Step, specs: Mapping[str, PodSpec], journal: Journal, settings: Settings) -> Line:
    if step.action == "create":
        _, _, limits, offers = find(specs[step.name])
        offer = offers[0]
        gpus = f"{offer.num_gpus} x {offer.gpu}" if offer.num_gpus else "no GPU"
        place = " ".join(filter(None, (gpus, offer.region)))
        ends = [] if limits.time_s is None else [f"after {render.duration(limits.time_s)}"]
        ends += [] if limits.spend_micro_usd is None else [f"at {render.usd(limits.spend_micro_usd)} USD"]
        said = f"{place}, ends {' or '.join(ends)}" if ends else place
        return Line(step, offer.provider, offer.micro_usd_per_hour, said)
    op = journal.op(step.token)
    return Line(step, op.vendor, op.rate, about(op, settings))


def about(op: Op, settings: Settings) -> str:
    age = render.duration(stages.about(op, settings)["age_s"])
    return f"{age} old, makes {stages.purpose(op)}"


def carry_out(
    step: Step, set_name: str, specs: Mapping[str, PodSpec], journal: Journal, settings: Settings, again: str
) -> None:
    """Raises SlipwayError that says how to go on."""
    try:
        if step.action == "end":
            launch.end(journal.op(step.token), journal, settings)
            session.forget(step.name)
            return
        else:
            spec = specs[step.name]
            candidates, request, limits, offers = find(spec)
            stages.make(request, limits, offers, candidates[0], journal, settings,
                        role=f"pod:{set_name}", spec_hash=spec.digest)  # fmt: skip
    except SlipwayError as error:
        error.args = (f"{error}; what was done before stays; go on with: {again}",)
        raise
    render.say(f"{MARKS[step.action]} {step.name}")


def show(set_name: str, lines: Sequence[Line]) -> None:
    if lines:
        rows = [("", "pod", "provider", "USD/h", "")]
        for line in lines:
            why = f"{line.about}; {line.step.why}" if line.step.why else line.about
            rows.append((MARKS[line.step.action], line.step.name, line.provider,
                         render.usd(line.micro_usd_per_hour), why))  # fmt: skip
        print(render.clean(columns(rows)))
    now = sum(line.micro_usd_per_hour for line in lines if line.step.action != "create")
    print(f"set {set_name}: {render.usd(now)} USD/h now, {render.usd(sum_of(lines))} USD/h then")


def sum_of(lines: Sequence[Line]) -> int:
    """Micro-dollars per hour when all is done."""
    return sum(line.micro_usd_per_hour for line in lines if line.step.action != "end")


def line_json(line: Line) -> dict[str, Any]:
    about = {"provider": line.provider, "usd_per_hour": render.usd(line.micro_usd_per_hour), "about": line.about}
    return {**asdict(line.step), "token": line.step.token or None, "why": line.step.why or None, **about}
