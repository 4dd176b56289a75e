"""The command `hosts`: failed machines that are no longer offered."""

from dataclasses import dataclass

from infra.errors import UsageError
from infra.flags import flag
from infra.machines.host_memory import HostMemory
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import clean, columns, print_json


@dataclass(frozen=True, kw_only=True)
class HostsFlags(Output):
    forget: tuple[str, ...] = flag((), "offer this machine again in future; repeatable", word=True)


@command(record=HostsFlags, example="inv hosts")
def hosts(spec: HostsFlags) -> None:
    """List machines that failed and are no longer offered.

    The list has the reason and the time of each failure.
    """
    memory = HostMemory.for_journal(context.settings().state_file)
    failed = {machine: known for machine, known in memory.all().items() if known.failure}
    for word in spec.forget:
        found = [machine for machine in failed if word in (machine, machine.partition(":")[2])]
        if not found:
            raise UsageError(
                f"{word!r} is not in the list of failed machines; available: {', '.join(failed) or 'none'}"
            )
        for machine in found:
            memory.clear_failure(machine)
            failed.pop(machine)
            render.say(f"{machine} can be offered again")
    if spec.json:
        print_json(
            {name: {"failure": one.failure, "failed_at": render.iso(one.failed_at)} for name, one in failed.items()}
        )
    elif failed:
        rows = [("machine", "failed at", "why")]
        rows += [(name, str(render.iso(one.failed_at)), one.failure) for name, one in failed.items()]
        print(clean(columns(rows)))
    elif not spec.forget:
        render.say("no machine has failed")
