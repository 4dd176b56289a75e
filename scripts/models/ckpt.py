"""The commands `inv ckpt.*`: look at checkpoints wherever they are, and copy them between stores.

In: the store of the settings or `--from`, and what runs have left on this machine. Out: tables, or JSON.
"""

import contextlib
import difflib
import shutil
import tempfile
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from invoke import Exit

from flows.models.find_model import find_model
from flows.reading import status as runs
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.runs.lookup import find_run
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.cli.session import open_journal
from scripts.models import ckpt_folder
from scripts.models.flags import (
    CkptInitFlags,
    CkptListFlags,
    CkptPullFlags,
    CkptPushFlags,
    CkptShowFlags,
    CkptStatusFlags,
    CkptVerifyFlags,
)
from store import catalogue, credentials, moving_line
from store.artifacts.artifacts import Store
from store.backends.by_uri import open_place
from store.catalogue import FoundCheckpoint
from store.manifest import Manifest
from trainer.records.phase_registry import PHASES

AT_WORK = ("planned", "idle", "running", "ending")
FOUND = 5  # an audit found something


def ckpt_list(spec: CkptListFlags) -> None:
    found = everything(context.settings(), spec.from_, spec.job)
    if spec.json:
        print_json([about(one) for one in found])
    elif found:
        rows = [("checkpoint", "kind", "phase", "step", "size", "saved (UTC)", "loss")]
        print(render.clean(columns([*rows, *(row(one) for one in found)])))
    else:
        render.say(f"No checkpoints found in {where(spec.from_)}; make one: inv train --phase base")


