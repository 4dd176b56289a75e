"""Checkpoints of a store and of runs on this machine, and selection of a checkpoint by name."""

from collections.abc import Sequence
from typing import Any

from infra.checkout import ROOT
from infra.errors import UsageError
from infra.names import similar
from infra.settings import Settings
from store import catalogue, credentials
from store.catalogue import FoundCheckpoint
from trainer.records.phase_registry import PHASES

FROM = "store to search: hf://, s3://, gs:// or a folder (default: the store of the settings, and this machine)"

NAME = "name of the checkpoint in inv ckpt.list, the beginning or the last part of the name, or a phase"


def list_checkpoints(settings: Settings, uri: str, job: str = "") -> list[FoundCheckpoint]:
    """Return the checkpoints of the store `uri`, or of the settings' store and this machine if `uri` is "".

    job: return only checkpoints whose name contains this text.
    """
    lend_credentials(uri, settings)
    found = catalogue.stored_checkpoints(uri or settings.store)
    if not uri:
        pods = sorted(settings.pods.glob("/".join(("*", "work", "checkpoints")))) if settings.pods.is_dir() else []
        folders = {path.parents[1].name: path for path in pods} | {"work": ROOT / "var" / "work" / "checkpoints"}
        found += catalogue.local_checkpoints(folders)
    return [one for one in found if job in one.name]


def lend_credentials(uri: str, settings: Settings) -> None:
    """Lend the settings' S3 or GCS credentials to a store named on the command line."""
    if credentials.kind(uri) in ("s3", "gs"):
        credentials.set_credentials(
            {name: getattr(settings, name.lower()) for name in credentials.KEYS[credentials.kind(uri)]}
        )


def find_checkpoint(found: Sequence[FoundCheckpoint], name: str, uri: str) -> FoundCheckpoint:
    """Return the checkpoint with this name, prefix, phase or last path part. Raises UsageError if not exactly one."""
    if not name:
        raise UsageError("the name of a checkpoint is missing. List the names: inv ckpt.list")
    exact = [one for one in found if one.name == name]
    starts = (name, f"{PHASES[name].folder}/") if name in PHASES else (name,)
    alike = exact or [one for one in found if one.name.startswith(starts) or one.name.endswith(f"/{name}")]
    if len(alike) == 1:
        return alike[0]
    if alike and len({one.name for one in alike}) == 1:
        return max(alike, key=lambda one: one.step)
    if alike:
        raise UsageError(f"{name!r} matches several checkpoints: {', '.join(one.name for one in alike[:8])}")
    raise UsageError(f"no checkpoint {name!r} in {store_title(uri)}; {near(name, [one.name for one in found])}")


def newest(found: Sequence[FoundCheckpoint], uri: str) -> FoundCheckpoint:
    whole = [one for one in found if not one.trouble]
    if not whole:
        raise UsageError(f"No checkpoints found in {store_title(uri)}")
    return max(whole, key=lambda one: (one.saved_at, one.step))


def near(name: str, known: Sequence[str]) -> str:
    if not known:
        return "no checkpoint exists yet. Create a checkpoint: inv train --phase base"
    close = similar(name, known)
    return f"did you mean {' or '.join(close)}?" if close else f"available: {', '.join(known[:8])}"


def store_title(uri: str) -> str:
    return uri or "the store and on this machine"


def about(one: FoundCheckpoint) -> dict[str, Any]:
    return {
        "name": one.name,
        "kind": one.kind,
        "phase": one.manifest.get("phase"),
        "step": one.step,
        "bytes": one.num_bytes,
        "saved_at": one.saved_at or None,
        "where": f"{one.uri}/{one.path}",
        "trouble": one.trouble or None,
    }
