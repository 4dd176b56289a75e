"""What `inv sweep` does: a file of runs -> lanes, one per pod -> an `inv launch` per run -> a table of all.

Each run is a launch of its own, so that it is followed, kept and brought back as any other is. Ctrl-C detaches all.
"""

import json as json_text
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from invoke import Exit

from infra.errors import NoOffer, SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.names import check_name
from infra.providers import Provider, registry
from infra.records import Plan
from infra.runs.mirror import is_home
from infra.runs.schedule import Lane, pack
from infra.selection import choose, preflight
from infra.settings import Settings
from infra.strict_yaml import read
from scripts.cli import context, prompts, render
from scripts.cli.context import ROOT
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.market import select
from scripts.market.tasks import MACHINE
from scripts.runs.launch import DETACHED
from scripts.runs.planning import plan_for
from store import Store

TEXT = ("phase", "profile", "source", "packages", "persona", "tag", "pool", "gpu", "ttl", "spend_limit")
NUMBERS = ("seed", "steps", "num_gpus")
FLAGS = (*TEXT, *NUMBERS)
NO_WORDS = {flag.replace("-", "_"): "" for flag in MACHINE} | {"num_gpus": 0, "min_upload_mbps": 0,
            "min_download_mbps": 0, "all_configs": False, "use_spot": False}  # fmt: skip
POLL_S = 0.5
Flags = dict[str, Any]


@dataclass
class Run:
    """One line of the table."""

    name: str
    flags: Flags
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


@dataclass
class Sweep:
    """All runs at work. A lane is a thread that starts one launch after the other and reads what it says."""

    runs: dict[str, Run]
    settings: Settings
    provider: str
    children: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def go(self, lanes: Sequence[Lane]) -> None:
        """Until all have ended. KeyboardInterrupt: the launches have detached, and no further one begins."""
        threads = [threading.Thread(target=self._lane, args=(lane,), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        try:
            while any(thread.is_alive() for thread in threads):
                time.sleep(POLL_S)
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

    def _may_begin(self, run: Run) -> bool:
        with self.turn:
            if self._is_being_made_elsewhere(run):
                return False
            run.state = "running"
            return True

    def _is_being_made_elsewhere(self, run: Run) -> bool:
        """Whether it would make what a run at work is making: it is made once, and used by all."""
        store = Store(self.settings.store)
        others = [one for one in self.runs.values() if one.state == "running"]
        shared = makings(run.plan).items() & {item for one in others for item in makings(one.plan).items()}
        return any(not is_home(store, name, fingerprint) for name, fingerprint in shared)

    def _launch(self, run: Run) -> None:
        place = ["--host", run.pod] if self.provider == "ssh" else []
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in run.flags.items()]
        line = [
            sys.executable,
            "-m",
            "invoke",
            "--search-root",
            str(ROOT),
            "launch",
            "--provider",
            self.provider,
            *place,
        ]
        line += [*flags, "--run-name", run.name, "--keep-made", "--with-missing", "--yes", "--json"]
        log = self.settings.homes / run.name / "launch.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        render.say(f"{time.strftime('%H:%M:%S')} {run.pod}: {run.name} begins")
        with log.open("ab") as talk:
            child = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=talk, text=True,
                                     start_new_session=True)  # fmt: skip
        self.children[run.name] = child
        if self.over.is_set():  # it came too late to be told with the others
            child.send_signal(signal.SIGINT)
        said, _ = child.communicate()
        self._end(run, child.returncode, said, log)

    def _end(self, run: Run, code: int, said: str, log: Path) -> None:
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
        render.say(f"{time.strftime('%H:%M:%S')} {run.pod}: {run.name} {run.state} {run.reason}".rstrip())


