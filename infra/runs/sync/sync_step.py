"""The sync steps of a job whose work outlives its pod: the pod itself uploads what it makes while it is active."""

from dataclasses import replace

from infra.agent.job import Job, Step
from infra.agent.shell import is_own_text

TRAIN, STORE = "train", "store"
FETCH, CARRY = "fetch", "carry"
EVERY_S = {"hf": 600.0}  # every look is a commit there, and a repository takes only so many of them


def with_courier(job: Job, store: str, run: str) -> Job:
    """Return the job with a first step that restores from `store` what an earlier pod left, and a courier beside all.

    `store` is named as the pod names it. A job that has them already stays as it is, and so does one that neither
    trains nor carries out somebody's own text. Own text needs no PyTorch of ours: its courier has a small environment.
    """
    if job.beside is not None:
        return job
    if any(step.environment == TRAIN for step in job.steps):
        environment = TRAIN
    elif any(is_own_text(step) for step in job.steps):
        environment = STORE
    else:
        return job
    config = {"store": store, "run": run, "makings": _makings(job), "mounts": mounts_of(job)}
    often = EVERY_S.get(store.partition("://")[0], 60.0)
    fetch = Step(FETCH, ("-m", "store.courier", "fetch"), environment, config)
    carrying = {**config, "after": FETCH, "every_s": often, "secrets": list(job.secrets)}
    carry = Step(CARRY, ("-m", "store.courier", "carry"), environment, carrying)
    return replace(job, steps=(fetch, *job.steps), beside=carry)


def mounts_of(job: Job) -> list[str]:
    """Return the names of the folders that the job's own text wants kept beyond the run."""
    return list(dict.fromkeys(name for step in job.steps for name, _ in step.config.get("kept", ())))


def _makings(job: Job) -> dict[str, dict[str, str]]:
    """Return by step what tells whether its artifact is in its store."""
    found = {step.name: step.config["making"] for step in job.steps if "making" in step.config}
    return {step: {key: making[key] for key in ("store", "name", "fingerprint")} for step, making in found.items()}
