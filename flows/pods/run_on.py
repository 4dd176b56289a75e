"""One command on many machines in parallel."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from infra import targets
from infra.errors import SlipwayError
from infra.targets import TargetMachine

if TYPE_CHECKING:
    from infra.transport.group_run import CommandOutcome, Listen


def run_on(
    machines: Sequence[TargetMachine],
    command: str,
    listen: "Listen",
    *,
    sudo: bool,
    timeout_s: float | None,
    keeps: bool,
    interrupted: Callable[[Sequence[str]], None],
) -> "list[CommandOutcome]":
    """Run a command line on every machine; return the outcomes, including failed connections, in the order of machines.

    See `infra.transport.group_run.run`.
    """
    from infra.transport import group_run  # Fabric is slow to import.

    outcomes, connections = {}, []
    for machine in machines:
        try:
            connections.append(targets.connection(machine))
        except SlipwayError as error:
            outcomes[machine.name] = group_run.CommandOutcome(name=machine.name, problem=str(error))
    ended = group_run.run(
        connections, command, listen, sudo=sudo, timeout_s=timeout_s, keeps=keeps, interrupted=interrupted
    )
    outcomes |= {one.name: one for one in ended}
    return [outcomes[machine.name] for machine in machines]
