"""The command `pool.check`: reachability of own machines."""

from dataclasses import dataclass

from infra.flags import flag
from infra.machines import survey
from infra.providers.ssh import connections
from scripts.cli import context
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import clean, columns, print_json
from scripts.pools.own_machines import exit_for_problems, select_machines


@dataclass(frozen=True, kw_only=True)
class CheckFlags(Output):
    pool: str = flag("", "check only this pool or machine", word=True)


@command(record=CheckFlags, world="", example="inv pool.check")
def check(spec: CheckFlags) -> None:
    """Check that own machines can be reached.

    The command also checks that only the owner can read each key file.
    """
    settings = context.settings()
    hosts, unusable = select_machines(settings, spec.pool)
    looks = survey.reachable(hosts, connections(settings))
    seen = [(one.host.place, one.problem) for one in looks] + [(one.place, one.why) for one in unusable]
    if spec.json:
        says = [one.shell_output for one in looks] + [""] * len(unusable)
        print_json(
            [
                {"host": place, "problem": problem or None, "shell_says": said}
                for (place, problem), said in zip(seen, says, strict=True)
            ]
        )
    else:
        verdicts = [(one.host.place, one.verdict) for one in looks] + [(one.place, one.why) for one in unusable]
        print(clean(columns(verdicts)))
    exit_for_problems(seen)
