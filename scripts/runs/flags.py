"""The flags of the commands about runs, each declared once; those of the use cases stand in `flows.specs`."""

from dataclasses import dataclass

from flows.specs.job import JobSpec
from flows.specs.launch import RUN, STAGES, LaunchSpec
from infra.flags import again, flag
from infra.selection.machine_spec import LIMITS, MACHINE
from scripts.cli.flags import Output, Questions

SWEEP = "Sweep"
MARKET = "The market that is simulated"
NOT_OF_THE_PLAN = ("json", "dry_run", "yes", "detach", "file", "run")  # flags that say how a plan is shown


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(Output, Questions, JobSpec, LaunchSpec):
    file: str = flag(
        "", "YAML: a job of your own (`run: python my.py`), or these flags (`gpu: H100`); command-line flags override "
        "the file",
        word=True,
    )  # fmt: skip
    detach: bool = flag(False, "hand over and return", group=RUN)


@dataclass(frozen=True, kw_only=True)
class RehearseFlags(LaunchFlags):
    preempt: int = flag(0, "preempt the run's pod this many times, each time after a checkpoint", group=MARKET)
    bad_host: int = flag(0, "give the first N machines an old driver or a slow disk", group=MARKET)
    faults: str = flag("", "YAML file of further faults (infra/rehearsal/faults.py)", group=MARKET, unit="FILE")
    offers: str = flag("", "JSON file of offers, instead of the built-in ones", group=MARKET, unit="FILE")
    speed: float | None = flag(
        None, "simulated seconds per second (60, or fewer where a limit would be hit before the work begins)",
        group=MARKET,
    )  # fmt: skip
    stop: bool = flag(False, "end the rehearsal and everything in it", group=MARKET)


@dataclass(frozen=True, kw_only=True)
class SweepFlags(Output, Questions):
    config: str = flag(
        "", "a sweep by its name (--list-configs shows them), or a YAML file: `runs`, `axes`, `seeds`, `each`",
        word=True, also=("file",), group=SWEEP,
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
    pods: int | None = flag(None, "number of pods at once (ssh: all that are free; local: 1)", group=MACHINE)
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


@dataclass(frozen=True, kw_only=True)
class OneRunFlags(Output):
    """A command about one run that has nothing else to say."""

    run: str = flag("", "name of the run, or its beginning (default: the last run)", word=True)


@dataclass(frozen=True, kw_only=True)
class WhyFlags(Output):
    run: str = flag("", "a run, a pod, a replica or a service (default: the last run)", word=True)


@dataclass(frozen=True, kw_only=True)
class AgainFlags(OneRunFlags):
    out: str = flag("", "folder for the new results (default: var/again/RUN-1)", unit="FOLDER")
    dry_run: bool = flag(False, "show what differs today, and stop")


@dataclass(frozen=True, kw_only=True)
class EjectFlags(OneRunFlags):
    out: str = flag("", "folder to write (default: RUN-plain)", unit="FOLDER")


@dataclass(frozen=True, kw_only=True)
class StopFlags:
    run: str = flag("", "name of the run", word=True)


@dataclass(frozen=True, kw_only=True)
class StatusFlags(OneRunFlags):
    watch: str | bool | None = flag(None, "redraw every N seconds (60)", bare=True, unit="SECONDS")


@dataclass(frozen=True, kw_only=True)
class LogsFlags:
    run: str = flag("", "name of the run, or its beginning (default: the last run)", word=True)
    follow: bool = flag(False, "keep printing until the run ends, and exit with its code")
    tail: int = flag(0, "only the last N lines of each log")
    since: str = flag("", "only what was written within this time: 90s, 10m, 2h", unit="DURATION")
    file: str = flag("", "only this log: the name of a step, or guard, agent, environment, gpus")
    errors: bool = flag(False, "only error logs; with --file, only that step's")


@dataclass(frozen=True, kw_only=True)
class ReportFlags(Output):
    run: tuple[str, ...] = flag(
        (), "a run, an artifact such as base_checkpoints/smoke, a folder, or foreground (the last inv train); two are "
        "compared",
        word=True,
    )  # fmt: skip
    out: str = flag("", "folder for the page and its pictures (default: var/reports/RUN)", unit="FOLDER")
    open: bool = flag(False, "open the page in the browser")


@dataclass(frozen=True, kw_only=True)
class KeepFlags(OneRunFlags):
    detach: bool = flag(False, "run in the background, and write to keep.log beside the run's logs")


@dataclass(frozen=True, kw_only=True)
class DownFlags(OneRunFlags):
    all: bool = flag(False, "every live run")


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(OneRunFlags):
    spend_limit: str = flag(
        "", "rented: new limit in US dollars, counted from the start of the run", group=LIMITS, unit="USD"
    )
    ttl: str = flag("", "rented: end it this long after now: 90s, 30m, 2h", group=LIMITS, unit="DURATION")
    detach: bool = flag(False, "hand over and return")


@dataclass(frozen=True, kw_only=True)
class UiFlags:
    port: int | None = flag(None, "port on this machine; 0: any free one (default: 7331, or the next free one)")
    allow_acts: bool = flag(False, "let the page end and resume runs and scale services, after a confirmation")
    export: str = flag("", "write the page as it is now to this folder, as one file that needs no server", unit="DIR")
    open: bool = flag(False, "open it in the browser")
