"""The command `inv why`: the story of a run, a pod or a service, the cause first."""

import sys

from flows.history import why as use_case
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.runs.flags import WhyFlags
from store import moving_line, word_wrap


def why(spec: WhyFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal, moving_line.waiting("reading its records"):
        story = use_case.why(spec.run, journal, settings)
    if spec.json:
        cause = {"name": story.cause.name, "says": story.cause.says, "then": story.cause.then}
        print_json({"subject": story.subject, "cause": cause, "lines": list(story.lines)})
        return
    for line in story.text:
        print(word_wrap.fitted(render.clean(" ".join(line.split())), sys.stdout))
