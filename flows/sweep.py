"""A sweep: runs with their flags -> lanes, one per pod -> a launch per run, one after the other in each lane.

Each run is an `inv launch` of its own, so that it is followed, kept and brought back as any other is.
"""

import itertools
import json as json_text
import math
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data.config import ConfigError
from flows.follow import DETACHED
from flows.planning import Work, plan_for
from flows.reading import sweeps
from flows.specs import files, phase_words
from flows.specs.launch import LaunchSpec
from infra.checkout import ROOT
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.flags import as_typed, given
from infra.job_environment import secrets
from infra.jobs.schedule import Lane, pack
from infra.ledger.journal import Journal
from infra.names import check_name
from infra.providers import Provider, registry
from infra.records import Plan
from infra.runs.mirror import is_home
from infra.runs.timing import Say
from infra.selection import choose, preflight
from infra.selection.request import request_on
from infra.settings import Settings
from store import Store, credentials

NOT_OF_A_RUN = (  # flags of a launch that the sweep gives itself, or that are of all runs
    *("run_name", "dry_run", "provider", "store", "host", "nodes", "wait", "on_failure"),
    *("with_missing", "remake", "keep_made"),
)
MOST_RUNS = 1000
POLL_S = 0.5


@dataclass
class SweepRun:
    """One line of the table."""

    name: str
    spec: LaunchSpec
    plan: Plan
    micro_usd: int = 0  # that it may cost at most
    pod: str = ""
    state: str = "waiting"
    seconds: float | None = None
    loss: float | None = None
    reason: str = ""

    @property
    def estimate_s(self) -> float:
        return sum(one.estimate_s or 0.0 for one in self.plan.artifacts)


@dataclass(frozen=True)
class SweepSpec:
    """The launches by name of run, and how many pods they share; None: as many as there are, of own machines."""

    runs: Mapping[str, LaunchSpec]
    pods: int | None = None


@dataclass
class Sweep:
    """All runs at work. A lane is a thread that starts one launch after the other and reads what it says."""

    runs: dict[str, SweepRun]
    lanes: Sequence[Lane]
    idle: int
    """Pods that have no run."""
    settings: Settings
    tell: Say
    children: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)
    began_at: float = field(default_factory=time.time)
    record: Path | None = None
    """Where it is written down, once it goes."""

    @property
    def micro_usd(self) -> int:
        """Return what all runs may cost at most."""
        return sum(run.micro_usd for run in self.runs.values())

    def go(self) -> None:
        """Launch the runs until all have ended.

        KeyboardInterrupt: the launches have detached, and no further one begins.
        """
        self.record = sweeps.new_path(self.settings)
        self._write()
        threads = [threading.Thread(target=self._lane, args=(lane,), daemon=True) for lane in self.lanes]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(POLL_S)
            self._write(is_over=True)
        except BaseException:
            self.over.set()
            for child in list(self.children.values()):
                child.send_signal(signal.SIGINT)
            for thread in threads:
                thread.join()
            raise

    def _lane(self, lane: Lane) -> None:
        for name in lane.runs:
            while not self.over.is_set() and not self._may_begin(self.runs[name]):
                self.over.wait(POLL_S)
            if not self.over.is_set():
                self._launch(self.runs[name])

    def _may_begin(self, run: SweepRun) -> bool:
        with self.turn:
            if self._is_being_made_elsewhere(run):
                return False
            run.state = "running"
            self._write()
            return True

    def _write(self, is_over: bool = False) -> None:
        """Write down how it stands, for whoever shows it."""
        assert self.record is not None
        odd = sweeps.differing({name: given(run.spec, ("tag",)) for name, run in self.runs.items()})
        arms = (sweeps.Arm(run.name, run.pod, run.state, run.loss, run.seconds, run.reason, odd[run.name])
                for run in self.runs.values())  # fmt: skip
        sweeps.keep(self.record, sweeps.KeptSweep(self.began_at, is_over, tuple(arms)))

    def _is_being_made_elsewhere(self, run: SweepRun) -> bool:
        """Tell whether it would make what a run at work is making: it is made once, and used by all."""
        store = Store(self.settings.store)
        others = [one for one in self.runs.values() if one.state == "running"]
        shared = makings(run.plan).items() & {item for one in others for item in makings(one.plan).items()}
        return any(not is_home(store, name, fingerprint) for name, fingerprint in shared)

    def _launch(self, run: SweepRun) -> None:
        place = ["--host", run.pod] if self.settings.provider == "ssh" else []
        flags = [*as_typed(run.spec), *(word for name in self.settings.given for word in ("--env", name))]
        line = [
            sys.executable,
            "-m",
            "invoke",
            "--search-root",
            str(ROOT),
            "launch",
            "--provider",
            self.settings.provider,
            *place,
        ]
        line += [*flags, "--run-name", run.name, "--keep-made", "--with-missing", "--yes", "--json"]
        log = self.settings.homes / run.name / "launch.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        self.tell(f"{time.strftime('%H:%M:%S')} {run.pod}: {run.name} begins")
        with log.open("ab") as talk:
            child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk, text=True,
                                     start_new_session=True)  # fmt: skip
        self.children[run.name] = child
        if self.over.is_set():  # it came too late to be told with the others
            child.send_signal(signal.SIGINT)
        said, _ = child.communicate()
        self._end(run, child.returncode, said, log)

    def _end(self, run: SweepRun, code: int, said: str, log: Path) -> None:
        document: Mapping[str, Any] = {}
        with suppress(ValueError):  # it died before it said anything: its exit code has to do
            document = json_text.loads(said)
        steps = document.get("steps") or []
        run.state = document.get("state") or ("detached" if code == DETACHED else "failed")
        run.seconds = sum(step["elapsed_s"] for step in steps if isinstance(step, dict))
        run.reason = document.get("reason") or document.get("error") or ""
        if code not in (0, DETACHED) and not run.reason:
            run.reason = f"its launch left with exit code {code}; see {log}"
        if run.state == "succeeded":
            run.loss = _loss(self.settings.store, run.plan)
        with self.turn:
            self._write()
        self.tell(f"{time.strftime('%H:%M:%S')} {run.pod}: {run.name} {run.state} {run.reason}".rstrip())


