"""The command `ckpt.show`: a checkpoint's manifest."""

from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError
from infra.flags import flag
from scripts.checkpoints.lookup import FROM, NAME, about, find_checkpoint, list_checkpoints
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import columns, print_json
from store.catalogue import FoundCheckpoint


@dataclass(frozen=True, kw_only=True)
class CkptShowFlags(Output):
    model: str = flag("", NAME, word=True)
    from_: str = flag("", FROM)


@command(record=CkptShowFlags, example="inv ckpt.show chatsft_checkpoints/smoke")
def show(spec: CkptShowFlags) -> None:
    """Show what a checkpoint holds.

    The output has step, time, model, configuration, data position, metrics and files.
    """
    one = find_checkpoint(list_checkpoints(context.settings(), spec.from_), spec.model, spec.from_)
    if one.trouble:
        raise UsageError(f"{one.name}: {one.trouble}. Check every byte: inv ckpt.verify {one.name}")
    if spec.json:
        print_json({**about(one), "manifest": one.manifest})
        return
    facts = {**about(one), **{name: one.manifest[name] for name in sorted(one.manifest) if name != "files"}}
    lines = [(name, _words(value)) for name, value in facts.items()]
    lines += [(f"file {file['path']}", f"{file['size']} bytes, sha256 {file['sha256']}") for file in _files(one)]
    print(render.clean(columns(lines)))


def _files(one: FoundCheckpoint) -> list[dict[str, Any]]:
    return list(one.manifest["files"])


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_words(one)}" for name, one in value.items())
    return "?" if value is None else str(value)
