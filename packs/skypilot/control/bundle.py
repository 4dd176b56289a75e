"""Folder copied by SkyPilot to the nodes of a job: our code, the plan's carried files, and `job.json`.

On each node, `packs.skypilot.agent.managed` turns the copied folder into a pod folder.
"""

from pathlib import Path

from infra.agent.job import Job, PodFolder, write_durably
from infra.ledger.op import send_anyway_of
from infra.records import Plan
from infra.transport.protocol import ThisMachine
from infra.transport.push import push

# Without this file SkyPilot would skip the files named in a .gitignore.
IGNORE = ".skyignore"


def write_bundle(job: Job, plan: Plan, root: Path, bundle: Path, asked: str = "") -> list[str]:
    """Fill the folder `bundle`; return the number of sent files and a note per refused file.

    root: root of the checkout. asked: the words of the launch command, as recorded in the journal.
    """
    pod, here = PodFolder(bundle), ThisMachine()
    write_durably(pod.marker, f'{{"token": "{job.token}", "run": "{job.run}"}}\n')
    pushed = [push(here, root, pod.code, job.token, anyway=send_anyway_of(asked))]
    pushed += [
        push(here, Path(one.source), bundle / one.name, job.token, one.file, anyway=one.anyway) for one in plan.carried
    ]
    write_durably(pod.job, job.to_json(), 0o600)
    write_durably(bundle / IGNORE, "# nothing: what lies here was chosen already\n")
    refused = [f"not sent: {refusal}" for one in pushed for refusal in one.refused]
    return [f"{sum(one.sent for one in pushed)} files", *refused]