def read(where: str, document: Any, pods: int | None) -> SweepSpec:
    """Return what a document of a sweep says; `pods` outweighs it. Raises UsageError, with the place."""
    files.check_keys(where, document, ("runs", "axes", "each", "pods"))
    number_of_pods = document.get("pods")
    if number_of_pods is not None and (type(number_of_pods) is not int or number_of_pods < 1):
        raise UsageError(f"{where}: pods is {number_of_pods!r}; it must be a whole number from 1")
    each = files.read(f"{where}: each", document.get("each") or {}, LaunchSpec, NOT_OF_A_RUN)
    entries = document.get("runs") or []
    if not isinstance(entries, list) or not (entries or document.get("axes")):
        raise UsageError(f"{where}: `runs` must be a list with one run at least, or `axes` say what is combined")
    runs: dict[str, LaunchSpec] = {}
    for number, entry in enumerate(entries, 1):
        here = f"{where}: run {number}"
        if not isinstance(entry, Mapping):
            raise UsageError(f"{here}: expected lines of the form `key: value`")
        own = files.read(here, {key: entry[key] for key in entry if key != "name"}, LaunchSpec, NOT_OF_A_RUN)
        if not isinstance(entry.get("name"), str):
            raise UsageError(f"{here}: it needs a name, as text")
        _add(here, runs, entry["name"], each, own)
    for name, entry in _combined(f"{where}: axes", document.get("axes") or {}):
        here = f"{where}: axes: {name}"
        _add(here, runs, name, each, files.read(here, entry, LaunchSpec, NOT_OF_A_RUN))
    return SweepSpec(runs, pods or number_of_pods)


def _add(where: str, runs: dict[str, LaunchSpec], name: str, each: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Add a run of that name. Raises UsageError where there is one."""
    name = check_name(name)
    if name in runs:
        raise UsageError(f"{where}: two runs have this name: {name}")
    options = phase_words.read([*each.get("options", ()), *own.get("options", ())])
    runs[name] = LaunchSpec(**{"tag": name, **each, **own, "options": options})


def _combined(where: str, axes: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a run for each combination of the values of all axes, named by them. Raises UsageError."""
    if not isinstance(axes, Mapping):
        raise UsageError(f"{where}: expected a list of values for each flag, such as `seed: [1, 2, 3]`")
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise UsageError(f"{where}: {key}: expected a list of values, such as `seed: [1, 2, 3]`")
    if math.prod(len(values) for values in axes.values()) > MOST_RUNS:
        raise UsageError(f"{where}: more than {MOST_RUNS} runs")
    for chosen in itertools.product(*axes.values()) if axes else ():
        entry = dict(zip(map(str, axes), chosen, strict=True))
        words = [f"{key.rpartition('.')[2]}-{value}" for key, value in entry.items()]
        yield re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(words)).strip("-."), entry


