"""Account of an allowance: its limits, its runs and its money, as they are at each question.

Files, journal -> `Account` -> the checks and the tools
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.agents.control import files, money
from packs.agents.control.files import StartedRuns
from packs.agents.control.inv_lines import InvLines
from packs.agents.records.allowance import Allowance

SHOWN = 20


@dataclass(frozen=True)
class Account:
    """An allowance with its runs and money."""

    name: str
    settings: Settings
    inv: InvLines = field(default_factory=InvLines)

    @property
    def allowance(self) -> Allowance:
        """Return the allowance as it is now: the owner may top it up or revoke it at any time."""
        return files.load(self.name, self.settings)

    @property
    def started(self) -> StartedRuns:
        return files.started(self.name, self.settings)

    def state(self) -> money.AllowanceState:
        """Return money and live machines."""
        with Journal.open(self.settings.state_file) as journal:
            return money.state(self.allowance, self.started, journal, self.settings.clock_scale)

    def new_run(self, held_back: int) -> str:
        """Return the name of the next run or service, recorded before anything starts. held_back: in micro-USD."""
        record = self.started
        name = self.allowance.run_name(record.number + 1)
        amounts = {**record.held_back, name: held_back}
        self._save(replace(record, number=record.number + 1, runs=(*record.runs, name), held_back=amounts))
        return name

    def remember_service(self, name: str, limit: int) -> None:
        """Record that a name belongs to a service. limit: of the service, in micro-USD."""
        record = self.started
        self._save(replace(record, services={**record.services, name: limit}))

    def forget_unstarted_service(self, name: str) -> None:
        """Return the money of a service that was not started."""
        with Journal.open(self.settings.state_file) as journal:
            if money.is_wanted(name, journal) or any(op.service == name for op in journal.ops()):
                return
        record = self.started
        self._save(replace(record, services={key: one for key, one in record.services.items() if key != name}))

    def own(self, name: str) -> str:
        """Return the name of an own run or service. Raises UsageError for other runs."""
        if not self._is_own(name):
            known = ", ".join(self.started.runs[-SHOWN:]) or "none"
            raise UsageError(f"{name!r} is no run or service of this allowance; known: {known}")
        return name

    def rows(self, command: str, key: str, name: str) -> list[Mapping[str, Any]]:
        """Return the rows of own runs (`status`) or services (`serve.status`); name: of a single one, "" = all."""
        found = self.inv.json(command, {"all": command == "serve.status"})
        rows = found if isinstance(found, list) else [found]  # a single row is a document without a list
        return [row for row in rows if self._is_own(row.get(key)) and name in ("", row[key])]

    def _is_own(self, name: Any) -> bool:
        record = self.started
        return name in record.runs or name in record.services

    def _save(self, record: StartedRuns) -> None:
        files.save_started(self.name, record, self.settings)
