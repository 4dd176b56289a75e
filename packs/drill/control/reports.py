"""Stored reports of vendor drills, for commands that show the test state of a vendor.

Each report is a file `<journal>-drills/<vendor>-<time>.json` beside the journal.
`infra.providers.promises` reads the abilities of an account's vendor from the same files.
"""

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.agent.job import write_durably
from infra.providers.promises import KEPT_FOR_S, STAMP, account_of, folder_beside
from infra.settings import Settings
from infra.units import count, duration, iso
from packs.drill.control.clauses import BROKEN, KEPT, ClauseResult
from store.packs import AccountNotes


@dataclass(frozen=True, kw_only=True)
class DrillReport:
    """The findings of a drill. `at` is in UTC epoch seconds."""

    vendor: str
    account: str  # account name from `promises.account_of`
    at: int
    is_rehearsed: bool
    findings: tuple[ClauseResult, ...]
    counted_micro_usd: int  # cost of all machines of the drill by the ledger

    def clauses_in_state(self, state: str) -> list[str]:
        return [one.clause for one in self.findings if one.state == state]

    def summary(self, now: float) -> str:
        """Return a one-line summary. `now` is in UTC epoch seconds."""
        day = f"{_age(now - self.at)} ago ({time.strftime('%Y-%m-%d', time.gmtime(self.at))})"
        broken, kept = self.clauses_in_state(BROKEN), self.clauses_in_state(KEPT)
        said = f"{len(kept)} of {count(len(self.findings), 'clause')} kept"
        said += "" if now - self.at < KEPT_FOR_S else ", too long ago to count"
        said += f"; broken: {', '.join(broken)}" if broken else ""
        return f"{self.vendor}: drilled {day}{' in a rehearsal' if self.is_rehearsed else ''}: {said}"


@dataclass(frozen=True)
class Reports:
    """The drill reports of an installation, stored in `folder`."""

    folder: Path

    @staticmethod
    def for_journal(journal: Path) -> "Reports":
        return Reports(folder_beside(journal))

    def save(self, report: DrillReport) -> Path:
        """Write a report to disk and return the path."""
        path = self.folder / f"{self.stem(report.vendor, report.at)}.json"
        write_durably(path, json.dumps(asdict(report), indent=1) + "\n", 0o600)
        return path

    @staticmethod
    def stem(vendor: str, at: int) -> str:
        """Return the file name stem of a drill: vendor and UTC time."""
        return f"{vendor}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at))}"

    def newest(self, vendor: str, account: str) -> DrillReport | None:
        """Return the newest readable report of an account with a vendor, or None."""
        for path in sorted(self.folder.glob(f"{vendor}-{STAMP}.json"), reverse=True):
            try:
                said = json.loads(path.read_text(encoding="utf-8"))
                findings = tuple(ClauseResult(**one) for one in said.pop("findings"))
                report = DrillReport(**said, findings=findings)
                if report.account == account:
                    return report
            except (OSError, ValueError, TypeError, KeyError, AttributeError):
                continue  # Skip a damaged report.
        return None

    def summary_lines(self, accounts: Mapping[str, str], now: float) -> list[str]:
        """Return a line per drilled account with age and result, and a last line for accounts without a drill.

        `accounts` maps vendors to accounts; `now` is in UTC epoch seconds.
        """
        found = {vendor: self.newest(vendor, account) for vendor, account in accounts.items()}
        never = [vendor for vendor, one in found.items() if one is None]
        lines = [one.summary(now) for one in found.values() if one]
        return [*lines, f"never drilled: {', '.join(never)}; next: inv drill --provider {never[0]}"] if never else lines


def notes(settings: Settings, vendors: Iterable[str], now: float) -> AccountNotes:
    """Return the newest drill of each account as text lines and as a document with null for a missing drill."""
    reports = Reports.for_journal(settings.state_file)
    accounts = {vendor: account_of(vendor, settings) for vendor in vendors}
    newest = {vendor: reports.newest(vendor, account) for vendor, account in accounts.items()}
    document = {
        vendor: one and {"at": iso(one.at), "kept": one.clauses_in_state(KEPT), "broken": one.clauses_in_state(BROKEN)}
        for vendor, one in newest.items()
    }
    return AccountNotes(lines=tuple(reports.summary_lines(accounts, now)), document=document)


def _age(seconds: float) -> str:
    days = int(seconds // 86_400)
    return count(days, "day") if days else duration(max(0.0, seconds))
