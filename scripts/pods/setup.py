"""The command `pod.setup`: the train environment on a pod."""

from flows.pods import held_pods
from infra.runs.settle import settle
from scripts.cli import context, render
from scripts.cli.session import open_journal
from scripts.pods.flags import OnPodFlags
from scripts.pods.held_pod import find_pod
from scripts.runs import following


def setup(spec: OnPodFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        settle(journal, settings, render.tell)
        op = find_pod(journal, spec.run)
        op = held_pods.set_up(op, journal, settings, render.tell)
        following.conclude(op, journal, settings, spec.json)
