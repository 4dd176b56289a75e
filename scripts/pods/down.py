"""The command `pod.down`: the end of a pod."""

from infra.runs.lookup import find_run
from scripts.cli import context, session
from scripts.cli.session import open_journal
from scripts.pods.flags import OnPodFlags
from scripts.pods.held_pod import find_pod
from scripts.runs import down as ending
from scripts.runs.flags import DownFlags


def down(spec: OnPodFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        name = find_run(journal, spec.run).run if spec.run else find_pod(journal).run
    ending.down(DownFlags(run=name, json=spec.json))
    session.forget(name)
