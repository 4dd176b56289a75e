"""The command `inv why`: the history of a run, a pod or a service, with the cause first."""

import sys
from dataclasses import dataclass

from flows.history import why as use_case
from infra.flags import flag
from scripts.cli import command_hints, context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from store import terminal


@dataclass(frozen=True, kw_only=True)
class WhyFlags(Output):
    run: str = flag("", "a run, a pod, a replica or a service (default: the last run)", word=True)


@command(record=WhyFlags, example="inv why brave-otter-3")
def why(spec: WhyFlags) -> None:
    """Explain in ten lines why a run ended, and what to do next.

    The command also explains pods, replicas and services. The first line names the cause, such as a preemption, a
    limit, a bad host, no memory, a full disk or a killed engine.
    """
    settings = context.settings()
    with open_journal(settings) as journal, terminal.show_while("reading the records of the run"):
        story = use_case.why(spec.run, journal, settings)
    if spec.json:
        then = command_hints.insert_carried_flags(story.cause.then)
        cause = {"name": story.cause.name, "says": story.cause.says, "then": then}
        print_json({"subject": story.subject, "cause": cause, "lines": list(story.lines)})
        return
    for line in story.text:
        said = command_hints.insert_carried_flags(" ".join(line.split()))
        print(terminal.wrap_text(render.clean(said), sys.stdout))
