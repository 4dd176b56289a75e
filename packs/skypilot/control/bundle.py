"""The folder that SkyPilot copies to the nodes of a job: our code, what the plan carries, and `job.json`.

In: a job and its plan. Out: the folder, from which `packs.skypilot.agent.managed` makes a pod's folder on each node.
"""

from pathlib import Path

from infra.agent.job import Job, PodFolder, write_durably
from infra.ledger.op import send_anyway_of
from infra.records import Plan
from infra.transport.protocol import ThisMachine
from infra.transport.push import push

# Without this file SkyPilot would leave out what a .gitignore names.
IGNORE = ".skyignore"


def lay_out(job: Job, plan: Plan, root: Path, bundle: Path, asked: str = "") -> list[str]:
    """Fill the folder `bundle`; return notes on what was packed and refused.

    root: the checkout; asked: the words of the launch, as the journal keeps them.
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
