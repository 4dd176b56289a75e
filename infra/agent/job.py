"""The job that the control side sends to a pod, and the file layout of a pod.

The hand-over writes `job.json`; guard and agent read the file as `Job`. Standard library only, and syntax that Python
3.9 accepts, because this module runs on any machine.
"""

import json
import os
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, Optional, Set, Tuple, Type, TypeVar, Union, get_args, get_origin, get_type_hints

from infra.agent import untrusted_json

T = TypeVar("T")

SCHEMA = 2
PART = ".1"  # suffix of the stem of a rotated log: <step>.1.log
SELF_END_KEY = "SLIPWAY_SELF_END_KEY"  # in a `Call`: the vendor's key, which is not in the environment of any process
VARIABLE = re.compile(r"\{([A-Z][A-Z0-9_]*)\}")  # a placeholder in a `Call`; other braces belong to JSON or GraphQL
STAYS = ("succeeded", "failed")  # verdicts on the work of a pod that stays; all other verdicts are on the pod itself


@dataclass(frozen=True)
class Limits:
    """Durations and amounts that the guard enforces; None disables a limit."""

    time_s: Optional[float] = None
    spend_micro_usd: Optional[int] = None
    micro_usd_per_hour: int = 0
    idle_gpu_s: Optional[float] = None
    billed_s: float = 0.0  # seconds that the vendor had billed before the guard was armed
    reserve_bytes: int = 0  # free disk space in bytes below which the guard stops the work


TEXT_WORDS = ("-m", "infra.agent.shell")  # arguments of a step that runs a user's own text
SETUP = "setup"  # name of the step with the setup of a user's own text


@dataclass(frozen=True)
class Step:
    """One process of a job, run as `python <words> --config FILE` in the code folder."""

    name: str
    words: Tuple[str, ...]  # arguments of the interpreter: ("-m", "trainer", "base")
    environment: str = ""  # "train", or "" for the agent's own interpreter
    config: Dict[str, Any] = field(default_factory=dict)  # written to state/config/<name>.json
    timeout_s: Optional[float] = None
    silent_s: Optional[float] = None  # after this long without a new record: dump stacks and restart
    max_restarts: int = 3
    # arguments before `words` if several processes run the step jointly; () = single process
    together: Tuple[str, ...] = ()
    everywhere: bool = False  # with `together`: done when all nodes are done, not when node 0 is done

    @property
    def is_own_text(self) -> bool:
        """Return whether the step runs the user's own text, so that the mark is valid only on the same pod."""
        return self.words == TEXT_WORDS

    @property
    def is_setup(self) -> bool:
        """Return whether the step is the setup of a user's script."""
        return self.is_own_text and (self.name == SETUP or self.name.endswith(f"-{SETUP}"))


@dataclass(frozen=True)
class NodeGroup:
    """The nodes of a multi-node run, and the rank of the current node."""

    run: str = ""  # name of the run; the pods of the other nodes are `<run>.1`, `<run>.2`, ...
    rank: int = 0
    addresses: Tuple[str, ...] = ()  # address of each node by rank, as reachable from the other nodes
    interface: str = ""  # network interface with this node's address
    port: int = 0  # MASTER_PORT on node 0, for training
    words_port: int = 0  # port of the agent on node 0
    key: str = ""  # shared secret of the nodes, checked by the agent of node 0


@dataclass(frozen=True)
class Call:
    """An HTTP request by which a pod ends itself.

    `{NAME}` stands for a variable of the first process of the pod, or for SELF_END_KEY.
    """

    method: str
    url: str
    headers: Dict[str, str] = field(default_factory=dict)
    body: str = ""

    @property
    def names(self) -> Set[str]:
        """Return the names of all variables in the URL, the body and the headers."""
        return {name for part in (self.url, self.body, *self.headers.values()) for name in VARIABLE.findall(part)}


