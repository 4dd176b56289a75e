"""The command `inv apply`: a file of pods, turned into a plan with prices, then into pods."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.pods import apply as use_case
from flows.pods.apply import PodChange, SetLimit
from flows.supervisor import supervisor_client
from infra import strict_yaml
from infra.errors import SlipwayError, UsageError
from infra.flags import flag
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.journal_upkeep import settle
from infra.runs.keepers import pod_set
from infra.runs.keepers.pod_set import PodAction, PodEntry
from infra.selection import preflight
from infra.settings import Settings
from infra.units import in_usd, per_hour, rate
from scripts.cli import context, prompts, render, session
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output, Questions
from scripts.cli.render import columns, print_json
from scripts.cli.session import open_journal
from scripts.market import offers_table

OWN = ("local", "ssh")
MARKS = {"create": "+", "keep": "=", "end": "-"}


@dataclass(frozen=True, kw_only=True)
class ApplyFlags(Questions, Output):
    file: str = flag(
        "",
        "YAML file with `pods:` and, below, entries such as `- name: a`; all keys: inv config --schema pod",
        word=True,
    )
    provider: str = flag("", "provider for pods without a provider in the file")
    spend_limit: str = flag("", "rented: limit in US dollars for all pods of the set together", unit="USD")
    dry_run: bool = flag(False, "show the pods to create, keep and end, and stop")


@command(record=ApplyFlags, world=BEGIN, env=True, example="inv apply examples/fleet.yaml --dry-run", rents=True)
def apply(spec: ApplyFlags) -> None:
    """Create and end pods until they match a file.

    Missing pods are created, existing ones are kept, extra ones are ended.
    """
    if not spec.file:
        raise UsageError(
            "FILE is missing. Example: inv apply pods.yaml, with `pods:` and, below, entries such as `- name: a`"
        )
    settings = context.settings(provider=spec.provider)
    set_name, specs, limit = load(Path(spec.file), settings, spec.spend_limit)
    with open_journal(settings) as journal, only_one(set_name, journal, spec.dry_run):
        settle(journal, settings, render.tell)
        lines = use_case.changes(set_name, specs, journal, settings, render.tell, limit)
        recovers = any(one.recover for one in specs.values())
        if not spec.json:
            show(set_name, lines)
            rented = [line.rented for line in lines if line.rented]
            when = "when the laptop is on again" if recovers else "by the next inv apply"
            off = f"these pods stay; a pod that the vendor takes away is replaced {when}"
            offers_table.show_laptop_off(off, rented, settings, is_followed=recovers)
        changes = [line.step for line in lines if line.step.action != "keep"]
        if changes and not spec.dry_run:
            prompts.confirm(spec.yes)
            if limit:
                limit.open_budget(journal, settings)
            with supervisor_client.hand_over_on_error(settings):
                for step in changes:
                    with with_continue_hint(f"inv apply {spec.file}"):
                        made = use_case.apply_change(step, set_name, specs, journal, settings, render.tell, limit)
                    report(step, made)
        turned = [] if spec.dry_run else use_case.enable_recovery(set_name, specs, journal, settings)
        for name in turned:
            again = "a new pod takes" if specs[name].recover else "no other pod takes"
            render.say(f"{name}: from now on {again} the place of a pod that the vendor takes away")
        is_limit_new = bool(limit and not changes and not spec.dry_run and limit.change_budget(journal, settings))
    if spec.json:
        print_json(
            {
                "set": set_name,
                "steps": [line_json(line) for line in lines],
                "dry_run": spec.dry_run,
                "usd_per_hour": render.usd(use_case.rate_then(lines)),
            }
        )
    else:
        said = "nothing was changed" if spec.dry_run else f"done: {render.count(len(changes), 'change')}"
        if limit and is_limit_new:
            said = f"set {set_name}: the limit of all pods together is now {in_usd(limit.amount)}"
        nothing = "nothing else to change" if turned else "nothing to change"
        render.say(said if changes or is_limit_new else nothing)


def only_one(set_name: str, journal: Journal, dry_run: bool) -> contextlib.AbstractContextManager[None]:
    return contextlib.nullcontext() if dry_run else use_case.hold_set_lease(set_name, journal)


def load(path: Path, settings: Settings, said: str) -> tuple[str, dict[str, PodEntry], SetLimit | None]:
    """Return the set's name, the pods by name, and the spend limit. Raises UsageError with the place.

    `said`: the typed limit, which overrides the file's limit.
    """
    try:
        document = strict_yaml.read(path)
    except FileNotFoundError:
        raise UsageError(f"the file {path} does not exist") from None
    set_name, specs = pod_set.read_set(str(path), path.stem, document, settings.provider, OWN)
    is_rented = not specs
    for spec in specs:
        try:
            candidates, _, _ = use_case.pod_request(spec, settings, render.tell)
            is_rented = is_rented or candidates[0].is_rented
        except SlipwayError as error:
            raise UsageError(f"{path}: {spec.name}: {error}") from None
    if not is_rented:
        practice = f"inv apply --rehearse {shlex.quote(str(path))}"
        preflight.refuse_money_flags(settings, {"spend-limit": said}, practice=practice)
    found = {spec.name: spec for spec in specs}
    return set_name, found, SetLimit.for_set(set_name, said or pod_set.limit_of(str(path), document), found)


@contextlib.contextmanager
def with_continue_hint(again: str) -> Iterator[None]:
    """Append the command for continuing to the message of a SlipwayError."""
    try:
        yield
    except SlipwayError as error:
        error.args = (f"{error}; earlier changes of this command stay. Continue: {again}",)
        raise


def report(step: PodAction, made: Op | None) -> None:
    """Print the completed action, and make a new pod the current pod of this line."""
    if made:
        session.use(made)
        render.say(f"{MARKS[step.action]} {step.name}")
    else:
        session.forget(step.name)


def show(set_name: str, lines: Sequence[PodChange]) -> None:
    if lines:
        rows = [("", "pod", "provider", "USD/h", "")]
        for line in lines:
            why = f"{line.about}; {line.step.why}" if line.step.why else line.about
            rows.append((MARKS[line.step.action], line.step.name, line.provider, rate(line.micro_usd_per_hour), why))
        print(render.clean(columns(rows)))
    now = sum(line.micro_usd_per_hour for line in lines if line.step.action != "create")
    print(f"set {set_name}: {per_hour(now)} now, {per_hour(use_case.rate_then(lines))} afterwards")


def line_json(line: PodChange) -> dict[str, Any]:
    about = {"provider": line.provider, "usd_per_hour": render.usd(line.micro_usd_per_hour), "about": line.about}
    return {**asdict(line.step), "token": line.step.token or None, "why": line.step.why or None, **about}
