"""The flags of the commands about runs, each declared once; those of the use cases stand in `flows.specs`."""

from dataclasses import dataclass

from flows.specs.launch import RUN, LaunchSpec
from infra.flags import flag
from infra.selection.machine_spec import LIMITS
from scripts.cli.flags import Output, Questions

MARKET = "The market that is simulated"
NOT_OF_THE_PLAN = ("json", "dry_run", "yes", "detach", "file", "run")  # flags that say how a plan is shown


@dataclass(frozen=True, kw_only=True)
class LaunchFlags(Output, Questions, LaunchSpec):
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
class OneRunFlags(Output):
    """A command about one run that has nothing else to say."""

    run: str = flag("", "name of the run, or its beginning (default: the last run)", word=True)


@dataclass(frozen=True, kw_only=True)
class WhyFlags(Output):
    run: str = flag("", "a run, a pod, a replica or a service (default: the last run)", word=True)


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
    tail: int | None = flag(None, "only the last N lines of each log")
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
class ResumeFlags(Questions, OneRunFlags):
    spend_limit: str = flag(
        "", "rented: new limit in US dollars, counted from the start of the run", group=LIMITS, unit="USD"
    )
    ttl: str = flag("", "rented: end it this long after now: 90s, 30m, 2h", group=LIMITS, unit="DURATION")
    detach: bool = flag(False, "hand over and return")
    dry_run: bool = flag(False, "show what it would rent, its price and what ends it, and stop")