@dataclass(frozen=True)
class Job:
    run: str  # human-readable and stable across recoveries
    token: str  # unique per rental
    steps: Tuple[Step, ...]
    limits: Limits = Limits()
    beside: Optional[Step] = None  # sidecar on node 0 that runs until the last uploads; not a step of progress
    # sidecars that report metrics to external trackers; the end of the job waits only briefly for trackers
    trackers: Tuple[Step, ...] = ()
    kind: str = "steps"  # or "service", or "hold": no work, the guard enforces the limits
    torch: str = "cpu"  # build of torch in the environments: "cpu" or "cuda"
    environments: str = ""  # cache folder of environments on the pod
    environ: Dict[str, str] = field(default_factory=dict)
    secrets: Tuple[str, ...] = ()  # names only; the values are in the mode-600 file
    num_gpus: int = 0  # GPUs per node
    group: NodeGroup = NodeGroup()
    on_failure: str = "end"  # or "keep": action on a rented pod after failed work
    # requests by which the pod deletes itself, all sent in each round; () = the pod cannot delete itself
    self_terminate_calls: Tuple[Call, ...] = ()
    self_end: bool = False  # on request: the guard gets the vendor's key if the pod has no key
    stays: bool = False  # the pod outlives the work: the guard holds the pod for the next job, until a limit
    setup: Tuple[str, ...] = ()  # environments to build in addition to the environments of the steps
    no_setup: bool = False  # do not build environments, use existing environments only
    clock_scale: float = 1.0  # speed of the job's clock relative to real time, for rehearsals
    schema: int = SCHEMA

    @property
    def devices(self) -> str:
        """Return the GPU indices of this job in nvidia-smi's format, or "" for all GPUs of the machine."""
        said = self.environ.get("CUDA_VISIBLE_DEVICES", "")
        return said if all(word.isdigit() for word in said.split(",")) else ""

    @property
    def needs_key(self) -> bool:
        """Return whether the pod can end itself only with a key that the guard receives at start."""
        return any(SELF_END_KEY in call.names for call in self.self_terminate_calls)

    @property
    def has_start_timer(self) -> bool:
        """Return whether the machine ends with this job's pod, so that the start timer follows this job's limit."""
        return bool(self.self_terminate_calls) and not self.needs_key

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @staticmethod
    def from_json(text: str) -> "Job":
        """Parse a job. Raises ValueError when the text is not a job of this schema."""
        try:
            raw = untrusted_json.parse(text)
            if raw["schema"] != SCHEMA:
                raise ValueError(f"the job has schema {raw['schema']}; this agent reads schema {SCHEMA}")
            steps = tuple(_step(step) for step in raw["steps"])
            beside = _step(raw["beside"]) if raw.get("beside") else None
            trackers = tuple(_step(step) for step in raw.get("trackers", ()))
            group = _typed(NodeGroup, _tuples(raw.get("group", {}), "addresses"))
            self_terminate_calls = tuple(_typed(Call, call) for call in raw.get("self_terminate_calls", ()))
            parts = {"steps": steps, "beside": beside, "limits": _typed(Limits, raw["limits"]), "group": group}
            more = {"self_terminate_calls": self_terminate_calls, "trackers": trackers}
            return _typed(Job, {**_tuples(raw, "secrets", "setup"), **parts, **more})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a job: {error}") from error


def _step(raw: Dict[str, Any]) -> Step:
    return _typed(Step, _tuples(raw, "words", "together"))


def _typed(kind: Type[T], raw: Dict[str, Any]) -> T:
    """Return `raw` as a record of type `kind`, with every value checked against the annotations. Raises TypeError."""
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
    """The folder of a pod; the only place that defines file names of a pod."""

    root: Path

    @property
    def marker(self) -> Path:  # {"token": ..., "run": ...}; files are deleted only in a folder with this marker
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
    def work(self) -> Path:  # files written by steps, such as checkpoints and drafts; kept across restarts
        return self.root / "work"

    @property
    def logs(self) -> Path:  # guard.log, agent.log, <step>.log, and <step>.1.log after a rotation
        return self.root / "logs"

    @property
    def state(self) -> Path:  # guard.json, agent.json, marks/, records/, config/
        return self.root / "state"

    @property
    def ending(self) -> Path:  # the upcoming verdict, while the sidecars still have work to do
        return self.state / "ending.json"

    @property
    def save_request(self) -> Path:  # {"limit_s": ...}: most of this limit is used, so the training must save now
        return self.state / "save.json"

    @property
    def handed_over(self) -> Path:  # signals a guard that holds the pod: job.json is complete, start the job
        return self.state / "handed_over"

    @property
    def acknowledged(self) -> Path:  # {name: UTC epoch seconds}: artifacts read back from the store
        return self.state / "acknowledged.json"

    @property
    def waiting(self) -> Path:  # {"names": [...], "problem": "..."}: artifacts missing in the store, and the reason
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
    """Return the path to which a log is moved by a rotation."""
    return log.with_suffix(PART + log.suffix)


def is_earlier_part(log: Path) -> bool:
    return log.stem.endswith(PART)


def private(path: str, flags: int) -> int:
    """Open a file with mode 600 when created; an opener for `open`."""
    return os.open(path, flags, 0o600)


def write_durably(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace `path` atomically and durably: a reader, or a crash, sees the old text or the new text."""
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
