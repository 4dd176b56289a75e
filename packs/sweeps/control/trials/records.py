"""Specification of a sweep: trials with arms and seeds, ranking, early stopping, and limits. Light to import.

An arm is a choice of settings, for example a learning rate. A trial is a run of an arm with a single seed.
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
    """Trial of a sweep, executed as a run."""

    run: str
    """Name of the run: `<sweep>.<arm>`, followed by `-seed-<n>` when the arm has several seeds."""
    arm: str
    spec: LaunchSpec
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the job."""
    pod: str = ""
    """Described pod that the trial is assigned to; "" means any."""
    devices: str = ""
    """GPUs of the pod that the trial uses, such as `0,1`; "" means all."""
    asked: Mapping[str, str] = field(default_factory=dict)
    """Settings that distinguish the arm, by name, as shown in the table."""

    @property
    def seed(self) -> int | None:
        """Return the seed of the training."""
        return self.spec.seed


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """Asynchronous successive halving: see `packs.sweeps.control.halving`."""

    first: float = 0.25
    """Share of the steps before the first comparison of arms."""
    factor: int = 2
    """Inverse of the share of trials that continue; also the ratio between the steps of successive comparisons."""

    def __post_init__(self) -> None:
        if not 0 < self.first < 1:
            raise UsageError(f"first is {self.first}; expected a share of the steps in (0, 1)")
        if self.factor < 2:
            raise UsageError(f"factor is {self.factor}; expected at least 2")


@dataclass(frozen=True, kw_only=True)
class SweepSpec:
    """All trials of a sweep, and their common settings."""

    name: str
    trials: Mapping[str, SweepTrial]
    """Trials by run name, in starting order."""
    about: str = ""
    pods: Sequence[PodEntry] = ()
    """Pods described by a configuration; () means any pods of the provider."""
    num_pods: int | None = None
    """Number of pods in use at once; None means as many as own machines are available."""
    hours: tuple[float, float] = (0.0, 0.0)
    """Shortest and longest rental time in hours, of the pods or of each run's machine; 0 means the time from plans."""
    rank: Ranking = Ranking()
    early_stop: EarlyStop | None = None
    beside: Sequence[str] = ()
    """Figures shown beside the ranking figure, from the artifact or from the steps."""
    against: str = ""
    """Arm that all others are compared with; "" means the best."""
    spend_limit: str = ""
    """Limit for all trials together in US dollars, as typed."""

    @property
    def arms(self) -> dict[str, list[SweepTrial]]:
        """Return the trials of each arm."""
        found: dict[str, list[SweepTrial]] = {}
        for one in self.trials.values():
            found.setdefault(one.arm, []).append(one)
        return found

    @property
    def gpu_hours(self) -> float:
        """Return the GPU-hours of the described pods, or of the runs' machines, for the shortest time."""
        gpus = [one.gpu_count for one in self.pods] or [one.spec.num_gpus for one in self.trials.values()]
        return sum(gpus) * self.hours[0]

    @property
    def idle_pods(self) -> list[str]:
        """Return the described pods without a trial."""
        used = {one.pod for one in self.trials.values()}
        return [one.name for one in self.pods if one.name not in used]


def shown(run: str, sweep: str) -> str:
    """Return a trial's display name, such as `rates/lr-3e-4` for the run `rates.lr-3e-4`."""
    return f"{sweep}/{run[len(sweep) + 1 :]}" if run.startswith(f"{sweep}.") else run


def check_arms(where: str, spec: SweepSpec) -> SweepSpec:
    """Return the sweep unchanged. Raises UsageError for no trials, too many trials, or an unknown `against` arm."""
    if not spec.trials:
        raise UsageError(f"{where}: the sweep has no trials")
    if len(spec.trials) > MOST_TRIALS:
        raise UsageError(f"{where}: more than {MOST_TRIALS} trials")
    if spec.against and spec.against not in spec.arms:
        raise UsageError(f"{where}: against is {spec.against!r}; the arms are: {', '.join(spec.arms)}")
    return spec