def plan(spec: SweepSpec, journal: Journal, settings: Settings, again: str, tell: Say) -> Sweep:
    """Return the runs with their plans, their prices and their pods; nothing is begun. Raises SlipwayError.

    `again`: the command that would make what is missing on the rented machines as well.
    """
    candidates = registry.candidates(settings)
    runs = {
        name: SweepRun(name, one, _plan_of(name, one, settings, candidates, tell)) for name, one in spec.runs.items()
    }
    refuse_rivals(runs)
    if candidates[0].is_rented:
        price(runs.values(), candidates, journal, settings, again, tell)
    lanes, idle = lanes_of(runs, settings.provider, candidates, journal, spec.pods)
    for lane in lanes:
        for name in lane.runs:
            runs[name].pod = lane.pod
    return Sweep(runs, lanes, idle, settings, tell)


def _plan_of(
    name: str, spec: LaunchSpec, settings: Settings, candidates: Sequence[Provider], tell: Say
) -> Plan:  # fmt: skip
    chosen = {"provider": settings.provider, "profile": spec.profile, "source": spec.source}
    env = [f"{variable}={value}" for variable, value in settings.given.items()]
    own, vendor = Settings.load(ROOT, chosen, env), candidates[0]
    credentials.lend(secrets(own))
    try:
        request = request_on(candidates, spec, name, pool=spec.pool)
        limits = preflight.limits_for(own, vendor.is_rented, spec, tell)
        return plan_for(Work.of(replace(spec, with_missing=True), own), own, request, vendor, limits)
    except (UsageError, ConfigError) as error:
        raise UsageError(f"run {name}: {error}") from None


def price(
    runs: Iterable[SweepRun], candidates: Sequence[Provider], journal: Journal, settings: Settings, again: str,
    tell: Say,
) -> None:  # fmt: skip
    """Know of each run that is not at work yet what it may cost at most; raises SlipwayError when it cannot be had."""
    at_work = {op.run for op in journal.ops(live=True)}
    for run in runs:
        if run.plan.job is None or run.name in at_work:
            continue
        try:
            preflight.check_work(run.plan, settings, False, again)  # before any vendor is asked
            offers = choose.find(candidates, run.plan.request, settings, tell)
            first = preflight.preflight(run.plan, offers, settings, False, again, tell)[0]
        except SlipwayError as error:
            error.args = (f"run {run.name}: {error}; nothing was rented",)
            raise
        limits = run.plan.job.limits
        most = [] if limits.time_s is None else [math.ceil(limits.time_s * first.micro_usd_per_hour / 3600)]
        run.micro_usd = min([*most, *filter(None, [limits.spend_micro_usd])])


def makings(plan: Plan) -> dict[str, str]:
    """Return what the plan's job makes: fingerprints by name."""
    found = [step.config["making"] for step in plan.job.steps if "making" in step.config] if plan.job else []
    return {one["name"]: one["fingerprint"] for one in found}


def _loss(store: str, plan: Plan) -> Any:
    last = plan.artifacts[-1]
    return Store(store).find(last.name, last.fingerprint).about.get("train_loss")


def refuse_rivals(runs: Mapping[str, SweepRun]) -> None:
    """Raise UsageError for runs that make different artifacts under one name.

    A checkpoint's name stands for one artifact: one of them could not be found by it.
    """
    seen: dict[str, tuple[str, str]] = {}
    for run in runs.values():
        for artifact, fingerprint in makings(run.plan).items():
            if "_checkpoints/" not in artifact:
                continue
            other, known = seen.setdefault(artifact, (run.name, fingerprint))
            if known != fingerprint:
                raise UsageError(
                    f"{other} and {run.name} want different artifacts under the name {artifact}; "
                    "give them different tags"
                )


def lanes_of(
    runs: Mapping[str, SweepRun], provider: str, candidates: Sequence[Provider], journal: Journal, wanted: int | None
) -> tuple[list[Lane], int]:  # fmt: skip
    """Return the lanes that have runs, and how many pods have none. Raises NoOffer when there are too few pods."""
    vendors = [one.name for one in candidates]
    rows = {op.run: op for op in journal.ops() if op.vendor in vendors and op.run in runs}  # the last of each
    if provider == "ssh":
        pods = [op.place for op in rows.values() if op.is_live and op.place]
        if len(set(pods)) < (wanted or sys.maxsize):
            try:
                pods += [offer.place for offer in candidates[0].offers(next(iter(runs.values())).plan.request)]
            except NoOffer:
                if not pods:
                    raise
        pods = list(dict.fromkeys(pods))
        if wanted and wanted > len(pods):
            raise NoOffer(
                f"ssh: {wanted} pods wanted, {len(pods)} are free and fit: {', '.join(pods)}; run: inv pool.up"
            )
        pods = pods[:wanted]
    else:
        pods = [f"{provider}-{number}" for number in range(1, (wanted or 1) + 1)]
    lanes = pack({run.name: run.estimate_s for run in runs.values()}, pods, {run: op.place for run, op in rows.items()})
    return [lane for lane in lanes if lane.runs], sum(1 for lane in lanes if not lane.runs)
