"""Account of an allowance: its limits, its runs and its money, as they are at each question.

Files, journal -> `Account` -> the checks and the tools
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.journal_file import Fenced
from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.settings import Settings
from packs.agents.control import files, money, taken
from packs.agents.control.files import StartedRuns
from packs.agents.control.inv_lines import InvLines
from packs.agents.records.allowance import Allowance

SHOWN = 20
FIT_TRIES = 20


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

    def new_run(self, held_back: int, machines: int, service_limit: int = 0) -> str:
        """Return the name of the next run or service, recorded before anything starts. Raises UsageError.

        held_back, service_limit: in micro-USD; the journal's budget does not pay for a service.
        """
        record, name = self.started, self.free_name()
        number = int(name.rpartition("-")[2])
        self._save(
            replace(
                record,
                number=number,
                runs=(*record.runs, name),
                held_back={**record.held_back, name: held_back},
                machines={**record.machines, name: machines},
                services={**record.services, **({name: service_limit} if service_limit else {})},
            )
        )
        return name

    def free_name(self) -> str:
        """Return the next unused name for a run or service on this installation. Raises UsageError."""
        with Journal.open(self.settings.state_file) as journal:
            known, served = taken.names(journal, self.settings), taken.services(journal)
        return self.allowance.run_name(taken.next_number(self.allowance, self.started.number, known, served))

    def forget_unstarted(self, name: str) -> None:
        """Return name and money of a run or service without a row in the journal: no machine was asked for."""
        with Journal.open(self.settings.state_file) as journal:
            rows = [op for op in journal.ops() if name in (op.run, op.service)]
            if money.is_wanted(name, journal) or any(self._is_mine(op) for op in rows):
                return
        record = self.started
        services, held_back, machines = (
            {key: one for key, one in amounts.items() if key != name}
            for amounts in (record.services, record.held_back, record.machines)
        )
        runs = tuple(one for one in record.runs if one != name)
        self._save(replace(record, runs=runs, services=services, held_back=held_back, machines=machines))

    def fit_budget(self) -> None:
        """Set the journal's budget to the money that runs may use now. Raises SlipwayError.

        Call before each start, and after each end and top-up.
        """
        with Journal.open(self.settings.state_file) as journal:
            for _ in range(FIT_TRIES):
                before = budgets.find(journal, self.allowance.budget)  # read first: a later change of the record shows
                amount = money.state(self.allowance, self.started, journal, self.settings.clock_scale).for_runs
                try:
                    budgets.open_budget(journal, self.allowance.budget, amount, before, self.settings.clock_scale)
                    return
                except (Fenced, UsageError) as error:  # another call has changed the budget, or a machine was admitted
                    why = error
        raise SlipwayError(f"the budget of the allowance could not be set: {why}; call again soon")

    def own(self, name: str, is_at_work: bool = False) -> str:
        """Return the name of an own run or service. Raises UsageError for other runs.

        is_at_work: refuse an ended service, too, since a command would take the name for the beginning of another name.
        """
        if name not in (known := self.own_names()):
            raise UsageError(
                f"{name!r} is no run or service of this allowance; known: {', '.join(known[-SHOWN:]) or 'none'}"
            )
        if is_at_work and self.is_ended_service(name):
            raise UsageError(f"the service {name} has ended; call: why")
        return name

    def own_names(self) -> list[str]:
        """Return the names of the runs and services with rows of this allowance in the journal."""
        record = self.started
        with Journal.open(self.settings.state_file) as journal:
            rows, wanted = journal.ops(), taken.services(journal)
        served, newest = wanted | {op.service for op in rows}, {op.run: op for op in rows}
        return [
            name
            for name in record.runs
            if (name in served if name in record.services else name in newest and self._is_mine(newest[name]))
        ]

    def is_ended_service(self, name: str) -> bool:
        """Return whether a name belongs to an own service that has ended."""
        with Journal.open(self.settings.state_file) as journal:
            return name in self.started.services and not money.is_wanted(name, journal)

    def story_of(self, name: str) -> str:
        """Return the name that `inv why` explains: of an ended service, the newest replica."""
        if not self.is_ended_service(name):
            return name
        with Journal.open(self.settings.state_file) as journal:
            return next(op.run for op in reversed(journal.ops()) if op.service == name)

    def _is_mine(self, op: Op) -> bool:
        return op.budget_name == self.allowance.budget or bool(op.service) and op.service in self.started.services

    def rows(self, command: str, key: str, name: str) -> list[Mapping[str, Any]]:
        """Return the rows of own runs (`status`) or services (`serve.status`); name: of a single one, "" = all."""
        found = self.inv.json(command, {"all": command == "serve.status"})
        rows = found if isinstance(found, list) else [found]  # a single row is a document without a list
        own = self.own_names()
        return [row for row in rows if row.get(key) in own and name in ("", row[key])]

    def _save(self, record: StartedRuns) -> None:
        files.save_started(self.name, record, self.settings)
