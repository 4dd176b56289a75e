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
    preempt: int = flag(
        0, "the market takes the run's pod away so many times, each time once it has made a checkpoint", group=MARKET
    )
    bad_host: int = flag(0, "the first N machines have an old driver or a slow disk", group=MARKET)
    faults: str = flag("", "YAML: what else goes wrong (infra/rehearsal/faults.py)", group=MARKET, unit="FILE")
    offers: str = flag("", "JSON: what can be rented, instead of what Slipway brings along", group=MARKET, unit="FILE")
    speed: float | None = flag(
        None, "simulated seconds per second (60, or fewer where a limit would be reached before work begins)",
        group=MARKET,
    )  # fmt: skip
    stop: bool = flag(False, "end the rehearsal and all that runs in it", group=MARKET)


@dataclass(frozen=True, kw_only=True)
class SweepFlags(Output, Questions):
    config: str = flag(
        "", "a sweep by its name (--list-configs shows them), or a YAML file: `runs`, `axes`, `seeds`, `each`",
        word=True, also=("file",), group=SWEEP,
    )  # fmt: skip
    list_configs: bool = flag(
        False, "show every sweep that has a name, with pods, runs, hours and dollars", group=SWEEP
    )
    early_stop: bool = flag(
        False, "stop runs that are behind after a quarter of their steps, and after half", group=SWEEP
    )
    sample: int | None = flag(None, "only so many combinations of `axes`, drawn by chance", group=SWEEP)
    promote: str = flag("", "publish what that run of a sweep has made under --tag", group=SWEEP, unit="RUN")
    tag: str = flag("", "with --promote: the name (default: that of the sweep)", group=SWEEP)
    report: bool = flag(False, "only the table and the page, as far as the runs have come", group=SWEEP)
    dry_run: bool = flag(False, "show who runs where, what it costs, and stop", group=SWEEP)
    pods: int | None = flag(None, "on so many pods at once (ssh: all that are free; local: 1)", group=MACHINE)
    pack: int | None = flag(
        None, "rented: hold the pods from the first run to the last, so many runs side by side on each, every one with "
        "GPUs of its own; a sweep that describes its pods does so anyhow", group=MACHINE, unit="RUNS",
    )  # fmt: skip
    deploy_only: bool = flag(False, "rent its pods and hold them, and run nothing", group=STAGES)
    no_deploy: bool = flag(
        False, "rent nothing: use the pods that are held for it, which stay; one that is missing is skipped",
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

    run: str = flag("", "its name, or the beginning of it (default: the last run)", word=True)


@dataclass(frozen=True, kw_only=True)
class WhyFlags(Output):
    run: str = flag("", "a run, a pod, a replica or a service (default: the last run)", word=True)


@dataclass(frozen=True, kw_only=True)
class AgainFlags(OneRunFlags):
    out: str = flag("", "folder for what is made again (default: var/again/RUN-1)", unit="FOLDER")
    dry_run: bool = flag(False, "say what differs today, and stop")


@dataclass(frozen=True, kw_only=True)
class EjectFlags(OneRunFlags):
    out: str = flag("", "folder to write (default: RUN-plain)", unit="FOLDER")


@dataclass(frozen=True, kw_only=True)
class StopFlags:
    run: str = flag("", "its name", word=True)


@dataclass(frozen=True, kw_only=True)
class StatusFlags(OneRunFlags):
    watch: str | bool | None = flag(None, "redraw every N seconds (60)", bare=True, unit="SECONDS")


@dataclass(frozen=True, kw_only=True)
class LogsFlags:
    run: str = flag("", "its name, or the beginning of it (default: the last run)", word=True)
    follow: bool = flag(False, "go on until the run ends, and exit with its code")
    tail: int = flag(0, "only the last N lines of each log")
    since: str = flag("", "only what was written in the last 90s, 10m, 2h", unit="DURATION")
    file: str = flag("", "log of one step, or guard, agent, environment")
    errors: bool = flag(False, "only the error logs; with --file, of that step")


@dataclass(frozen=True, kw_only=True)
class ReportFlags(Output):
    run: tuple[str, ...] = flag(
        (), "a run, an artifact such as base_checkpoints/smoke, a folder, or foreground for inv train; two of them are "
        "compared",
        word=True,
    )  # fmt: skip
    out: str = flag("", "folder for the page and its pictures (default: var/reports/RUN)", unit="FOLDER")
    open: bool = flag(False, "open the page in the browser")


@dataclass(frozen=True, kw_only=True)
class KeepFlags(OneRunFlags):
    detach: bool = flag(False, "in the background; it writes to keep.log beside the run's logs")


@dataclass(frozen=True, kw_only=True)
class DownFlags(OneRunFlags):
    all: bool = flag(False, "every live run")


@dataclass(frozen=True, kw_only=True)
class ResumeFlags(OneRunFlags):
    spend_limit: str = flag(
        "", "rented: another limit, in US dollars, for the run from its beginning", group=LIMITS, unit="USD"
    )
    ttl: str = flag("", "rented: so much time from now on", group=LIMITS, unit="DURATION")
    detach: bool = flag(False, "hand over and return")


@dataclass(frozen=True, kw_only=True)
class UiFlags:
    port: int | None = flag(None, "of this machine; 0: any (default: 7331, or where that is taken one of the next)")
    allow_acts: bool = flag(False, "let the page end and resume runs, and scale services; it asks first")
    export: str = flag("", "write the page as it is now into this folder, as one file that needs no server", unit="DIR")
    open: bool = flag(False, "open it in the browser")
