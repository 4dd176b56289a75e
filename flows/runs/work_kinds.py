"""Kinds of work of a launch: training phases, and kinds added by packs, such as the user's own commands.

    flags, file -> asked -> RequestedWork: with_provider -> variables -> with_flags -> resolve -> ResolvedLaunch

The kind of a pack is loaded only for a command line with a flag of the pack, or for a YAML file with a key of the kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from flows.runs import launch
from flows.specs import variables
from flows.specs.launch import LaunchSpec
from infra import strict_yaml
from infra.errors import UsageError
from infra.flags import Typed, nondefault_flags
from infra.runs.timing import Say
from infra.selection.machine_spec import MachineSpec
from infra.settings import Settings
from store import packs
from store.packs import PackWork

S = TypeVar("S", bound=LaunchSpec)
HIDDEN = "***"  # in place of the value of a secret


class RequestedWork:
    """The requested work: training phases, unless a kind of a pack claims the command line."""

    def with_provider(self, spec: S) -> S:
        """Return the launch with the provider of the work, if the user typed none. Raises UsageError."""
        return spec

    def variables(self, settings: Settings) -> Mapping[str, str]:
        """Return variables to treat like typed variables of `--env`. Raises UsageError."""
        return {}

    def with_flags(self, spec: S, settings: Settings, tell: Say) -> S:
        """Return the launch with the flags set by the work and by typed variables. Raises UsageError."""
        return variables.applied(spec, settings.given)

    def resolve(self, spec: LaunchSpec, settings: Settings) -> launch.ResolvedLaunch:
        """Return the resolved launch. Raises UsageError for an impossible launch."""
        return launch.resolve(spec, settings)


@dataclass(frozen=True, kw_only=True)
class EstimatedWork:
    """Phases and a machine for a cost estimate, selected by a flag other than `--phase`."""

    words: str
    spec: LaunchSpec
    machine: MachineSpec


@dataclass(frozen=True)
class FileFinding:
    """A line of a file with the correction."""

    line: int
    text: str
    is_refused: bool = True
    """False for a line that a launch accepts, and that fails later."""


class WorkKind:
    """A kind of work of a pack."""

    def work_of_command(self, spec: LaunchSpec, file: str) -> RequestedWork | None:
        """Return the work of a command line; None for training phases. Raises UsageError.

        file: path of a file of this kind; "" without a file.
        """
        return None

    def cost_variables(self, spec: Typed, profile: str) -> Mapping[str, str]:
        """Return the variables equivalent to the pack's flags of `inv cost`."""
        return {}

    def work_to_estimate(self, spec: Typed, wanted: LaunchSpec, settings: Settings) -> EstimatedWork | None:
        """Return the work selected by the pack's flags of `inv cost`; None without such flags. Raises UsageError.

        wanted: the launch given by the flags of the core.
        """
        return None

    def file_variables(self, path: Path) -> Mapping[str, str | None]:
        """Return the variables of a file of this kind: None for no value, HIDDEN for a secret. Raises UsageError."""
        return {}

    def findings(self, path: Path, provider: str) -> Sequence[FileFinding]:
        """Return the lines that a launch on the provider refuses, and the lines that would fail later.

        provider: "" for any vendor, or the provider of the file. Raises UsageError for a file of a different kind.
        """
        return ()


def work_of_command(spec: LaunchSpec, file: str) -> RequestedWork:
    """Return the work of a command line. Raises UsageError."""
    kind = of_file(Path(file)) if file else None
    works = [kind.work_of_command(spec, file)] if kind else [one.work_of_command(spec, "") for one in _of_flags(spec)]
    return next(filter(None, works), RequestedWork())


def of_file(path: Path) -> WorkKind | None:
    """Return the kind of a YAML file; None for a flag file or an unreadable file.

    Raises UsageError for a file of a missing pack.
    """
    entry = kind_of_file(path)
    return packs.load(entry.where)() if entry else None


def _of_flags(spec: Typed) -> list[WorkKind]:
    """Return the kinds of the packs with given flags. The record of a pack's flags is in the folder of the pack."""
    names = {type(one).__module__.split(".")[1] for one in spec.added if nondefault_flags(one)}
    return [packs.load(entry.where)() for name in sorted(names) for entry in packs.installed()[name].works.values()]


def cost_variables(spec: Typed, profile: str) -> dict[str, str]:
    """Return the result of `WorkKind.cost_variables` for all kinds with given flags."""
    return {name: value for kind in _of_flags(spec) for name, value in kind.cost_variables(spec, profile).items()}


def work_to_estimate(spec: Typed, wanted: LaunchSpec, settings: Settings) -> EstimatedWork | None:
    """Return the work selected by flags of packs for `inv cost`; None without such flags. Raises UsageError."""
    return next((found for kind in _of_flags(spec) if (found := kind.work_to_estimate(spec, wanted, settings))), None)


def kind_of_file(path: Path) -> PackWork | None:
    """Return the kind of a file; None for a flag file, or for a file without read access.

    Raises UsageError for a file of a missing pack.
    """
    try:
        documents = strict_yaml.documents(path)
    except OSError:
        return None
    keys = {key for one in documents if isinstance(one.value, dict) for key in one.value}
    for key in sorted(keys & {*packs.words("file_keys")}):
        if why := packs.missing_pack_message("file_keys", key):
            raise UsageError(f"{path}: {why}")
    return next((entry for entry in packs.works() if keys & {*entry.file_keys}), None)


def about_file_key(key: str) -> str:
    """Return a message about the kind of file that has this key; "" for an unknown key."""
    return next(filter(None, (packs.load(entry.about_key)(key) for entry in packs.works() if entry.about_key)), "")
