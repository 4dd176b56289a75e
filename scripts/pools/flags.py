"""The flags of the commands of this room, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output


@dataclass(frozen=True, kw_only=True)
class ListFlags(Output):
    pool: str = flag("", "one pool, or one machine", word=True)


@dataclass(frozen=True, kw_only=True)
class UpFlags(Output):
    pool: str = flag("", "one pool, or one machine", word=True)


@dataclass(frozen=True, kw_only=True)
class CheckFlags(Output):
    pool: str = flag("", "one pool, or one machine", word=True)


@dataclass(frozen=True, kw_only=True)
class ImportFlags(Output):
    from_: str = flag("", "a file of `terraform output -json`, `terraform show -json`, or a state file")
    output: str = flag("", "only this output of it")
    pool: str = flag("terraform", "where the machines go")
    user: str = flag("", "who logs in there, for a new pool")
    key: str = flag("", "the private key, for a new pool")
    dry_run: bool = flag(False, "show the new lines and write nothing")


@dataclass(frozen=True, kw_only=True)
class HostsFlags(Output):
    forget: tuple[str, ...] = flag((), "a machine that may be offered again; repeatable", word=True)
