"""The reports of drills: one file for each, beside the journal, so that commands can say how much a vendor was tried.

In: findings. Out: `<journal>-drills/<vendor>-<time>.json`, the newest of them, and a line for people.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.agent.job import write_durably
from infra.drill.clauses import BROKEN, KEPT, ClauseResult
from infra.units import count


@dataclass(frozen=True, kw_only=True)
class DrillReport:
    """The findings of a drill. `at`: UTC epoch seconds."""

    vendor: str
    at: int
    is_rehearsed: bool
    findings: tuple[ClauseResult, ...]
    counted_micro_usd: int  # cost of all its machines by our ledger
    recording: str = ""  # the name of the file with requests and answers, beside this one

    def of(self, state: str) -> list[str]:
        return [one.clause for one in self.findings if one.state == state]

    @property
    def words(self) -> str:
        """Return the report in one line."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.at))
        broken, kept = self.of(BROKEN), self.of(KEPT)
        said = f"{len(kept)} of {count(len(self.findings), 'clause')} kept"
        said += f"; broken: {', '.join(broken)}" if broken else ""
        return f"{self.vendor}: drilled on {day}{' in a rehearsal' if self.is_rehearsed else ''}: {said}"


@dataclass(frozen=True)
class Reports:
    """The reports of an installation, in `folder`."""

    folder: Path

    @staticmethod
    def beside(journal: Path) -> "Reports":
        return Reports(journal.with_name(f"{journal.stem}-drills"))

    def save(self, report: DrillReport) -> Path:
        """Write a report down; return where."""
        path = self.folder / f"{self.stem(report.vendor, report.at)}.json"
        write_durably(path, json.dumps(asdict(report), indent=1) + "\n", 0o600)
        return path

    @staticmethod
    def stem(vendor: str, at: int) -> str:
        """Return the common stem of the names of a drill's files."""
        return f"{vendor}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}"

    def newest(self, vendor: str) -> DrillReport | None:
        """Return the last report on a vendor that can be read."""
        for path in sorted(self.folder.glob(f"{vendor}-????????T??????Z.json"), reverse=True):
            try:
                said = json.loads(path.read_text(encoding="utf-8"))
                findings = tuple(ClauseResult(**one) for one in said.pop("findings"))
                return DrillReport(**said, findings=findings)
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # one that is damaged is as good as none
        return None

    def cite(self, vendors: Sequence[str]) -> list[str]:
        """Return the last drill of each vendor and its result, a line each; the others share the last line."""
        found = {vendor: self.newest(vendor) for vendor in dict.fromkeys(vendors)}
        never = [vendor for vendor, one in found.items() if one is None]
        lines = [one.words for one in found.values() if one]
        return [*lines, f"never drilled: {', '.join(never)}; next: inv drill --provider {never[0]}"] if never else lines
