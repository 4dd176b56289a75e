"""The command `doctor`: missing requirements of this machine, of own machines or of an account."""

from dataclasses import dataclass

from invoke import Exit

from infra.checkout import ROOT
from infra.flags import flag
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from store import packs, terminal


@dataclass(frozen=True, kw_only=True)
class DoctorFlags(Output):
    provider: str = flag(
        "",
        "check a provider instead: ssh (the machines of the inventory), runpod, lium or shadeform (key "
        f"and account), also {', '.join(packs.words('providers'))}",
    )
    for_: str = flag("", "check the requirements of train or serve before the start")
    lint: str = flag(
        "",
        "report the lines of a job file that a launch refuses (bad), with --provider on this provider, and lines that "
        "fail later (warn): Ray, quotes, ports",
        unit="FILE",
    )
    config: str = flag("", "--for serve: service file (default serve/service.yaml)", unit="FILE")


@command(record=DoctorFlags, world="", example="inv doctor --provider runpod")
def doctor(spec: DoctorFlags) -> None:
    """Check this machine, own machines or vendor accounts.

    The exit code is 0 if every required item is present; with --lint, if a launch refuses no line.
    """
    from flows.installation import doctor as machine
    from infra.errors import UsageError
    from infra.providers import by_name
    from infra.settings import VENDORS, Settings
    from store import packs

    provider, for_ = spec.provider, spec.for_
    if spec.lint and for_:
        raise UsageError("--lint checks only a file; leave out --for")
    if provider not in ("", *by_name.known_providers()):
        why = packs.missing_pack_message("providers", provider) or f"known: {', '.join(by_name.known_providers())}"
        raise UsageError(f"--provider is {provider!r}; {why}")
    if for_ not in ("", "serve", "train") or (for_ == "serve" and provider) or (spec.config and for_ != "serve"):
        raise UsageError("expected --for train, --for serve (optionally with --config FILE), or --provider NAME")
    settings = Settings.load(ROOT, {"provider": provider})
    with terminal.show_while(f"checking {provider or for_ or 'this machine'}"):
        if spec.lint:
            found = machine.lint(spec.lint, provider)
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
            "ssh": "some machines are not usable",
            "": "this machine cannot run a training yet",
        }
        which = known.get(provider.removeprefix("local"), f"no machine can be rented from {provider}")
        if spec.lint:
            raise Exit(f"inv doctor: {spec.lint} has lines to correct", code=1)
        which = {"serve": "a service cannot run yet", "train": "do not rent for a training yet"}.get(for_, which)
        raise Exit(f"inv doctor: {which}: see the lines marked bad", code=1)
