"""The results of a sweep's trials, in a folder that outlives every process: `<var>/sweeps/<name>/`.

`sweep.json` is written whole at each change; `<run>.jsonl` holds the figures of a trial that has ended. A sweep that is
typed again goes on from there. The JSON of a version is read by that version and later ones.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.flags import given
from infra.settings import Settings
from store import outside
from store.local_files import replace as replace_file
from trainer.reporting import jsonl_log

VERSION = 1
WAITING, RUNNING, STOPPED, SKIPPED, DETACHED = "waiting", "running", "stopped early", "not begun", "detached"
SUCCEEDED, LIMIT = "succeeded", "limit"
OF_SWEEP = {"name": str, "about": str, "rank": dict, "against": str, "provider": str, "saved_s": float,
            "saved_micro_usd": int}  # fmt: skip
OF_TRIAL = {"run": str, "arm": str, "asked": dict, "flags": dict, "env": dict, "pod": str, "state": str, "reason": str,
            "steps": int, "at": int, "beside": dict, "micro_usd": int, "phase": str, "made": list}  # fmt: skip
OVER = (SUCCEEDED, STOPPED, SKIPPED)  # nothing is left to do for such a trial


@dataclass
class TrialResult:
    """One trial, as far as it has come."""

    run: str
    arm: str
    seed: int | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of its launch."""
    env: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""
    state: str = WAITING
    reason: str = ""
    seconds: float | None = None
    """Seconds that its steps took, as its pod reported."""
    steps: int = 0
    """Steps of its last phase in total."""
    at: int = 0
    """The step that it has reached."""
    score: float | None = None
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Other figures by name; a figure by layer has one value for each."""
    micro_usd: int = 0
    phase: str = ""
    made: tuple[str, str] = ("", "")
    """Name and fingerprint of its last artifact."""

    @property
    def is_over(self) -> bool:
        """Return whether nothing is left to do."""
        return self.state in OVER


@dataclass
class SweepResult:
    """All trials, and how they are compared."""

    name: str
    folder: Path
    about: str
    rank: Mapping[str, Any]
    against: str
    provider: str
    limit_micro_usd: int | None
    trials: dict[str, TrialResult]
    beside: Sequence[str] = ()
    """Figures that are shown beside the one that arms are ranked by."""
    saved_s: float = 0.0
    """Seconds of steps that early stops have saved, as far as can be told."""
    saved_micro_usd: int = 0

    def write(self) -> None:
        """Keep all of it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = {**asdict(self), "version": VERSION, "trials": [asdict(one) for one in self.trials.values()]}
        del said["folder"]
        replace_file(self.folder / "sweep.json", json.dumps(said, indent=1).encode())

    def keep_lines(self, run: str, content: bytes) -> None:
        """Keep the figures of a trial, which its pod takes along."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / f"{run}.jsonl", content)

    def lines(self, run: str) -> list[dict[str, Any]]:
        """Return the figures of a trial that has ended."""
        return jsonl_log.read(self.folder / f"{run}.jsonl")


def folder_of(name: str, settings: Settings) -> Path:
    """Return the folder of a sweep of that name."""
    return settings.homes.parent / "sweeps" / name


def load(name: str, settings: Settings) -> SweepResult:
    """Return the results of a sweep so far. Raises UsageError when there is none of that name."""
    folder = folder_of(name, settings)
    path = folder / "sweep.json"
    if not path.is_file():
        there = sorted(one.parent.name for one in folder.parent.glob("*/sweep.json"))
        known = f"there are: {', '.join(there)}" if there else "none has run yet"
        raise UsageError(f"no sweep {name!r} has run here; {known}")
    try:
        said = dict(outside.load(path))
        if said.pop("version") != VERSION:
            raise UsageError(f"{path} was written by another version of Slipway; remove it to start over")
        trials = [_trial(one) for one in outside.typed(said, "trials", list)]
        del said["trials"]
        _check(said, OF_SWEEP)
        return SweepResult(**said, folder=folder, trials={one.run: one for one in trials})
    except (OSError, outside.Unreadable, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path} cannot be read: {error}; remove it to start over") from None


def _trial(said: Any) -> TrialResult:
    if type(said) is not dict:
        raise outside.Unreadable(f"a trial is {outside.shown(said)}")
    _check(said, OF_TRIAL)
    return TrialResult(**{**said, "made": (str(said["made"][0]), str(said["made"][1]))})


def _check(said: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raise Unreadable for a value of another kind than the tables that are made of it take."""
    for key in kinds.keys() & said.keys():
        outside.typed(said, key, kinds[key])


def kept(settings: Settings) -> list[SweepResult]:
    """Return the sweeps that are on record, the one that changed last first; what cannot be read is left out."""
    found = sorted(folder_of("", settings).glob("*/sweep.json"), key=_changed_at, reverse=True)
    results = []
    for path in found:
        with suppress(UsageError):
            results.append(load(path.parent.name, settings))
    return results


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # removed meanwhile
        return 0.0


def same(one: TrialResult, other: TrialResult) -> bool:
    """Return whether two trials ask for the same."""
    return (one.run, dict(one.flags), dict(one.env)) == (other.run, dict(other.flags), dict(other.env))


def adopt(new: SweepResult, settings: Settings, lost: Collection[str] = ()) -> SweepResult:
    """Return the sweep with what an earlier time has come to of the trials that ask for the same.

    `lost`: the trials that have something left to make, whatever was said of them.
    """
    if not (new.folder / "sweep.json").is_file():
        return new
    old = load(new.name, settings)
    trials = {
        run: replace(old.trials[run], pod=one.pod)
        if run in old.trials
        and same(one, old.trials[run])
        and old.trials[run].is_over
        and not (old.trials[run].state == SUCCEEDED and run in lost)
        else one
        for run, one in new.trials.items()
    }
    return replace(new, trials=trials, saved_s=old.saved_s, saved_micro_usd=old.saved_micro_usd)


def flags_of(spec: Any) -> dict[str, Any]:
    """Return the flags of a launch as JSON has them."""
    return dict(json.loads(json.dumps(given(spec), default=str)))
