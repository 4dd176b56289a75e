"""The job that the control side hands to a pod, and the files of a pod.

In: `job.json`, written by the hand-over. Out: `Job`, read by the guard and the agent.
Standard library only, and a grammar that Python 3.9 reads: this runs on any machine.
"""

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Set, Tuple, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from infra.agent import outside

T = TypeVar("T")

SCHEMA = 1
PART = ".1"  # ends the name of the earlier part of a log, before its suffix
SELF_END_KEY = "SLIPWAY_SELF_END_KEY"  # in a `Call`: the vendor's key; no variable of any process has it
VARIABLE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")  # in a `Call`; anything else in braces is JSON's or GraphQL's
STAYS = ("succeeded", "failed")  # verdicts on the work of a pod that stays; any other is one on the pod


@dataclass(frozen=True)
class Limits:
    """Durations and amounts that the guard enforces; None means no such limit."""

    time_s: Optional[float] = None
    spend_micro_usd: Optional[int] = None
    micro_usd_per_hour: int = 0
    idle_gpu_s: Optional[float] = None
    billed_s: float = 0.0  # seconds for which the pod had been billed when its guard was armed
    reserve_bytes: int = 0  # free disk below which work is stopped before the disk is full


@dataclass(frozen=True)
class Step:
    """One process of the job. It is run as `python <words> --config FILE` from the code folder."""

    name: str
    words: Tuple[str, ...]  # after the interpreter: ("-m", "trainer", "base")
    environment: str = ""  # "train", or "" for the interpreter that runs the agent
    config: Dict[str, Any] = field(default_factory=dict)  # written to state/config/<name>.json
    timeout_s: Optional[float] = None
    silent_s: Optional[float] = None  # no new record for this long: dump stacks, restart
    max_restarts: int = 3
    together: Tuple[str, ...] = ()  # words before its own where several processes run it as one; () = it runs alone
    everywhere: bool = False  # together: done when every node has done it, and not as soon as node 0 has


@dataclass(frozen=True)
class NodeGroup:
    """The nodes of a run that has several, and the rank of this one."""

    run: str = ""  # name of the run; the pods of the other nodes are `<run>.1`, `<run>.2`, ...
    rank: int = 0
    addresses: Tuple[str, ...] = ()  # addresses of all nodes, by rank, at which the others reach them
    interface: str = ""  # the interface with this node's address
    port: int = 0  # on node 0, for training: MASTER_PORT
    words_port: int = 0  # on node 0, for its agent
    key: str = ""  # secret with which one may talk to that agent


@dataclass(frozen=True)
class Call:
    """A request by which a pod ends itself. `{NAME}` stands for a variable of the pod's first process, nothing else."""

    method: str
    url: str
    headers: Dict[str, str] = field(default_factory=dict)
    body: str = ""

    @property
    def names(self) -> Set[str]:
        """Return the names of the variables that it needs."""
        return {name for part in (self.url, self.body, *self.headers.values()) for name in VARIABLE.findall(part)}


@dataclass(frozen=True)
class Job:
    run: str  # readable, stable over recoveries
    token: str  # token of this pod; new at every rent
    steps: Tuple[Step, ...]
    limits: Limits = Limits()
    beside: Optional[Step] = None  # runs beside all others, on node 0, until the last rites; no step of progress
    trackers: Tuple[Step, ...] = ()  # like `beside`, but nothing waits long for them: they tell figures to others
    kind: str = "steps"  # or "service", or "hold": no work, the guard holds the pod to its limits
    torch: str = "cpu"  # build of torch in the environment: "cpu" or "cuda"
    environments: str = ""  # folder that caches environments on the pod
    environ: Dict[str, str] = field(default_factory=dict)
    secrets: Tuple[str, ...] = ()  # names only; values lie in the mode-600 file
    num_gpus: int = 0  # GPUs of each node
    group: NodeGroup = NodeGroup()
    on_failure: str = "end"  # or "keep": what becomes of a rented pod whose work has failed
    farewell: Tuple[Call, ...] = ()  # the calls by which the pod deletes itself, all in each round; () = it cannot
    self_end: bool = False  # asked for: its guard is given its vendor's key where the pod has none of its own
    stays: bool = False  # the pod outlives its work: the guard holds it for the next job, until a limit
    setup: Tuple[str, ...] = ()  # environments that are made besides those of the steps
    no_setup: bool = False  # no environment is made: those that are there are used
    clock_scale: float = 1.0  # a rehearsal's clock runs this many times faster
    schema: int = SCHEMA

    @property
    def devices(self) -> str:
        """Return the GPUs of the machine that are its own, as nvidia-smi takes them; "" = all that there are."""
        said = self.environ.get("CUDA_VISIBLE_DEVICES", "")
        return said if all(word.isdigit() for word in said.split(",")) else ""

    @property
    def needs_key(self) -> bool:
        """Return whether the pod can end itself with a key only that is handed to its guard."""
        return any(SELF_END_KEY in call.names for call in self.farewell)

    @property
    def has_start_timer(self) -> bool:
        """Return whether the machine ends with this job's pod, so that its timer follows this job's limit."""
        return bool(self.farewell) and not self.needs_key

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "Job":
        """Return the job in `text`. Raises ValueError when the text is not a job of this schema."""
        try:
            raw = outside.parse(text)
            if raw["schema"] != SCHEMA:
                raise ValueError(f"job schema {raw['schema']}, this agent reads {SCHEMA}")
            steps = tuple(_step(step) for step in raw["steps"])
            beside = _step(raw["beside"]) if raw.get("beside") else None
            trackers = tuple(_step(step) for step in raw.get("trackers", ()))
            group = _typed(NodeGroup, _tuples(raw.get("group", {}), "addresses"))
            farewell = tuple(_typed(Call, call) for call in raw.get("farewell", ()))
            parts = {"steps": steps, "beside": beside, "limits": _typed(Limits, raw["limits"]), "group": group}
            more = {"farewell": farewell, "trackers": trackers}
            return _typed(Job, {**_tuples(raw, "secrets", "setup"), **parts, **more})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a job: {error}") from error


