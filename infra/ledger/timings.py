"""The forecast and the actual times of each run: one file per run, beside the journal.

A file holds the forecast from the start of a run, and the actual times after the end. The first process to see the end
replaces the whole file; two concurrent writers write the same content. `all` leaves out unreadable files, and
`problems` names them. `prune` removes the oldest files beyond `MOST`.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.agent.job import write_durably
from infra.market.step_times import StepTime
from infra.records import Expected, StepWork
from store import strict_records, untrusted_input

SCHEMA = 1
MOST = 500  # number of runs to keep
MOST_BYTES = untrusted_input.MIB
MOST_S = 1e12


@dataclass(frozen=True, kw_only=True)
class RunTimes:
    """A run on a pod. Seconds are real seconds, money is micro-USD, times are UTC epoch seconds."""

    token: str
    run: str
    vendor: str
    asked_at: float  # request for the launch; in an ended run, request for the last pod
    works: tuple[StepWork, ...] = ()
    """Work of the steps; () = written by a version of Slipway without this field."""
    expected: tuple[Expected, ...] = ()
    """Forecast shown at the start, for the steps in `works` with a forecast."""
    micro_usd: tuple[int, int, int] | None = None
    """Forecast cost: low, expected, high; None = free, or no forecast."""
    state: str = ""
    """Final state of the run; "" = not known yet."""
    wall_s: float | None = None
    """Seconds from the request to the verdict; None before the verdict, or for an interrupted and resumed run."""
    times: tuple[StepTime, ...] = ()
    """Times of the completed steps."""
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        for one in self.expected:
            if not 0 <= one.low <= one.seconds <= one.high < MOST_S or not 0 <= one.fixed_s <= one.seconds:
                raise ValueError(f"the forecast of {one.step or 'the rest'} is not a valid range of seconds")
        if self.expected and not self.works:
            raise ValueError("the forecast names no work")

    @property
    def other_load(self) -> float:
        """Return the fraction of the machine's CPUs used by others, over all steps; 0.0 if unknown."""
        known = [(one.seconds, one.others) for one in self.times if one.others is not None]
        spent_s = sum(seconds for seconds, _ in known)
        return sum(seconds * share for seconds, share in known) / spent_s if spent_s else 0.0


@dataclass(frozen=True)
class Timings:
    """The timing files of an installation, in `folder`."""

    folder: Path

    @staticmethod
    def for_journal(journal: Path) -> "Timings":
        return Timings(journal.with_name(f"{journal.stem}-timings"))

    def save(self, one: RunTimes) -> None:
        """Write the times of a run. Raise OSError."""
        write_durably(self._path(one.token), json.dumps(asdict(one), indent=1) + "\n", 0o600)

    def get(self, token: str) -> RunTimes | None:
        """Return the times of a run, or None for a missing or unreadable file."""
        try:
            return _read(self._path(token))
        except (OSError, ValueError):
            return None

    def tokens(self) -> set[str]:
        """Return the tokens of all files, readable or not."""
        return {path.stem for path in self._paths()}

    def all(self) -> list[RunTimes]:
        """Return all readable records, oldest first."""
        found = []
        for path in self._paths():
            try:
                found.append(_read(path))
            except (OSError, ValueError):
                continue  # `problems` names the file
        return sorted(found, key=lambda one: (one.asked_at, one.token))

    def step_times(self) -> list[StepTime]:
        """Return the times of all steps of all runs."""
        return [time for one in self.all() for time in one.times]

    def problems(self) -> Iterator[str]:
        """Yield each unreadable file with the reason."""
        for path in self._paths():
            try:
                _read(path)
            except (OSError, ValueError) as error:
                yield f"{path.name}: {error}"

    def prune(self) -> None:
        """Remove the oldest files beyond `MOST`, by modification time. Raise OSError."""
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
    """Return the record in a file. Raise OSError, or ValueError for an invalid record."""
    said = untrusted_input.load(path, MOST_BYTES)
    if said.get("schema") != SCHEMA:
        raise ValueError(
            f"the record has schema {untrusted_input.printable_line(said.get('schema'))}; this Slipway reads schema "
            f"{SCHEMA}"
        )
    try:
        found = strict_records.read(RunTimes, said)
    except strict_records.RecordMismatch as error:
        raise ValueError(f"{'.'.join(error.place)}: {error}".lstrip(": ")) from None
    if found.token != path.stem:
        raise ValueError(f"the record belongs to {untrusted_input.printable_line(found.token)}")
    return found
