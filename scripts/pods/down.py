"""The command `pod.down`: deletion of a pod."""

from infra.runs.lookup import find_run
from scripts.cli import context, session
from scripts.cli.command import command
from scripts.cli.session import open_journal
from scripts.pods.held_pod import OnPodFlags, find_pod
from scripts.runs import down as ending


@command(record=OnPodFlags, example="inv pod.down")
def down(spec: OnPodFlags) -> None:
    """End a pod; return when the pod is proven to be gone.

    The command ends the pod even during work.
    """
    settings = context.settings()
    with open_journal(settings) as journal:
        name = find_run(journal, spec.run).run if spec.run else find_pod(journal).run
    ending.down.work(ending.DownFlags(run=name, json=spec.json))
    session.forget(name)
