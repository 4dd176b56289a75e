"""The command `pod.setup`: creation of the train environment on a pod."""

from flows.pods import held_pods
from infra.runs.journal_upkeep import settle
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.session import open_journal
from scripts.pods.held_pod import OnPodFlags, find_pod
from scripts.runs import following


@command(record=OnPodFlags, env=True, example="inv pod.setup")
def setup(spec: OnPodFlags) -> None:
    """Create the training environment on a pod.

    The first run on the pod then starts at once. The command can be repeated.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, spec.run)
        op = held_pods.set_up(op, journal, settings, render.tell)
        following.follow_to_end(op, journal, settings, spec.json)