def sweep(file, pods, provider, dry_run, yes, json):
    if not file:
        raise UsageError("which file? inv sweep runs.yaml, with `runs:` and below it `- name: a`, `  seed: 1`")
    document = load(Path(file))
    settings = context.settings(provider=provider)
    candidates = registry.candidates(settings)
    runs = {name: Run(name, flags, plan_of(name, flags, settings, candidates))
            for name, flags in document["runs"].items()}  # fmt: skip
    refuse_rivals(runs)
    with open_journal(settings) as journal:
        if candidates[0].is_rented:
            price(runs.values(), candidates, journal, settings)
        lanes, idle = lanes_of(runs, settings.provider, candidates, journal, pods or document["pods"])
    for lane in lanes:
        for name in lane.runs:
            runs[name].pod = lane.pod
    if not json:
        show_plan(lanes, runs)
    if idle:
        render.say(f"{render.count(idle, 'pod')} {'has' if idle == 1 else 'have'} no run")
    if dry_run:
        if json:
            print_json({"lanes": lanes, "idle_pods": idle, "runs": [row_json(run) for run in runs.values()]})
        return
    if any(run.micro_usd for run in runs.values()):
        prompts.confirm(yes)
    try:
        Sweep(runs, settings, settings.provider).go(lanes)
    except KeyboardInterrupt:
        render.say(f"\ndetached; what runs goes on. See it: ./inv status. Go on with the rest: ./inv sweep {file}")
        raise Exit(code=DETACHED) from None
    report(runs, idle, json)


def load(path: Path) -> dict[str, Any]:
    """`pods` (None: not said), and flags of launch by name of run. Raises UsageError, with the place."""
    try:
        document = read(path)
    except FileNotFoundError:
        raise UsageError(f"there is no {path}") from None
    check_keys(str(path), document, ("runs", "each", "pods"))
    each, entries, pods = document.get("each") or {}, document.get("runs"), document.get("pods")
    check_flags(f"{path}: each", each)
    if not isinstance(entries, list) or not entries:
        raise UsageError(f"{path}: `runs` must be a list with one run at least")
    if pods is not None and (type(pods) is not int or pods < 1):
        raise UsageError(f"{path}: pods is {pods!r}; it must be a whole number from 1")
    runs: dict[str, Flags] = {}
    for number, entry in enumerate(entries, 1):
        where = f"{path}: run {number}"
        check_keys(where, entry, ("name", *FLAGS))
        if not isinstance(entry.get("name"), str):
            raise UsageError(f"{where}: it needs a name, as text")
        name = check_name(entry["name"])
        if name in runs:
            raise UsageError(f"{where}: another run is called {name} too")
        own = {key: value for key, value in entry.items() if key != "name"}
        check_flags(where, own)
        runs[name] = {"tag": name, **each, **own}
    return {"runs": runs, "pods": pods}


def check_keys(where: str, body: Any, known: Sequence[str]) -> None:
    if not isinstance(body, dict):
        raise UsageError(f"{where}: expected lines of the form `key: value`")
    for key in body:
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}; known: {', '.join(known)}")


def check_flags(where: str, flags: Any) -> None:
    check_keys(where, flags, FLAGS)
    for key, value in flags.items():
        kind, wanted = (int, "a whole number") if key in NUMBERS else (str, 'text, such as "20"')
        if type(value) is not kind:
            raise UsageError(f"{where}: {key} is {value!r}; it must be {wanted}")


def plan_of(name: str, flags: Flags, settings: Settings, candidates: Sequence[Provider]) -> Plan:
    chosen = {key: flags[key] for key in ("profile", "source") if key in flags}
    own, vendor = context.settings(provider=settings.provider, **chosen), candidates[0]
    rest = {key: flags[key] for key in ("packages", "persona", "seed", "steps", "tag") if key in flags}
    machine = NO_WORDS | {key: flags[key] for key in ("gpu", "num_gpus") if key in flags}
    try:
        request = select.request_for(machine, name, candidates, 1, flags.get("pool", ""), "")
        limits = preflight.limits_for(
            own, vendor.is_rented, flags.get("ttl", ""), flags.get("spend_limit", ""), render.say
        )
        return plan_for(own, request, vendor, limits, phase=flags.get("phase", "sft"), **rest, with_missing=True)
    except UsageError as error:
        raise UsageError(f"run {name}: {error}") from None