def _step(raw: Dict[str, Any]) -> Step:
    return _typed(Step, _tuples(raw, "words", "together"))


def _typed(kind: Type[T], raw: Dict[str, Any]) -> T:
    """Return the record, when each of its values is of the type that the record says. Raises TypeError."""
    made, hints = kind(**raw), get_type_hints(kind)
    for name in raw:
        if not _is(getattr(made, name), hints[name]):
            raise TypeError(f"{name} is {str(raw[name])[:80]!r}, expected {hints[name]}")
    return made


def _is(value: Any, hint: Any) -> bool:
    inner = get_args(hint)
    if hint is Any:
        return True
    if get_origin(hint) is Union:
        return any(_is(value, one) for one in inner)
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_is(one, inner[0]) for one in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_is(one, inner[1]) for one in value.values())
    if hint is float:
        return type(value) in (int, float)
    return type(value) is hint


def _tuples(raw: Dict[str, Any], *names: str) -> Dict[str, Any]:
    return {**raw, **{name: tuple(raw[name]) for name in names if name in raw}}


@dataclass(frozen=True)
class PodFolder:
    """The folder of a pod; the one place that names its files."""

    root: Path

    @property
    def marker(self) -> Path:  # {"token": ..., "run": ...}; nothing is deleted in a folder without it
        return self.root / "POD.json"

    @property
    def job(self) -> Path:
        return self.root / "job.json"

    @property
    def secrets(self) -> Path:
        return self.root / "secrets.json"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def work(self) -> Path:  # files that steps write: checkpoints, drafts; survives a restart
        return self.root / "work"

    @property
    def logs(self) -> Path:  # guard.log, agent.log, <step>.log, and <step>.1.log of one that was rotated
        return self.root / "logs"

    @property
    def state(self) -> Path:  # guard.json, agent.json, marks/, records/, config/
        return self.root / "state"

    @property
    def ending(self) -> Path:  # the coming verdict, while processes beside the steps still have work to do
        return self.state / "ending.json"

    @property
    def save_request(self) -> Path:  # {"limit_s": ...}: most of that limit is used, a training is to save now
        return self.state / "save.json"

    @property
    def handed_over(self) -> Path:  # a guard that holds its pod is to take up job.json, which is whole
        return self.state / "handed_over"

    @property
    def acknowledged(self) -> Path:  # {name: UTC epoch seconds}: what was read back from the store
        return self.state / "acknowledged.json"

    @property
    def waiting(self) -> Path:  # {"names": [...], "problem": "..."}: what the store does not have yet, and why
        return self.state / "waiting.json"

    @property
    def tracking(self) -> Path:  # <tracker>.json: {"link": ..., "problem": ...}
        return self.state / "tracking"

    @property
    def progress(self) -> Path:
        return self.state / "progress.json"

    @property
    def verdict(self) -> Path:
        return self.state / "verdict.json"

    def log(self, step: str) -> Path:
        return self.logs / f"{step}.log"

    def records(self, step: str) -> Path:
        return self.state / "records" / f"{step}.jsonl"

    def config(self, step: str) -> Path:
        return self.state / "config" / f"{step}.json"

    def mark(self, step: str) -> Path:
        return self.state / "marks" / f"{step}.json"


def earlier_part(log: Path) -> Path:
    """Return the file that a log becomes when it is rotated."""
    return log.with_suffix(PART + log.suffix)


def is_earlier_part(log: Path) -> bool:
    return log.stem.endswith(PART)


def private(path: str, flags: int) -> int:
    """Open a file that nobody else may read, where it is made: an opener, as `open` takes it."""
    return os.open(path, flags, 0o600)


def write_durably(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` at once: a reader, or a crash, sees the old text or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
