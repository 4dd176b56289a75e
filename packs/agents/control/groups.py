"""Allowances as groups of runs: `down NAME` revokes and ends, and the supervisor keeps the brokers."""

from collections.abc import Collection, Mapping, Sequence

from flows.runs.run_groups import RunGroup, RunGroups
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from packs.agents.control.place import folder

# The methods import the others where a folder of allowances exists, because `status` asks every kind of group.


class Allowances(RunGroups):
    lease = "allow:"
    moves = False

    def recorded_groups(self, settings: Settings) -> list[RunGroup]:
        return []

    def started_groups(self, journal: Journal, settings: Settings) -> list[str]:
        if not folder(settings).is_dir():
            return []
        from packs.agents.control import brokers, files
        from packs.agents.control.time_left import why_ended

        every = files.names(settings)
        return [name for name in every if not why_ended(name, settings) or brokers.has_work(name, journal, settings)]

    def stop(self, name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
        from packs.agents.control import brokers

        return brokers.stop(name, journal, settings, tell)

    def is_any_active(self, journal: Journal) -> bool:
        return any(one.startswith(self.lease) for one in journal.leases.held_names())

    def groups_to_restart(self, journal: Journal, settings: Settings) -> Collection[str]:
        if not folder(settings).is_dir():
            return ()
        from packs.agents.control import brokers

        return brokers.due(journal, settings)

    def restart(self, name: str, journal: Journal, settings: Settings, tell: Say) -> None:
        from packs.agents.control import brokers

        brokers.run(name, settings, tell)

    def refusal_of_resume(self, op: Op, settings: Settings) -> str:
        from packs.agents.control import ending

        return ending.refusal_of_resume(op, settings)

    def commands(self, journal: Journal, settings: Settings, names: Sequence[str]) -> Mapping[str, str]:
        return {}