def price(runs: Iterable[Run], candidates: Sequence[Provider], journal: Journal, settings: Settings) -> None:
    """Know of each run that is not at work yet what it may cost at most; raises SlipwayError when it cannot be had."""
    at_work, again = {op.run for op in journal.ops(live=True)}, select.again("--with-missing")
    for run in runs:
        if run.plan.job is None or run.name in at_work:
            continue
        try:
            preflight.check_work(run.plan, settings, False, again)  # before any vendor is asked
            offers = choose.find(candidates, run.plan.request, settings, render.tell)
            first = preflight.preflight(run.plan, offers, settings, False, again, render.tell)[0]
        except SlipwayError as error:
            error.args = (f"run {run.name}: {error}; nothing was rented",)
            raise
        limits = run.plan.job.limits
        most = [] if limits.time_s is None else [math.ceil(limits.time_s * first.micro_usd_per_hour / 3600)]
        run.micro_usd = min([*most, *filter(None, [limits.spend_micro_usd])])


def makings(plan: Plan) -> dict[str, str]:
    """What the plan's job makes: fingerprints by name."""
    found = [step.config["making"] for step in plan.job.steps if "making" in step.config] if plan.job else []
    return {one["name"]: one["fingerprint"] for one in found}


def _loss(store: str, plan: Plan) -> Any:
    last = plan.artifacts[-1]
    return Store(store).find(last.name, last.fingerprint).about.get("train_loss")


def refuse_rivals(runs: Mapping[str, Run]) -> None:
    """A checkpoint's name stands for one artifact: of runs that make different ones, one could not be found by it."""
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
    runs: Mapping[str, Run], provider: str, candidates: Sequence[Provider], journal: Journal, wanted: int | None
) -> tuple[list[Lane], int]:  # fmt: skip
    """Lanes that have runs, and how many pods have none. Raises NoOffer when there are fewer pods than wanted."""
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


def show_plan(lanes: Sequence[Lane], runs: Mapping[str, Run]) -> None:
    rows = [("pod", "run", "about", "")]
    for lane in lanes:
        for name in lane.runs:
            run = runs[name]
            rows.append((lane.pod, name, render.duration(run.estimate_s), "" if run.plan.job else "everything is here"))
    render.say(columns(rows))
    longest_s = max(lane.estimate_s for lane in lanes)
    what = f"{render.count(len(runs), 'run')} on {render.count(len(lanes), 'pod')}"
    render.say(f"{what}, about {render.duration(longest_s)} (estimates, one by one)")
    if most := sum(run.micro_usd for run in runs.values()):
        render.say(f"each on a machine that is rented for it: {render.cents(most)} USD together at most")


def report(runs: Mapping[str, Run], idle: int, as_json: bool) -> None:
    rows = [("run", "pod", "state", "seconds", "loss", "")]
    for run in runs.values():
        seconds = "" if run.seconds is None else f"{run.seconds:.1f}"
        loss = "" if run.loss is None else f"{run.loss:.4f}"
        rows.append((run.name, run.pod, run.state, seconds, loss, run.reason))
    if as_json:
        print_json({"runs": [row_json(run) for run in runs.values()], "idle_pods": idle})
    else:
        print(render.clean(columns(rows)))
    bad = [run.name for run in runs.values() if run.state != "succeeded"]
    if bad:
        raise Exit(f"inv sweep: {len(bad)} of {len(runs)} runs have not succeeded: {', '.join(bad)}", code=1)


def row_json(run: Run) -> dict[str, Any]:
    return {
        "run": run.name, "pod": run.pod, "state": run.state, "seconds": run.seconds, "loss": run.loss,
        "estimate_s": round(run.estimate_s, 1), "most_usd": render.usd(run.micro_usd), "reason": run.reason or None,
    }  # fmt: skip
