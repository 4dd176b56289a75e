"""The forecasts and the actual times of runs: one file for each run, beside the journal.

In: a forecast as a run begins, its times when it is over. Out: the same, of all runs that can be read. A file is
replaced whole, by whoever sees first that a run is over: two who see it at once write the same. What cannot be read is
left out, and `problems` names it. Files of runs that ended longest ago are removed when there are more than `MOST`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.agent.job import write_durably
from infra.market.expected import StepTime
from infra.records import Expected, StepWork
from store import outside, strict_records

SCHEMA = 1
MOST = 500  # runs of which the times are kept
MOST_BYTES = outside.MIB
MOST_S = 1e12


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """One run on one pod. Seconds are real ones, money is micro-dollars, times are UTC epoch seconds."""

    token: str
    run: str
    vendor: str
    asked_at: float
    works: tuple[StepWork, ...] = ()
    """Work of its steps; () = the run was started by a Slipway that did not write this."""
    expected: tuple[Expected, ...] = ()
    """The forecast that was shown at the start, for those of `works` that have one."""
    micro_usd: tuple[int, int, int] | None = None
    """Cost by that forecast: low, expected, high; None = nothing is paid, or it was not forecast."""
    state: str = ""
    """Final state of the run; "" = not known yet."""
    wall_s: float | None = None
    """Seconds from the request to the verdict; None where the run was interrupted and resumed."""
    times: tuple[StepTime, ...] = ()
    """Times of the steps that were done."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for one in self.expected:
            if not 0 <= one.low <= one.seconds <= one.high < MOST_S or not 0 <= one.fixed_s <= one.seconds:
                raise ValueError(f"what was expected of {one.step or 'the rest'} is no range of seconds")
        if self.expected and not self.works:
            raise ValueError("it has a forecast, and not of what")

    @property
    def others(self) -> float:
        """Return the share of its machine's CPUs that others had, over all of its steps; 0.0 where nobody knows."""
        known = [(one.seconds, one.others) for one in self.times if one.others is not None]
        spent_s = sum(seconds for seconds, _ in known)
        return sum(seconds * share for seconds, share in known) / spent_s if spent_s else 0.0


@dataclass(frozen=True)
class Timings:
    """The times of an installation, in `folder`."""

    folder: Path

    @staticmethod
    def beside(journal: Path) -> "Timings":
        return Timings(journal.with_name(f"{journal.stem}-timings"))

    def save(self, one: RunTimes) -> None:
        """Write it down. Raises OSError."""
        write_durably(self._path(one.token), json.dumps(asdict(one), indent=1) + "\n", 0o600)

    def of(self, token: str) -> RunTimes | None:
        """Return the times of that run; None where there are none, or they cannot be read."""
        try:
            return _read(self._path(token))
        except (OSError, ValueError):
            return None

    def known(self) -> set[str]:
        """Return the tokens that have a file, whatever is in it."""
        return {path.stem for path in self._paths()}

    def all(self) -> list[RunTimes]:
        """Return all that can be read, oldest first."""
        found = []
        for path in self._paths():
            try:
                found.append(_read(path))
            except (OSError, ValueError):
                continue  # `problems` names it, when somebody asks what is wrong here
        return sorted(found, key=lambda one: (one.asked_at, one.token))

    def past(self) -> list[StepTime]:
        """Return the times of all steps of all of them."""
        return [time for one in self.all() for time in one.times]

    def problems(self) -> Iterator[str]:
        """Yield each file that cannot be read, and why."""
        for path in self._paths():
            try:
                _read(path)
            except (OSError, ValueError) as error:
                yield f"{path.name}: {error}"

    def prune(self) -> None:
        """Remove the oldest files beyond `MOST`. Raises OSError."""
        dated = sorted((path.stat().st_mtime, path) for path in self._paths())
        for _, path in dated[: max(0, len(dated) - MOST)]:
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        try:
            return sorted(Path(one.path) for one in os.scandir(self.folder) if one.name.endswith(".json"))
        except FileNotFoundError:
            return []

    def _path(self, token: str) -> Path:
        return self.folder / f"{token}.json"


def _read(path: Path) -> RunTimes:
    """Return the record in a file. Raises OSError, ValueError."""
    said = outside.load(path, MOST_BYTES)
    if said.get("schema") != SCHEMA:
        raise ValueError(f"its schema is {outside.shown(said.get('schema'))}, this Slipway reads {SCHEMA}")
    try:
        found = strict_records.read(RunTimes, said)
    except strict_records.Misfit as error:
        raise ValueError(f"{'.'.join(error.place)}: {error}".lstrip(": ")) from None
    if found.token != path.stem:
        raise ValueError(f"it is of {outside.shown(found.token)}")
    return found
