"""A sweep as it was asked for: trials, their arms and seeds, how they are compared, what they may cost.

An arm is one way of doing it: a learning rate, say. A trial is an arm with one seed, and one run. Light to import.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flows.specs.launch import LaunchSpec
from infra.errors import UsageError
from infra.runs.keepers.pod_set import PodEntry
from packs.sweeps.control.trials.ranking import Ranking

MOST_TRIALS = 1000


@dataclass(frozen=True, kw_only=True)
class SweepTrial:
    """One run of a sweep."""

    run: str
    """Name of the run: `<sweep>.<arm>`, and `-seed-<n>` where an arm has several."""
    arm: str
    spec: LaunchSpec
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of the job."""
    pod: str = ""
    """The pod of the configuration that it was dealt to; "" = any."""
    devices: str = ""
    """The GPUs of that pod that it uses, such as `0,1`; "" = all."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """The settings that distinguish its arm, by name, as the table shows them."""

    @property
    def seed(self) -> int | None:
        """Return the seed of its training."""
        return self.spec.seed


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Successive halving, asynchronous: see `packs.sweeps.control.halving`."""

    first: float = 0.25
    """Share of the steps after which arms are compared for the first time."""
    factor: int = 2
    """One trial in this many goes on, and is compared again after this many times the steps."""

    def __post_init__(self) -> None:
        if not 0 < self.first < 1:
            raise UsageError(f"first is {self.first}; it must lie in (0, 1), as a share of the steps")
        if self.factor < 2:
            raise UsageError(f"factor is {self.factor}; it must be at least 2")


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """All trials of a sweep, and what holds for them together."""

    name: str
    trials: Mapping[str, SweepTrial]
    """Trials by the names of their runs, in the order in which they start."""
    about: str = ""
    pods: Sequence[PodEntry] = ()
    """The pods that a configuration describes; () = whatever the provider has."""
    num_pods: int | None = None
    """Number of pods that work at once; None = as many as there are own machines."""
    hours: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest time for which pods are taken, or each run its machine, in hours; 0 = what plans say."""
    rank: Ranking = Ranking()
    early_stop: EarlyStop | None = None
    beside: Sequence[str] = ()
    """Figures that are shown beside the one that arms are ranked by, of what was made or of the steps."""
    against: str = ""
    """The arm that all others are compared with; "" = the best."""
    spend_limit: str = ""
    """US dollars for all trials together, as typed."""

    @property
    def arms(self) -> dict[str, list[SweepTrial]]:
        """Return the trials of each arm."""
        found: dict[str, list[SweepTrial]] = {}
        for one in self.trials.values():
            found.setdefault(one.arm, []).append(one)
        return found

    @property
    def gpu_hours(self) -> float:
        """Return the GPU-hours of the described pods, or of the machines of the runs, for the shorter of its times."""
        gpus = [one.gpu_count for one in self.pods] or [one.spec.num_gpus for one in self.trials.values()]
        return sum(gpus) * self.hours[0]

    @property
    def idle_pods(self) -> list[str]:
        """Return the pods that are described and have no trial."""
        used = {one.pod for one in self.trials.values()}
        return [one.name for one in self.pods if one.name not in used]


def shown(run: str, sweep: str) -> str:
    """Return a trial's name for people, `rates/lr-3e-4`; as a run and a folder it is `rates.lr-3e-4`."""
    return f"{sweep}/{run[len(sweep) + 1 :]}" if run.startswith(f"{sweep}.") else run


def check_arms(where: str, spec: SweepSpec) -> SweepSpec:
    """Return the sweep. Raises UsageError when it has no trial, too many, or an arm to compare with that is none."""
    if not spec.trials:
        raise UsageError(f"{where}: it holds no trials")
    if len(spec.trials) > MOST_TRIALS:
        raise UsageError(f"{where}: more than {MOST_TRIALS} trials")
    if spec.against and spec.against not in spec.arms:
        raise UsageError(f"{where}: against is {spec.against!r}; its arms are: {', '.join(spec.arms)}")
    return spec
