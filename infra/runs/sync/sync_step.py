"""Sync steps of a job with output that outlives the pod: the pod uploads the output during the run."""

from dataclasses import replace

from infra.agent.job import Job, Step

TRAIN, STORE = "train", "store"
FETCH, CARRY = "fetch", "carry"
EVERY_S = {"hf": 600.0}  # Each look is a commit, and a Hugging Face repository limits the number of commits.


def with_uploader(job: Job, store: str, run: str, rank: int = 0) -> Job:
    """Return the job with a first step that restores earlier output from `store`, and an uploader beside all steps.

    `store` is the address as seen from the pod. A job with an uploader stays unchanged, as does a job without training
    steps and without the user's own script. A job with only own scripts needs no PyTorch, so the uploader uses a small
    environment.
    """
    if job.beside is not None:
        return job
    if any(step.environment == TRAIN for step in job.steps):
        environment = TRAIN
    elif any(step.is_own_text for step in job.steps):
        environment = STORE
    else:
        return job
    config = {"store": store, "run": run, "makings": _makings(job), "mounts": mounts_of(job)}
    often = EVERY_S.get(store.partition("://")[0], 60.0)
    fetch = Step(FETCH, ("-m", "store.uploader", "fetch"), environment, config)
    carrying = {**config, "after": FETCH, "every_s": often, "secrets": list(job.secrets)}
    carry = Step(CARRY, ("-m", "store.uploader", "carry"), environment, carrying)
    return replace(job, steps=(fetch, *job.steps), beside=None if rank else carry)  # Only node 0 writes to stores.


def mounts_of(job: Job) -> list[list[str]]:
    """Return name, address and kind of the folders that the job's script mounts; see `store.uploader.Config.mounts`."""
    every = (one for step in job.steps for one in step.config.get("kept", ()))
    return [list(one) for one in dict.fromkeys((name, place, kind) for name, _, _, place, kind in every)]


def _makings(job: Job) -> dict[str, dict[str, str]]:
    """Return the store, name and fingerprint of each step's artifact, by step."""
    found = {step.name: step.config["making"] for step in job.steps if "making" in step.config}
    return {step: {key: making[key] for key in ("store", "name", "fingerprint")} for step, making in found.items()}
