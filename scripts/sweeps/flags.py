"""The flags of `inv sweep`."""

from dataclasses import dataclass

from flows.specs.launch import STAGES, LaunchSpec
from infra.flags import again, flag
from infra.selection.machine_spec import LIMITS, MACHINE
from scripts.cli.flags import Output, Questions

SWEEP = "Sweep"


@dataclass(frozen=True, kw_only=True)
class SweepFlags(Output, Questions):
    config: str = flag(
        "", "a sweep by its name (--list-configs shows them), or a YAML file: `runs`, `axes`, `seeds`, `each`",
        word=True, group=SWEEP,
    )  # fmt: skip
    list_configs: bool = flag(False, "list the named sweeps, with pods, runs, hours and dollars", group=SWEEP)
    early_stop: bool = flag(
        False, "stop runs that are behind after a quarter of their steps, and after half", group=SWEEP
    )
    sample: int | None = flag(None, "run only this many combinations of `axes`, chosen at random", group=SWEEP)
    promote: str = flag("", "publish the artifacts of this run of a sweep under --tag", group=SWEEP, unit="RUN")
    tag: str = flag("", "with --promote: the tag (default: the name of the sweep)", group=SWEEP)
    report: bool = flag(False, "only show the table and write the page, from the results so far", group=SWEEP)
    dry_run: bool = flag(False, "show which run goes where and what it costs, and stop", group=SWEEP)
    pods: int | None = flag(None, "number of pods at once (ssh: all that are free; local: 1)", group=MACHINE, least=1)
    pack: int | None = flag(
        None, "rented: hold the pods from the first run to the last, with this many runs side by side on each, every "
        "one with GPUs of its own; a sweep that describes its pods always does this", group=MACHINE, unit="RUNS",
    )  # fmt: skip
    deploy_only: bool = flag(False, "rent the pods and hold them, but run nothing", group=STAGES)
    no_deploy: bool = flag(
        False, "rent nothing: use the pods that are held for this sweep, and leave them held; missing ones are skipped",
        group=STAGES,
    )  # fmt: skip
    no_sync: bool = again(LaunchSpec, "no_sync")
    no_setup: bool = again(LaunchSpec, "no_setup")
    provider: str = flag("", "where: local, ssh, runpod, lium, shadeform, or market (default: what .env says)",
                         group=MACHINE)  # fmt: skip
    store: str = flag("", "where artifacts go (default var/artifacts)", group=MACHINE, unit="URI")
    spend_limit: str = flag("", "rented: US dollars for all runs together", group=LIMITS, unit="USD")
