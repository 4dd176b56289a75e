"""Required disk size of work, for vendors with rented disks billed by size.

Known properties of the work become bytes for the machine request. The estimates are rather too large: a full disk ends
the work, and a GB costs 0.10 USD a month at RunPod.
"""

from collections.abc import Collection

from infra.records import Plan

GB = 10**9
# Unpacked size of each environment's pinned packages plus the largest package file during installation: torch with CUDA
# and its libraries takes about 7 GB, vLLM with its kernels about as much again.
ENVIRONMENT_BYTES = {"train-cuda": 10 * GB, "train-cpu": 3 * GB, "serve-cuda": 18 * GB, "serve-cpu": 5 * GB}
OTHER_ENVIRONMENT_BYTES = GB  # trackers, data readers: no torch
OWN_PACKAGES_BYTES = ENVIRONMENT_BYTES["train-cuda"]  # packages of a user's own job, usually torch
BESIDE_BYTES = GB  # code, logs, conversations, questions and problems
MARGIN = 1.2  # package and text sizes are known to about 10 percent; file systems take a few percent
STEP_BYTES = 5 * GB  # rounding, to keep the price constant for small differences in data


def of_environments(names: Collection[str], torch: str) -> int:
    """Return the bytes of the named environments; `torch` selects the build of the training environment."""
    own = {f"{name}-{torch}" if name == "train" else name for name in names if name}
    return sum(ENVIRONMENT_BYTES.get(name, OTHER_ENVIRONMENT_BYTES) for name in own)


def of_plan(plan: Plan) -> int:
    """Return the disk size in bytes for a plan; 0 = no work to do."""
    if plan.job is None:
        return 0
    built = of_environments({*plan.job.setup, *(step.environment for step in plan.job.steps)}, plan.job.torch)
    # With a volume, all results of the work are stored on the volume.
    lies_here = 0 if plan.request.volume else plan.data_bytes + plan.disk_bytes
    return needed(built, plan.job.limits.reserve_bytes, lies_here)


def needed(*parts_bytes: int) -> int:
    """Return the total disk size in bytes: all parts, BESIDE_BYTES and a margin, rounded up to STEP_BYTES."""
    return -(-round(MARGIN * (BESIDE_BYTES + sum(parts_bytes))) // STEP_BYTES) * STEP_BYTES
