"""The flags of the commands about checkpoints, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output

FROM = "hf://, s3://, gs:// or a folder (default: the store of the settings, and this machine)"
NAME = "name as inv ckpt.list shows it, or its beginning or end"


@dataclass(frozen=True, kw_only=True)
class CkptListFlags(Output):
    from_: str = flag("", FROM)
    job: str = flag("", "only checkpoints whose name contains this")


@dataclass(frozen=True, kw_only=True)
class CkptShowFlags(Output):
    model: str = flag("", NAME, word=True)
    from_: str = flag("", FROM)


@dataclass(frozen=True, kw_only=True)
class CkptStatusFlags(Output):
    run: str = flag("", "a run (default: all that are at work)", word=True)


@dataclass(frozen=True, kw_only=True)
class CkptVerifyFlags(Output):
    model: str = flag("", f"{NAME} (default: all)", word=True)
    from_: str = flag("", FROM)


@dataclass(frozen=True, kw_only=True)
class CkptPullFlags(Output):
    model: str = flag("", NAME, word=True)
    from_: str = flag("", FROM)
    to: str = flag("", "folder to put it in")
    latest: bool = flag(False, "the newest one")


@dataclass(frozen=True, kw_only=True)
class CkptPushFlags(Output):
    models: tuple[str, ...] = flag(
        (), "artifacts, or folders: of Hugging Face, of a pack's format, of a tokenizer (default: all)", word=True
    )
    to: str = flag("", "hf://user/repo, s3://bucket/folder, gs://bucket/folder or a folder")
    from_: str = flag("", "the store to copy from (default: the one in the settings)")


@dataclass(frozen=True, kw_only=True)
class CkptInitFlags(Output):
    to: str = flag("", "the store to make")
    dry_run: bool = flag(False, "show the vendor's own command, and stop")