def ckpt_status(spec: CkptStatusFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal, moving_line.waiting("asking every pod"):
        name = find_run(journal, spec.run).run if spec.run else ""
        views = [one for one in runs.status(journal, settings, name)
                 if (one.run == name if name else one.state in AT_WORK)]  # fmt: skip
    if spec.json:
        print_json([{"run": one.run, "pending": list(one.pending), "problem": one.upload_problem or None,
                     "in_store": dict(one.in_store)} for one in views])  # fmt: skip
        return
    if not views:
        render.say("no run is at work")
    for one in views:
        saved = ", ".join(one.in_store) or "none"
        print(render.clean(f"{one.run}: pending {len(one.pending)}; newest checkpoints in the store: {saved}"))
        for name in one.pending:
            print(render.clean(f"  {name}"))
        if one.upload_problem:
            render.say(render.clean(f"  the store cannot be written just now: {one.upload_problem}"))


def ckpt_show(spec: CkptShowFlags) -> None:
    one = named(everything(context.settings(), spec.from_), spec.model, spec.from_)
    if one.trouble:
        raise UsageError(f"{one.name}: {one.trouble}; see all of it: inv ckpt.verify {one.name}")
    if spec.json:
        print_json({**about(one), "manifest": one.manifest})
        return
    facts = {**about(one), **{name: one.manifest[name] for name in sorted(one.manifest) if name != "files"}}
    lines = [(name, _words(value)) for name, value in facts.items()]
    lines += [(f"file {file['path']}", f"{file['size']} bytes, sha256 {file['sha256']}") for file in _files(one)]
    print(render.clean(columns(lines)))


def ckpt_verify(spec: CkptVerifyFlags) -> None:
    found = everything(context.settings(), spec.from_)
    chosen = [named(found, spec.model, spec.from_)] if spec.model else found
    results = [(one, one.trouble or catalogue.problem(one)) for one in chosen]
    if spec.json:
        print_json([{**about(one), "problem": problem} for one, problem in results])
    elif results:
        rows = [("checkpoint", "kind", "step", "state")]
        print(render.clean(columns([*rows, *((a.name, a.kind, str(a.step), b or "whole") for a, b in results)])))
    else:
        render.say(f"No checkpoints found in {where(spec.from_)}; there is nothing to verify")
    damaged = [one.name for one, problem in results if problem]
    if damaged:
        raise Exit(f"inv ckpt.verify: damaged: {', '.join(damaged)}; a run passes over them and takes the one before",
                   code=FOUND)  # fmt: skip


def ckpt_pull(spec: CkptPullFlags) -> None:
    if not spec.to:
        raise UsageError("--to DIR is missing: the folder that the checkpoint goes to")
    if bool(spec.model) == spec.latest:
        raise UsageError("give the name of one checkpoint (inv ckpt.list shows them), or --latest")
    away = [one for one in everything(context.settings(), spec.from_) if one.kind != "here"]
    one = newest(away, spec.from_) if spec.latest else named(away, spec.model, spec.from_)
    out = Path(spec.to).expanduser().absolute() / (one.name if one.kind == "final" else Path(one.path).name)
    if out.exists():
        raise UsageError(f"{out} is there already; give another folder: --to DIR")
    if one.kind == "final":
        store = Store(one.uri)
        shutil.copytree(store.path(one.name, store.manifest(one.name).fingerprint), out)
    else:
        catalogue.bring(one, out)
    if spec.json:
        print_json({**about(one), "folder": str(out)})
    else:
        print(out)


def ckpt_push(spec: CkptPushFlags) -> None:
    if not spec.to:
        raise UsageError("--to is missing: hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    settings = context.settings()
    source, target = Store(spec.from_ or settings.store), Store(spec.to)
    lend_for(spec.to, settings)
    there = {one.name: one for one in source.artifacts()}
    folders = {word: found for word in spec.models if word not in there and (found := ckpt_folder.folder_of(word))}
    pushed = [ckpt_folder.push(folder, spec.to, settings, quiet=spec.json) for folder in folders.values()]
    chosen = [meant(name, there, source, settings) for name in spec.models if name not in folders]
    chosen = chosen if spec.models else [name for name in sorted(there) if not there[name].problem]
    for name in chosen:
        if name not in there:
            raise UsageError(f"no artifact {name!r} in {source.uri}; {near(name, list(there))}")
        if there[name].problem:
            raise UsageError(f"{name} in {source.uri}: {there[name].problem}; make it again: inv train")
    if not chosen and not folders:
        raise UsageError(f"{source.uri} holds nothing to push; make something: inv train --phase base")
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
    """Return the artifact that a word means: a name, or a phase, as other commands take it. Raises UsageError."""
    if name in there or name not in PHASES:
        return name
    found, _ = find_model(replace(settings, store=source.uri), name, "", render.say)
    assert found is not None, "a phase is no folder"
    return found.name


def ckpt_init(spec: CkptInitFlags) -> None:
    if not spec.to:
        raise UsageError("--to is missing: hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    lend_for(spec.to, context.settings())
    place = open_place(spec.to)
    if spec.dry_run:
        made = None
        render.say("dry run: nothing was made; by hand it would be:")
        if not spec.json:
            print(place.creation())
    else:
        made = place.create()
        render.say(
            f"{spec.to} {'is made' if made else 'was there already'}; "
            f"use it: --store {spec.to}, or SLIPWAY_STORE={spec.to}"
        )
    if spec.json:
        print_json({"uri": spec.to, "made": made, "command": place.creation()})


def everything(settings: Settings, uri: str, job: str = "") -> list[FoundCheckpoint]:
    """Return the checkpoints of that store; without one, of the settings' store and of this machine.

    job: only of runs or tags of that name.
    """
    lend_for(uri, settings)
    found = catalogue.in_store(uri or settings.store)
    if not uri:
        pods = sorted(settings.pods.glob("/".join(("*", "work", "checkpoints")))) if settings.pods.is_dir() else []
        folders = {path.parents[1].name: path for path in pods} | {"work": ROOT / "var" / "work" / "checkpoints"}
        found += catalogue.here(folders)
    return [one for one in found if job in one.name]


def lend_for(uri: str, settings: Settings) -> None:
    """Lend what the settings know of a store's keys to a store that is named on the command line too."""
    if credentials.kind(uri) in ("s3", "gs"):
        credentials.lend({name: getattr(settings, name.lower()) for name in credentials.KEYS[credentials.kind(uri)]})


def named(found: Sequence[FoundCheckpoint], name: str, uri: str) -> FoundCheckpoint:
    """Return the one that is meant: by its name, or by the end or the beginning of it. Raises UsageError."""
    if not name:
        raise UsageError("the name of a checkpoint is missing; inv ckpt.list shows them")
    exact = [one for one in found if one.name == name]
    alike = exact or [one for one in found if one.name.startswith(name) or one.name.endswith(f"/{name}")]
    if len(alike) == 1:
        return alike[0]
    if alike and len({one.name for one in alike}) == 1:
        return max(alike, key=lambda one: one.step)
    if alike:
        raise UsageError(f"{name!r} could be any of: {', '.join(one.name for one in alike[:8])}")
    raise UsageError(f"no checkpoint {name!r} in {where(uri)}; {near(name, [one.name for one in found])}")


def newest(found: Sequence[FoundCheckpoint], uri: str) -> FoundCheckpoint:
    whole = [one for one in found if not one.trouble]
    if not whole:
        raise UsageError(f"No checkpoints found in {where(uri)}")
    return max(whole, key=lambda one: (one.saved_at, one.step))


def near(name: str, known: Sequence[str]) -> str:
    if not known:
        return "there is none yet; make one: inv train --phase base"
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]}?" if close else f"available: {', '.join(known[:8])}"


def where(uri: str) -> str:
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


def row(one: FoundCheckpoint) -> tuple[str, ...]:
    loss = (one.manifest.get("metrics") or {}).get("loss")
    shown = "?" if loss is None else f"{loss:.4f}"
    size = f"{one.num_bytes / 1e6:.1f} MB"
    phase = one.trouble or str(one.manifest.get("phase", "?"))
    return one.name, one.kind, phase, str(one.step), size, one.saved_at.partition("+")[0] or "?", shown


def _files(one: FoundCheckpoint) -> list[dict[str, Any]]:
    return list(one.manifest["files"])


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    return "?" if value is None else str(value)


@contextlib.contextmanager
def _only(folder: Path, manifest: Manifest) -> Iterator[Path]:
    """Yield a folder with the files of that artifact alone: flat ones lie beside others."""
    if not manifest.flat:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="slipway-") as copies:
        for entry in manifest.files:
            shutil.copyfile(folder / entry.path, Path(copies, entry.path))
        yield Path(copies)
