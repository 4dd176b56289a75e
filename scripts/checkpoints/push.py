"""The command `ckpt.push`: artifacts and folders, copied to a store and read back for verification."""

import contextlib
import shutil
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from flows.models.find_model import find_model
from infra.errors import UsageError
from infra.flags import flag
from infra.settings import Settings
from scripts.checkpoints import foreign_folder
from scripts.checkpoints.lookup import lend_credentials, near
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from store.artifacts.artifacts import Store
from store.manifest import Manifest
from trainer.records.phase_registry import PHASES


@dataclass(frozen=True, kw_only=True)
class CkptPushFlags(Output):
    models: tuple[str, ...] = flag(
        (),
        "artifacts, or folders: a Hugging Face model, a model in a pack's format, or a tokenizer "
        "(default: all artifacts)",
        word=True,
    )
    to: str = flag("", "store to copy to: hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    from_: str = flag("", "store to copy from (default: the store of the settings)")


@command(record=CkptPushFlags, example="inv ckpt.push --to hf://user/repo")
def push(spec: CkptPushFlags) -> None:
    """Copy artifacts to a different store, and verify the copies.

    The artifacts are checkpoints, the tokenizer and conversations.
    """
    if not spec.to:
        raise UsageError("--to is missing. Give hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    settings = context.settings()
    source, target = Store(spec.from_ or settings.store), Store(spec.to)
    lend_credentials(spec.to, settings)
    there = {one.name: one for one in source.artifacts()}
    folders = {word: found for word in spec.models if word not in there and (found := foreign_folder.folder_of(word))}
    pushed = [foreign_folder.push(folder, spec.to, settings, quiet=spec.json) for folder in folders.values()]
    chosen = [meant(name, there, source, settings) for name in spec.models if name not in folders]
    chosen = chosen if spec.models else [name for name in sorted(there) if not there[name].problem]
    for name in chosen:
        if name not in there:
            raise UsageError(f"no artifact {name!r} in {source.uri}; {near(name, list(there))}")
        if there[name].problem:
            raise UsageError(f"{name} in {source.uri}: {there[name].problem}. Make the artifact again: inv train")
    if not chosen and not folders:
        raise UsageError(f"{source.uri} has no artifact to push. Make a model first: inv train --phase base")
    have = {one.name: one for one in target.artifacts()} if chosen else {}
    for name in chosen:
        manifest = source.manifest(name)
        if name in have and not have[name].problem and have[name].fingerprint == manifest.fingerprint:
            render.say(f"{name} is in {target.uri} already")
            continue
        folder = source.path(name, manifest.fingerprint)
        with _only(folder, manifest) as files:
            target.publish(files, name, manifest.fingerprint, manifest.about, flat=manifest.flat)
        pushed.append(name)
        render.say(f"{name} is in {target.uri}, read back")
    if spec.json:
        print_json({"to": target.uri, "pushed": pushed})


def meant(name: str, there: Collection[str], source: Store, settings: Settings) -> str:
    """Return the artifact name for a word: the name itself, or the artifact of a phase or tag. Raises UsageError."""
    is_tag = any(one.partition("/")[2] == name for one in there)
    if name in there or not (name in PHASES or is_tag):
        return name
    found, _ = find_model(replace(settings, store=source.uri), name, "", render.say)
    return found.name if found else name  # a folder has the name of a tag


@contextlib.contextmanager
def _only(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yield a folder with only the artifact's files; a flat artifact shares a folder with other files, so copy them."""
    if not manifest.flat:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="slipway-") as copies:
        for entry in manifest.files:
            shutil.copyfile(folder / entry.path, Path(copies, entry.path))
        yield Path(copies)
