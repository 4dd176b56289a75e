"""The disk that work needs on its machine, for vendors that rent out disks by size and bill them.

In: what is known of the work. Out: bytes, as the request for a machine has them. Estimates, rather too large: a disk
that is full ends the work, and one GB costs 0.10 USD a month at RunPod.
"""

from collections.abc import Collection

from infra.records import Plan

GB = 10**9
# Of the pins of each environment, unpacked, with the largest package packed beside it while it is installed: torch with
# CUDA and its libraries takes about 7 GB, vLLM with its kernels about as much again.
ENVIRONMENT_BYTES = {"train-cuda": 10 * GB, "train-cpu": 3 * GB, "serve-cuda": 18 * GB, "serve-cpu": 5 * GB}
OTHER_ENVIRONMENT_BYTES = GB  # trackers, readers of data: no torch
OWN_PACKAGES_BYTES = ENVIRONMENT_BYTES["train-cuda"]  # what a job of the user's installs: torch, as a rule
BESIDE_BYTES = GB  # the code, logs, conversations, questions and problems
MARGIN = 1.2  # sizes of packages and of texts are known to about a tenth; file systems take some percent for themselves
STEP_BYTES = 5 * GB  # so that a little more or less data does not change the price


def of_environments(names: Collection[str], torch: str) -> int:
    """Return the size of environments, as a job names them. `torch`: the build in those of training."""
    own = {f"{name}-{torch}" if name == "train" else name for name in names if name}
    return sum(ENVIRONMENT_BYTES.get(name, OTHER_ENVIRONMENT_BYTES) for name in own)


def of_plan(plan: Plan) -> int:
    """Return the disk of the machine on which a plan is carried out; 0 = nothing is to be done."""
    if plan.job is None:
        return 0
    built = of_environments({*plan.job.setup, *(step.environment for step in plan.job.steps)}, plan.job.torch)
    # With a volume, all that the work makes lies there.
    lies_here = 0 if plan.request.volume else plan.data_bytes + plan.disk_bytes
    return needed(built, plan.job.limits.reserve_bytes, lies_here)


def needed(*parts_bytes: int) -> int:
    """Return the disk for these parts of the work, for what is beside them, and a margin, in whole steps."""
    return -(-round(MARGIN * (BESIDE_BYTES + sum(parts_bytes))) // STEP_BYTES) * STEP_BYTES
