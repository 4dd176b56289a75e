"""The command `doctor`: missing requirements of this machine, of own machines or of an account."""

from dataclasses import dataclass

from invoke import Exit

from infra.checkout import ROOT
from infra.flags import flag
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.json_output import print_json
from scripts.cli.render import columns
from store import moving_line, packs


@dataclass(frozen=True, kw_only=True)
class DoctorFlags(Output):
    provider: str = flag(
        "",
        "check this instead: ssh, the machines of the inventory; runpod, lium or shadeform, the key and the account; "
        f"also {', '.join(packs.words('providers'))}",
    )
    for_: str = flag("", "check what train or serve needs before it begins")
    lint: str = flag("", "report what goes wrong later in a job file: Ray, quotes, ports", unit="FILE")
    config: str = flag("", "with --for serve: the service file (default serve/service.yaml)", unit="FILE")


@command(record=DoctorFlags, world="", example="inv doctor --provider runpod")
def doctor(spec: DoctorFlags) -> None:
    """Show what this machine, own machines or an account lack.

    The exit code is 0 when nothing necessary is missing.
    """
    from flows.installation import doctor as machine
    from infra.errors import UsageError
    from infra.providers import by_name
    from infra.settings import VENDORS, Settings
    from store import packs

    provider, for_ = spec.provider, spec.for_
    if spec.lint and (provider or for_):
        raise UsageError("--lint looks at a file alone; leave --provider and --for out")
    if provider not in ("", *by_name.known()):
        why = packs.lacking("providers", provider) or f"known: {', '.join(by_name.known())}"
        raise UsageError(f"--provider is {provider!r}; {why}")
    if for_ not in ("", "serve", "train") or (for_ == "serve" and provider) or (spec.config and for_ != "serve"):
        raise UsageError(
            "expected --for train, --for serve, the latter with --config FILE or without, or --provider NAME"
        )
    settings = Settings.load(ROOT, {"provider": provider})
    with moving_line.waiting(f"{provider or for_ or 'this machine'} is looked at"):
        if spec.lint:
            found = machine.lint(spec.lint)
        elif for_ == "train":
            from flows.installation import checklist
            from scripts.cli.session import open_journal

            with open_journal(settings) as journal:
                found = checklist.training(settings, journal)
        elif for_:
            from scripts.services.checklist import serving

            found = serving(spec.config, settings)
        elif provider in VENDORS:
            found = machine.account(provider, settings)
        else:
            own = {name: packs.load(one.doctor) for name, one in packs.providers().items()}
            ask = {"ssh": machine.nodes, **own}.get(provider)
            found = ask(settings) if ask else machine.findings(ROOT, settings)
    if spec.json:
        print_json(found)
    else:
        print(columns([(one.name, one.state, one.detail) for one in found]))
    if any(one.state == "bad" for one in found):
        known = {
            "ssh": "some machines cannot be used",
            "": "this machine cannot run a training yet",
        }
        which = known.get(provider.removeprefix("local"), f"nothing can be rented at {provider}")
        if spec.lint:
            raise Exit(f"inv doctor: {spec.lint} has lines to correct", code=1)
        which = {"serve": "a service could not run yet", "train": "a training should not be rented yet"}.get(
            for_, which
        )
        raise Exit(f"inv doctor: {which}: see the lines marked bad", code=1)
