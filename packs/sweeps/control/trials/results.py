"""Results of a sweep's trials, in a folder independent of any process: `<var>/sweeps/<name>/`.

`sweep.json` is rewritten at each change; `<run>.jsonl` holds the figures of a finished trial. A repeated sweep
continues from these files. Later versions must read the JSON of earlier versions.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from infra.errors import UsageError
from infra.flags import nondefault_flags
from infra.settings import Settings
from packs.sweeps.control.place import folder_of as folder_of
from store import untrusted_input
from store.local_files import replace as replace_file
from trainer.reporting import jsonl_log

VERSION = 1
WAITING, RUNNING, STOPPED, SKIPPED, DETACHED = "waiting", "running", "stopped early", "not begun", "detached"
SUCCEEDED, LIMIT = "succeeded", "limit"
OF_SWEEP = {
    "name": str,
    "about": str,
    "rank": dict,
    "against": str,
    "provider": str,
    "saved_s": float,
    "saved_micro_usd": int,
}
OF_TRIAL = {
    "run": str,
    "arm": str,
    "asked": dict,
    "flags": dict,
    "env": dict,
    "pod": str,
    "state": str,
    "reason": str,
    "steps": int,
    "at": int,
    "beside": dict,
    "micro_usd": int,
    "phase": str,
    "made": list,
}
OVER = (SUCCEEDED, STOPPED, SKIPPED)  # states of trials without remaining work


@dataclass
class TrialResult:
    """State and results of a trial so far."""

    run: str
    arm: str
    seed: int | None = None
    asked: Mapping[str, str] = field(default_factory=dict)
    flags: Mapping[str, Any] = field(default_factory=dict)
    """Flags of the trial's launch."""
    env: Mapping[str, str] = field(default_factory=dict)
    pod: str = ""
    state: str = WAITING
    reason: str = ""
    seconds: float | None = None
    """Seconds spent in the steps, as reported by the pod."""
    steps: int = 0
    """Total number of steps of the last phase."""
    at: int = 0
    """Last step reached."""
    score: float | None = None
    beside: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Additional figures by name; a per-layer figure has one value per layer."""
    micro_usd: int = 0
    phase: str = ""
    made: tuple[str, str] = ("", "")
    """Name and fingerprint of the trial's last artifact."""

    @property
    def is_over(self) -> bool:
        """Return whether the trial needs no more work."""
        return self.state in OVER


@dataclass
class SweepResult:
    """Results of all trials, with the ranking settings."""

    name: str
    folder: Path
    about: str
    rank: Mapping[str, Any]
    against: str
    provider: str
    limit_micro_usd: int | None
    trials: dict[str, TrialResult]
    beside: Sequence[str] = ()
    """Figures shown beside the ranking figure."""
    saved_s: float = 0.0
    """Estimated seconds of steps saved by early stopping."""
    saved_micro_usd: int = 0

    def write(self) -> None:
        """Write `sweep.json` atomically."""
        self.folder.mkdir(parents=True, exist_ok=True)
        said = {**asdict(self), "version": VERSION, "trials": [asdict(one) for one in self.trials.values()]}
        del said["folder"]
        replace_file(self.folder / "sweep.json", json.dumps(said, indent=1).encode())

    def save_figures(self, run: str, content: bytes) -> None:
        """Store the figures of a trial, because the pod's copy ends with the pod."""
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_file(self.folder / f"{run}.jsonl", content)

    def load_figures(self, run: str) -> list[dict[str, Any]]:
        """Return the stored figures of a finished trial."""
        return jsonl_log.read(self.folder / f"{run}.jsonl")


def load(name: str, settings: Settings) -> SweepResult:
    """Load the results of a sweep. Raises UsageError for an unknown sweep, an unreadable file or a wrong version."""
    folder = folder_of(name, settings)
    path = folder / "sweep.json"
    if not path.is_file():
        there = sorted(one.parent.name for one in folder.parent.glob("*/sweep.json"))
        known = f"known: {', '.join(there)}" if there else "no sweep has run yet"
        raise UsageError(f"no sweep {name!r} has run here; {known}")
    try:
        said = dict(untrusted_input.load(path))
        if said.pop("version") != VERSION:
            raise UsageError(f"{path} was written by another version of Slipway; remove the file to start over")
        trials = [_trial(one) for one in untrusted_input.typed(said, "trials", list)]
        del said["trials"]
        _check(said, OF_SWEEP)
        return SweepResult(**said, folder=folder, trials={one.run: one for one in trials})
    except (OSError, untrusted_input.UnusableDocument, KeyError, TypeError, IndexError) as error:
        raise UsageError(f"{path} cannot be read: {error}; remove the file to start over") from None


def _trial(said: Any) -> TrialResult:
    if type(said) is not dict:
        raise untrusted_input.UnusableDocument(f"a trial is {untrusted_input.printable_line(said)}")
    _check(said, OF_TRIAL)
    return TrialResult(**{**said, "made": (str(said["made"][0]), str(said["made"][1]))})


def _check(said: Mapping[str, Any], kinds: Mapping[str, type]) -> None:
    """Raise UnusableDocument for a value of an unexpected type, which would break the result tables."""
    for key in kinds.keys() & said.keys():
        untrusted_input.typed(said, key, kinds[key])


def kept(settings: Settings) -> list[SweepResult]:
    """Return all readable stored sweeps, most recently changed first."""
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
    """Return whether two trials have the same run name, flags and variables."""
    return (one.run, dict(one.flags), dict(one.env)) == (other.run, dict(other.flags), dict(other.env))


def adopt(new: SweepResult, settings: Settings, lost: Collection[str] = ()) -> SweepResult:
    """Return the new sweep with the results of identical finished trials from an earlier sweep of this name.

    lost: runs with a missing artifact; a succeeded trial among them runs again.
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
    """Return the flags of a launch as JSON values."""
    return dict(json.loads(json.dumps(nondefault_flags(spec), default=str)))
