"""The flags of the commands about your own machines, each declared once."""

from dataclasses import dataclass

from infra.flags import flag
from scripts.cli.flags import Output


@dataclass(frozen=True, kw_only=True)
class ListFlags(Output):
    pool: str = flag("", "only this pool or machine", word=True)


@dataclass(frozen=True, kw_only=True)
class UpFlags(Output):
    pool: str = flag("", "only this pool or machine", word=True)


@dataclass(frozen=True, kw_only=True)
class CheckFlags(Output):
    pool: str = flag("", "only this pool or machine", word=True)


@dataclass(frozen=True, kw_only=True)
class ImportFlags(Output):
    from_: str = flag("", "a file of `terraform output -json`, `terraform show -json`, or a state file")
    output: str = flag("", "only this Terraform output")
    pool: str = flag("terraform", "pool that the machines are added to")
    user: str = flag("", "login name, for a new pool")
    key: str = flag("", "private key file, for a new pool")
    dry_run: bool = flag(False, "show the new lines and write nothing")


@dataclass(frozen=True, kw_only=True)
class HostsFlags(Output):
    forget: tuple[str, ...] = flag((), "offer this machine again; repeatable", word=True)
